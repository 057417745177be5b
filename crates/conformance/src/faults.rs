//! Checks of leases in rows when their server dies, forgets, hangs, or lets others be first.
//!
//! Ground rules: for tests only, so what must not fail panics. A server brings its faults; what is expected
//! of a backend is written here, once.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{Backend, Claim, Clock, FailureKind, Grant, Moment, Patience, Release, Renewal, Step};
use tokio::task::JoinHandle;

use crate::calls::{
    LONG, claim, clock, hold, in_the_end, look_once, release, release_until_known, renew, renew_until_known,
    resource, take,
};

/// Checks that holders and waiters outlive the server, which is killed and started again with its data.
///
/// # Panics
/// If they do not.
pub async fn restart_keeps_holders_and_waiters(
    [here, there]: [Arc<dyn Backend>; 2],
    kill: impl FnOnce(),
    restart: impl AsyncFnOnce(),
) {
    let (held, next) = (claim("job", LONG), claim("job", LONG));
    let first = hold(&*here, &held).await;
    let waiting = wait(&there, &next).await;
    kill();
    assert!(matches!(renew(&*here, &held).await, Renewal::Unknown(_)), "a dead server confirms nothing");
    restart().await;
    assert!(matches!(renew_until_known(&*here, &held).await, Renewal::Renewed));
    assert!(!waiting.is_finished());
    assert!(matches!(release(&*here, &held).await, Release::Freed));
    let second = granted(waiting).await;
    assert!(second.fence > first.fence, "{second:?} after {first:?}");
}

/// Checks that a lock is lost with the server's data, and that a waiter has it, under a greater fence.
///
/// # Panics
/// If that is not so.
pub async fn data_loss_loses_the_lock_and_fences_still_rise(
    [here, there]: [Arc<dyn Backend>; 2],
    lose: impl AsyncFnOnce(),
) {
    let (held, next) = (claim("job", LONG), claim("job", LONG));
    let first = hold(&*here, &held).await;
    let waiting = wait(&there, &next).await;
    lose().await;
    let second = granted(waiting).await;
    assert!(second.fence > first.fence, "{second:?} after {first:?}");
    assert!(matches!(renew_until_known(&*here, &held).await, Renewal::Lost));
    assert!(matches!(release(&*here, &held).await, Release::Gone), "it must spare the next holder");
    assert!(matches!(release(&*there, &next).await, Release::Freed));
}

/// Checks that a server that does not answer is reported as away within the backend's own limit of time,
/// and that held locks are held when it returns.
///
/// # Panics
/// If that is not so.
pub async fn hanging_server_is_unavailable_until_it_resumes(
    backend: &dyn Backend,
    stop: impl FnOnce(),
    resume: impl FnOnce(),
) {
    let held = claim("job", LONG);
    hold(backend, &held).await;
    stop();
    let began = Instant::now();
    assert!(matches!(renew(backend, &held).await, Renewal::Unknown(_)));
    let looked = look_once(backend, &claim("other", LONG)).await;
    assert!(matches!(&looked, Err(failure) if failure.kind == FailureKind::Unavailable), "{looked:?}");
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    resume();
    assert!(matches!(renew_until_known(backend, &held).await, Renewal::Renewed));
}

/// Checks that each holder is alone when all clients contend for the same two names.
///
/// # Panics
/// If two are.
pub async fn all_clients_take_turns(clients: Vec<Arc<dyn Backend>>) {
    let inside: Arc<[AtomicU32; 2]> = Arc::default();
    let turns = |(n, backend): (usize, Arc<dyn Backend>)| {
        let inside = inside.clone();
        tokio::spawn(async move {
            for round in 0..10 {
                let at = (n + round) % inside.len();
                let claim = claim(&format!("r{at}"), LONG);
                take(&*backend, &claim).await;
                assert_eq!(inside[at].fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                assert!(matches!(renew_until_known(&*backend, &claim).await, Renewal::Renewed));
                inside[at].fetch_sub(1, Ordering::SeqCst);
                free(&*backend, &claim).await;
            }
        })
    };
    let tasks: Vec<_> = clients.into_iter().enumerate().map(turns).collect();
    for task in tasks {
        ended(task).await;
    }
}

/// Checks that waits that are given up at any point leave no claim in the queue; as many as
/// `LEASEHOLD_CANCELLED` says, else a few hundred.
///
/// # Panics
/// If one is granted, or leaves a place.
pub async fn cancelled_waits_leave_no_place(backend: &Arc<dyn Backend>) {
    let waits = std::env::var("LEASEHOLD_CANCELLED").ok().and_then(|waits| waits.parse().ok());
    let mut left: u64 = waits.unwrap_or(300);
    // Longer than the longest campaign.
    let held = claim("job", LONG * 60);
    hold(&**backend, &held).await;
    while left > 0 {
        let some = left.min(50);
        left -= some;
        let waits: Vec<_> = (0..some)
            .map(|n| {
                let backend = backend.clone();
                tokio::spawn(async move { give_up(&*backend, Duration::from_micros(n % 20 * 700)).await })
            })
            .collect();
        for wait in waits {
            ended(wait).await;
        }
    }
    let job = resource("job");
    let seen = in_the_end(async || backend.inspect(&job, None, &Patience::none(clock())).await).await;
    assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 0), "{seen:?}");
    free(&**backend, &held).await;
}

/// Checks that a grant counts from before the request that it answers: that of a free lock, and that of a lock that was
/// waited for.
///
/// `received` returns the number of bytes that the server has sent to the first client so far, its connections
/// included. They are the time of that client, so each answer takes some, however fast the machine is.
///
/// # Panics
/// If a grant counts from its answer.
pub async fn grants_count_from_before_their_requests(
    [here, there]: [Arc<dyn Backend>; 2],
    received: impl Fn() -> u64 + Send + Sync + 'static,
) {
    let clock: Arc<dyn Clock> = Arc::new(Received(received));
    for round in 0..10 {
        let claim = claim("job", LONG);
        let (asked, grant, answered) = timed(&*here, &claim, &Patience::none(clock.clone())).await;
        assert!(grant.asked_at < answered, "{round}: {grant:?} counts from its answer at {answered:?}");
        assert!(grant.asked_at >= asked, "{round}: {grant:?} was asked for at {asked:?}");
        free(&*here, &claim).await;
    }
    let held = claim("job", LONG);
    hold(&*there, &held).await;
    let before = clock.now();
    let waiting = {
        let (here, clock) = (here.clone(), clock.clone());
        let (next, patience) = (claim("job", LONG), Patience::unlimited(clock));
        tokio::spawn(async move {
            let (_, grant, answered) = timed(&*here, &next, &patience).await;
            assert!(grant.asked_at < answered, "{grant:?} counts from its answer at {answered:?}");
            free(&*here, &next).await;
        })
    };
    let begun = Instant::now();
    while clock.now() == before {
        assert!(begun.elapsed() < LONG, "the waiter has no answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    free(&*there, &held).await;
    ended(waiting).await;
}

/// Contends until a grant. Returns when it began, the grant, and when the grant came.
async fn timed(backend: &dyn Backend, claim: &Claim, patience: &Patience) -> (Moment, Grant, Moment) {
    let (began, asked) = (Instant::now(), patience.now());
    while began.elapsed() < LONG {
        match backend.contend(claim, patience).await {
            Ok(Step::Granted(grant)) => return (asked, grant, patience.now()),
            Ok(Step::Busy(hint)) => tokio::time::sleep(hint.ask_again_in.unwrap_or_default()).await,
            Err(failure) => assert!(failure.is_transient(), "{failure}"),
        }
    }
    panic!("{:?} was never granted", claim.resource);
}

/// The bytes that a client has received, as nanoseconds: a time that passes by answers alone.
struct Received<F>(F);

impl<F> Debug for Received<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Received")
    }
}

impl<F: Fn() -> u64 + Send + Sync> Clock for Received<F> {
    fn now(&self) -> Moment {
        Moment::from_nanos((self.0)())
    }
}

/// Releases a claim that is held, as the engine does. A call that was not answered may have ended it.
async fn free(backend: &dyn Backend, held: &Claim) {
    match release(backend, held).await {
        Release::Freed => {}
        Release::Unknown(failure) if failure.is_transient() => {
            release_until_known(backend, held).await;
        }
        other => panic!("the release of {:?} answered {other:?}", held.resource),
    }
}

/// Waits as the engine does, whose call that sees patience ended is the last one.
async fn give_up(backend: &dyn Backend, after: Duration) {
    let (claim, patience) = (claim("job", LONG), Patience::unlimited(clock()));
    let end = async {
        tokio::time::sleep(after).await;
        patience.end();
    };
    let waiting = async {
        loop {
            let is_last = patience.is_ended();
            match backend.contend(&claim, &patience).await {
                Ok(Step::Granted(_)) => panic!("granted while it is held"),
                Ok(Step::Busy(_)) if is_last => return,
                Ok(Step::Busy(hint)) => tokio::select! {
                    () = tokio::time::sleep(hint.ask_again_in.unwrap_or_default()) => {}
                    () = patience.ended() => {}
                },
                Err(failure) => {
                    // As the reaper does with a wait whose end is not known.
                    assert!(failure.is_transient(), "{failure}");
                    release_until_known(backend, &claim).await;
                    return;
                }
            }
        }
    };
    tokio::join!(waiting, end);
}

/// Begins to wait for what is held, and returns when it is queued.
async fn wait(backend: &Arc<dyn Backend>, next: &Claim) -> JoinHandle<Grant> {
    let waiting = {
        let (backend, next) = (backend.clone(), next.clone());
        tokio::spawn(async move { take(&*backend, &next).await })
    };
    for _ in 0..3_000 {
        let seen = backend.inspect(&next.resource, None, &Patience::none(clock())).await;
        if seen.is_ok_and(|seen| !seen.waiting.is_empty()) {
            return waiting;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody ever waits for {:?}", next.resource);
}

async fn granted(waiting: JoinHandle<Grant>) -> Grant {
    match tokio::time::timeout(LONG, waiting).await {
        Ok(Ok(grant)) => grant,
        other => panic!("it was not granted: {other:?}"),
    }
}

async fn ended(task: JoinHandle<()>) {
    match tokio::time::timeout(LONG, task).await {
        Ok(Ok(())) => {}
        other => panic!("it did not end well: {other:?}"),
    }
}
