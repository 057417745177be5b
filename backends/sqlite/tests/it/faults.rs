//! Faults of a database file, and of the machine under it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::SteadyClock;
use leasehold_core::{
    Backend, Claim, ClaimId, Durability, Effect, Failure, FailureKind, Fence, FenceGrade, Note, Patience,
    Proof, Release, Renew, Renewal, Resource, Severity, Share, Step,
};
use leasehold_sqlite::SqliteConfig;
use leasehold_testkit::peers::Peer;
use leasehold_testkit::require::skip;
use leasehold_testkit::surroundings::{fill, inside, private_mounts};
use rusqlite::Connection;

struct TestDir {
    directory: tempfile::TempDir,
}

impl TestDir {
    fn new() -> TestDir {
        TestDir { directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("locks.db")
    }

    /// Opens it, with time for a disk that is busy, unless the options say another one.
    async fn open(&self, options: &str) -> Result<Arc<dyn Backend>, Failure> {
        open(&self.file(), if options.is_empty() { "?timeout=30s" } else { options }).await
    }

    /// The database as somebody else sees it.
    fn other(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }
}

async fn open(file: &Path, options: &str) -> Result<Arc<dyn Backend>, Failure> {
    let url = format!("sqlite:{}{options}", file.display());
    leasehold_sqlite::connect(SqliteConfig::parse(&url)?, Arc::new(SteadyClock::new())).await
}

fn claim(name: &str) -> Claim {
    let mut id = [0; 16];
    getrandom::fill(&mut id).unwrap();
    Claim::new(ClaimId::from_bytes(id), Resource::new(name).unwrap(), Share::MUTEX, Duration::from_secs(30))
}

async fn try_take(backend: &Arc<dyn Backend>, claim: &Claim) -> Result<Option<Fence>, Failure> {
    let step = backend.contend(claim, &Patience::none(Arc::new(SteadyClock::new()))).await?;
    Ok(match step {
        Step::Granted(grant) => grant.fence,
        Step::Busy(_) => None,
    })
}

async fn renew(backend: &Arc<dyn Backend>, claim: &Claim) -> Renewal {
    backend.renew(&[Renew { claim, proof: &Proof::none() }]).await.remove(0)
}

#[tokio::test]
async fn a_reboot_frees_everything_and_takes_no_fence_back() {
    let dir = TestDir::new();
    let before = dir.open("").await.unwrap();
    let held = claim("job");
    let fence = try_take(&before, &held).await.unwrap().unwrap();
    drop(before);
    // The machine's clock begins again: what was written before is of a later time than now.
    dir.other().execute("UPDATE leasehold_meta SET boot = 'an earlier one'", []).unwrap();
    dir.other().execute("UPDATE leasehold SET origin = origin + 1e15, lapses = lapses + 1e15", []).unwrap();
    let after = dir.open("").await.unwrap();
    let next = try_take(&after, &claim("job")).await.unwrap().expect("nobody lives who held it");
    assert!(next > fence);
    assert!(matches!(renew(&after, &held).await, Renewal::Lost));
    assert!(matches!(after.release(&[&held]).await[0], Release::Gone));
}

/// A loss of power takes back what was not synced: here all since the database was opened.
#[tokio::test]
async fn power_loss_takes_back_claims_and_no_fence() {
    let dir = TestDir::new();
    let before = dir.open("").await.unwrap();
    let (first, mut last) = (claim("job"), Fence::default());
    try_take(&before, &first).await.unwrap().unwrap();
    before.release(&[&first]).await;
    let files = ["locks.db", "locks.db-wal"].map(|name| dir.directory.path().join(name));
    let synced = files.each_ref().map(|file| std::fs::read(file).unwrap());
    for _ in 0..100 {
        let held = claim("job");
        last = try_take(&before, &held).await.unwrap().unwrap();
        assert!(matches!(before.release(&[&held]).await[..], [Release::Freed]));
    }
    drop(before);
    // The thread of that client closes its connections in its own time, and removes the log with the last.
    for change in ["boot = 'an earlier one'", "boot = ''", "namespace = '1 2 3'"] {
        let dir = TestDir::new();
        for (file, synced) in files.iter().zip(&synced) {
            std::fs::write(dir.directory.path().join(file.file_name().unwrap()), synced).unwrap();
        }
        dir.other().execute(&format!("UPDATE leasehold_meta SET {change}"), []).unwrap();
        if change.starts_with("namespace") {
            let refusal = dir.open("").await.unwrap_err();
            let advice = refusal.detail().split('`').nth(1).unwrap();
            assert_eq!(dir.other().execute(advice, []).unwrap(), 1, "{advice}");
        }
        let row: i64 = dir.other().query_row("SELECT seq FROM leasehold", [], |row| row.get(0)).unwrap();
        assert!(row.unsigned_abs() < last.seq, "the row has an earlier fence: {row}");
        let after = dir.open("").await.unwrap();
        let (held, other) = (claim("job"), claim("another"));
        let next = try_take(&after, &held).await.unwrap().unwrap();
        assert!(next > last, "{next} after {last}");
        // A row that was lost as a whole begins above all that were granted, too.
        assert!(try_take(&after, &other).await.unwrap().unwrap() > last);
        after.release(&[&held]).await;
        let later = try_take(&after, &claim("job")).await.unwrap().unwrap();
        assert_eq!(later.seq, next.seq + 1, "only the first fence after a start skips some");
    }
}

#[tokio::test]
async fn database_of_earlier_clients_gets_bounds_above_its_fences() {
    let dir = TestDir::new();
    let backend = dir.open("").await.unwrap();
    let held = claim("job");
    try_take(&backend, &held).await.unwrap().unwrap();
    backend.release(&[&held]).await;
    drop(backend);
    // Form 2 has no bounds. The clock was once set far ahead.
    let earlier = "ALTER TABLE leasehold_meta DROP COLUMN low; ALTER TABLE leasehold_meta DROP COLUMN high; \
                   UPDATE leasehold_meta SET form = 2, oldest_client = 2; \
                   UPDATE leasehold SET seq = 9000000000000000";
    dir.other().execute_batch(earlier).unwrap();
    let backend = dir.open("").await.unwrap();
    let fence = try_take(&backend, &claim("job")).await.unwrap().unwrap();
    assert!(fence.seq > 9_000_000_000_000_000, "{fence}");
    let bounds = "SELECT low, high, oldest_client FROM leasehold_meta";
    let (low, high, oldest): (i64, i64, i64) =
        dir.other().query_row(bounds, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    assert!(low <= fence.seq.cast_signed() && fence.seq.cast_signed() < high, "{low} {fence} {high}");
    assert_eq!(oldest, 3, "clients that know no bounds may not open it");
}

#[tokio::test]
async fn log_is_written_back_and_does_not_grow() {
    let dir = TestDir::new();
    let backend = dir.open("").await.unwrap();
    for round in 0..3_000 {
        let held = claim(&format!("job/{}", round % 7));
        try_take(&backend, &held).await.unwrap().unwrap();
        assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
    }
    let log = std::fs::metadata(dir.directory.path().join("locks.db-wal")).unwrap().len();
    assert!(log < 16 << 20, "{log} bytes after 6,000 changes");
}

/// Each client makes few changes, and none is the last one that closes the file.
#[tokio::test]
async fn log_does_not_grow_beside_a_client_that_changes_nothing() {
    let dir = TestDir::new();
    let idle = dir.open("").await.unwrap();
    for round in 0..2_000 {
        let (backend, held) = (dir.open("").await.unwrap(), claim(&format!("job/{}", round % 7)));
        try_take(&backend, &held).await.unwrap().unwrap();
        assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
    }
    let log = std::fs::metadata(dir.directory.path().join("locks.db-wal")).unwrap().len();
    drop(idle);
    assert!(log < 8 << 20, "{log} bytes after 4,000 changes");
}

#[tokio::test]
async fn another_boot_id_on_the_same_kernel_frees_nothing() {
    let name = "faults::another_boot_id_on_the_same_kernel_frees_nothing";
    // As a container has it: a random identity is mounted over the kernel's.
    let mount = "echo 11111111-2222-3333-4444-555555555555 >\"$DIR/id\"; \
                 mount --bind \"$DIR/id\" /proc/sys/kernel/random/boot_id";
    let Some(dir) = inside(name, &private_mounts(), mount) else { return };
    let identity = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let file = dir.join("locks.db");
    let container = open(&file, "").await.unwrap();
    assert!(identity().starts_with("11111111"));
    let held = claim("job");
    try_take(&container, &held).await.unwrap().unwrap();
    let unmounted = std::process::Command::new("umount").arg("/proc/sys/kernel/random/boot_id").status();
    assert!(unmounted.unwrap().success() && !identity().starts_with("11111111"));
    let host = open(&file, "").await.unwrap();
    assert!(try_take(&host, &claim("job")).await.unwrap().is_none(), "two hold it");
    assert!(matches!(renew(&container, &held).await, Renewal::Renewed));
}

#[tokio::test]
async fn a_row_with_a_foreign_name_does_not_end_a_listing() {
    let dir = TestDir::new();
    let backend = dir.open("").await.unwrap();
    for name in ["a", "c", "d"] {
        try_take(&backend, &claim(name)).await.unwrap().unwrap();
    }
    let foreign = "INSERT INTO leasehold SELECT 'b' || char(7), claims, version, seq, origin, lapses FROM leasehold WHERE name = 'a'";
    dir.other().execute(foreign, []).unwrap();
    let page = backend.list("", None, 2).await.unwrap();
    let names: Vec<_> = page.iter().map(|summary| summary.resource.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
}

#[tokio::test]
async fn a_missing_database_is_an_error_without_create() {
    let dir = TestDir::new();
    let refused = dir.open("?create=no").await.unwrap_err();
    assert!(refused.detail().contains("no such database"), "{refused}");
    assert!(!dir.file().exists());
    drop(dir.open("").await.unwrap());
    dir.open("?create=no").await.unwrap();
}

#[tokio::test]
async fn opening_survives_others_that_close_and_remove_the_file() {
    let dir = TestDir::new();
    for _ in 0..200 {
        // The thread of the earlier client closes its connection, and removes the log, at any moment.
        drop(dir.open("").await.unwrap());
        let _ = std::fs::remove_file(dir.file());
        dir.open("").await.unwrap();
    }
}

#[tokio::test]
async fn a_lost_file_is_a_lost_lock_and_fences_rise_all_the_same() {
    let dir = TestDir::new();
    let before = dir.open("").await.unwrap();
    let fence = try_take(&before, &claim("job")).await.unwrap().unwrap();
    drop(before);
    std::fs::remove_file(dir.file()).unwrap();
    let after = dir.open("").await.unwrap();
    assert!(try_take(&after, &claim("job")).await.unwrap().unwrap() > fence);
}

/// A file that was removed or replaced remains for the clients that have it open, and for no others.
#[tokio::test]
async fn replaced_database_file_is_a_loss_to_its_holders() {
    let dir = TestDir::new();
    let backend = dir.open("").await.unwrap();
    let copy = dir.directory.path().join("copy.db");
    let mut last = Fence::default();
    for change in ["removed", "replaced", "gone with its directory"] {
        let held = claim("job");
        let fence = try_take(&backend, &held).await.unwrap().unwrap();
        assert!(fence > last, "{change}: {fence} after {last}");
        match change {
            "removed" => std::fs::remove_file(dir.file()).unwrap(),
            "replaced" => {
                Connection::open(&copy).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
                // The log lies beside the file, and would be taken for that of the new one.
                for log in ["-wal", "-shm"] {
                    let mut log_file = dir.file().into_os_string();
                    log_file.push(log);
                    std::fs::remove_file(log_file).unwrap();
                }
                std::fs::rename(&copy, dir.file()).unwrap();
            }
            _ => {
                std::fs::remove_dir_all(dir.directory.path()).unwrap();
                let renewal = renew(&backend, &held).await;
                assert!(matches!(renewal, Renewal::Unknown(_)), "{renewal:?}");
                let refused = try_take(&backend, &claim("job")).await.unwrap_err();
                assert!(refused.detail().contains("directory has to exist"), "{refused}");
                std::fs::create_dir(dir.directory.path()).unwrap();
            }
        }
        let renewal = renew(&backend, &held).await;
        assert!(matches!(renewal, Renewal::Lost), "{change}: {renewal:?}");
        assert!(matches!(backend.release(&[&held]).await[..], [Release::Gone]), "{change}");
        // One who came only now sees the same locks.
        let late = dir.open("").await.unwrap();
        let next = claim("job");
        last = try_take(&late, &next).await.unwrap().unwrap();
        assert!(last > fence, "{change}: {last} after {fence}");
        assert!(try_take(&backend, &claim("job")).await.unwrap().is_none(), "{change}: two hold it");
        assert!(matches!(late.release(&[&next]).await[..], [Release::Freed]), "{change}");
    }
}

/// A process that takes claims, as [`crate::conformance::taker`] does.
struct Other(Peer);

impl Other {
    fn start(dir: &TestDir) -> Other {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["conformance::taker", "--exact", "--nocapture"]);
        command.env("LEASEHOLD_TAKER", format!("sqlite:{}?timeout=30s", dir.file().display()));
        let other = Other(Peer::start(command).unwrap());
        assert_eq!(other.answer(), "ready");
        other
    }

    /// Sends an order about this claim; it may have a last word.
    fn send(&mut self, verb: &str, claim: &Claim, last: &str) {
        let (id, ttl) = (claim.id.to_hex(), claim.ttl.as_millis());
        self.0.send_line(&format!("{verb} {id} {} 1/1 {ttl} {last}", claim.resource)).unwrap();
    }

    fn answer(&self) -> String {
        loop {
            if let Some(answer) = self.0.answer().unwrap().strip_prefix("taker: ") {
                return answer.to_owned();
            }
        }
    }
}

/// SQLite finds the memory of its locks by the path, too. That of the removed file has the place of each page that was
/// changed since the log was begun, such as the first page of a table that grows.
#[tokio::test]
async fn removed_file_that_others_keep_open_blocks_no_new_one() {
    let dir = TestDir::new();
    let mut others = [Other::start(&dir), Other::start(&dir)];
    let held = [claim("a"), claim("b")];
    for (other, held) in others.iter_mut().zip(&held) {
        other.send("contend", held, "0");
        assert!(other.answer().starts_with("granted"));
    }
    let growing = dir.open("").await.unwrap();
    for n in 0..300 {
        try_take(&growing, &claim(&format!("job/{n}"))).await.unwrap().unwrap();
    }
    drop(growing);
    std::fs::remove_file(dir.file()).unwrap();
    let next = dir.open("").await.unwrap();
    try_take(&next, &claim("a")).await.unwrap().unwrap();
    for (other, held) in others.iter_mut().zip(&held) {
        other.send("renew", held, "");
        assert_eq!(other.answer(), "lost");
    }
    // All of them see the same locks.
    others[0].send("contend", &claim("a"), "0");
    assert_eq!(others[0].answer(), "busy");
    others[1].send("contend", &claim("b"), "0");
    assert!(others[1].answer().starts_with("granted"));
    assert!(try_take(&next, &claim("b")).await.unwrap().is_none(), "two hold it");
}

/// SQLite names its log after the path, so each name of the file has a log of its own.
#[tokio::test]
async fn database_file_with_two_names_is_refused() {
    let dir = TestDir::new();
    let second = dir.directory.path().join("second.db");
    let backend = dir.open("").await.unwrap();
    let held = claim("job");
    try_take(&backend, &held).await.unwrap().unwrap();
    std::fs::hard_link(dir.file(), &second).unwrap();
    for file in [&second, &dir.file()] {
        let refusal = open(file, "").await.expect_err("a second log, and two may hold");
        assert_eq!((refusal.kind, refusal.effect), (FailureKind::Unsupported, Effect::None), "{refusal}");
        assert!(refusal.detail().contains("hard links"), "{refusal}");
    }
    assert!(!dir.directory.path().join("second.db-wal").exists(), "the refused name has a log");
    // A backup may make such a name for a moment.
    assert!(matches!(renew(&backend, &held).await, Renewal::Renewed));
    std::fs::remove_file(&second).unwrap();
    // A symbolic link leads to the same log.
    std::os::unix::fs::symlink(dir.file(), &second).unwrap();
    let other = open(&second, "").await.unwrap();
    assert!(try_take(&other, &claim("job")).await.unwrap().is_none(), "two hold it");
}

/// As a container has it that mounts the file and not its directory.
#[tokio::test]
async fn database_file_that_is_mounted_alone_is_refused() {
    let name = "faults::database_file_that_is_mounted_alone_is_refused";
    let mount = "cd \"$DIR\"; mkdir -p host file directory; touch host/locks.db file/locks.db; \
                 mount --bind host/locks.db file/locks.db; mount --bind host directory";
    let Some(dir) = inside(name, &private_mounts(), mount) else { return };
    let host = open(&dir.join("host/locks.db"), "").await.unwrap();
    try_take(&host, &claim("job")).await.unwrap().unwrap();
    let refusal = open(&dir.join("file/locks.db"), "").await.expect_err("a second log, and two may hold");
    assert_eq!((refusal.kind, refusal.effect), (FailureKind::Unsupported, Effect::None), "{refusal}");
    assert!(refusal.detail().contains("mount its directory"), "{refusal}");
    assert!(!dir.join("file/locks.db-wal").exists(), "the refused name has a log");
    let container = open(&dir.join("directory/locks.db"), "").await.unwrap();
    assert!(try_take(&container, &claim("job")).await.unwrap().is_none(), "two hold it");
}

#[tokio::test]
async fn deleted_row_is_reported_at_the_next_renewal() {
    let dir = TestDir::new();
    let backend = dir.open("?table=mine").await.unwrap();
    let held = claim("job");
    try_take(&backend, &held).await.unwrap().unwrap();
    assert!(matches!(renew(&backend, &held).await, Renewal::Renewed));
    dir.other().execute("DELETE FROM mine", []).unwrap();
    assert!(matches!(renew(&backend, &held).await, Renewal::Lost));
}

#[tokio::test]
async fn locked_database_is_waited_for_and_then_reported() {
    let dir = TestDir::new();
    let (backend, patient) =
        (dir.open("?timeout=200ms").await.unwrap(), dir.open("?timeout=30s").await.unwrap());
    let other = dir.other();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refusal = try_take(&backend, &claim("job")).await.unwrap_err();
    assert_eq!(refusal.kind, FailureKind::Unavailable);
    assert!(refusal.detail().contains("open transaction"), "{refusal}");
    let claim = claim("job");
    let taking = try_take(&patient, &claim);
    let ending = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        other.execute_batch("COMMIT").unwrap();
    };
    assert!(tokio::join!(taking, ending).0.unwrap().is_some());
}

/// The time that each of them waited behind the others counts.
#[tokio::test]
async fn callers_of_a_locked_database_are_refused_together() {
    let dir = TestDir::new();
    let backend = dir.open("?timeout=500ms").await.unwrap();
    let held: Vec<Claim> = (0..10).map(|number| claim(&format!("held/{number}"))).collect();
    for held in &held {
        try_take(&backend, held).await.unwrap().unwrap();
    }
    let other = dir.other();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = std::time::Instant::now();
    let takers: Vec<_> = (0..10)
        .map(|number| {
            let backend = backend.clone();
            tokio::spawn(async move { try_take(&backend, &claim(&format!("new/{number}"))).await })
        })
        .collect();
    let releasers: Vec<_> = held
        .into_iter()
        .map(|held| {
            let backend = backend.clone();
            tokio::spawn(async move { backend.release(&[&held]).await.remove(0) })
        })
        .collect();
    for taker in takers {
        let refusal = taker.await.unwrap().unwrap_err();
        assert!(refusal.detail().contains("open transaction"), "{refusal}");
    }
    for releaser in releasers {
        let release = releaser.await.unwrap();
        assert!(matches!(release, Release::Unknown(_)), "{release:?}");
    }
    // One after the other they would wait for ten seconds.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // Nothing is left of them, and a request that comes now is carried out.
    other.execute_batch("COMMIT").unwrap();
    assert!(try_take(&backend, &claim("new/0")).await.unwrap().is_some());
}

#[tokio::test]
async fn files_that_cannot_be_used_are_refused_with_what_to_do() {
    let dir = TestDir::new();
    std::fs::write(dir.file(), "this is a text of some length, and by no means a database").unwrap();
    let refusal = dir.open("").await.unwrap_err();
    assert_eq!(refusal.kind, FailureKind::Foreign, "{refusal}");
    let missing = open(&dir.directory.path().join("no/such/locks.db"), "").await.unwrap_err();
    assert_eq!(missing.kind, FailureKind::Denied, "{missing}");
    assert!(missing.detail().contains("directory has to exist"), "{missing}");
    let text = std::fs::read_to_string(dir.file()).unwrap();
    assert!(text.starts_with("this is a text"), "what is not ours stays as it is");
}

#[tokio::test]
async fn tables_for_newer_clients_and_other_times_are_refused() {
    let dir = TestDir::new();
    drop(dir.open("").await.unwrap());
    dir.other().execute("UPDATE leasehold_meta SET namespace = '1 2 3'", []).unwrap();
    let refusal = dir.open("").await.unwrap_err();
    assert!(
        refusal.kind == FailureKind::Unsupported && refusal.detail().contains("time namespace"),
        "{refusal}"
    );
    dir.other().execute("UPDATE leasehold_meta SET oldest_client = 99", []).unwrap();
    let refusal = dir.open("").await.unwrap_err();
    assert!(
        refusal.kind == FailureKind::Unsupported && refusal.detail().contains("newer leasehold"),
        "{refusal}"
    );
}

#[tokio::test]
async fn ten_clients_that_write_at_once_all_get_through() {
    let dir = TestDir::new();
    let mut clients = Vec::new();
    for number in 0..10 {
        // Each that opens writes to a disk that may be slow, while the others wait for it.
        let backend = dir.open("?timeout=60s").await.unwrap();
        clients.push(tokio::spawn(async move {
            for round in 0..20 {
                let claim = claim(&format!("job/{number}/{round}"));
                assert!(try_take(&backend, &claim).await.unwrap().is_some());
                assert!(matches!(renew(&backend, &claim).await, Renewal::Renewed));
                assert!(matches!(backend.release(&[&claim]).await[0], Release::Freed));
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
}

/// As many as `LEASEHOLD_CANCELLED` says, else a few hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waits_leave_no_claim() {
    let dir = TestDir::new();
    let waits = std::env::var("LEASEHOLD_CANCELLED").map_or(300, |waits| waits.parse().unwrap());
    let backend = dir.open("").await.unwrap();
    // Longer than the longest campaign.
    let held = claim("job").ttl(Duration::from_secs(3_600));
    try_take(&backend, &held).await.unwrap().unwrap();
    let mut left: usize = waits;
    while left > 0 {
        let some = left.min(50);
        left -= some;
        let tasks: Vec<_> = (0..some).map(|n| tokio::spawn(cancelled(backend.clone(), n as u64))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
    let patience = Patience::none(Arc::new(SteadyClock::new()));
    let seen = backend.inspect(&held.resource, None, &patience).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 0));
    assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
    let rows: (i64, i64) = dir
        .other()
        .query_row("SELECT count(*), sum(claims <> '') FROM leasehold", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(rows, (1, 0), "a row, for its fence, and no claim in it");
}

/// Waits as the engine does, until it is called back at some point.
async fn cancelled(backend: Arc<dyn Backend>, n: u64) {
    let patience = Patience::unlimited(Arc::new(SteadyClock::new()));
    let (claim, ends) = (claim("job"), patience.clone());
    let end = async {
        tokio::time::sleep(Duration::from_millis(n % 20)).await;
        ends.end();
    };
    let wait = async {
        loop {
            match backend.contend(&claim, &patience).await {
                Ok(Step::Granted(_)) => panic!("granted while it is held"),
                Ok(Step::Busy(_)) if patience.is_ended() => return,
                Ok(Step::Busy(hint)) => tokio::select! {
                    () = tokio::time::sleep(hint.ask_again_in.unwrap()) => {}
                    () = patience.ended() => {}
                },
                Err(failure) => {
                    assert!(failure.is_transient(), "{failure}");
                    break;
                }
            }
        }
        // As the reaper does with a wait whose end is not known.
        assert!(!matches!(backend.release(&[&claim]).await[..], [Release::Unknown(_)]));
    };
    tokio::join!(wait, end);
}

/// The file lies on a disk of two megabytes, which somebody else fills.
#[tokio::test]
async fn full_disk_changes_nothing_and_loses_no_lock() {
    let name = "faults::full_disk_changes_nothing_and_loses_no_lock";
    let Some(dir) = inside(name, &private_mounts(), "mount -t tmpfs -o size=2m tmpfs \"$DIR\"") else {
        return;
    };
    let (file, ballast) = (dir.join("locks.db"), dir.join("ballast"));
    let (backend, other) = (open(&file, "").await.unwrap(), open(&file, "").await.unwrap());
    let held = claim("held");
    let first = try_take(&backend, &held).await.unwrap().unwrap();
    fill(&ballast);
    // What the log still has room for is done; sooner or later nothing is.
    let mut refused = None;
    for n in 0..3_000 {
        let new = claim(&format!("new/{n}")).note(Note::clipped(&"x".repeat(1_000)));
        refused = try_take(&other, &new).await.err();
        if refused.is_some() {
            break;
        }
    }
    let refused = refused.expect("the disk is full");
    assert_eq!((refused.kind, refused.effect), (FailureKind::Unavailable, Effect::None), "{refused}");
    assert!(refused.detail().contains("free some space"), "{refused}");
    for client in [&backend, &other] {
        match renew(client, &held).await {
            Renewal::Renewed => {}
            Renewal::Unknown(failure) => assert_eq!(failure.effect, Effect::None, "{failure}"),
            answer => panic!("on a full disk a renewal was answered with {answer:?}"),
        }
        // To look writes nothing where nobody asks for a place in the line.
        let looked = try_take(client, &claim("held")).await;
        assert!(!matches!(looked, Ok(Some(_))), "it is held");
    }
    std::fs::remove_file(&ballast).unwrap();
    assert!(matches!(renew(&backend, &held).await, Renewal::Renewed));
    assert!(try_take(&other, &claim("held")).await.unwrap().is_none());
    assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
    assert!(try_take(&other, &claim("held")).await.unwrap().unwrap() > first);
}

/// A restart of the machine takes the file, with fences and registers, and ends every holder.
#[tokio::test]
async fn database_in_memory_promises_less() {
    let name = "faults::database_in_memory_promises_less";
    let Some(dir) = inside(name, &private_mounts(), "mount -t tmpfs tmpfs \"$DIR\"") else { return };
    let backend = open(&dir.join("locks.db"), "").await.unwrap();
    assert_eq!(backend.profile().fencing, FenceGrade::BestEffort);
    assert!(backend.profile().keeps(Durability::Strict).is_ok());
    assert_eq!(backend.registers().unwrap().promise().durability, Durability::LostOnFailover);
}

/// The file is replaced by the mount, and the promises of the client are those of the first file.
#[tokio::test]
async fn replacement_in_memory_is_refused() {
    let name = "faults::replacement_in_memory_is_refused";
    let Some(dir) = inside(name, &private_mounts(), "mkdir -p \"$DIR/disk\"") else { return };
    let (disk, held) = (dir.join("disk"), claim("job"));
    let backend = open(&disk.join("locks.db"), "?timeout=30s").await.unwrap();
    if backend.profile().fencing != FenceGrade::Strict {
        return skip("a disk", "the temporary directory lies in memory");
    }
    assert_eq!(backend.registers().unwrap().promise().durability, Durability::Strict);
    try_take(&backend, &held).await.unwrap().unwrap();
    mount("mount", &["-t", "tmpfs", "tmpfs"], &disk);
    let refusal = try_take(&backend, &claim("job")).await.unwrap_err();
    assert_eq!((refusal.kind, refusal.effect), (FailureKind::Unsupported, Effect::None), "{refusal}");
    assert!(refusal.detail().contains("outlive a restart"), "{refusal}");
    mount("umount", &[], &disk);
    assert!(matches!(renew(&backend, &held).await, Renewal::Renewed));
    // What is in memory may be replaced by what is on a disk.
    mount("mount", &["-t", "tmpfs", "tmpfs"], &disk);
    let in_memory = open(&disk.join("locks.db"), "").await.unwrap();
    mount("umount", &["--lazy"], &disk);
    assert!(try_take(&in_memory, &claim("job")).await.unwrap().is_none(), "it is held on the disk");
}

fn mount(program: &str, options: &[&str], at: &Path) {
    let done = std::process::Command::new(program).args(options).arg(at).status().unwrap();
    assert!(done.success(), "{program} {}", at.display());
}

#[tokio::test]
async fn a_sweep_empties_rows_and_keeps_them_for_their_fences() {
    let dir = TestDir::new();
    let backend = dir.open("").await.unwrap();
    let config = SqliteConfig::parse(&format!("sqlite:{}", dir.file().display())).unwrap();
    leasehold_conformance::sweep::sweep_empties_rows_of_ended_claims(&*backend, async || {
        let clock = Arc::new(SteadyClock::new());
        let swept = leasehold_sqlite::sweep(config.clone(), clock, Duration::ZERO).await.unwrap();
        [swept.seen, swept.emptied, swept.removed]
    })
    .await;
}

#[tokio::test]
async fn doctor_reports_the_state_of_the_file() {
    let dir = TestDir::new();
    let severity = async |options, topic: &str| {
        let found = dir.open(options).await.unwrap().diagnose(Duration::from_secs(30)).await;
        found.iter().find(|finding| finding.topic == topic).unwrap().severity
    };
    assert_eq!(severity("", "database").await, Severity::Good);
}

/// SQLite answers that the database is locked, without waiting, while another connection sets the mode of the
/// journal of a new file.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_open_a_new_database_together() {
    for _ in 0..30 {
        let directory = leasehold_testkit::Directory::create_in_memory("sqlite").unwrap();
        let url = format!("sqlite:{}/locks.db?timeout=60s", directory.path().display());
        let opening: Vec<_> = (0..16)
            .map(|_| {
                let config = SqliteConfig::parse(&url).unwrap();
                let clock = Arc::new(SteadyClock::new());
                tokio::spawn(async move { leasehold_sqlite::connect(config, clock).await.map(drop) })
            })
            .collect();
        for opened in opening {
            opened.await.unwrap().unwrap();
        }
    }
}
