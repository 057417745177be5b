//! Events that end a session, and what is in doubt after them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_backend::session::Capacity;
use leasehold_core::{
    Backend, BreakOutcome, Claim, Clock, Effect, Failure, FailureKind, LossCause, ManualClock, Patience,
    Release, Renewal, Share, Step, WaitMode,
};
use tokio::time::Instant;

use crate::calls::{
    ONE, claim, claim_of, clock, hold, is_refused, poll_pending, release, renew, sessions_become,
};
use crate::store::{ANSWER_LIMIT, RuntimeClock, SILENCE, Server};

#[tokio::test(start_paused = true)]
async fn end_of_a_session_is_reported_to_all_its_holders_at_once() {
    let server = Server::new();
    let backend = server.client(Capacity::Many, WaitMode::Polls);
    let claims = [claim("a"), claim("b"), claim("c")];
    let mut signals = Vec::new();
    for claim in &claims {
        signals.push(hold(&backend, claim).await.lost.unwrap());
    }
    assert_eq!(server.sessions(), 1, "all of them share one");
    server.end_all();
    for signal in &mut signals {
        let cause = tokio::time::timeout(Duration::from_millis(200), signal.fired()).await;
        assert_eq!(cause, Ok(LossCause::SessionEnded));
    }
    for claim in &claims {
        assert!(matches!(renew(&backend, claim).await, Renewal::Lost));
        assert!(matches!(release(&backend, claim).await, Release::Gone));
    }
    // The next one begins a new session.
    hold(&backend, &claim("a")).await;
}

#[tokio::test(start_paused = true)]
async fn silence_is_a_loss_before_the_server_may_end_the_session() {
    for capacity in [Capacity::Many, ONE] {
        let server = Server::new();
        let backend = server.client(capacity, WaitMode::Polls);
        let held = claim("a");
        let mut signal = hold(&backend, &held).await.lost.unwrap();
        // Signs of life keep it, however long.
        tokio::time::sleep(SILENCE * 2).await;
        assert!(matches!(renew(&backend, &held).await, Renewal::Alive));
        let began = Instant::now();
        server.fall_silent();
        let cause = tokio::time::timeout(SILENCE * 2, signal.fired()).await.unwrap();
        assert_eq!(cause, LossCause::SessionEnded);
        assert!(began.elapsed() < SILENCE * 2, "reported after {:?}", began.elapsed());
    }
}

/// The server is far away, and a session takes many round trips to open.
#[tokio::test(start_paused = true)]
async fn session_that_took_long_to_open_is_not_silent() {
    for capacity in [Capacity::Many, ONE] {
        for opening in [SILENCE * 9 / 10, SILENCE * 5] {
            let server = Server::new();
            server.open_in(opening);
            let backend = server.client_by(capacity, WaitMode::Polls, Arc::new(RuntimeClock::new()));
            let held = claim("a");
            let began = Instant::now();
            let mut signal = hold(&backend, &held).await.lost.unwrap();
            assert_eq!(began.elapsed(), opening);
            tokio::time::sleep(SILENCE * 3).await;
            assert_eq!(signal.fired().now_or_never(), None, "{capacity:?}, opened in {opening:?}");
            assert!(matches!(renew(&backend, &held).await, Renewal::Alive));
        }
    }
}

/// No lock of the session was asked for before.
#[tokio::test(start_paused = true)]
async fn silence_of_a_new_session_counts_from_its_opening() {
    for capacity in [Capacity::Many, ONE] {
        let server = Server::new();
        server.open_in(SILENCE / 2);
        let backend = server.client_by(capacity, WaitMode::Polls, Arc::new(RuntimeClock::new()));
        let mut signal = hold(&backend, &claim("a")).await.lost.unwrap();
        let granted = Instant::now();
        server.fall_silent();
        assert_eq!(signal.fired().await, LossCause::SessionEnded);
        assert_eq!(granted.elapsed(), SILENCE);
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_of_an_unreachable_server_fail_together() {
    let server = Server::new();
    server.set_unreachable(true);
    let backend = Arc::new(server.client_by(Capacity::Many, WaitMode::Polls, Arc::new(RuntimeClock::new())));
    let began = Instant::now();
    let tasks: Vec<_> = (0..20)
        .map(|number| {
            let (backend, wanted) = (backend.clone(), claim(&format!("job/{number}")));
            tokio::spawn(async move {
                // Some come while a session is being opened.
                tokio::time::sleep(ANSWER_LIMIT * (number % 2) / 2).await;
                backend.contend(&wanted, &Patience::none(clock())).await.unwrap_err()
            })
        })
        .collect();
    for task in tasks {
        let failure = task.await.unwrap();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    }
    assert_eq!((began.elapsed(), server.attempts()), (ANSWER_LIMIT, 1));
    // A task that comes afterwards asks anew.
    backend.contend(&claim("a"), &Patience::none(clock())).await.unwrap_err();
    assert_eq!((began.elapsed(), server.attempts()), (ANSWER_LIMIT * 2, 2));
    server.set_unreachable(false);
    hold(&*backend, &claim("a")).await;
    // What failed before is of no matter when this session has ended.
    server.end_all();
    hold(&*backend, &claim("a")).await;
    assert_eq!((server.attempts(), server.sessions()), (4, 1));
}

/// The task that opened it has left.
#[tokio::test(start_paused = true)]
async fn opening_that_was_given_up_fails_nobody_else() {
    let server = Server::new();
    server.open_in(ANSWER_LIMIT);
    let backend = server.client_by(Capacity::Many, WaitMode::Polls, Arc::new(RuntimeClock::new()));
    let (first, second, patience) = (claim("a"), claim("b"), Patience::none(clock()));
    let mut leaves = Box::pin(backend.contend(&first, &patience));
    poll_pending(leaves.as_mut());
    let mut stays = Box::pin(backend.contend(&second, &patience));
    poll_pending(stays.as_mut());
    drop(leaves);
    assert!(matches!(stays.await, Ok(Step::Granted(_))));
    assert_eq!((server.attempts(), server.opened()), (2, 1));
}

/// The server gives the locks of a session that is closed to others at once.
#[tokio::test(start_paused = true)]
async fn session_is_closed_only_when_its_holders_know_of_the_loss() {
    type Fault = fn(&Server);
    let faults: [(&str, Fault); 3] =
        [("silent", Server::fall_silent), ("failed", Server::fail_once), ("ended", Server::end_all)];
    for capacity in [Capacity::Many, ONE] {
        for (name, fault) in faults {
            for is_renewed in [true, false] {
                let server = Server::new();
                let backend = server.client(capacity, WaitMode::Polls);
                let held = claim("a");
                let mut signal = hold(&backend, &held).await.lost.unwrap();
                let (closing, mut closed) = tokio::sync::oneshot::channel();
                server.at_next_close(move || _ = closing.send(signal.fired().now_or_never()));
                fault(&server);
                if is_renewed {
                    assert!(matches!(renew(&backend, &held).await, Renewal::Lost), "{name}");
                }
                let told = tokio::time::timeout(SILENCE * 10, &mut closed).await;
                assert_eq!(told, Ok(Ok(Some(LossCause::SessionEnded))), "{name}, {capacity:?}");
            }
        }
    }
}

/// The task that watches the session has not noticed its end yet.
#[tokio::test(start_paused = true)]
async fn lock_of_a_session_that_has_just_ended_is_no_grant() {
    for capacity in [Capacity::Many, ONE] {
        let server = Server::new();
        let backend = server.client(capacity, WaitMode::Polls);
        let ending = server.clone();
        server.at_next_grant(move || ending.end_all());
        let failure = backend.contend(&claim("a"), &Patience::none(clock())).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
        hold(&backend, &claim("a")).await;
    }
}

/// Nothing of it is left on the server.
#[tokio::test(start_paused = true)]
async fn idle_session_is_closed_when_it_is_over() {
    let server = Server::new();
    let backend = server.client(ONE, WaitMode::Polls);
    let held = claim("a");
    hold(&backend, &held).await;
    assert!(matches!(release(&backend, &held).await, Release::Freed));
    assert_eq!(server.sessions(), 1);
    // The next sign of life fails.
    server.fail_once();
    let closed = async {
        while server.sessions() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SILENCE * 10, closed).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unlock_denied_by_the_server_ends_the_session_and_its_locks() {
    let server = Server::new();
    let backend = server.client(Capacity::Many, WaitMode::Polls);
    let (first, second) = (claim("a"), claim("b"));
    hold(&backend, &first).await;
    let mut signal = hold(&backend, &second).await.lost.unwrap();
    server.forget();
    assert!(matches!(release(&backend, &first).await, Release::Gone));
    assert_eq!(signal.fired().await, LossCause::SessionEnded);
    assert!(matches!(renew(&backend, &second).await, Renewal::Lost));
}

/// Nobody knows whether the server had ended the session before, so asking again tells nothing.
#[tokio::test(start_paused = true)]
async fn release_that_is_not_confirmed_is_unknown_for_good_and_closes_the_session() {
    let server = Server::new();
    let backend = server.client(Capacity::Many, WaitMode::Polls);
    let (first, second) = (claim("a"), claim("b"));
    hold(&backend, &first).await;
    let mut signal = hold(&backend, &second).await.lost.unwrap();
    server.fall_silent();
    let answer = release(&backend, &first).await;
    let Release::Unknown(failure) = answer else { panic!("{answer:?}") };
    assert_eq!((failure.is_transient(), failure.effect), (false, Effect::Unknown), "{failure}");
    assert_eq!(signal.fired().await, LossCause::SessionEnded);
    // Without another lock of this client.
    tokio::time::timeout(SILENCE * 10, async {
        while server.locks() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
}

/// Otherwise only the next sign of life would find it, while another client is granted the lock at once.
#[tokio::test(start_paused = true)]
async fn holder_is_notified_of_a_break_by_its_own_client() {
    let server = Server::new();
    for capacity in [ONE, Capacity::Many] {
        let client = server.client(capacity, WaitMode::Polls);
        let (broken, released) = (claim("a"), claim("b"));
        let broken_signal = hold(&client, &broken).await.lost.unwrap();
        let released_signal = hold(&client, &released).await.lost.unwrap();
        assert!(matches!(client.break_claim(&broken).await, Ok(BreakOutcome::Ended { .. })));
        assert_eq!(broken_signal.cause(), Some(LossCause::Gone));
        assert!(matches!(release(&client, &released).await, Release::Freed));
        assert_eq!(released_signal.cause(), None, "a release is not a loss");
    }
    assert_eq!(server.locks(), 0);
}

/// Otherwise another client could be granted the lock while its old holder still counts on it.
#[tokio::test(start_paused = true)]
async fn holder_is_notified_of_a_break_before_the_lock_is_free() {
    let server = Server::new();
    for capacity in [ONE, Capacity::Many] {
        let client = server.client(capacity, WaitMode::Polls);
        let broken = claim("a");
        let signal = hold(&client, &broken).await.lost.unwrap();
        server.answer_in(SILENCE / 4);
        let mut breaking = pin!(client.break_claim(&broken));
        poll_pending(breaking.as_mut());
        assert_eq!((signal.cause(), server.locks()), (Some(LossCause::Gone), 1), "{capacity:?}");
        assert!(matches!(breaking.await, Ok(BreakOutcome::Ended { .. })), "{capacity:?}");
        assert_eq!(server.locks(), 0);
        server.answer_in(Duration::ZERO);
    }
}

/// Otherwise a listener that uses the client would wait for itself. Here another thread uses it, so that the test ends.
#[tokio::test(start_paused = true)]
async fn client_can_be_used_while_a_listener_of_a_loss_runs() {
    let server = Server::new();
    let client = Arc::new(server.client(Capacity::Many, WaitMode::Polls));
    let mut signal = hold(&*client, &claim("a")).await.lost.unwrap();
    let was_used = Arc::new(AtomicBool::new(false));
    let listener = signal.on_loss({
        let (client, was_used) = (client.clone(), was_used.clone());
        move |_| {
            let (sender, used) = std::sync::mpsc::channel();
            std::thread::spawn(move || sender.send(renew(&*client, &claim("b")).now_or_never()));
            let answer = used.recv_timeout(Duration::from_secs(60));
            was_used.store(matches!(answer, Ok(Some(Renewal::Lost))), Ordering::SeqCst);
        }
    });
    server.end_all();
    assert_eq!(signal.fired().await, LossCause::SessionEnded);
    drop(listener);
    assert!(was_used.load(Ordering::SeqCst));
}

/// Otherwise the break ends the connection before it has released the lock, and the release fails.
#[tokio::test(start_paused = true)]
async fn break_by_the_own_client_leaves_a_release_under_way_alone() {
    let server = Server::new();
    for capacity in [ONE, Capacity::Many] {
        let client = server.client(capacity, WaitMode::Polls);
        let held = claim("a");
        hold(&client, &held).await;
        server.answer_in(SILENCE / 4);
        let (released, broken) = tokio::join!(release(&client, &held), client.break_claim(&held));
        assert!(matches!(released, Release::Freed), "{capacity:?}: {released:?}");
        assert!(matches!(broken, Ok(BreakOutcome::Gone)), "{capacity:?}: {broken:?}");
        // A release that is given up in the middle keeps no break waiting.
        hold(&client, &held).await;
        drop(tokio::time::timeout(SILENCE / 8, release(&client, &held)).await);
        let broken = tokio::time::timeout(ANSWER_LIMIT, client.break_claim(&held)).await;
        assert!(broken.is_ok_and(|broken| broken.is_ok()), "{capacity:?}");
        server.answer_in(Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn holder_that_is_shown_during_its_eviction_is_evicted() {
    let server = Server::new();
    server.show_later(Duration::ZERO);
    let client = Arc::new(server.client(Capacity::Many, WaitMode::Polls));
    let other = server.client(Capacity::Many, WaitMode::Polls);
    let (held, beside) = (claim("a"), claim("b"));
    hold(&*client, &beside).await;
    assert!(matches!(other.break_claim(&claim("b")).await, Ok(BreakOutcome::Gone)), "it holds nothing");
    let mut holds = Box::pin({
        let (client, held) = (client.clone(), held.clone());
        async move { hold(&*client, &held).await }
    });
    server.at_next_eviction(move || {
        let mut context = Context::from_waker(Waker::noop());
        while holds.as_mut().poll(&mut context).is_pending() {}
    });
    let outcome = other.break_claim(&held).await.unwrap();
    let BreakOutcome::Ended { also_released } = outcome else { panic!("{outcome:?}") };
    assert_eq!(also_released, [beside.resource]);
    assert_eq!(server.locks(), 0);
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_client_share_one_lock_of_the_server() {
    let server = Server::new();
    let (backend, other) =
        (server.client(Capacity::Many, WaitMode::Polls), server.client(Capacity::Many, WaitMode::Polls));
    let readers: Vec<Claim> = (0..3).map(|_| claim_of("a", Share::READER)).collect();
    for reader in &readers {
        hold(&backend, reader).await;
    }
    let writer = claim_of("a", Share::WRITER);
    for reader in &readers {
        assert!(is_refused(&backend, &writer).await && is_refused(&other, &writer).await);
        assert!(matches!(release(&backend, reader).await, Release::Freed));
    }
    assert_eq!(server.locks(), 0);
    hold(&other, &writer).await;
    assert!(is_refused(&backend, &claim_of("a", Share::READER)).await);
}

#[tokio::test(start_paused = true)]
async fn reader_that_comes_while_the_last_one_leaves_has_a_lock_of_the_server() {
    let server = Server::new();
    let (backend, other) =
        (server.client(Capacity::Many, WaitMode::Polls), server.client(Capacity::Many, WaitMode::Polls));
    let (leaves, comes) = (claim_of("a", Share::READER), claim_of("a", Share::READER));
    hold(&backend, &leaves).await;
    let patience = Patience::unlimited(clock());
    let (released, step) = tokio::join!(release(&backend, &leaves), backend.contend(&comes, &patience));
    assert!(matches!(released, Release::Freed), "{released:?}");
    assert!(matches!(step, Ok(Step::Granted(_))), "{step:?}");
    assert!(is_refused(&other, &claim_of("a", Share::WRITER)).await);
}

#[tokio::test(start_paused = true)]
async fn names_with_one_key_are_refused_as_foreign() {
    let server = Server::new();
    let backend = server.client(Capacity::Many, WaitMode::Polls);
    hold(&backend, &claim("a")).await;
    let failure = backend.contend(&claim("alias of a"), &Patience::none(clock())).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign);
    assert!(failure.detail().contains("\"alias of a\"") && failure.detail().contains("\"a\""), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn claim_beyond_the_connection_limit_is_refused_with_the_reason() {
    let server = Server::new();
    let backend = Arc::new(server.client(ONE, WaitMode::Blocks));
    let claims = [claim("a"), claim("b")];
    for claim in &claims {
        hold(&*backend, claim).await;
    }
    let patience = Patience::unlimited(clock());
    let waiting = {
        let (backend, patience, wanted) = (backend.clone(), patience.clone(), claim("a"));
        tokio::spawn(async move { backend.contend(&wanted, &patience).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let failure = backend.contend(&claim("c"), &Patience::none(clock())).await.unwrap_err();
    assert!(
        failure.is_transient()
            && failure.detail().contains("all 3")
            && failure.detail().contains("sessions=")
    );
    patience.end();
    assert!(matches!(waiting.await.unwrap().unwrap(), Step::Busy(_)));
    hold(&*backend, &claim("c")).await;
    assert_eq!(server.sessions(), 3, "a session without a lock is used again");
}

#[tokio::test(start_paused = true)]
async fn session_of_a_released_lock_is_used_again() {
    let server = Server::new();
    let backend = server.client(ONE, WaitMode::Polls);
    for _ in 0..3 {
        let held = claim("a");
        hold(&backend, &held).await;
        assert!(matches!(release(&backend, &held).await, Release::Freed));
        assert_eq!((server.sessions(), server.opened()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn released_wait_is_cancelled_and_the_lock_goes_to_the_next() {
    let server = Server::new();
    let backend = Arc::new(server.client(ONE, WaitMode::Blocks));
    let (held, wanted) = (claim("a"), claim("a"));
    hold(&*backend, &held).await;
    let waiting = {
        let (backend, wanted) = (backend.clone(), wanted.clone());
        tokio::spawn(async move { backend.contend(&wanted, &Patience::unlimited(clock())).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(matches!(release(&*backend, &wanted).await, Release::Freed));
    let step = tokio::time::timeout(Duration::from_secs(1), waiting).await.unwrap().unwrap().unwrap();
    assert!(matches!(step, Step::Busy(_)), "{step:?}");
    assert!(matches!(release(&*backend, &wanted).await, Release::Gone));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    assert_eq!(server.locks(), 0);
}

#[tokio::test(start_paused = true)]
async fn acquire_dropped_during_its_request_leaves_no_lock() {
    for capacity in [Capacity::Many, ONE] {
        let server = Server::new();
        let backend = server.client(capacity, WaitMode::Polls);
        for _ in 0..50 {
            let wanted = claim("a");
            let patience = Patience::none(clock());
            let asking = backend.contend(&wanted, &patience);
            // Each poll ends in another place.
            let polls = usize::from(wanted.id.as_bytes()[0]) % 6;
            let mut asking = Box::pin(asking);
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let mut granted = false;
            for _ in 0..polls {
                if asking.as_mut().poll(&mut context).is_ready() {
                    granted = true;
                    break;
                }
            }
            drop(asking);
            if granted {
                assert!(matches!(release(&backend, &wanted).await, Release::Freed));
            }
            let next = claim("a");
            let mut held = false;
            for _ in 0..100 {
                held = !is_refused(&backend, &next).await;
                if held {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert!(held, "a lock was left behind");
            assert!(matches!(release(&backend, &next).await, Release::Freed));
        }
    }
}

/// As a database does on a machine that is busy.
#[tokio::test(start_paused = true)]
async fn a_server_slow_to_end_a_wait_costs_no_error_and_no_session() {
    async fn wait_a_little(backend: &dyn Backend) -> Result<Step, Failure> {
        let (wanted, patience) = (claim("job"), Patience::unlimited(clock()));
        let end = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            patience.end();
        };
        tokio::join!(backend.contend(&wanted, &patience), end).0
    }

    let server = Server::new();
    let backend = server.client(ONE, WaitMode::Blocks);
    let holder = claim("job");
    hold(&backend, &holder).await;
    server.slow_down(ANSWER_LIMIT / 5);
    let step = wait_a_little(&backend).await;
    assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
    assert_eq!(server.sessions(), 2, "the session serves the next wait");
    // A server that is slower than that counts as silent. It may still grant the lock, so the session ends.
    server.slow_down(ANSWER_LIMIT * 20);
    let failure = wait_a_little(&backend).await.unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
    let only_one_is_left = async {
        while server.sessions() > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), only_one_is_left).await.unwrap();
    assert!(matches!(release(&backend, &holder).await, Release::Freed));
}

/// The end of the session is not noticed by a task of its own here, because no other task runs in between.
#[tokio::test(start_paused = true)]
async fn session_that_has_just_ended_is_not_used_and_holds_nothing() {
    for capacity in [Capacity::Many, ONE] {
        let server = Server::new();
        let backend = server.client(capacity, WaitMode::Polls);
        let (idle, held) = (claim("idle"), claim("held"));
        hold(&backend, &idle).await;
        let mut signal = hold(&backend, &held).await.lost.unwrap();
        assert!(matches!(release(&backend, &idle).await, Release::Freed));
        server.end_all();
        // Its locks are gone before another session is used.
        hold(&backend, &claim("held")).await;
        assert_eq!(signal.fired().now_or_never(), Some(LossCause::SessionEnded));
    }
}

#[tokio::test(start_paused = true)]
async fn lock_given_by_a_session_that_ends_meanwhile_is_not_granted() {
    let server = Server::new();
    let backend = server.client(Capacity::Many, WaitMode::Polls);
    let (first, second) = (claim("a"), claim("b"));
    hold(&backend, &first).await;
    let patience = Patience::none(clock());
    let mut asks = pin!(backend.contend(&second, &patience));
    poll_pending(asks.as_mut());
    // The server denies what it has given, so the session is over when it gives the second lock.
    server.forget();
    assert!(matches!(release(&backend, &first).await, Release::Gone));
    let failure = asks.await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    let all_end = async {
        while server.sessions() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_end).await.unwrap();
    hold(&backend, &second).await;
}

/// The other task runs on another thread, at the last point before the name is reserved.
#[tokio::test(start_paused = true)]
async fn name_reserved_after_the_end_of_its_session_is_free_again() {
    let server = Server::new();
    let backend = Arc::new(server.client(Capacity::Many, WaitMode::Polls));
    let (first, second) = (claim("a"), claim("b"));
    hold(&*backend, &first).await;
    server.forget();
    let other = backend.clone();
    let mut releases = Box::pin(async move { release(&*other, &first).await });
    server.at_next_key(move || {
        let mut context = Context::from_waker(Waker::noop());
        while releases.as_mut().poll(&mut context).is_pending() {}
    });
    let failure = backend.contend(&second, &Patience::none(clock())).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    hold(&*backend, &second).await;
}

#[tokio::test(start_paused = true)]
async fn lock_given_after_a_wait_is_granted_only_by_a_live_session() {
    let server = Server::new();
    let backend = server.client(ONE, WaitMode::Blocks);
    let (held, wanted) = (claim("a"), claim("a"));
    hold(&backend, &held).await;
    let patience = Patience::unlimited(clock());
    let mut waits = pin!(backend.contend(&wanted, &patience));
    poll_pending(waits.as_mut());
    server.forget();
    while server.locks() == 0 {
        poll_pending(waits.as_mut());
    }
    // The lock was given, perhaps long ago, and the answer has only now arrived.
    server.fall_silent();
    let failure = waits.await.unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
}

#[tokio::test(start_paused = true)]
async fn claim_granted_again_counts_from_before_the_sign_of_life() {
    let (server, clock) = (Server::new(), Arc::new(ManualClock::new()));
    let backend = server.client_by(Capacity::Many, WaitMode::Polls, clock.clone());
    let held = claim("a");
    hold(&backend, &held).await;
    let (patience, asked_at) = (Patience::none(clock.clone()), clock.now());
    let mut asks = pin!(backend.contend(&held, &patience));
    poll_pending(asks.as_mut());
    clock.advance(SILENCE / 4);
    let step = asks.await.unwrap();
    assert!(matches!(&step, Step::Granted(grant) if grant.asked_at == asked_at), "{step:?}");
}

#[tokio::test(start_paused = true)]
async fn renewal_that_finds_the_session_in_doubt_is_a_loss() {
    let server = Server::new();
    let backend = server.client(Capacity::Many, WaitMode::Polls);
    let held = claim("a");
    let mut signal = hold(&backend, &held).await.lost.unwrap();
    server.fail_once();
    let renewal = renew(&backend, &held).await;
    assert!(matches!(renewal, Renewal::Lost), "{renewal:?}");
    assert_eq!(signal.fired().now_or_never(), Some(LossCause::SessionEnded));
    hold(&backend, &claim("a")).await;
}

#[tokio::test(start_paused = true)]
async fn release_in_doubt_loses_what_the_session_holds() {
    let server = Server::new();
    let backend = server.client(Capacity::Many, WaitMode::Polls);
    let (first, second) = (claim("a"), claim("b"));
    hold(&backend, &first).await;
    let mut signal = hold(&backend, &second).await.lost.unwrap();
    server.fail_once();
    let released = release(&backend, &first).await;
    assert!(matches!(released, Release::Unknown(_)), "{released:?}");
    assert_eq!(signal.fired().now_or_never(), Some(LossCause::SessionEnded));
    hold(&backend, &first).await;
}

#[tokio::test(start_paused = true)]
async fn request_without_an_answer_loses_what_the_session_holds() {
    for is_held in [false, true] {
        let server = Server::new();
        let backend = server.client(Capacity::Many, WaitMode::Polls);
        let (held, other) = (claim("a"), claim("b"));
        let mut signal = hold(&backend, &held).await.lost.unwrap();
        let asked = if is_held { &held } else { &other };
        server.fail_once();
        let failure = backend.contend(asked, &Patience::none(clock())).await.unwrap_err();
        assert_eq!(failure.effect, Effect::Unknown, "{failure}");
        assert_eq!(signal.fired().now_or_never(), Some(LossCause::SessionEnded));
        hold(&backend, asked).await;
    }
}

#[tokio::test(start_paused = true)]
async fn request_refused_without_effect_leaves_its_session_as_it_was() {
    for (capacity, opened) in [(Capacity::Many, 1), (ONE, 2)] {
        let server = Server::new();
        let backend = server.client(capacity, WaitMode::Polls);
        let (held, refused) = (claim("a"), claim("b"));
        let mut signal = hold(&backend, &held).await.lost.unwrap();
        server.refuse_once();
        let failure = backend.contend(&refused, &Patience::none(clock())).await.unwrap_err();
        assert_eq!(failure.effect, Effect::None, "{failure}");
        assert_eq!(signal.fired().now_or_never(), None);
        hold(&backend, &claim("b")).await;
        assert_eq!(server.opened(), opened, "{capacity:?}");
    }
}

/// The session counts as silent by then, so nobody would learn of its end.
#[tokio::test(start_paused = true)]
async fn lock_whose_answer_takes_longer_than_the_silence_is_no_grant() {
    for capacity in [Capacity::Many, ONE] {
        let server = Server::new();
        server.answer_in(SILENCE * 2);
        let backend = server.client_by(capacity, WaitMode::Polls, Arc::new(RuntimeClock::new()));
        let failure = backend.contend(&claim("a"), &Patience::none(clock())).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
        server.answer_in(Duration::ZERO);
        hold(&backend, &claim("a")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_is_dropped_leaves_no_session() {
    for capacity in [Capacity::Many, ONE] {
        let server = Server::new();
        let backend = server.client(capacity, WaitMode::Polls);
        let idle = claim("idle");
        hold(&backend, &claim("held")).await;
        hold(&backend, &idle).await;
        assert!(matches!(release(&backend, &idle).await, Release::Freed));
        drop(backend);
        sessions_become(&server, 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn few_sessions_without_a_lock_are_kept() {
    let server = Server::new();
    let backend = server.client(Capacity::One { sessions: 20, option: "sessions=" }, WaitMode::Polls);
    let claims: Vec<Claim> = (0..20).map(|number| claim(&format!("job/{number}"))).collect();
    for claim in &claims {
        hold(&backend, claim).await;
    }
    assert_eq!(server.sessions(), 20);
    assert_eq!(backend.release(&claims.iter().collect::<Vec<_>>()).await.len(), 20);
    sessions_become(&server, 8).await;
}

#[tokio::test(start_paused = true)]
async fn readers_with_sessions_of_their_own_are_released_together() {
    let server = Server::new();
    let backend = server.client_by(ONE, WaitMode::Polls, Arc::new(RuntimeClock::new()));
    let readers: Vec<Claim> = (0..3).map(|_| claim_of("a", Share::READER)).collect();
    for reader in &readers {
        hold(&backend, reader).await;
    }
    server.answer_in(SILENCE / 4);
    let began = Instant::now();
    let released = backend.release(&readers.iter().collect::<Vec<_>>()).await;
    assert!(released.iter().all(|released| matches!(released, Release::Freed)), "{released:?}");
    assert_eq!(began.elapsed(), SILENCE / 4);
}

#[tokio::test(start_paused = true)]
async fn ended_session_is_closed_even_if_no_other_can_be_opened() {
    let server = Server::new();
    let backend = server.client_by(Capacity::Many, WaitMode::Polls, Arc::new(RuntimeClock::new()));
    hold(&backend, &claim("a")).await;
    let is_closed = Arc::new(AtomicBool::new(false));
    let closed = is_closed.clone();
    server.at_next_close(move || closed.store(true, Ordering::SeqCst));
    server.end_all();
    server.set_unreachable(true);
    backend.contend(&claim("b"), &Patience::none(clock())).await.unwrap_err();
    assert!(is_closed.load(Ordering::SeqCst));
}

/// The other task runs on another thread, once the session was found to be live.
#[tokio::test(start_paused = true)]
async fn session_that_ends_while_it_is_chosen_is_closed() {
    let server = Server::new();
    let backend = Arc::new(server.client(Capacity::Many, WaitMode::Polls));
    let first = claim("a");
    hold(&*backend, &first).await;
    server.forget();
    let other = backend.clone();
    let mut releases = Box::pin(async move { release(&*other, &first).await });
    server.at_next_check(move || {
        let mut context = Context::from_waker(Waker::noop());
        while releases.as_mut().poll(&mut context).is_pending() {}
    });
    let failure = backend.contend(&claim("b"), &Patience::none(clock())).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    sessions_become(&server, 0).await;
}

#[tokio::test(start_paused = true)]
async fn findings_are_those_of_the_server() {
    let backend = Server::new().client(Capacity::Many, WaitMode::Polls);
    let found = backend.diagnose(SILENCE).await;
    assert_eq!(found.iter().map(|finding| finding.found.as_str()).collect::<Vec<_>>(), ["a ttl of 400ms"]);
}
