//! Renewal task (watchdog): renews every lease of one client, and reports each loss.
//!
//! One task serves all leases, with one agenda (`agenda.rs`). Claims that are due together are renewed
//! in one batch for each part of the store. A renewal without confirmation makes the claim suspect and
//! is retried within the remaining validity; at the end of the validity the claim is lost, in any state
//! of the network. Messages to the task wait in an inbox (`inbox.rs`), and only urgent ones wake
//! it.
//!
//! Ground rules: a request without an answer extends nothing. The agenda only says when to check a claim;
//! whether it is still held is read from the clock, which counts suspend and is read at least once a
//! second. A renewal runs in a task of its own, so a hanging server delays neither the next check nor the
//! signal of a loss. The end of the watchdog, however it comes about, ends the client: nothing stays held
//! that is not renewed.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{Backend, ClaimId, Clock, Failure, LossCause, LossSignal, Moment, Renew, Renewal};
use leasehold_machine::Process;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::clock::CLOCK_READ_INTERVAL;
use crate::engine::Engine;
use crate::engine::Tuning;
use crate::engine::lease::{Lease, State, UseEnd};
use crate::engine::renew::agenda::Agenda;
use crate::engine::renew::inbox::RenewalInbox;
use crate::engine::retry::jittered;
use crate::events::{Event, EventSink};
use crate::mutant::mutant;
use crate::panics::{contained, contained_request, logged, spanned};
use crate::random::HashMap;

/// The engine's handle to the renewal task. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Renewer {
    inbox: Arc<RenewalInbox>,
    events: EventSink,
    renew_at: f64,
    process: Process,
}

impl Renewer {
    pub(crate) fn start(
        runtime: &Handle,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        tuning: &Tuning,
        events: EventSink,
        engine: Weak<Engine>,
    ) -> Renewer {
        let inbox = Arc::<RenewalInbox>::default();
        let (answers, answered) = mpsc::unbounded_channel();
        // The agenda reads the clock of the runtime.
        let _entered = runtime.enter();
        let agenda = Agenda::new(&*clock);
        let task = RenewerTask {
            backend,
            clock,
            renew_at: tuning.renew_at,
            events: events.clone(),
            engine,
            inbox: inbox.clone(),
            agenda,
            timers: HashMap::default(),
            wake_at: None,
            next_request: 0,
            answers,
            answered,
            process: Process::this(),
        };
        drop(runtime.spawn(task.run()));
        Renewer { inbox, events, renew_at: tuning.renew_at, process: Process::this() }
    }

    /// Renews the claim from now on, and marks its loss. Returns `false` if the client is closed; the caller then
    /// releases the claim. It has had no user, so that is no loss.
    pub(crate) fn watch(&self, lease: &Arc<Lease>, lost: Option<&LossSignal>) -> bool {
        let due = next_due(lease, lease.began_at, self.renew_at);
        if !self.inbox.watch(lease.clone(), due.min(lease.valid_until())) {
            return false;
        }
        self.events.emit(|| Event::LeaseStarted { resource: &lease.claim.resource });
        if let Some(signal) = lost {
            let (weak, inbox) = (Arc::downgrade(lease), self.inbox.clone());
            lease.listen(signal.on_loss(move |cause| {
                // A loss that only the backend can see. Once the claim is dropped, no holder is left to
                // notify.
                if let Some(lease) = weak.upgrade() {
                    lease.lose(cause);
                    inbox.hasten(lease.claim.id, Moment::START);
                }
            }));
        }
        true
    }

    /// Starts the `max_hold` of one user of the claim; it may end before the next check.
    pub(crate) fn limit_hold(&self, lease: &Lease, max_hold: Option<Duration>) {
        lease.limit_hold(max_hold);
        if max_hold.is_some() {
            self.inbox.hasten(lease.claim.id, lease.valid_until());
        }
    }

    /// Stops watching the claim.
    pub(crate) fn forget(&self, lease: &Lease) {
        // Another thread may have had the inbox locked when the process was forked, and does not exist in the fork.
        if !self.process.is_this() {
            return;
        }
        self.inbox.forget(lease.claim.id);
        self.events.emit(|| Event::LeaseEnded { resource: &lease.claim.resource });
    }

    /// Marks the claim as lost, unless it is, and has it released.
    pub(crate) fn lose(&self, lease: &Lease, cause: LossCause) {
        // In a fork every claim is lost already, and nothing is marked.
        if !matches!(lease.state(), State::Lost(_)) {
            lease.lose(cause);
            self.inbox.hasten(lease.claim.id, Moment::START);
        }
    }

    /// Marks every claim as lost, because the client closes. Returns when all of them have been queued
    /// for release; from here on no claim is watched.
    pub(crate) async fn lose_all(&self) {
        // A runtime that has ended has nothing left to lose.
        let _ = self.inbox.lose_all().await;
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        if self.process.is_this() {
            self.inbox.end();
        }
    }
}

/// The task of a [`Renewer`], the watchdog: its agenda, and the leases that it renews.
struct RenewerTask {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    renew_at: f64,
    events: EventSink,
    /// The engine that releases lost claims; dropped with the last guard.
    engine: Weak<Engine>,
    inbox: Arc<RenewalInbox>,
    /// The next check of each claim in `timers`.
    agenda: Agenda,
    timers: HashMap<ClaimId, LeaseTimer>,
    /// The latest time of the next turn, which reads the clock and the inbox. Set while something is held, and for
    /// one interval after a message.
    wake_at: Option<Moment>,
    next_request: u64,
    answers: mpsc::UnboundedSender<Answers>,
    answered: mpsc::UnboundedReceiver<Answers>,
    /// The process that holds these claims. A fork of it renews nothing.
    process: Process,
}

/// One lease under watch.
#[derive(Debug)]
struct LeaseTimer {
    lease: Arc<Lease>,
    /// The time for which the next renewal was planned at the last confirmation.
    due: Moment,
    /// The time of the next renewal or retry. A check that comes before it is for the end of a user's `max_hold`.
    renew_next: Moment,
    requests: RenewalRequests,
}

/// The time of the renewer's next turn.
enum NextTurn {
    /// At this moment, or at the next message or check if that comes before.
    At(Moment),
    /// Nothing is held, so the task sleeps until a message comes.
    OnMessage,
    /// The client was dropped: no more messages will come.
    Never,
}

/// The renewals of one claim since the last confirmed one.
#[derive(Debug, Default)]
struct RenewalRequests {
    /// The requests without an answer, in the order of sending. Requests before a confirmed one are removed.
    open: Vec<u64>,
    /// The number of the last confirmed request.
    confirmed: u64,
    /// `true` while a confirmation is awaited: none has come since the last request was sent.
    is_waiting: bool,
    /// Overdue checks and failed answers since the last confirmation; one request can count twice.
    failures: u32,
}

impl RenewalRequests {
    /// Returns `true` if one more request may be sent.
    fn may_send(&self) -> bool {
        self.open.len() < OPEN_MAX
    }

    fn send(&mut self, number: u64) {
        self.open.push(number);
        self.is_waiting = true;
    }

    /// Records the confirmation of request `number`, which covers all requests sent before it.
    fn confirm(&mut self, number: u64) {
        if mutant!("a renewal that hangs is waited for") {
            self.open.retain(|open| *open != number);
            self.is_waiting = !self.open.is_empty();
            return;
        }
        self.open.retain(|open| *open > number);
        self.confirmed = number;
        self.is_waiting = false;
        self.failures = 0;
    }

    /// Returns `true` if a later request was confirmed, so that neither a success nor a failure of this
    /// one matters any more.
    fn is_overtaken(&self, number: u64) -> bool {
        number < self.confirmed
    }

    /// Records the failure of request `number`. Returns `false` if a later confirmation makes it irrelevant.
    fn fail(&mut self, number: u64) -> bool {
        self.open.retain(|open| *open != number);
        let counts = self.is_waiting;
        self.failures += u32::from(counts);
        self.is_waiting &= !self.open.is_empty();
        counts
    }

    /// Returns the pause before the next try: from a twentieth of the ttl, growing to a tenth, so that
    /// several tries fit into the remaining validity. While several requests are open it is not capped,
    /// so that their limit is never reached before the lease is over.
    fn pause(&self, ttl: Duration) -> Duration {
        let ceiling = ttl / if self.failures < 2 { 20 } else { 10 };
        let most = if self.open.len() < UNCAPPED_FROM { RETRY_MAX } else { Duration::MAX };
        jittered(ceiling.clamp(RETRY_MIN, most))
    }
}

/// The answers to one batch.
struct Answers {
    /// The number of the batch; later batches have greater numbers.
    number: u64,
    asked_at: Moment,
    renewals: Vec<(ClaimId, Renewal)>,
}

impl RenewerTask {
    async fn run(mut self) {
        // Panics of foreign code are caught where it is called. One that still arrives here is reported
        // and ends the client.
        let ended = AssertUnwindSafe(async { while self.turn().await {} }).catch_unwind().await;
        if ended.is_err() {
            logged!(
                error,
                "the task that renews leases panicked: all locks of the client are lost, and it is closed"
            );
        }
    }

    /// Processes the inbox and everything that is due, and waits for more. Returns `false` when there
    /// never will be more.
    async fn turn(&mut self) -> bool {
        let nap = match self.take_messages() {
            NextTurn::At(next) => Some(self.clock.now().until(next)),
            NextTurn::OnMessage => None,
            NextTurn::Never => return false,
        };
        // The order is fixed: each turn clears the inbox and checks what is due.
        tokio::select! {
            biased;
            Some(answers) = self.answered.recv() => self.apply_answers(answers),
            () = self.inbox.woken() => self.stay_awake(),
            () = self.agenda.wait() => {}
            // What is held begins another interval. By the clock of the timer, since the other one may stand still.
            () = sleep_for(nap) => self.wake_at = None,
        }
        if !self.process.is_this() {
            return false;
        }
        self.check_due();
        true
    }

    /// Processes the inbox until it is empty. Returns when the next turn is.
    fn take_messages(&mut self) -> NextTurn {
        loop {
            let mail = self.inbox.clear();
            if mail.is_over {
                return NextTurn::Never;
            }
            mail.forgotten.into_iter().for_each(|id| drop(self.forget(id)));
            mail.fresh.into_values().for_each(|lease| self.start_timer(lease));
            mail.hastened.into_iter().for_each(|id| self.hasten(id));
            for done in mail.closing {
                self.lose_all();
                let _ = done.send(());
            }
            // While something is held, the next turn is at most one interval away, even if nothing is due: a
            // machine that was suspended then finds its losses, and fresh claims are taken in.
            if !self.timers.is_empty() {
                self.stay_awake();
            }
            // Return only if no message has arrived since the inbox was cleared; otherwise clear it again.
            if self.inbox.set_next_turn(self.wake_at) {
                return self.wake_at.map_or(NextTurn::OnMessage, NextTurn::At);
            }
        }
    }

    /// Takes the next turn within one interval, even if nothing is held by then: the next lock then need not wake the
    /// task again.
    fn stay_awake(&mut self) {
        self.wake_at = Some(self.clock.now().after(CLOCK_READ_INTERVAL));
    }

    fn start_timer(&mut self, lease: Arc<Lease>) {
        let id = lease.claim.id;
        drop(self.forget(id));
        let due = next_due(&lease, lease.began_at, self.renew_at);
        // A loss that only the backend saw counts at once, regardless of the clock.
        let is_lost = matches!(lease.state(), State::Lost(_));
        let next_check = if is_lost { Moment::START } else { due.min(lease.valid_until()) };
        let requests = RenewalRequests::default();
        self.timers.insert(id, LeaseTimer { lease, due, renew_next: due, requests });
        self.plan(id, next_check);
    }

    fn hasten(&mut self, id: ClaimId) {
        let (Some(timer), Some(due)) = (self.timers.get(&id), self.agenda.due(id)) else { return };
        let next_check = match timer.lease.state() {
            State::Lost(_) => Moment::START,
            // Never later: a renewal that is due before stays due.
            _ => due.min(timer.lease.valid_until()),
        };
        self.plan(id, next_check);
    }

    fn plan(&mut self, id: ClaimId, next_check: Moment) {
        self.agenda.plan(id, next_check);
    }

    fn forget(&mut self, id: ClaimId) -> Option<Arc<Lease>> {
        self.agenda.remove(id);
        self.timers.remove(&id).map(|timer| timer.lease)
    }

    fn lose_all(&mut self) {
        let ids: Vec<_> = self.timers.keys().copied().collect();
        self.agenda.clear();
        for id in ids {
            self.release_lost(id, Some(LossCause::Closed));
        }
    }

    /// Releases a lost claim, whether or not its guard is dropped soon: the rest of the claim that the
    /// server may still have is useless, and other tasks of this process wait until it is gone.
    fn release_lost(&mut self, id: ClaimId, cause: Option<LossCause>) {
        if let Some(lease) = self.forget(id) {
            lose_and_release(self.engine.upgrade(), &self.events, lease, cause);
        }
    }

    /// Checks everything that is due now, and renews it in one batch for each part of the store.
    fn check_due(&mut self) {
        self.agenda.follow(&*self.clock);
        let mut parts = HashMap::<u64, Vec<Arc<Lease>>>::default();
        // One number for all parts of this turn: `confirm` compares numbers.
        self.next_request += 1;
        // What is left after so many is still due, so the next turn comes at once.
        for _ in 0..TICK_MAX {
            let Some(id) = self.agenda.take_due(&*self.clock) else { break };
            if let Some(lease) = self.check_claim(id) {
                // Claims whose part the backend cannot determine are batched together.
                let part = contained(|| self.backend.part(&lease.claim)).unwrap_or_default();
                let part = if mutant!("all parts are renewed together") { 0 } else { part };
                parts.entry(part).or_default().push(lease);
            }
        }
        parts.into_values().for_each(|batch| self.renew(batch));
    }

    /// Checks one claim that is due. Returns it if it is to be renewed now.
    fn check_claim(&mut self, id: ClaimId) -> Option<Arc<Lease>> {
        let timer = self.timers.get_mut(&id)?;
        if let State::Lost(_) = timer.lease.state() {
            self.release_lost(id, None);
            return None;
        }
        let now = self.clock.now();
        if now < timer.renew_next && !mutant!("the end of a max_hold renews") {
            // That user has gone, and nothing is due or overdue yet.
            let next_check = timer.renew_next.min(timer.lease.valid_until());
            self.plan(id, next_check);
            return None;
        }
        if timer.requests.is_waiting {
            // The answer is overdue. The holder should see that before it is too late.
            timer.lease.suspect();
            timer.requests.failures += 1;
        }
        // A claim with too many open requests is checked again later without a further request.
        let sends = timer.requests.may_send();
        if sends {
            timer.requests.send(self.next_request);
        }
        let lease = timer.lease.clone();
        // The next check comes after the retry pause, but never after the end of the validity. A
        // confirmation that comes before it plans anew.
        timer.renew_next = now.after(timer.requests.pause(lease.pace()));
        let next_check = timer.renew_next.min(lease.valid_until());
        self.plan(id, next_check);
        sends.then_some(lease)
    }

    fn renew(&self, batch: Vec<Arc<Lease>>) {
        let (backend, answers, clock) = (self.backend.clone(), self.answers.clone(), self.clock.clone());
        let number = self.next_request;
        tokio::spawn(async move {
            let asked_at = clock.now();
            let renewals = renew_batch(&*backend, &batch).await;
            let renewals = batch.iter().map(|lease| lease.claim.id).zip(renewals).collect();
            drop(answers.send(Answers { number, asked_at, renewals }));
        });
    }

    fn apply_answers(&mut self, answers: Answers) {
        let now = self.clock.now();
        for (id, renewal) in answers.renewals {
            let Some(timer) = self.timers.get_mut(&id) else { continue };
            // A later confirmation makes an older success or failure irrelevant. A loss always counts.
            if timer.requests.is_overtaken(answers.number) && !matches!(renewal, Renewal::Lost) {
                continue;
            }
            let next_check = match renewal {
                Renewal::Renewed | Renewal::Alive if timer.lease.renewed(answers.asked_at) => {
                    timer.requests.confirm(answers.number);
                    let next = next_due(&timer.lease, answers.asked_at, self.renew_at);
                    let due = std::mem::replace(&mut timer.due, next);
                    self.events.emit(|| Event::Renewed {
                        resource: &timer.lease.claim.resource,
                        lag: now.since(due),
                        took: now.since(answers.asked_at),
                    });
                    timer.renew_next = next;
                    next.min(timer.lease.valid_until())
                }
                // The validity ended before the answer came: checking the claim marks the loss.
                Renewal::Renewed | Renewal::Alive => Moment::START,
                Renewal::Lost => {
                    timer.lease.lose(LossCause::Gone);
                    Moment::START
                }
                Renewal::Unknown(failure) => {
                    self.events.emit(|| Event::RenewalFailed { resource: &timer.lease.claim.resource });
                    logged!(debug, resource = %timer.lease.claim.resource, %failure, "renewal failed");
                    if !timer.requests.fail(answers.number) {
                        continue;
                    }
                    timer.lease.suspect();
                    timer.renew_next = now.after(timer.requests.pause(timer.lease.pace()));
                    timer.renew_next.min(timer.lease.valid_until())
                }
            };
            self.plan(id, next_check);
        }
    }
}

impl Drop for RenewerTask {
    /// Ends every claim, however the task ends: nothing stays held that is not renewed.
    fn drop(&mut self) {
        if mutant!("the end of a runtime is silent") {
            return;
        }
        let mail = self.inbox.abandon();
        let engine = self.engine.upgrade();
        if let Some(engine) = &engine {
            engine.close_abruptly();
        }
        let cause = match self.process.is_this() {
            true => LossCause::RenewalEnded,
            false => LossCause::Forked,
        };
        let watched = std::mem::take(&mut self.timers).into_values().map(|timer| timer.lease);
        for lease in mail.fresh.into_values().chain(watched) {
            lose_and_release(engine.clone(), &self.events, lease, Some(cause));
        }
    }
}

/// Marks a claim as lost by this cause, if it is not yet, and releases it.
fn lose_and_release(
    engine: Option<Arc<Engine>>,
    events: &EventSink,
    lease: Arc<Lease>,
    cause: Option<LossCause>,
) {
    if let Some(cause) = cause {
        lease.lose(cause);
    }
    if !lease.retire() {
        return;
    }
    events.emit(|| Event::LeaseEnded { resource: &lease.claim.resource });
    if let Some(engine) = engine {
        let at = engine.clock().now();
        let ended = UseEnd { state: lease.state_at(at), at };
        engine.release_unattended(lease, ended);
    }
}

/// Asks the server to renew a batch. Returns one answer for each claim, even if the backend misbehaves.
async fn renew_batch(backend: &dyn Backend, batch: &[Arc<Lease>]) -> Vec<Renewal> {
    let renews: Vec<_> =
        batch.iter().map(|lease| Renew { claim: &lease.claim, proof: &lease.proof }).collect();
    let asked = contained_request(async {
        let span = || tracing::debug_span!("leasehold.renew", claims = renews.len());
        spanned(span, backend.renew(&renews)).await
    });
    let (mut renewals, failure) = match asked.await {
        Ok(renewals) => {
            (renewals, Failure::unanswered("the backend answered fewer renewals than were requested"))
        }
        Err(failure) => (Vec::new(), failure),
    };
    renewals.resize(batch.len(), Renewal::Unknown(failure));
    renewals
}

/// Returns the next renewal of a claim that was confirmed as of `asked_at`. A user's `max_hold` may end before.
fn next_due(lease: &Lease, asked_at: Moment, renew_at: f64) -> Moment {
    let ttl = lease.pace();
    let due = asked_at.after(ttl.mul_f64(renew_at));
    // Rounded down to a common beat, so that leases that were acquired one after the other are
    // renewed together.
    let beat = u64::try_from((ttl / 30).as_nanos()).unwrap_or(u64::MAX).clamp(1_000_000, 1_000_000_000);
    Moment::from_nanos(due.as_nanos() / beat * beat)
}

/// Sleeps for `nap`, at most `CLOCK_READ_INTERVAL`, which is also the longest time that a message which is not urgent
/// waits in the inbox; for ever if it is `None`.
async fn sleep_for(nap: Option<Duration>) {
    match nap {
        Some(nap) => tokio::time::sleep(nap.min(CLOCK_READ_INTERVAL)).await,
        None => std::future::pending().await,
    }
}

/// The maximum number of claims that one turn renews; the rest follows in the next.
const TICK_MAX: usize = 10_000;
/// The number of open renewals of one claim from which they are spaced by the ttl alone.
const UNCAPPED_FROM: usize = 3;
/// The maximum number of open renewals of one claim. From `UNCAPPED_FROM` on the ttl alone spaces them, so
/// this limit never holds back a renewal of a lease that can still be kept.
const OPEN_MAX: usize = 24;
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use leasehold_core::{Claim, Grant, Resource, Share};

    use super::*;
    use crate::clock::TokioClock;
    use crate::engine::lease::Term;
    use crate::events::EventSubscriber;
    use crate::local::MemoryBackend;

    #[test]
    fn later_confirmation_clears_overdue_renewals() {
        let mut requests = RenewalRequests::default();
        for number in [4, 7, 9] {
            requests.send(number);
        }
        requests.failures = 2;
        requests.confirm(7);
        assert_eq!((requests.open.as_slice(), requests.is_waiting, requests.failures), (&[9][..], false, 0));
        assert!(!requests.fail(4) && !requests.fail(9), "a failure that was overtaken says nothing");
        assert!(requests.is_overtaken(4) && !requests.is_overtaken(7) && !requests.is_overtaken(9));
        requests.send(12);
        requests.send(15);
        assert!(requests.fail(12) && requests.is_waiting, "another one is open");
        assert_eq!(requests.open, [15]);
        assert!(requests.fail(15) && !requests.is_waiting, "there is nothing to wait for");
        assert_eq!((requests.open.len(), requests.failures), (0, 2));
    }

    #[test]
    fn the_limit_on_open_renewals_is_not_reached_within_a_lease() {
        for ttl in [100, 3_000, 30_000, 86_400_000].map(Duration::from_millis) {
            let (mut requests, mut passed) = (RenewalRequests::default(), Duration::ZERO);
            while requests.may_send() {
                requests.send(0);
                passed += requests.pause(ttl);
                requests.failures += 1;
            }
            assert!(passed >= ttl, "{ttl:?}: none is sent after {passed:?}");
            assert_eq!(requests.open.len(), OPEN_MAX);
        }
    }

    const TTL: Duration = Duration::from_secs(10);

    /// Returns a watchdog that holds nothing, and takes no turn by itself.
    fn task(events: EventSink) -> RenewerTask {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let (answers, answered) = mpsc::unbounded_channel();
        RenewerTask {
            agenda: Agenda::new(&*clock),
            backend: Arc::new(MemoryBackend::with_clock(clock.clone())),
            clock,
            renew_at: 0.3,
            events,
            engine: Weak::new(),
            inbox: Arc::default(),
            timers: HashMap::default(),
            wake_at: None,
            next_request: 0,
            answers,
            answered,
            process: Process::this(),
        }
    }

    /// Returns the lease of a claim of this id that was granted now.
    fn lease(task: &RenewerTask, id: ClaimId) -> Arc<Lease> {
        let (clock, events) = (task.clock.clone(), task.events.clone());
        let claim = Claim::new(id, Resource::new("job").unwrap(), Share::MUTEX, TTL);
        let term = Term::of(task.backend.profile(), TTL, 0.01);
        let (grant, now) = (Grant::new(clock.now()), clock.now());
        Arc::new(Lease::new(claim, &grant, term, clock, events, now))
    }

    fn id(number: u8) -> ClaimId {
        ClaimId::from_bytes([number; 16])
    }

    /// A lock that is released is checked no more, not even once.
    #[tokio::test(start_paused = true)]
    async fn lease_that_is_forgotten_leaves_the_agenda() {
        let mut task = task(EventSink::default());
        task.start_timer(lease(&task, id(1)));
        assert!(task.agenda.due(id(1)).is_some());
        task.forget(id(1));
        assert!(task.agenda.due(id(1)).is_none() && task.timers.is_empty());
    }

    /// A subscriber at whose event of a loss another lock is granted.
    #[derive(Debug, Default)]
    struct Relocks(Mutex<Option<(Arc<RenewalInbox>, Arc<Lease>)>>);

    impl EventSubscriber for Relocks {
        fn on_event(&self, event: &Event<'_>) {
            if let Event::Lost { .. } = event
                && let Some((inbox, lease)) = self.0.lock().unwrap().take()
            {
                let due = lease.valid_until();
                assert!(inbox.watch(lease, due));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lock_that_is_granted_while_the_inbox_is_read_is_watched() {
        let relocks = Arc::<Relocks>::default();
        let mut task = task(EventSink::to(Some(relocks.clone())));
        task.start_timer(lease(&task, id(1)));
        assert!(matches!(task.take_messages(), NextTurn::At(_)));
        *relocks.0.lock().unwrap() = Some((task.inbox.clone(), lease(&task, id(2))));
        let ended = task.timers[&id(1)].lease.clone();
        ended.limit_hold(Some(Duration::ZERO));
        task.inbox.hasten(id(1), ended.valid_until());
        task.take_messages();
        assert_eq!(ended.state(), State::Lost(LossCause::MaxHold));
        assert!(task.timers.contains_key(&id(2)));
    }

    #[test]
    fn pauses_grow_with_the_failures_and_with_what_is_open() {
        let secs = Duration::from_secs;
        let longest = |ttl, failures, open| {
            let requests = RenewalRequests { failures, open: vec![0; open], ..RenewalRequests::default() };
            // Each is at least half of the longest.
            (0..100).map(|_| requests.pause(ttl)).max().unwrap()
        };
        for failures in [0, 1] {
            assert!(longest(secs(20), failures, 1) <= secs(1), "a twentieth");
        }
        assert!(longest(secs(20), 2, 1) > secs(1), "a tenth");
        assert!(longest(secs(200), 2, UNCAPPED_FROM - 1) <= RETRY_MAX);
        assert!(longest(secs(200), 2, UNCAPPED_FROM) > RETRY_MAX);
    }
}
