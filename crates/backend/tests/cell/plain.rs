//! A store that has nothing but what every store must have.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    Cell, CellBackend, CellRegisters, CellStore, ClockSource, Locked, Write, WriteOutcome,
};
use leasehold_core::{
    Backend, Claim, Durability, Failure, FailureKind, Profile, Put, Registers, Release, Resource, WaitMode,
};
use tokio::time::Instant;

use crate::store::{Faults, Kind, LONG, MemoryCells, Store, TABLE, claim, clock, try_take};

#[derive(Debug)]
struct Plain {
    cells: MemoryCells,
    max_text: usize,
}

#[async_trait]
impl CellStore for Plain {
    fn profile(&self) -> &Profile {
        self.cells.profile()
    }

    fn clock_source(&self) -> ClockSource {
        self.cells.clock_source()
    }

    fn max_text(&self) -> usize {
        self.max_text
    }

    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>> {
        self.cells.read(at).await
    }

    async fn write(&self, writes: &[&Write], locked: Locked) -> Vec<Result<WriteOutcome, Failure>> {
        for write in writes {
            assert!(write.put.version > 0, "it numbers no states itself: {write:?}");
            assert!(write.put.text.len() <= self.max_text, "{write:?}");
        }
        self.cells.write(writes, locked).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure> {
        self.cells.list(prefix, after, limit).await
    }
}

fn plain(store: &Arc<Store>, max_text: usize) -> Plain {
    let kind = Kind { waiting: WaitMode::Polls, ..TABLE };
    Plain { cells: store.connect(kind, Faults::default()), max_text }
}

fn opened(store: &Arc<Store>) -> Arc<CellBackend<Plain>> {
    Arc::new(CellBackend::new(plain(store, 1 << 20), clock()))
}

#[tokio::test]
async fn store_that_says_nothing_more_promises_nothing_more() {
    let client = opened(&Store::new());
    let held = claim("job", LONG);
    assert!(client.at_once().is_none() && client.direct_requests().is_none());
    assert!(client.registers().is_none());
    assert!(client.part(&held) == 0 && client.diagnose(LONG).await.is_empty());
    let failure = client.sweep(Duration::ZERO).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    for _ in 0..2 {
        assert!(try_take(&*client, &held).await.is_some());
        assert!(matches!(client.release(&[&held]).await[..], [Release::Freed]));
    }
}

#[tokio::test(start_paused = true)]
async fn change_of_a_store_that_gains_nothing_waits_for_no_other() {
    let store = Store::new();
    let client = opened(&store);
    let claims: Vec<Claim> = (0..3).map(|n| claim(&format!("job {n}"), LONG)).collect();
    for claim in &claims {
        assert!(try_take(&*client, claim).await.is_some());
    }
    let gate = store.stall_a_commit();
    let slow = tokio::spawn({
        let (client, slow) = (client.clone(), claims[0].clone());
        async move { client.release(&[&slow]).await.pop() }
    });
    while store.commits_to_come() > 0 {
        tokio::task::yield_now().await;
    }
    let (before, began) = (store.requests(), Instant::now());
    for claim in &claims[1..] {
        assert!(matches!(client.release(&[claim]).await[..], [Release::Freed]));
    }
    assert_eq!((store.requests() - before, began.elapsed()), (2, Duration::ZERO));
    gate.add_permits(1);
    assert!(matches!(slow.await.unwrap(), Some(Release::Freed)));
}

/// Three bytes are four characters, behind a head.
#[tokio::test]
async fn longest_value_of_a_register_fits_into_a_cell() {
    let registers = CellRegisters::new(plain(&Store::new(), 1_032), Durability::Strict);
    assert_eq!(registers.promise().max_bytes, 750);
    let at = claim("job", LONG).resource;
    let nothing = registers.read(&at).await.unwrap().stamp;
    let put = Put { value: Some(vec![7; 750]), keep: Some(LONG) };
    assert!(registers.swap(&at, &nothing, &put).await.unwrap().is_some());
}
