//! The failures of a lock while its store is well: it is broken, it ends, or it is requested wrongly.

use std::time::Duration;

use leasehold::backend::Liveness;
use leasehold::layer::{Fault, Mode};
use leasehold::{Client, Durability, FenceGrade, Owner, QueueOrder};

use crate::things::{LIMIT, Seen, until};

pub(crate) async fn provoke(seen: &mut Seen, one: &Client, two: &Client) {
    broken(seen, one, two).await;
    unanswered(seen, one, two).await;
    refused(seen, one).await;
}

/// Another client ends the claim of a holder.
async fn broken(seen: &mut Seen, one: &Client, two: &Client) {
    let name = "secrets/broken";
    let guard = one.mutex(name).ttl(Duration::from_secs(4)).try_lock_for(LIMIT).await.unwrap().unwrap();
    let snapshot = two.inspect(name).await.unwrap();
    seen.look("before a break", one, two).await;
    let mut is_broken = false;
    for holder in &snapshot.holders {
        let broken = two.break_claim(name, holder).await;
        is_broken |= broken.is_ok();
        seen.texts.record_outcome("a break", &broken);
        seen.texts.record_outcome("a second break", &two.break_claim(name, holder).await);
    }
    if is_broken {
        seen.texts.shown("a cause", &tokio::time::timeout(LIMIT, guard.lost()).await.unwrap());
        seen.texts.shown("a guard that was lost", &guard);
        seen.texts.record_outcome("a check", &guard.check());
        seen.texts.record_outcome("a run", &guard.run(async {}).await);
    }
    seen.clients("after a loss", one, two);
    seen.texts.record_outcome("a release of what was lost", &guard.release().await);
}

/// The store answers nothing for a while, so a lease ends.
async fn unanswered(seen: &mut Seen, one: &Client, two: &Client) {
    let fault = std::sync::Arc::new(Fault::over(two.backend().clone()));
    let locks = Client::builder().over(fault.clone()).unwrap();
    let guard = locks
        .mutex("secrets/expires")
        .ttl(Duration::from_secs(4))
        .try_lock_for(LIMIT)
        .await
        .unwrap()
        .unwrap();
    seen.look("before the store is away", one, &locks).await;
    for mode in [Mode::Refuse, Mode::LoseReply] {
        fault.set_all(mode);
        seen.texts.shown("a layer with a fault", &fault);
        seen.texts.record_outcome("a look", &locks.inspect("secrets/expires").await);
        seen.texts.record_outcome("a list", &locks.list("", None, 10).await);
        seen.texts.record_outcome("a try", &locks.mutex("secrets/other").try_lock().await);
    }
    fault.set_all(Mode::Refuse);
    if !matches!(locks.profile().liveness, Liveness::Session) {
        until("the lease ends", || async { guard.check().is_err() }).await;
    }
    seen.texts.shown("a guard that expired", &guard);
    seen.texts.shown("a client without its store", &locks);
    seen.texts.record_outcome("a check of it", &guard.check());
    fault.set_all(Mode::Pass);
    seen.texts.record_outcome("a release of it", &guard.release().await);
    seen.texts.record_outcome("a client that ends", &Ok(locks.close(LIMIT).await));
}

/// Records the errors of requests that are invalid, or that a store may not support.
async fn refused(seen: &mut Seen, one: &Client) {
    let mutex = || one.mutex("secrets/refused");
    seen.texts.record_outcome("an empty name", &one.mutex("").try_lock().await);
    seen.texts.record_outcome("a long name", &one.mutex("n".repeat(600)).try_lock().await);
    seen.texts.record_outcome("a short ttl", &mutex().ttl(Duration::from_nanos(1)).try_lock().await);
    seen.texts.record_outcome("no permits", &one.semaphore("secrets/none", 0).try_acquire().await);
    seen.texts.record_outcome("too many permits", &one.semaphore("secrets/few", 2).try_acquire_many(3).await);
    seen.texts.record_outcome("a grade", &mutex().require_fencing(FenceGrade::Strict));
    seen.texts.record_outcome("an order", &mutex().require_order(QueueOrder::Fifo));
    seen.texts.record_outcome("a durability", &mutex().require_durability(Durability::Strict));
    seen.texts.record_outcome("revocable", &mutex().revocable());
    seen.texts.record_outcome("transferable", &mutex().transferable());
    let owner = Owner::new();
    let held = one.rwlock("secrets/deadlock").owner(&owner);
    if let Ok(Some(reader)) = held.try_read_for(LIMIT).await {
        seen.texts.record_outcome("a deadlock", &held.try_write_for(Duration::from_secs(1)).await);
        drop(reader);
    }
}

/// Records the errors of a client that was closed.
pub(crate) async fn after_the_end(seen: &mut Seen, one: &Client) {
    seen.texts.record_outcome("a lock of a client that ended", &one.mutex("secrets/late").lock().await);
    seen.texts.record_outcome("a look of a client that ended", &one.inspect("secrets/late").await);
}
