//! The task of the renewer: renews every lease of one client, and reports each loss.
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
//! signal of a loss. The end of the renewer, however it comes about, ends the client: nothing stays held
//! that is not renewed.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{Backend, ClaimId, Clock, Failure, LossCause, Moment, Renew, Renewal};
use leasehold_machine::Process;
use tokio::sync::mpsc;

use crate::clock::CLOCK_READ_INTERVAL;
use crate::engine::Engine;
use crate::engine::lease::{Lease, State, UseEnd};
use crate::engine::renew::agenda::Agenda;
use crate::engine::renew::inbox::RenewalInbox;
use crate::engine::renew::requests::RenewalRequests;
use crate::events::{Event, EventSink};
use crate::mutant::mutant;
use crate::panics::{contained, contained_request, logged, spanned};
use crate::random::HashMap;

/// The task of the renewer: its agenda, and the leases that it renews.
pub(super) struct RenewerTask {
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

/// The answers to one batch.
struct Answers {
    /// The number of the batch; later batches have greater numbers.
    number: u64,
    asked_at: Moment,
    renewals: Vec<(ClaimId, Renewal)>,
}

impl RenewerTask {
    /// Creates the task. The runtime has to be entered.
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        renew_at: f64,
        events: EventSink,
        engine: Weak<Engine>,
        inbox: Arc<RenewalInbox>,
    ) -> RenewerTask {
        let (answers, answered) = mpsc::unbounded_channel();
        RenewerTask {
            agenda: Agenda::new(&*clock),
            backend,
            clock,
            renew_at,
            events,
            engine,
            inbox,
            timers: HashMap::default(),
            wake_at: None,
            next_request: 0,
            answers,
            answered,
            process: Process::this(),
        }
    }

    pub(super) async fn run(mut self) {
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
        self.agenda.plan(id, next_check);
    }

    fn hasten(&mut self, id: ClaimId) {
        let (Some(timer), Some(due)) = (self.timers.get(&id), self.agenda.due(id)) else { return };
        let next_check = match timer.lease.state() {
            State::Lost(_) => Moment::START,
            // Never later: a renewal that is due before stays due.
            _ => due.min(timer.lease.valid_until()),
        };
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
            self.agenda.plan(id, next_check);
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
        self.agenda.plan(id, next_check);
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
            let renewal = match renewal {
                Renewal::Lost if mutant!("a lost claim is renewed") => Renewal::Renewed,
                renewal => renewal,
            };
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
            self.agenda.plan(id, next_check);
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
pub(super) fn next_due(lease: &Lease, asked_at: Moment, renew_at: f64) -> Moment {
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use leasehold_core::{Claim, Grant, Resource, Share};

    use super::*;
    use crate::clock::TokioClock;
    use crate::engine::lease::Term;
    use crate::events::EventSubscriber;
    use crate::local::MemoryBackend;

    const TTL: Duration = Duration::from_secs(10);

    /// Returns a renewer that holds nothing, and takes no turn by itself.
    fn task(events: EventSink) -> RenewerTask {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
        RenewerTask::new(store, clock, 0.3, events, Weak::new(), Arc::default())
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
}
