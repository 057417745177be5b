//! Releases in the background: how many requests are under way, how often they are repeated, and what closing says of
//! them; in virtual time.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::{Client, Guard};

use crate::common::ms;
use crate::engine_supervision::odd::{Call, World, late, pass, refuse};

const TTL: Duration = Duration::from_secs(60);
/// The requests that are under way at a time.
const AT_ONCE: u64 = 64;

/// Acquires as many locks, one after the other, and drops each.
async fn drop_many(locks: &Client, kind: &str, count: u32) {
    for number in 0..count {
        drop(locks.mutex(format!("{kind}/{number}")).ttl(TTL).lock().await.unwrap());
        // Each is released by a request of its own.
        tokio::time::sleep(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn few_releases_are_under_way_and_all_are_answered() {
    let (go, gone) = tokio::sync::watch::channel(false);
    let world = World::new(move |call, _, about| {
        let mut gone = gone.clone();
        match call {
            Call::Release if about.starts_with("slow") => Box::pin(async move {
                gone.wait_for(|gone| *gone).await.unwrap();
                Ok(())
            }),
            _ => pass(),
        }
    });
    drop_many(&world.locks, "slow", 10).await;
    drop_many(&world.locks, "quick", 1).await;
    drop_many(&world.locks, "slow/too", 100).await;
    assert_eq!(world.store.calls(Call::Release), AT_ONCE + 1);
    go.send_replace(true);
    drop_many(&world.locks, "quick", 200).await;
    assert_eq!(world.locks.list("", None, 10).await.unwrap(), []);
    assert!(world.locks.close(TTL).await);
}

#[tokio::test(start_paused = true)]
async fn releases_of_several_tasks_share_their_requests() {
    let world = World::new(|call, _, _| if call == Call::Release { late(ms(10)) } else { pass() });
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(world.locks.mutex(format!("job/{number}")).ttl(TTL).lock().await.unwrap());
    }
    let released = join_all(guards.into_iter().map(Guard::release)).await;
    assert!(released.into_iter().all(|released| released.is_ok()));
    let requests = world.store.calls(Call::Release);
    assert!(requests <= 3, "{requests}");
}

#[tokio::test(start_paused = true)]
async fn refused_release_is_repeated_with_growing_pauses() {
    for is_awaited in [true, false] {
        let world = World::new(|call, _, _| if call == Call::Release { refuse() } else { pass() });
        let guard = world.locks.mutex("job").ttl(TTL).lock().await.unwrap();
        let released = if is_awaited {
            Some(tokio::spawn(guard.release()))
        } else {
            drop(guard);
            None
        };
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(world.store.calls(Call::Release), 1, "the next one follows after a pause");
        tokio::time::sleep(TTL / 2).await;
        let requests = world.store.calls(Call::Release);
        assert!((20..90).contains(&requests), "{requests}");
        if let Some(released) = released {
            released.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn close_says_that_a_release_was_not_answered() {
    let world = World::new(|call, _, _| if call == Call::Release { refuse() } else { pass() });
    drop(world.locks.mutex("job").ttl(ms(1_000)).lock().await.unwrap());
    let began = tokio::time::Instant::now();
    assert!(!world.locks.close(TTL).await);
    assert!(began.elapsed() < TTL, "it knows when the lease has ended");
}
