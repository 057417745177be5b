//! The cost of a lock on the file: transactions, and the access path of a statement to its row.

use std::path::Path;
use std::sync::Arc;

use leasehold_conformance::calls::{LONG, claim, clock, hold, release};
use leasehold_core::{Backend, Claim, Proof, Release, Renew, Renewal};
use leasehold_sqlite::SqliteConfig;
use rusqlite::Connection;

async fn open(file: &Path) -> Arc<dyn Backend> {
    let url = format!("sqlite:{}", file.display());
    leasehold_sqlite::connect(SqliteConfig::parse(&url).unwrap(), clock()).await.unwrap()
}

/// Somebody who reads all the while, so that the journal only ever grows.
fn reader(file: &Path) -> Connection {
    let connection = Connection::open(file).unwrap();
    connection.execute_batch("BEGIN; SELECT count(*) FROM leasehold").unwrap();
    connection
}

/// Transactions in the journal: frames that say how many pages the file has after them.
fn commits(file: &Path) -> usize {
    let journal = std::fs::read(format!("{}-wal", file.display())).unwrap();
    let number = |at: usize| u32::from_be_bytes(journal[at..at + 4].try_into().unwrap());
    let frame = HEAD_OF_FRAME + number(8) as usize;
    let frames = (HEAD_OF_JOURNAL..).step_by(frame).take_while(|at| at + frame <= journal.len());
    // Frames of an older run of the journal have another salt.
    frames.filter(|at| number(at + 8) == number(16) && number(at + 4) > 0).count()
}

const HEAD_OF_JOURNAL: usize = 32;
const HEAD_OF_FRAME: usize = 24;

#[tokio::test]
async fn uncontended_acquire_and_release_take_one_transaction_each() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("locks.db");
    let backend = open(&file).await;
    let _reader = reader(&file);
    // The log begins with the first change after the file was opened.
    let first = claim("first", LONG);
    hold(&*backend, &first).await;
    assert!(matches!(release(&*backend, &first).await, Release::Freed));
    let before = commits(&file);
    for n in 0..100 {
        let claim = claim(&format!("job/{}", n % 20), LONG);
        hold(&*backend, &claim).await;
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
    assert_eq!(commits(&file) - before, 200);
}

/// As many renewals as `LEASEHOLD_RENEWALS` says, else two thousand.
#[tokio::test]
async fn a_hundred_renewals_are_one_transaction_at_most() {
    let renewals: usize =
        std::env::var("LEASEHOLD_RENEWALS").map_or(2_000, |renewals| renewals.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("locks.db");
    let (backend, other) = (open(&file).await, open(&file).await);
    let claims: Vec<Claim> = (0..renewals).map(|n| claim(&format!("many/{n}"), LONG)).collect();
    for claim in &claims {
        hold(&*backend, claim).await;
    }
    let _reader = reader(&file);
    let proof = Proof::none();
    let batch: Vec<Renew<'_>> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    // Who has just taken them knows their rows; others look first, which writes nothing.
    for renewer in [backend.clone(), other] {
        let before = commits(&file);
        let answers = renewer.renew(&batch).await;
        assert!(answers.iter().all(|answer| matches!(answer, Renewal::Renewed)));
        let spent = commits(&file) - before;
        assert!(spent <= renewals.div_ceil(100), "{spent} transactions for {renewals} renewals");
    }
    let references: Vec<&Claim> = claims.iter().collect();
    assert!(backend.release(&references).await.iter().all(|answer| matches!(answer, Release::Freed)));
}
