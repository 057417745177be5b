//! The health of a lease as others watch it, and how they are notified of a change.
//!
//! Ground rules: no task marks the end of a lease. Each wait reads the clock at the end of the validity, and the health
//! is changed and shown under one lock.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use leasehold_core::{Clock, LossCause};

use crate::alarm::Alarm;
use crate::engine::lease::{Health, Lease, State};
use crate::mutant::mutant;
use crate::watch;

/// The health of a lease, and the channel of its changes, which exists once something listens: few locks are
/// watched, and a channel costs more than the rest of a lease.
#[derive(Debug)]
pub(super) struct Watched {
    /// Not a mutex: what a thread only reads while the process forks, the fork can read too.
    health: RwLock<Health>,
    changes: OnceLock<watch::Sender<Health>>,
}

impl Watched {
    pub(super) fn new(health: Health) -> Watched {
        Watched { health: RwLock::new(health), changes: OnceLock::new() }
    }

    pub(super) fn get(&self) -> Health {
        *self.read()
    }

    /// Changes the health, and wakes the listeners if `change` returns `true`, which this returns as well.
    pub(super) fn change(&self, change: impl FnOnce(&mut Health) -> bool) -> bool {
        let mut health = self.health.write().unwrap_or_else(PoisonError::into_inner);
        let is_modified = change(&mut health);
        let changes = self.changes.get();
        // Under the lock, so that the last change is the one that is shown.
        if let Some(changes) = changes {
            changes.send_if_modified(|shown| {
                *shown = *health;
                false
            });
        }
        drop(health);
        // A listener is foreign code, which may come back here.
        if let Some(changes) = changes.filter(|_| is_modified && !mutant!("a loss wakes nobody")) {
            changes.send_if_modified(|_| true);
        }
        is_modified
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Health> {
        // Under the lock, so that no change falls between the reading and the channel.
        let health = self.read();
        self.changes.get_or_init(|| watch::Sender::new(*health)).subscribe()
    }

    fn read(&self) -> RwLockReadGuard<'_, Health> {
        // Every change is whole before anything can panic.
        self.health.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A receiver of the changes of one claim's state.
///
/// It needs no task that marks the changes: each wait reads the clock at the end of the validity, by an
/// alarm of its own.
#[derive(Debug)]
pub(crate) struct Changes {
    health: watch::Receiver<Health>,
    /// Weak, so that a watcher does not keep the lock held.
    lease: Weak<Lease>,
    clock: Arc<dyn Clock>,
}

impl Changes {
    pub(super) fn new(health: watch::Receiver<Health>, lease: &Arc<Lease>) -> Changes {
        Changes { health, lease: Arc::downgrade(lease), clock: lease.clock.clone() }
    }

    /// Waits until the claim is lost; forever if it is released first.
    pub(crate) async fn lost(&mut self) -> LossCause {
        match self.ended().await {
            Some(cause) => cause,
            None => std::future::pending().await,
        }
    }

    /// Waits until the claim is lost, or released (`None`).
    pub(crate) async fn ended(&mut self) -> Option<LossCause> {
        let lost = |state| if let State::Lost(cause) = state { Some(cause) } else { None };
        self.until(lost).await
    }

    /// Waits until the claim is not valid any more, or is released.
    pub(crate) async fn not_valid(&mut self) {
        self.until(|state| (state != State::Valid).then_some(())).await;
    }

    /// Waits until the state differs from `seen`.
    pub(crate) async fn other_than(&mut self, seen: State) -> State {
        match self.until(|state| (state != seen).then_some(state)).await {
            Some(state) => state,
            None => std::future::pending().await,
        }
    }

    /// Waits for a wanted state; returns `None` if the claim is released first.
    async fn until<T>(&mut self, wanted: impl Fn(State) -> Option<T>) -> Option<T> {
        loop {
            // Reading the state marks an end that the clock has reached. In a fork it marks nothing.
            let read = self.lease.upgrade().map(|lease| lease.state());
            let lost = read.filter(|state| matches!(state, State::Lost(_)));
            // In a fork what is watched may be locked for ever.
            if let Some(found) = lost.and_then(&wanted) {
                return Some(found);
            }
            let health = *self.health.borrow_and_update();
            let state = lost.unwrap_or(health.state);
            if let Some(found) = wanted(state) {
                return Some(found);
            }
            let left = match state {
                State::Lost(_) => Duration::MAX,
                // A renewal may have moved the end meanwhile: then the loop waits for the rest.
                _ => self.clock.now().until(health.valid_until.min(health.hold_until)),
            };
            tokio::select! {
                biased;
                changed = self.health.changed() => changed.ok()?,
                () = Alarm::after(left) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use leasehold_core::{Grant, ManualClock};

    use super::*;
    use crate::engine::lease::Term;
    use crate::engine::lease::tests::lease;
    use crate::events::EventSink;

    /// Counts the times that it is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Nothing comes after that, so a task that waits for more takes no time of the machine.
    #[test]
    fn watcher_of_a_lost_lease_is_not_woken() {
        let (clock, wakes) = (Arc::new(ManualClock::new()), Arc::<Wakes>::default());
        let lease = Arc::new(lease(&clock));
        clock.advance(Duration::from_secs(9));
        let mut changes = lease.watch();
        let mut other = pin!(changes.other_than(State::Lost(LossCause::Expired)));
        assert!(other.as_mut().poll(&mut Context::from_waker(&wakes.clone().into())).is_pending());
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn lease_end_is_reported_without_runtime_or_renewer() {
        use crate::alarm::tests::block_on;
        use futures_util::FutureExt;
        // No runtime, no renewer, and a renewal that moves the end while it is waited for.
        let clock: Arc<dyn Clock> = Arc::new(crate::clock::SystemClock);
        let term = Term::Lease {
            given: Duration::from_millis(1_100),
            relied_on: Duration::from_secs(1),
            lock_delay: Duration::ZERO,
        };
        let grant = Grant::new(clock.now());
        let claim = lease(&Arc::new(ManualClock::new())).claim;
        let lease =
            Arc::new(Lease::new(claim, &grant, term, clock.clone(), EventSink::default(), clock.now()));
        let (mut changes, mut others) = (lease.watch(), lease.watch());
        let mut lost = pin!(changes.lost());
        assert_eq!((&mut lost).now_or_never(), None);
        std::thread::sleep(Duration::from_millis(20));
        lease.renewed(clock.now());
        let end = lease.valid_until();
        assert_eq!(block_on(lost), LossCause::Expired);
        assert!(clock.now() >= end, "it had been renewed");
        assert_eq!(block_on(others.other_than(State::Valid)), State::Lost(LossCause::Expired));
    }
}
