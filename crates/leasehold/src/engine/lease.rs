//! The local state of a granted claim: valid, then perhaps suspect, then perhaps lost.
//!
//! Ground rules: whether a claim is held is decided by reading the clock, never by a timer alone, so
//! that a process that was stopped past its lease finds out before anything else. A lost claim stays
//! lost, even if the server later says otherwise. Validity is counted from before the request, and grows
//! only by a confirmed renewal.

mod changes;
mod term;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::{Claim, Clock, Fence, Grant, LossCause, LossSubscription, Moment, Proof};
use leasehold_machine::Process;

use crate::events::{Event, EventSink};
use crate::mutant::mutant;
use crate::panics::logged;

pub(crate) use term::Term;

use changes::{Changes, Watched};

/// The confidence of this process that it still holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The lease is confirmed and runs.
    Valid,
    /// A renewal failed or is overdue; the lease still runs.
    Suspect,
    /// The lock is not held any more.
    Lost(LossCause),
}

/// The state in which the use of a claim ended, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UseEnd {
    pub(crate) state: State,
    pub(crate) at: Moment,
}

/// A granted claim.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) claim: Claim,
    pub(crate) proof: Proof,
    pub(crate) granted_at: Moment,
    /// The time from which its first term counts. It lies before the grant by as much as the answer took.
    pub(crate) began_at: Moment,
    fence: Option<Fence>,
    clock: Arc<dyn Clock>,
    events: EventSink,
    process: Process,
    term: Term,
    health: Watched,
    retired: AtomicBool,
    /// `true` once it stays with its present user: its proof was taken, it was upgraded, or it leads or lives for more
    /// than its holder.
    pinned: AtomicBool,
    /// Why another client asked for its release, where this process knows.
    revoked: OnceLock<Arc<str>>,
    /// The time for which it may linger, from the first time that it does.
    linger: Duration,
    /// The end of that time; unset until it lingers for the first time.
    linger_until: OnceLock<Moment>,
    /// `true` while it belongs to no task. A loss concerns nobody then.
    is_lingering: AtomicBool,
    /// The registration for losses that only the backend can see; lives as long as the claim.
    listening: OnceLock<LossSubscription>,
}

/// The state and the end of its validity, changed together.
#[derive(Clone, Copy, Debug)]
struct Health {
    state: State,
    valid_until: Moment,
    hold_until: Moment,
    /// The time since which it is suspect; meaningless in another state.
    suspect_since: Option<Moment>,
}

impl Lease {
    pub(crate) fn new(
        claim: Claim,
        grant: &Grant,
        term: Term,
        clock: Arc<dyn Clock>,
        events: EventSink,
        now: Moment,
    ) -> Lease {
        let health = Health {
            state: State::Valid,
            valid_until: term.end(grant.asked_at),
            hold_until: Moment::NEVER,
            suspect_since: None,
        };
        Lease {
            claim,
            proof: grant.proof.clone(),
            granted_at: now,
            began_at: term.beginning(grant.asked_at, now),
            fence: grant.fence,
            clock,
            events,
            process: Process::this(),
            term,
            health: Watched::new(health),
            retired: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            revoked: OnceLock::new(),
            linger: Duration::ZERO,
            linger_until: OnceLock::new(),
            is_lingering: AtomicBool::new(false),
            listening: OnceLock::new(),
        }
    }

    /// Sets the linger time.
    pub(super) fn set_linger(&mut self, linger: Duration) {
        self.linger = linger;
    }

    /// Returns the time until which it may linger from `now` on; `None` if it lingers no more, or never does. It is the
    /// same for all times that the claim lingers, so that others do not wait for one after the other.
    pub(super) fn linger_end(&self, now: Moment) -> Option<Moment> {
        let until = self.linger_until.get().copied().unwrap_or_else(|| now.after(self.linger));
        (now < until).then_some(until)
    }

    /// Records that it lingers, until this moment at most. Returns `true` for the first time.
    pub(super) fn begin_linger(&self, until: Moment) -> bool {
        self.linger_until.set(until).is_ok()
    }

    /// Records whether it belongs to no task.
    pub(super) fn set_lingering(&self, is_lingering: bool) {
        self.is_lingering.store(is_lingering, Ordering::SeqCst);
    }

    /// Returns `true` if it belongs to no task, so that neither doubt nor a loss concerns any: it lingers, or it is
    /// being released.
    fn is_unused(&self) -> bool {
        let lingers = self.is_lingering.load(Ordering::SeqCst)
            && !mutant!("a doubt about a lingering claim is reported");
        let is_retired = || self.retired.load(Ordering::SeqCst) && !mutant!("a released lock is lost");
        lingers || is_retired()
    }

    /// Returns `true` if a task could use it at `now`: it is valid, and not being released. Marks nothing, so it may be
    /// called under a lock.
    pub(super) fn is_usable(&self, now: Moment) -> bool {
        let is_valid = |health: Health| health.state == State::Valid && health.overdue(now).is_none();
        self.process.is_this() && !self.retired.load(Ordering::SeqCst) && is_valid(self.health.get())
    }

    /// Keeps the registration for losses that only the backend can see.
    pub(super) fn listen(&self, listening: LossSubscription) {
        // Each claim has one grant, and so one signal.
        let _ = self.listening.set(listening);
    }

    /// Returns the fence (fencing token) of a task that got the claim after it was passed on `sub` times.
    pub(crate) fn fence(&self, sub: u32) -> Option<Fence> {
        // A hand-off that would overflow the counter is refused, see `can_hand_off`.
        self.fence.map(|fence| Fence { sub: fence.sub.saturating_add(sub), ..fence })
    }

    /// Pins the claim to its present user. Returns `true` for the first call.
    pub(super) fn pin(&self) -> bool {
        !self.pinned.swap(true, Ordering::SeqCst)
    }

    /// Returns `true` if the claim stays with its present user.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::SeqCst)
    }

    /// Returns `true` if the claim may be handed off after it was passed on `sub` times: the fence has to rise.
    pub(super) fn can_hand_off(&self, sub: u32) -> bool {
        let rises = |fence: Fence| sub.checked_add(1).and_then(|sub| fence.sub.checked_add(sub)).is_some();
        !self.is_pinned() && self.fence.is_none_or(rises)
    }

    /// Ends the use by one user at `now`, and with it that user's `max_hold`. Returns the state in which it ended.
    pub(super) fn end_use(&self, now: Moment) -> State {
        // A claim that is overdue is marked as lost here.
        let state = self.state_at(now);
        if let State::Lost(_) = state {
            return state;
        }
        let mut state = state;
        self.health.change(|health| {
            // The limit of this user does not apply to the next.
            if health.overdue(now).is_none() {
                health.hold_until = Moment::NEVER;
            }
            state = health.state;
            false
        });
        state
    }

    /// Returns the present state by the clock. The first call after the end marks the loss.
    pub(crate) fn state(&self) -> State {
        // The clock is not read either: it may be one of the user, which another thread had locked.
        if !self.process.is_this() {
            return State::Lost(LossCause::Forked);
        }
        self.state_at(self.clock.now())
    }

    /// Returns the state by a reading of the clock. The first call after the end marks the loss.
    pub(super) fn state_at(&self, now: Moment) -> State {
        if !self.process.is_this() {
            // Neither read nor marked: another thread may have had it locked when the process was forked.
            return State::Lost(LossCause::Forked);
        }
        let health = self.health.get();
        if let State::Lost(_) = health.state {
            return health.state;
        }
        match health.overdue(now) {
            None => health.state,
            Some(cause) => self.lose(cause),
        }
    }

    /// Returns the state that was marked last, even if the clock says otherwise by now.
    #[cfg(leasehold_sim)]
    pub(crate) fn marked(&self) -> State {
        self.health.get().state
    }

    /// Returns the end of its validity without another renewal.
    pub(crate) fn valid_until(&self) -> Moment {
        let health = self.health.get();
        health.valid_until.min(health.hold_until)
    }

    /// Returns the time within which it must be renewed, for pacing renewals. This is less than the ttl of the claim:
    /// a coarse store, or much drift, leaves a part of it, and the heartbeat timeout of a session may be shorter.
    pub(crate) fn pace(&self) -> Duration {
        match self.term {
            Term::Lease { relied_on, .. } => relied_on,
            Term::Session => self.claim.ttl,
        }
    }

    /// Returns the lock delay: how long the server keeps it beyond the time for which the holder relies
    /// on it.
    pub(crate) fn lock_delay(&self) -> Duration {
        match self.term {
            Term::Lease { lock_delay, .. } => lock_delay,
            Term::Session => Duration::ZERO,
        }
    }

    /// Returns `true` if the claim was lost with a lock delay, so that the server is to keep it until its
    /// lease ends.
    pub(crate) fn keeps_lock_delay(&self) -> bool {
        let lost_here = || {
            use LossCause::{Expired, Forked, MaxHold, RenewalEnded};
            matches!(self.state(), State::Lost(Expired | MaxHold | Forked | RenewalEnded))
        };
        !self.lock_delay().is_zero() && lost_here()
    }

    /// Returns how long it is valid without another renewal; zero when lost.
    pub(crate) fn remaining(&self) -> Duration {
        match self.state() {
            State::Lost(_) => Duration::ZERO,
            _ => self.clock.now().until(self.valid_until()),
        }
    }

    /// Returns the same as [`Lease::remaining`], without marking a loss: a question for the time does not report it in
    /// the place of the renewer.
    pub(crate) fn peek_remaining(&self) -> Duration {
        if !self.process.is_this() {
            return Duration::ZERO;
        }
        match self.health.get() {
            Health { state: State::Lost(_), .. } => Duration::ZERO,
            health => self.clock.now().until(health.valid_until.min(health.hold_until)),
        }
    }

    /// Applies a confirmed renewal that was requested at `asked_at`. Returns `false` if it came too late.
    pub(crate) fn renewed(&self, asked_at: Moment) -> bool {
        let end = self.term.end(asked_at);
        let now = self.clock.now();
        let mut suspect = None;
        self.health.change(|health| {
            // A claim that has ended by the clock is marked as lost below, when its state is read.
            if matches!(health.state, State::Lost(_)) || health.overdue(now).is_some() {
                return false;
            }
            health.valid_until = health.valid_until.max(end);
            let recovered = health.state != State::Valid;
            health.state = State::Valid;
            suspect = health.suspect_since.take();
            recovered
        });
        if let Some(since) = suspect
            && !self.is_unused()
        {
            let resource = &self.claim.resource;
            self.events.emit(|| Event::Recovered { resource, suspect: now.since(since) });
        }
        !matches!(self.state(), State::Lost(_))
    }

    /// Marks the claim as suspect, because a renewal failed or is overdue.
    pub(crate) fn suspect(&self) {
        let mut suspected = false;
        self.health.change(|health| {
            let valid = health.state == State::Valid;
            if valid {
                health.state = State::Suspect;
                health.suspect_since = Some(self.clock.now());
            }
            suspected = valid;
            valid
        });
        if suspected && !self.is_unused() {
            logged!(debug, resource = %self.claim.resource, "lock suspect");
            self.events.emit(|| Event::BecameSuspect { resource: &self.claim.resource });
        }
    }

    /// Marks the claim as lost. The first cause stays, and is returned as the state.
    pub(crate) fn lose(&self, cause: LossCause) -> State {
        let mut is_unused = false;
        let first = self.health.change(|health| {
            let first = !matches!(health.state, State::Lost(_));
            if first {
                health.state = State::Lost(cause);
                // Asked before the state can be read: a user that ends later sees the loss, and reports no release.
                is_unused = self.is_unused();
            }
            first
        });
        let health = self.health.get();
        if first {
            let resource = &self.claim.resource;
            match cause {
                // This is not a loss: the holder asked for it.
                LossCause::Transferred => logged!(debug, %resource, "lock transferred"),
                _ if is_unused => logged!(debug, %resource, %cause, "lock lost that belonged to no task"),
                _ => self.report_loss(cause, health),
            }
        }
        health.state
    }

    fn report_loss(&self, cause: LossCause, health: Health) {
        let resource = &self.claim.resource;
        match cause {
            LossCause::Closed | LossCause::RenewalEnded => logged!(debug, %resource, %cause, "lock lost"),
            _ => logged!(warn, %resource, %cause, "lock lost"),
        }
        self.events.emit(|| {
            let now = self.clock.now();
            let late = match cause {
                LossCause::Expired => now.since(health.valid_until),
                LossCause::MaxHold => now.since(health.hold_until),
                _ => Duration::ZERO,
            };
            let suspect = health.suspect_since.map(|since| now.since(since));
            Event::Lost { resource, cause, held: now.since(self.granted_at), suspect, late }
        });
    }

    /// Marks the claim as being released. Returns `true` for the first call, whose caller then releases it.
    pub(super) fn retire(&self) -> bool {
        !self.retired.swap(true, Ordering::SeqCst)
    }

    /// Records that another client asks for its release. The first reason stays.
    pub(super) fn revoke(&self, reason: &str) {
        let _ = self.revoked.set(reason.into());
    }

    /// Returns why another client asked for its release, where this process knows.
    pub(crate) fn revoked(&self) -> Option<&Arc<str>> {
        self.revoked.get()
    }

    /// Starts the `max_hold` of one user of the lock.
    pub(crate) fn limit_hold(&self, max_hold: Option<Duration>) {
        let end = max_hold.map_or(Moment::NEVER, |limit| self.clock.now().after(limit));
        self.health.change(|health| {
            health.hold_until = end;
            false
        });
    }

    /// Returns a receiver of the changes of the state.
    pub(crate) fn watch(self: &Arc<Self>) -> Changes {
        Changes::new(self.health.subscribe(), self)
    }
}

impl Health {
    fn overdue(&self, now: Moment) -> Option<LossCause> {
        if now >= self.valid_until {
            return Some(LossCause::Expired);
        }
        (now >= self.hold_until).then_some(LossCause::MaxHold)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use leasehold_core::{ClaimId, ManualClock, Resource, Share};

    use super::*;
    use crate::events::EventSubscriber;

    const TERM: Term = Term::Lease {
        given: Duration::from_secs(10),
        relied_on: Duration::from_secs(9),
        lock_delay: Duration::ZERO,
    };

    pub(super) fn lease(clock: &Arc<ManualClock>) -> Lease {
        let claim = Claim::new(
            ClaimId::from_bytes([1; 16]),
            Resource::new("r").unwrap(),
            Share::MUTEX,
            Duration::from_secs(10),
        );
        let grant = Grant::new(clock.now()).fence(Some(Fence::new(0, 7, 0)));
        Lease::new(claim, &grant, TERM, clock.clone(), EventSink::default(), clock.now())
    }

    #[test]
    fn heartbeat_session_expires_by_its_own_time_and_not_by_the_ttl() {
        let clock = Arc::new(ManualClock::new());
        let long = lease(&clock);
        let profile = leasehold_core::Backend::profile(&crate::local::MemoryBackend::new())
            .clone()
            .liveness(leasehold_core::Liveness::Heartbeat { valid: Duration::from_secs(3) });
        let grant = Grant::new(clock.now());
        let term = Term::of(&profile, long.claim.ttl, 0.01);
        let lease =
            Lease::new(long.claim.clone(), &grant, term, clock.clone(), EventSink::default(), clock.now());
        assert_eq!((lease.pace(), long.pace()), (Duration::from_millis(2_968), Duration::from_secs(9)));
        clock.advance(Duration::from_millis(2_960));
        assert_eq!(lease.state(), State::Valid);
        clock.advance(Duration::from_millis(10));
        assert_eq!(lease.state(), State::Lost(LossCause::Expired));
    }

    #[test]
    fn question_for_the_time_that_is_left_reports_no_loss() {
        let clock = Arc::new(ManualClock::new());
        let lease = lease(&clock);
        clock.advance(Duration::from_secs(8));
        assert_eq!(lease.peek_remaining(), Duration::from_secs(1));
        clock.advance(Duration::from_secs(1));
        assert_eq!((lease.peek_remaining(), lease.health.get().state), (Duration::ZERO, State::Valid));
        assert!(!lease.renewed(clock.now()), "nothing revives it");
        assert_eq!(
            (lease.peek_remaining(), lease.state()),
            (Duration::ZERO, State::Lost(LossCause::Expired))
        );
    }

    #[test]
    fn the_clock_alone_ends_it() {
        let clock = Arc::new(ManualClock::new());
        let lease = lease(&clock);
        clock.advance(Duration::from_millis(8_999));
        assert_eq!(lease.state(), State::Valid);
        assert_eq!(lease.remaining(), Duration::from_millis(1));
        clock.advance(Duration::from_millis(1));
        assert_eq!(lease.state(), State::Lost(LossCause::Expired));
        assert_eq!(lease.remaining(), Duration::ZERO);
    }

    #[test]
    fn a_renewal_that_is_confirmed_too_late_does_not_resurrect() {
        let clock = Arc::new(ManualClock::new());
        let lease = lease(&clock);
        clock.advance(Duration::from_secs(3));
        let asked_at = clock.now();
        clock.advance(Duration::from_secs(7));
        assert!(!lease.renewed(asked_at), "no task looked in between, but the end has passed");
        assert_eq!(lease.state(), State::Lost(LossCause::Expired));
    }

    #[test]
    fn validity_counts_from_before_the_request_and_never_shrinks() {
        let clock = Arc::new(ManualClock::new());
        let lease = lease(&clock);
        let early = clock.now();
        clock.advance(Duration::from_secs(5));
        let late = clock.now();
        clock.advance(Duration::from_secs(1));
        assert!(lease.renewed(late));
        assert_eq!(lease.valid_until(), late.after(Duration::from_secs(9)));
        assert!(lease.renewed(early), "an answer out of order is harmless");
        assert_eq!(lease.valid_until(), late.after(Duration::from_secs(9)));
    }

    #[test]
    fn suspicion_passes_and_loss_does_not() {
        let clock = Arc::new(ManualClock::new());
        let lease = lease(&clock);
        lease.suspect();
        assert_eq!(lease.state(), State::Suspect);
        assert!(lease.renewed(clock.now()));
        assert_eq!(lease.state(), State::Valid);
        assert_eq!(lease.lose(LossCause::Gone), State::Lost(LossCause::Gone));
        lease.suspect();
        assert!(!lease.renewed(clock.now()));
        assert_eq!(lease.lose(LossCause::Expired), State::Lost(LossCause::Gone));
    }

    /// A subscriber that keeps the causes of losses.
    #[derive(Debug, Default)]
    struct Causes(Mutex<Vec<LossCause>>);

    impl EventSubscriber for Causes {
        fn on_event(&self, event: &Event<'_>) {
            if let Event::Lost { cause, .. } = event {
                self.0.lock().unwrap().push(*cause);
            }
        }
    }

    #[test]
    fn loss_is_reported_with_its_first_cause_alone() {
        let (clock, causes) = (Arc::new(ManualClock::new()), Arc::<Causes>::default());
        let events = EventSink::to(Some(causes.clone()));
        let lease = Lease { events, ..lease(&clock) };
        for cause in [LossCause::Gone, LossCause::SessionEnded, LossCause::Closed] {
            assert_eq!(lease.lose(cause), State::Lost(LossCause::Gone));
        }
        assert_eq!(*causes.0.lock().unwrap(), [LossCause::Gone]);
    }

    #[test]
    fn the_business_limit_is_not_moved_by_renewals() {
        let clock = Arc::new(ManualClock::new());
        let lease = lease(&clock);
        lease.limit_hold(Some(Duration::from_secs(4)));
        clock.advance(Duration::from_secs(3));
        assert!(lease.renewed(clock.now()));
        clock.advance(Duration::from_secs(1));
        assert_eq!(lease.state(), State::Lost(LossCause::MaxHold));
    }

    #[test]
    fn max_hold_of_one_user_does_not_apply_to_the_next() {
        let clock = Arc::new(ManualClock::new());
        let lease = lease(&clock);
        lease.limit_hold(Some(Duration::from_secs(4)));
        clock.advance(Duration::from_secs(3));
        assert_eq!(lease.end_use(clock.now()), State::Valid);
        clock.advance(Duration::from_secs(2));
        assert_eq!(lease.state(), State::Valid, "it ended before its user's limit did");
        lease.limit_hold(Some(Duration::from_secs(1)));
        clock.advance(Duration::from_secs(1));
        assert_eq!(lease.end_use(clock.now()), State::Lost(LossCause::MaxHold));
    }

    #[test]
    fn handoff_needs_a_rising_fence_and_no_taken_proof() {
        let clock = Arc::new(ManualClock::new());
        let first = lease(&clock);
        let grant = Grant::new(clock.now()).fence(Some(Fence::new(0, 7, u32::MAX - 2)));
        let lease =
            Lease::new(first.claim.clone(), &grant, TERM, clock.clone(), EventSink::default(), clock.now());
        assert!(
            lease.can_hand_off(0)
                && lease.can_hand_off(1)
                && !lease.can_hand_off(2)
                && !lease.can_hand_off(u32::MAX)
        );
        assert!(first.can_hand_off(1_000));
        first.pin();
        assert!(!first.can_hand_off(0));
    }

    #[test]
    fn lease_with_a_tenth_left_is_useful() {
        let memory = crate::local::MemoryBackend::new();
        let coarse = leasehold_core::Backend::profile(&memory).clone().granularity(Duration::from_secs(1));
        let is_useful = |ms, drift| Term::of(&coarse, Duration::from_millis(ms), drift).is_useful();
        assert!(is_useful(2_000, 0.01) && is_useful(30_000, 0.5));
        assert!(!is_useful(1_000, 0.01) && !is_useful(2_000, 0.5));
    }
}
