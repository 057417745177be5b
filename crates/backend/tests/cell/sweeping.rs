//! Sweeps of more cells than one batch has, and of a store that removes cells as a whole.

use std::sync::Mutex;
use std::time::Duration;

use leasehold_backend::cell::{BATCH_MAX, MIN_TTL};
use leasehold_core::{Backend, Release};
use tokio::time::Instant;

use crate::store::{Faults, LONG, Store, TABLE, claim, try_take};

#[tokio::test(start_paused = true)]
async fn sweep_pauses_between_its_batches_and_shows_its_progress() {
    for extra in [0, 1] {
        let (store, cells) = (Store::new(), BATCH_MAX + extra);
        let backend = store.open(TABLE, Faults::default());
        for n in 0..cells {
            let left = claim(&format!("left/{n}"), LONG);
            assert!(try_take(&backend, &left).await.is_some());
            assert!(matches!(backend.release(&[&left]).await[..], [Release::Freed]));
        }
        let (progress, began) = (Mutex::new(Vec::new()), Instant::now());
        let sweep = backend.sweep_under("left/", LONG, |swept| progress.lock().unwrap().push(swept.seen));
        let swept = tokio::time::timeout(Duration::from_secs(1), sweep).await.unwrap().unwrap();
        let [first, all] = [BATCH_MAX, cells].map(|cells| u64::try_from(cells).unwrap());
        assert_eq!((swept.seen, progress.into_inner().unwrap()), (all, vec![first, all]));
        assert!(began.elapsed() >= Duration::from_millis(10), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn unused_cells_are_removed_by_a_store_that_can() {
    let store = Store::new();
    store.remove_unused();
    let backend = store.open(TABLE, Faults::default());
    assert!(try_take(&backend, &claim("held", LONG)).await.is_some());
    for name in ["a", "b"] {
        assert!(try_take(&backend, &claim(name, MIN_TTL)).await.is_some());
    }
    tokio::time::sleep(MIN_TTL * 2).await;
    let swept = backend.sweep(Duration::ZERO).await.unwrap();
    assert_eq!((swept.seen, swept.emptied, swept.removed), (3, 0, 2));
    assert_eq!(backend.sweep(Duration::ZERO).await.unwrap().seen, 1);
}
