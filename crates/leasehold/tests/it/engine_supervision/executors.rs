//! The futures of the public API under an executor that is not tokio's.

use std::time::Duration;

use futures_util::future::join;
use leasehold::layer::{Mode, Verb};

use crate::common::{Store, block_on, ms};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn futures_work_and_do_not_panic_outside_tokio() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (locks, wire) = runtime.block_on(async { Store::new().client() });
    block_on(async {
        let guard = locks.mutex("job").lock().await.unwrap();
        assert!(locks.mutex("job").try_lock_for(ms(30)).await.unwrap().is_none());
        let seen = locks.inspect("job").await.unwrap();
        assert_eq!(locks.changed("job", &seen.version, ms(30)).await.unwrap().holders.len(), 1);
        assert_eq!(locks.list("", None, 5).await.unwrap().len(), 1);
        // The release runs concurrently with the wait, so that the wait is a real one.
        let (waited, ()) = join(locks.mutex("job").lock(), async { guard.release().await.unwrap() }).await;
        let guard = waited.unwrap();
        guard.check().unwrap();
        drop(guard);

        let mut reader = locks.rwlock("shared").upgradable_read().await.unwrap();
        let other = locks.rwlock("shared").read().await.unwrap();
        let (upgraded, ()) = join(reader.upgrade(), async { drop(other) }).await;
        upgraded.unwrap();
        reader.release().await.unwrap();

        let owner = leasehold::Owner::new();
        let owned = locks.mutex("owned").owner(&owner).detect_deadlocks(ms(10));
        let held = locks.mutex("owned").lock().await.unwrap();
        assert!(owned.try_lock_for(ms(100)).await.unwrap().is_none());
        held.release().await.unwrap();
        assert!(locks.deadlocks().await.unwrap().is_empty());
    });
    block_on(async {
        let parts = locks.striped_mutex("parts", 2);
        let all = parts.all().lock().await.unwrap();
        assert!(parts.try_lock_any_for(ms(300)).await.unwrap().is_none());
        all.release().await.unwrap();
        parts.lock_any().await.unwrap().release().await.unwrap();

        // Conflicts, and an outage.
        let value = locks.versioned("value");
        let count = |old: Option<&[u8]>| Some(vec![b'x'; old.map_or(0, <[u8]>::len) + 1]);
        let (one, other) = join(value.update(count), value.update(count)).await;
        assert!(one.is_ok() && other.is_ok());
        wire.set(Verb::Read, Mode::Refuse);
        let ends = std::thread::spawn({
            let wire = wire.clone();
            move || {
                let calls = wire.calls(Verb::Read);
                while wire.calls(Verb::Read) < calls + 3 {
                    std::thread::sleep(ms(1));
                }
                wire.set(Verb::Read, Mode::Pass);
            }
        });
        let read = value.read().await.unwrap();
        ends.join().unwrap();
        assert_eq!(read.value(), Some(&b"xx"[..]));
        assert_eq!(value.changed(&read, ms(30)).await.unwrap(), read);

        let latch = locks.latch("latch", 1);
        assert_eq!(latch.remaining().await.unwrap(), 1);
        latch.count_down().await.unwrap();
        latch.wait().await.unwrap();
        let barrier = locks.barrier("barrier", 2);
        let (one, other) = join(barrier.wait(), barrier.wait()).await;
        assert!(one.is_ok() && other.is_ok());
        let rate = locks.rate_limit("rate", 1, ms(100));
        rate.acquire().await.unwrap();
        rate.acquire().await.unwrap();

        let (mutex, condition) = (locks.mutex("queue"), locks.condition("filled"));
        let guard = mutex.lock().await.unwrap();
        let (guard, _) = guard.wait_for(&condition, ms(30)).await.unwrap();
        guard.release().await.unwrap();
        let flight = locks.single_flight("page");
        let load = || async { Ok::<_, String>(Some(vec![1])) };
        flight.get_or_load(SOON, load).await.unwrap();
        let leader = locks.election("boss").campaign("me").await.unwrap();
        leader.resign().await.unwrap();
        locks.revoke("job", "please").await.unwrap();
        assert!(!locks.diagnose(ms(3_000)).await.is_empty());
        let kept = locks.mutex("kept").min_hold(ms(30)).lock().await.unwrap();
        kept.release().await.unwrap();
        assert!(locks.close(SOON).await);
    });
}
