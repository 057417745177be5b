//! Tests of the memory store alone; `tests/conformance_memory.rs` runs the laws.

use std::task::{Context, Poll, Waker};

use leasehold_core::{ClaimId, ManualClock, Share};

use super::store::MIN_SWEEP;
use super::*;
use crate::clock::TokioClock;

const TTL: Duration = Duration::from_secs(30);

fn claim(n: u32, resource: &str, share: Share) -> Claim {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&n.to_be_bytes());
    Claim::new(ClaimId::from_bytes(id), Resource::new(resource).unwrap(), share, TTL)
}

fn at_once() -> Patience {
    Patience::none(Arc::new(SystemClock))
}

fn forever() -> Patience {
    Patience::unlimited(Arc::new(SystemClock))
}

async fn fence_of(backend: &MemoryBackend, claim: &Claim) -> Option<Fence> {
    match backend.contend(claim, &at_once()).await.unwrap() {
        Step::Granted(grant) => grant.fence,
        Step::Busy(_) => None,
    }
}

#[tokio::test]
async fn a_lease_ends_by_the_injected_clock() {
    let clock = Arc::new(ManualClock::new());
    let backend = MemoryBackend::with_clock(clock.clone());
    let (first, second) = (claim(1, "a", Share::MUTEX), claim(2, "a", Share::MUTEX));
    assert!(fence_of(&backend, &first).await.is_some());
    clock.advance(TTL - Duration::from_nanos(1));
    assert!(fence_of(&backend, &second).await.is_none());
    clock.advance(Duration::from_nanos(1));
    assert!(fence_of(&backend, &second).await.is_some());
    let gone = backend.renew(&[Renew { claim: &first, proof: &Proof::none() }]).await;
    assert!(matches!(gone[..], [Renewal::Lost]));
}

#[tokio::test]
async fn a_ttl_that_cannot_be_kept_is_refused() {
    let backend = MemoryBackend::new();
    for ttl in [Duration::from_millis(99), Duration::from_secs(24 * 60 * 60 + 1)] {
        let claim = claim(1, "a", Share::MUTEX).ttl(ttl);
        let failure = backend.contend(&claim, &at_once()).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Invalid, Effect::None));
    }
}

#[tokio::test]
async fn a_dropped_wait_gives_up_its_place() {
    let backend = MemoryBackend::new();
    let (holder, waiter) = (claim(1, "a", Share::MUTEX), claim(2, "a", Share::MUTEX));
    fence_of(&backend, &holder).await.unwrap();
    {
        let patience = forever();
        let mut wait = backend.contend(&waiter, &patience);
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(backend.list("", None, 9).await.unwrap()[0].waiting, 1);
    }
    assert_eq!(backend.list("", None, 9).await.unwrap()[0].waiting, 0);
    assert!(backend.store().wakeups.is_empty());
}

#[tokio::test]
async fn only_the_called_claim_is_woken() {
    let backend = Arc::new(MemoryBackend::new());
    let holder = claim(0, "a", Share::MUTEX);
    fence_of(&backend, &holder).await.unwrap();
    let claims: Vec<Claim> = (1..=50).map(|n| claim(n, "a", Share::MUTEX)).collect();
    let patience = forever();
    let woken = Arc::new(CountingWaker::default());
    let waker = Waker::from(woken.clone());
    let mut waits: Vec<_> = claims.iter().map(|claim| backend.contend(claim, &patience)).collect();
    for wait in &mut waits {
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(woken.count(), 0, "late claims do not disturb the waiters");
    backend.release(&[&holder]).await;
    assert_eq!(woken.count(), 1);
    let first = waits[0].as_mut().poll(&mut Context::from_waker(&waker));
    assert!(matches!(first, Poll::Ready(Ok(Step::Granted(_)))));
}

#[tokio::test(start_paused = true)]
async fn waiter_is_granted_when_the_lease_of_its_predecessor_ends() {
    let clock = Arc::new(TokioClock::new());
    let backend = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let short = |n| claim(n, "a", Share::MUTEX).ttl(Duration::from_millis(150));
    let claims: Vec<Claim> = (0..4).map(short).collect();
    fence_of(&backend, &claims[0]).await.unwrap();
    let mut waiting = Vec::new();
    for (place, claim) in claims.iter().enumerate().skip(1) {
        let (claim, asked) = (claim.clone(), backend.clone());
        let patience = Patience::unlimited(clock.clone());
        waiting.push(tokio::spawn(async move { asked.contend(&claim, &patience).await }));
        while backend.list("", None, 9).await.unwrap()[0].waiting < u32::try_from(place).unwrap() {
            tokio::task::yield_now().await;
        }
    }
    // No holder renews any more, so each waiter is granted when the lease of the one before has ended.
    for wait in waiting {
        let granted = tokio::time::timeout(Duration::from_secs(10), wait).await.unwrap().unwrap();
        assert!(matches!(granted, Ok(Step::Granted(_))));
    }
}

#[tokio::test]
async fn newcomer_passes_the_queue_only_on_an_unordered_store() {
    for (backend, passes) in [(MemoryBackend::new(), false), (MemoryBackend::new().unordered(), true)] {
        let two = |n| claim(n, "a", Share::permits(2, 3).unwrap());
        fence_of(&backend, &two(1)).await.unwrap();
        let (patience, waiter) = (forever(), two(2));
        let mut wait = backend.contend(&waiter, &patience);
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let small = claim(3, "a", Share::permits(1, 3).unwrap());
        assert_eq!(fence_of(&backend, &small).await.is_some(), passes);
    }
}

#[tokio::test]
async fn unclaimed_names_cost_little_and_their_fences_never_decrease() {
    let backend = MemoryBackend::new();
    let first = claim(1, "first", Share::MUTEX);
    let mut last = Fence::default();
    for _ in 0..5 {
        last = fence_of(&backend, &first).await.unwrap();
        backend.release(&[&first]).await;
    }
    for n in 0..=u32::try_from(MemoryBackend::MAX_IDLE).unwrap() {
        let other = claim(n, &format!("other/{n}"), Share::MUTEX);
        fence_of(&backend, &other).await.unwrap();
        backend.release(&[&other]).await;
    }
    {
        let store = backend.store();
        // That of the last one is kept for its next claim.
        assert!(store.ledgers.len() <= 1 && store.idle.len() <= MemoryBackend::MAX_IDLE);
        assert!(!store.idle.contains_key(&first.resource), "the test means to have it forgotten");
    }
    assert!(fence_of(&backend, &first).await.unwrap() > last);
}

#[tokio::test]
async fn unreleased_claims_are_swept_after_their_ttl() {
    let clock = Arc::new(ManualClock::new());
    let backend = MemoryBackend::with_clock(clock.clone());
    for n in 0..10_000 {
        fence_of(&backend, &claim(n, &format!("r/{n}"), Share::MUTEX)).await.unwrap();
        clock.advance(Duration::from_secs(1));
    }
    let ledgers = backend.store().ledgers.len();
    assert!(ledgers <= 4 * 30 + MIN_SWEEP, "{ledgers} lines for 30 living claims");
}

#[derive(Default)]
struct CountingWaker(std::sync::atomic::AtomicUsize);

impl CountingWaker {
    fn count(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl std::task::Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Two threads that end their calls at the same moment must not each leave the wake-up to the other.
#[test]
fn calls_that_end_together_leave_no_wakeup() {
    let backend = MemoryBackend::new();
    let at = (Resource::new("a").unwrap(), None);
    for _ in 0..2_000 {
        let wakeups = [Wakeup::register(&backend, at.clone()), Wakeup::register(&backend, at.clone())];
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for wakeup in wakeups {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    drop(wakeup);
                });
            }
        });
        assert!(!backend.store().has_wakeup(&at));
    }
}

#[tokio::test]
async fn watcher_of_a_released_resource_sleeps() {
    let backend = MemoryBackend::new();
    let held = claim(1, "a", Share::MUTEX);
    fence_of(&backend, &held).await.unwrap();
    backend.release(&[&held]).await;
    let seen = backend.inspect(&held.resource, None, &at_once()).await.unwrap().version;
    let (waker, patience) = (Arc::new(CountingWaker::default()), forever());
    let mut watching = std::pin::pin!(backend.inspect(&held.resource, Some(&seen), &patience));
    let polled = watching.as_mut().poll(&mut Context::from_waker(&waker.clone().into()));
    assert!(polled.is_pending());
    assert_eq!(waker.count(), 0, "a look is not a change");
}
