//! Waits in the server: their requests, their sessions, and when a claim that polls asks again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_backend::session::{Capacity, LONGEST_WAIT};
use leasehold_conformance::patience_for;
use leasehold_core::{Backend, Clock, LossCause, Patience, Release, Step, WaitMode};
use tokio::time::Instant;

use crate::calls::{ONE, claim, clock, hold, poll_pending, release, sessions_become};
use crate::store::{MemoryBackend, RuntimeClock, SILENCE, Server};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a server whose sessions wait, with a client of it, and the time of both.
fn in_virtual_time() -> (Arc<Server>, Arc<MemoryBackend>, Arc<dyn Clock>) {
    let (server, clock) = (Server::new(), Arc::new(RuntimeClock::new()));
    let backend = server.client_by(ONE, WaitMode::Blocks, clock.clone());
    (server, Arc::new(backend), clock)
}

#[tokio::test(start_paused = true)]
async fn wait_is_one_long_request_after_the_other() {
    let (server, backend, clock) = in_virtual_time();
    server.occupy("a");
    let began = Instant::now();
    let waits = tokio::spawn(async move {
        let patience = patience_for(&clock, LONGEST_WAIT * 2 + SECOND);
        backend.contend(&claim("a"), &patience).await
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.waits(), [LONGEST_WAIT]);
    assert!(matches!(waits.await.unwrap().unwrap(), Step::Busy(hint) if hint.ask_again_in.is_none()));
    assert_eq!(began.elapsed(), LONGEST_WAIT * 2 + SECOND);
    assert_eq!(server.waits(), [LONGEST_WAIT, SECOND], "without a pause, and never again");
}

/// As one is ended by a database that finds a deadlock.
#[tokio::test(start_paused = true)]
async fn wait_that_the_server_ends_at_once_is_repeated_after_a_pause() {
    let (server, backend, clock) = in_virtual_time();
    server.occupy("a");
    server.never_wait();
    let (began, patience) = (Instant::now(), patience_for(&clock, SECOND * 30));
    assert!(matches!(backend.contend(&claim("a"), &patience).await.unwrap(), Step::Busy(_)));
    assert_eq!(began.elapsed(), SECOND * 30);
    let requests = server.waits().len();
    assert!((5..100).contains(&requests), "{requests}");
}

/// The answer to a wait says only that the lock was granted at some time during it.
#[tokio::test(start_paused = true)]
async fn grant_after_a_wait_counts_from_before_its_confirmation() {
    let (server, backend, clock) = in_virtual_time();
    let slow = SILENCE / 4;
    server.answer_in(slow);
    let step = backend.contend(&claim("a"), &Patience::unlimited(clock.clone())).await;
    let Ok(Step::Granted(grant)) = step else { panic!("{step:?}") };
    assert_eq!(grant.asked_at, clock.now().before(slow));
}

/// The server answers nothing else in the session meanwhile.
#[tokio::test(start_paused = true)]
async fn session_of_a_long_wait_is_neither_asked_nor_silent() {
    let (server, backend, clock) = in_virtual_time();
    server.occupy("a");
    let patience = patience_for(&clock, SILENCE * 3);
    assert!(matches!(backend.contend(&claim("a"), &patience).await.unwrap(), Step::Busy(_)));
    tokio::time::sleep(SILENCE * 3).await;
    assert_eq!((server.sessions(), server.pings_in_waits()), (1, 0), "it is kept for the next wait");
    let waiting = tokio::spawn(async move {
        let step = backend.contend(&claim("a"), &Patience::unlimited(clock)).await;
        (step, backend)
    });
    tokio::time::sleep(SILENCE * 3).await;
    server.forget();
    let (step, backend) = waiting.await.unwrap();
    let Ok(Step::Granted(grant)) = step else { panic!("{step:?}") };
    assert_eq!((server.opened(), server.pings_in_waits()), (1, 0));
    let mut signal = grant.lost.unwrap();
    tokio::time::sleep(SILENCE * 3).await;
    assert_eq!(signal.fired().now_or_never(), None);
    // It is asked for signs of life again.
    server.fall_silent();
    let lost = tokio::time::timeout(SILENCE * 2, signal.fired()).await;
    assert_eq!(lost, Ok(LossCause::SessionEnded));
    drop(backend);
}

#[tokio::test(start_paused = true)]
async fn sign_of_life_overtaken_by_a_wait_is_late_and_no_loss() {
    let (server, backend, _) = in_virtual_time();
    let idle = claim("idle");
    hold(&*backend, &idle).await;
    assert!(matches!(release(&*backend, &idle).await, Release::Freed));
    server.occupy("a");
    let (begun, waits) = tokio::sync::oneshot::channel();
    let mut asks = Box::pin(async move {
        let step = backend.contend(&claim("a"), &Patience::unlimited(clock())).await;
        (step, backend)
    });
    // On another thread, once the session was found not to wait.
    server.at_next_ping(move || {
        for _ in 0..10 {
            poll_pending(asks.as_mut());
        }
        _ = begun.send(asks);
    });
    let waits = tokio::spawn(waits.await.unwrap());
    tokio::time::sleep(SILENCE * 3).await;
    server.forget();
    let (step, _backend) = waits.await.unwrap();
    assert!(matches!(step, Ok(Step::Granted(_))), "{step:?}");
    assert_eq!(server.opened(), 1);
}

#[tokio::test(start_paused = true)]
async fn claim_that_has_ended_or_holds_asks_again_as_a_new_one_does() {
    for capacity in [Capacity::Many, ONE] {
        let server = Server::new();
        let backend = server.client(capacity, WaitMode::Polls);
        let (wanted, patience) = (claim("a"), Patience::unlimited(clock()));
        let asks_again_in = async || match backend.contend(&wanted, &patience).await.unwrap() {
            Step::Busy(hint) => hint.ask_again_in.unwrap(),
            step @ Step::Granted(_) => panic!("{step:?}"),
        };
        server.occupy("a");
        let first = tokio::time::timeout(SECOND * 60, asks_again_in()).await.expect("a poll does not wait");
        for end in ["patience", "release", "loss"] {
            let mut last = first;
            for _ in 0..9 {
                last = asks_again_in().await;
            }
            assert!(last > first * 4, "{last:?}");
            match end {
                "patience" => {
                    let step = backend.contend(&wanted, &Patience::none(clock())).await.unwrap();
                    assert!(matches!(&step, Step::Busy(hint) if hint.ask_again_in.is_none()), "{step:?}");
                }
                "release" => assert!(matches!(release(&backend, &wanted).await, Release::Gone)),
                _ => {
                    server.forget();
                    let mut signal = hold(&backend, &wanted).await.lost.unwrap();
                    server.end_all();
                    signal.fired().await;
                    server.occupy("a");
                }
            }
            assert_eq!(asks_again_in().await, first, "{capacity:?}, after the {end}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lock_given_to_a_wait_that_was_just_released_is_released() {
    for fails in [false, true] {
        let server = Server::new();
        let backend = Arc::new(server.client(ONE, WaitMode::Blocks));
        let wanted = claim("a");
        server.occupy("a");
        let waiting = {
            let (backend, wanted) = (backend.clone(), wanted.clone());
            tokio::spawn(async move { backend.contend(&wanted, &Patience::unlimited(clock())).await })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(matches!(release(&*backend, &wanted).await, Release::Freed));
        // The waiter has not run since then, and the lock becomes free.
        server.forget();
        if fails {
            server.fail_a_release();
        }
        let step = tokio::time::timeout(SECOND * 60, waiting).await.unwrap().unwrap().unwrap();
        assert!(matches!(step, Step::Busy(_)), "{step:?}");
        // Only a session without a lock serves the next wait.
        sessions_become(&server, usize::from(!fails)).await;
        assert_eq!(server.locks(), 0, "nobody holds it");
    }
}
