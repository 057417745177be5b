//! Programs that check that later claims do not overtake waiters.

use std::sync::Arc;

use simulated::layer::{Fault, Mode, Verb};
use simulated::local::MemoryBackend;
use simulated::{Client, TokioClock};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::{aimed, client, store};
use crate::judge::Verdict;

/// Lets a reader of another client come after a writer that waits for the reader of its own client.
pub(crate) fn readers_behind_a_writer(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let store = store();
        let (ours, theirs) = (client(store.clone()), client(store));
        let mut readers = Vec::new();
        for _ in 0..dice.between(1, 3) {
            readers.push(ours.rwlock("book").read().await.unwrap());
        }
        let writer = ours.rwlock("book");
        let writer = tokio::spawn(async move { writer.write().await.map(drop) });
        sleep(dice.ms(1, 500)).await;
        let late = theirs.rwlock("book");
        let late = tokio::spawn(async move { late.read().await.map(drop) });
        sleep(dice.ms(1, 500)).await;
        let failure = late.is_finished().then(|| "a late reader passed a writer that waits".to_owned());
        drop(readers);
        let _ = (writer.await, late.await);
        failure
    })
}

/// Lets a try come after a waiter that waits for what its own client holds.
pub(crate) fn tries_behind_a_waiter(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let locks = client(store());
        let all = dice.between(3, 6) as u32;
        let many = dice.between(u64::from(all / 2 + 1), u64::from(all - 1)) as u32;
        let held = locks.semaphore("seats", all).acquire_many(many).await.unwrap();
        let waiter = locks.semaphore("seats", all);
        let waiter = tokio::spawn(async move { waiter.acquire_many(many).await.map(drop) });
        for _ in 0..dice.between(2, 5) {
            yield_now().await;
        }
        sleep(dice.ms(1, 100)).await;
        let tried = locks.semaphore("seats", all).try_acquire_many(1).await;
        let passed = matches!(tried, Ok(Some(_)));
        drop((held, tried));
        let _ = waiter.await;
        passed.then(|| "a try passed a waiter of this client".to_owned())
    })
}

/// Lets a task come to a claim for which another one asked, after another client was granted a later one.
pub(crate) fn a_claim_of_a_reader_that_left(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let store = store();
        let wire = Arc::new(Fault::over(store.clone()));
        let (ours, theirs) = (client(wire.clone()), client(store));
        let late = dice.ms(10, 500);
        wire.set(Verb::Contend, Mode::LateReply(late));
        let read = |client: &Client| {
            let book = client.rwlock("book");
            tokio::spawn(async move { book.read().await.unwrap() })
        };
        let leaves = read(&ours);
        sleep(late / 2).await;
        let other = read(&theirs).await.unwrap();
        let comes = read(&ours);
        sleep(dice.ms(1, 3)).await;
        leaves.abort();
        let guard = comes.await.unwrap();
        let (before, fence) = (other.fence().unwrap(), guard.fence().unwrap());
        (fence.sub == 0 && fence < before).then(|| {
            format!("a reader that came after {before} was granted {fence} as if it had asked for it")
        })
    })
}

/// Lets a task lock in a loop, on a thread that other tasks need.
pub(crate) fn a_task_locks_in_a_loop(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let locks = client(store());
        let other = tokio::spawn(async {});
        for _ in 0..dice.between(500, 1_000) {
            locks.mutex("loop").lock().await.unwrap().release().await.unwrap();
        }
        (!other.is_finished()).then(|| "a task that locks in a loop let no other run".to_owned())
    })
}

/// Lets a read with a time limit wait behind a writer of its own client, beside a reader of another one, where the
/// store keeps no queue.
pub(crate) fn a_read_behind_a_refused_writer(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let store = MemoryBackend::with_clock(Arc::new(TokioClock::new())).polling().unordered();
        let store = Arc::new(store);
        let (ours, theirs) = (client(store.clone()), client(store));
        let held = theirs.rwlock("book").read().await.unwrap();
        let writer = ours.rwlock("book");
        let writer = tokio::spawn(async move { writer.write().await.map(drop) });
        sleep(dice.ms(1, 500)).await;
        let read = ours.rwlock("book").try_read_for(dice.ms(1, 500)).await;
        let failure =
            matches!(read, Ok(None)).then(|| "a read was refused, and only readers hold it".to_owned());
        drop((held, read));
        let _ = writer.await;
        failure
    })
}

/// Lets the wait of the only reader for an upgrade end between its grant and the answer.
pub(crate) fn an_upgrade_without_a_timely_answer(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let wire = Arc::new(Fault::over(store()));
        let locks = client(wire.clone());
        let mut reader = locks.rwlock("book").upgradable_read().await.unwrap();
        let late = dice.ms(10, 500);
        wire.set(Verb::Contend, Mode::LateReply(late));
        // One answer is that to the request for the lock that keeps other readers from upgrading.
        let upgrade = tokio::spawn(async move { (reader.try_upgrade_for(late + late / 2).await, reader) });
        sleep(late + late / 4).await;
        wire.set(Verb::Contend, Mode::Pass);
        let (upgraded, _reader) = upgrade.await.unwrap();
        matches!(upgraded, Ok(false)).then(|| "the only reader was refused an upgrade".to_owned())
    })
}

/// Lets a claim wait behind a waiter that gets its permits by a local hand-off, with room for both.
pub(crate) fn the_next_behind_a_handoff(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let locks = client(store());
        let all = dice.between(3, 6) as u32;
        let many = dice.between(u64::from(all / 2 + 1), u64::from(all - 1)) as u32;
        let few = dice.between(1, u64::from(all - many)) as u32;
        let acquire = |permits| {
            let seats = locks.semaphore("seats", all);
            tokio::spawn(async move { seats.acquire_many(permits).await })
        };
        let held = acquire(many).await.unwrap().unwrap();
        let first = acquire(many);
        sleep(dice.ms(1, 20)).await;
        let second = acquire(few);
        sleep(dice.ms(1, 20)).await;
        held.release().await.unwrap();
        let first = first.await.unwrap();
        sleep(dice.ms(1, 1_000)).await;
        let sleeps = !second.is_finished();
        drop(first);
        let _ = second.await;
        sleeps.then(|| format!("a waiter for {few} of {all} sleeps behind a local hand-off of {many}"))
    })
}
