//! The right to use a granted claim. Exactly one user of the process has it at a time.
//!
//! Ground rules: a hold cannot be copied or forgotten. Dropping its last handle passes it to the next
//! local waiter or releases it on the server; drop never blocks. In a fork it does neither, and locks nothing.

pub(super) mod handle;
pub(super) mod owner;
pub(super) mod pending_grant;
mod users;

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use leasehold_core::{Fence, LossCause, Moment, Proof};
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::lease::{Lease, State, UseEnd};
use super::release::job::Released;
use super::release::reaper::{ReleaseProgress, Waits};
use crate::engine::hold::users::Users;
use crate::events::Event;
use crate::mutant::mutant;
use crate::panics::can_enter_a_runtime;

/// The right to use a granted claim.
#[derive(Debug)]
pub(crate) struct Hold {
    engine: Arc<Engine>,
    /// The lease; `None` once the hold has ended. Each way to end takes it out, so the drop that follows
    /// finds nothing to release.
    lease: Option<Arc<Lease>>,
    /// The number of times that the claim was passed on since the server's grant.
    passed: PassedOn,
    /// The time at which this user got it, where events are observed.
    since: Option<Moment>,
    /// `true` once its grant was reported to the event subscriber. A grant whose caller had left is not, and
    /// then its end is not reported either.
    is_reported: AtomicBool,
    /// Its handles, if an owner holds it.
    users: Option<Arc<Users>>,
    /// The end of its minimum hold, before which it is not released, in nanoseconds of the clock.
    min_hold_end: AtomicU64,
    /// The end of its last handle, where something listens for it.
    end: Option<Arc<EndSignal>>,
}

/// The number of times that a claim was passed on inside the process since the server's grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassedOn {
    /// All times, which are added to the fence's `sub`.
    pub(super) sub: u32,
    /// The local hand-offs among them: those to a task that waited. Other processes may have waited as long.
    pub(super) handoffs: u32,
}

impl PassedOn {
    /// Returns the numbers after one more local hand-off.
    pub(super) fn handed_off(self) -> PassedOn {
        PassedOn { sub: self.sub.saturating_add(1), handoffs: self.handoffs.saturating_add(1) }
    }

    /// Returns the numbers after the claim has lingered once more, and is used again.
    pub(super) fn resumed(self) -> PassedOn {
        PassedOn { sub: self.sub.saturating_add(1), ..self }
    }
}

/// The signal of the end of one handle. The claim may have another user afterwards, which the listeners of this
/// handle do not see.
#[derive(Debug, Default)]
pub(super) struct EndSignal {
    /// The cause of its loss, or `None` for a release.
    pub(super) cause: OnceLock<Option<LossCause>>,
    pub(super) ended: CancellationToken,
}

impl EndSignal {
    /// Records the end in `state` and notifies the listeners.
    pub(super) fn signal(&self, state: State) {
        if mutant!("a hold ends with its lease") {
            return;
        }
        // Each handle ends once, so nothing is overwritten.
        let _ = self.cause.set(match state {
            State::Lost(cause) => Some(cause),
            _ => None,
        });
        self.ended.cancel();
    }
}

impl Hold {
    pub(super) fn new(engine: Arc<Engine>, lease: Arc<Lease>, passed: PassedOn) -> Hold {
        let since = engine.events.has_subscriber().then(|| engine.clock.now());
        let (is_reported, min_hold_end) = (AtomicBool::new(false), AtomicU64::new(0));
        Hold { engine, lease: Some(lease), passed, since, is_reported, users: None, min_hold_end, end: None }
    }

    /// Returns the lease that it is the right to use.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        // Invariant: `lease` is taken only by what consumes the hold.
        match &self.lease {
            Some(lease) => lease,
            None => unreachable!("a released hold is not reachable"),
        }
    }

    /// Returns the engine through which it was granted.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns this hold, with the handles of its owner.
    fn with_users(mut self, users: Arc<Users>) -> Hold {
        self.users = Some(users);
        self
    }

    /// Returns this hold with `end` as the signal of its end, where something listens for it.
    fn with_end(mut self, end: Option<Arc<EndSignal>>) -> Hold {
        self.end = end;
        self
    }

    /// Returns the proof that the backend keeps with the grant. A condition made from it holds for as
    /// long as the claim does, so the claim is not passed to another user from here on.
    pub(crate) fn proof(&self) -> &Proof {
        if !self.lease().proof.is_none() {
            self.pin();
        }
        &self.lease().proof
    }

    /// Pins the claim to this user: from here on it is not handed off locally.
    pub(crate) fn pin(&self) {
        let lease = self.lease();
        if lease.pin() {
            self.engine.end_handoff(&lease.claim.resource, lease.claim.id);
        }
    }

    /// Ends the hold and signals that. Returns the claim, and how its use ended.
    fn finish(&mut self) -> Option<(Arc<Lease>, UseEnd)> {
        let lease = self.lease.take()?;
        if self.engine.is_forked() {
            // Its drop would end a registration at the backend, which locks.
            std::mem::forget(lease);
            return None;
        }
        let at = self.engine.clock.now();
        let state = lease.end_use(at);
        if let Some(end) = &self.end {
            end.signal(state);
        }
        Some((lease, UseEnd { state, at }))
    }

    /// Takes the claim out of the hold so that it can be marked as lost. The listeners of the hold see
    /// that loss.
    pub(super) fn into_lease(mut self) -> Option<Arc<Lease>> {
        self.lease.take()
    }

    /// Ends the hold without a release: the claim belongs to another user by now.
    pub(super) fn defuse(mut self) {
        self.lease = None;
    }

    /// Returns `true` if it is known to have existed before `moment`.
    pub(super) fn is_older_than(&self, moment: Moment) -> bool {
        self.since.is_some_and(|since| since < moment)
    }

    /// Returns `true` if its claim was passed on inside the process since the server's grant.
    pub(super) fn was_passed_on(&self) -> bool {
        self.passed.sub > 0
    }

    /// Notes that its grant was reported, so that its end is reported too.
    pub(super) fn mark_reported(&self) {
        self.is_reported.store(true, Ordering::SeqCst);
    }

    /// Reports for how long it was held, unless it was lost, which has been reported already.
    pub(super) fn report_end(&self, lease: &Lease) {
        if let Some(since) = self.since
            && self.is_reported.load(Ordering::SeqCst)
            && !matches!(lease.state(), State::Lost(_))
        {
            let held_for = self.engine.clock.now().since(since);
            self.engine.events.emit(|| Event::Released { resource: &lease.claim.resource, held: held_for });
        }
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.lease().fence(self.passed.sub)
    }

    /// Leaves the claim to its lease: it is neither renewed nor released, and ends on the server when its
    /// ttl is over. Returns `false` if it was already lost, and so released.
    pub(crate) fn leave_to_lease(mut self) -> bool {
        let Some((lease, _)) = self.finish() else { return false };
        // If the renewer has released the lost claim, nothing is left to its lease.
        let ours = lease.retire();
        if ours {
            self.engine.leave_to_lease(&lease);
        }
        ours
    }

    /// Returns the time of the engine's clock.
    pub(crate) fn now(&self) -> Moment {
        self.engine.clock().now()
    }

    /// Makes its minimum hold last until `end` at least, even if all of its handles end earlier.
    pub(crate) fn extend_min_hold(&self, end: Moment) {
        self.min_hold_end.fetch_max(end.as_nanos(), Ordering::SeqCst);
    }

    /// Returns the end of its minimum hold, if that is later than `now`.
    pub(crate) fn min_hold_end(&self, now: Moment) -> Option<Moment> {
        let end = Moment::from_nanos(self.min_hold_end.load(Ordering::SeqCst));
        (end > now).then_some(end)
    }

    /// Returns the present time. Without a minimum hold no clock is read: it returns `Moment::START`, at which there is
    /// nothing to wait for either.
    fn now_if_min_hold(&self) -> Moment {
        if self.min_hold_end(Moment::START).is_some() { self.now() } else { Moment::START }
    }

    /// Waits for the end of its minimum hold, but no longer than the lock is held and the client is open. Returns the
    /// time by which to judge whether that end has come: `SKIP_MIN_HOLD` after a wait that was cut short.
    async fn wait_min_hold(&self) -> Moment {
        loop {
            let now = self.now_if_min_hold();
            let Some(end) = self.min_hold_end(now) else { return now };
            let held = held_until(self.engine.clone(), self.lease().clone(), end);
            // A thread that is ending cannot wait for a timer, or for a change.
            let is_held = if can_enter_a_runtime() {
                held.await
            } else {
                self.engine.runtime.spawn(held).await.unwrap_or(false)
            };
            if !is_held {
                return SKIP_MIN_HOLD;
            }
        }
    }

    /// Waits for the end of its minimum hold in a task of the engine, and ends this reference then.
    fn wait_min_hold_detached(self: Arc<Self>) {
        let engine = self.engine.clone();
        engine.spawn(async move { _ = self.wait_min_hold().await });
    }

    /// Releases it. Returns the state in which it ended, and the outcome. The release happens even if the future is
    /// dropped.
    pub(crate) fn release(mut self) -> (State, impl Future<Output = Released>) {
        // All of this runs at the call, before the first poll: a future that is never polled releases, too.
        let mut state = if self.engine.is_forked() { State::Lost(LossCause::Forked) } else { State::Valid };
        let progress = self.finish().map_or(ReleaseProgress::Unwatched, |(lease, ended)| {
            state = ended.state;
            self.report_end(&lease);
            self.engine.hand_off_or_release(lease, ended, self.passed, Waits::Yes)
        });
        let released = async {
            // An inline release progresses only while it is polled here. It is also ready when the reaper has
            // taken the release over; the outcome then comes from there.
            let outcome = match progress {
                ReleaseProgress::Over(released) => return released,
                ReleaseProgress::Pending(outcome) => Some(outcome),
                ReleaseProgress::Inline(inline, outcome) => {
                    inline.await;
                    Some(outcome)
                }
                ReleaseProgress::Unwatched => None,
            };
            let released = match outcome {
                Some(outcome) => outcome.await.ok(),
                None => None,
            };
            // A runtime that shuts down takes the reaper with it, and the outcome is then unknown.
            released
                .unwrap_or_else(|| Released::unknown("the runtime ended before the release was confirmed"))
        };
        (state, released)
    }
}

/// Waits until `end`. Returns `false` if the lock is lost or the client closes before.
async fn held_until(engine: Arc<Engine>, lease: Arc<Lease>, end: Moment) -> bool {
    let mut changes = lease.watch();
    drop(lease);
    tokio::select! {
        biased;
        is_open = engine.sleep(engine.clock.now().until(end)) => is_open,
        _ = changes.lost() => false,
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((lease, ended)) = self.finish() {
            self.report_end(&lease);
            // No caller waits for the release, so none carries it out.
            drop(self.engine.hand_off_or_release(lease, ended, self.passed, Waits::No));
        }
    }
}

/// The time at which every minimum hold counts as over, for an end that does not wait for it.
const SKIP_MIN_HOLD: Moment = Moment::NEVER;
