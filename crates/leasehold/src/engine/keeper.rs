//! The watchdog: renews every lease of one client, and tells when one is lost.
//!
//! One task and one hierarchical timing wheel (tokio-util's `DelayQueue`) for all leases. What is due in
//! one tick goes out as one batch. A renewal that is not confirmed makes the claim suspect and is tried again
//! inside what is left; at the end of its validity the claim is lost, whatever the network says. What it is told lies on a desk
//! until it comes by; it is called only for what cannot wait.
//!
//! Ground rules: nothing is extended by a request that was not answered. The wheel only says when to look;
//! whether a claim is still held is read from the clock. A renewal runs in a task of its own, so a server that
//! hangs delays neither the next tick nor the signal of a loss.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::{Backend, ClaimId, Clock, LossCause, LossSignal, Moment, Renew, Renewal};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue};
use tracing::Instrument;

use super::desk::Desk;
use super::held::{Held, State};
use super::outage::jittered;
use super::{Engine, Tuning};
use crate::witness::{Event, Telling};

/// The engine's end of the watchdog. Dropping it ends the watchdog.
#[derive(Debug)]
pub(crate) struct Keeper {
    desk: Arc<Desk>,
    telling: Telling,
    renew_at: f64,
}

impl Keeper {
    pub(super) fn start(
        runtime: &Handle,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        tuning: &Tuning,
        telling: Telling,
        engine: Weak<Engine>,
    ) -> Keeper {
        let desk = Arc::<Desk>::default();
        let (answers, answered) = mpsc::unbounded_channel();
        let watchdog = Watchdog {
            backend,
            clock,
            renew_at: tuning.renew_at,
            telling: telling.clone(),
            engine,
            wheel: DelayQueue::new(),
            kept: HashMap::new(),
            answers,
            offset: None,
            base: Cell::new(None),
        };
        drop(runtime.spawn(watchdog.run(desk.clone(), answered)));
        Keeper { desk, telling, renew_at: tuning.renew_at }
    }

    /// Renews the claim from now on, and marks its loss.
    pub(super) fn watch(&self, held: &Arc<Held>, lost: Option<&LossSignal>) {
        self.telling.tell(|| Event::Kept { resource: &held.claim.resource });
        self.desk.watch(held.clone(), first_due(held, held.granted_at, self.renew_at));
        if let Some(signal) = lost {
            let (weak, desk) = (Arc::downgrade(held), self.desk.clone());
            held.listen(signal.on_loss(move |cause| {
                // A loss that only the backend can see. Where it is nobody's any more, nobody is to be told.
                if let Some(held) = weak.upgrade() {
                    held.lose(cause);
                    desk.hasten(held.claim.id, Moment::START);
                }
            }));
        }
    }

    /// Starts the business limit of one user of the claim, whose end may come before the next look at it.
    pub(super) fn limit_hold(&self, held: &Held, max_hold: Option<Duration>) {
        held.limit_hold(max_hold);
        if max_hold.is_some() {
            self.desk.hasten(held.claim.id, held.valid_until());
        }
    }

    /// Leaves the claim alone from now on.
    pub(super) fn forget(&self, held: &Held) {
        self.desk.forget(held.claim.id);
        self.telling.tell(|| Event::LetGo { resource: &held.claim.resource });
    }

    /// Marks every claim as lost, because the client closes; comes back when all are on their way to the server.
    pub(super) async fn lose_all(&self) {
        // A runtime that ended has nothing left to lose.
        let _ = self.desk.lose_all().await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.desk.end();
    }
}

/// The task.
struct Watchdog {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    renew_at: f64,
    telling: Telling,
    /// Where lost claims are given back; gone with the last guard.
    engine: Weak<Engine>,
    wheel: DelayQueue<ClaimId>,
    kept: HashMap<ClaimId, Kept>,
    answers: mpsc::UnboundedSender<Answers>,
    /// How far the clock that counts suspend is ahead of the runtime's, to notice that the machine slept.
    offset: Option<Duration>,
    /// What the two clocks showed at one moment, by which one is translated to the other.
    base: Cell<Option<Reading>>,
}

/// One lease under watch.
struct Kept {
    held: Arc<Held>,
    key: delay_queue::Key,
    /// When the next renewal was planned for, when the last one was confirmed.
    due: Moment,
    /// Renewals that were sent and not answered.
    pending: u32,
    /// Renewals in a row that were not confirmed.
    failures: u32,
}

/// One moment by both clocks. Claims that are due at the same moment come up together because it is translated for all of them
/// by one and the same reading: no claim has to be looked for among those that are due a little later, for which the wheel
/// would go through all that are due about then, once for each.
#[derive(Clone, Copy)]
struct Reading {
    now: Moment,
    wheel: Instant,
}

impl Reading {
    /// When to look at what is due then, by the clock of the wheel: sooner where that is further away than the wheel reaches,
    /// which a ttl or a limit of years may be, on a store that gives no bound to them.
    fn when(self, due: Moment) -> Instant {
        self.wheel + self.now.until(due).min(LOOK_MAX)
    }
}

/// What came back from one batch.
struct Answers {
    asked_at: Moment,
    renewals: Vec<(ClaimId, Renewal)>,
}

impl Watchdog {
    async fn run(mut self, desk: Arc<Desk>, mut answered: mpsc::UnboundedReceiver<Answers>) {
        // When it is next checked whether the machine slept, and what lies on the desk is taken in at the latest. Only while
        // something is held.
        let mut pulse = None;
        loop {
            if self.clear(&desk, &mut pulse) {
                return;
            }
            tokio::select! {
                () = desk.rung() => {}
                Some(answers) = answered.recv() => self.take_in(answers),
                Some(due) = next_due(&mut self.wheel) => self.look(due.into_inner()),
                () = passed(pulse) => {
                    pulse = None;
                    self.notice_sleep();
                }
            }
        }
    }

    /// Does everything that lies on the desk, and says when it comes by next; `true` where that is never.
    fn clear(&mut self, desk: &Desk, pulse: &mut Option<Instant>) -> bool {
        loop {
            let papers = desk.clear();
            if papers.is_over {
                return true;
            }
            papers.forgotten.into_iter().for_each(|id| self.forget(id));
            papers.fresh.into_values().for_each(|held| self.keep(held));
            papers.hastened.into_iter().for_each(|id| self.hasten(id));
            for done in papers.closing {
                self.lose_all();
                let _ = done.send(());
            }
            let read = self.read();
            if pulse.is_none() && !self.kept.is_empty() {
                *pulse = Some(read.wheel + PULSE);
            }
            let comes_at = pulse.map(|pulse| read.now.after(pulse.saturating_duration_since(read.wheel)));
            if desk.leave_until(comes_at) {
                return false;
            }
        }
    }

    fn keep(&mut self, held: Arc<Held>) {
        let read = self.read();
        let due = first_due(&held, held.granted_at, self.renew_at);
        // What only the backend saw ends here and now, whatever the clock says.
        let look_at = if let State::Lost(_) = held.state() { read.now } else { due };
        let id = held.claim.id;
        let key = self.wheel.insert_at(id, read.when(look_at));
        self.kept.insert(id, Kept { held, key, due, pending: 0, failures: 0 });
    }

    fn hasten(&mut self, id: ClaimId) {
        let Some(kept) = self.kept.get(&id) else { return };
        if let State::Lost(_) = kept.held.state() {
            return self.wheel.reset(&kept.key, Duration::ZERO);
        }
        // Only ever sooner: a renewal that is due before stays due.
        let planned = self.wheel.deadline(&kept.key).saturating_duration_since(Instant::now());
        let end = self.clock.now().until(kept.held.valid_until());
        self.wheel.reset(&kept.key, planned.min(end));
    }

    fn forget(&mut self, id: ClaimId) {
        if let Some(kept) = self.kept.remove(&id) {
            self.wheel.try_remove(&kept.key);
        }
    }

    fn lose_all(&mut self) {
        let ids: Vec<_> = self.kept.keys().copied().collect();
        for id in ids {
            if let Some(kept) = self.kept.get(&id) {
                self.wheel.try_remove(&kept.key);
                kept.held.lose(LossCause::Closed);
            }
            self.end(id);
        }
    }

    /// Gives a lost claim back, whether or not its guard is dropped soon: what the server may still have of it is of
    /// no use to anybody, and others of this process wait for it to be gone.
    fn end(&mut self, id: ClaimId) {
        let Some(kept) = self.kept.remove(&id) else { return };
        if !kept.held.retire() {
            return;
        }
        self.telling.tell(|| Event::LetGo { resource: &kept.held.claim.resource });
        if let Some(engine) = self.engine.upgrade() {
            let state = kept.held.state();
            drop(engine.reaper.release(&engine, kept.held, state, None));
        }
    }

    /// One tick: everything that is due now, as one batch.
    fn look(&mut self, first: ClaimId) {
        let read = self.read();
        let mut due = vec![first];
        while due.len() < TICK_MAX {
            let Some(more) = expired_now(&mut self.wheel) else { break };
            due.push(more.into_inner());
        }
        let batch: Vec<_> = due.into_iter().filter_map(|id| self.look_at(id, read)).collect();
        // A call for each part of the store: one that hangs keeps back no answers of the others.
        let mut parts: HashMap<u64, Vec<Arc<Held>>> = HashMap::new();
        for held in batch {
            parts.entry(self.backend.part(&held.claim)).or_default().push(held);
        }
        parts.into_values().for_each(|batch| self.renew(batch));
    }

    /// Looks at one claim whose time has come; the claim where it is to be renewed now.
    fn look_at(&mut self, id: ClaimId, read: Reading) -> Option<Arc<Held>> {
        let kept = self.kept.get_mut(&id)?;
        if let State::Lost(_) = kept.held.state() {
            // Its key is spent: the wheel may have given it to another timer, so it must not be removed there.
            self.end(id);
            return None;
        }
        if kept.pending > 0 {
            // The answer is overdue: whoever holds should know before it is too late.
            kept.held.suspect();
            kept.failures += 1;
        }
        let send = kept.pending < PENDING_MAX;
        kept.pending += u32::from(send);
        let pause = retry_pause(kept.held.pace(), kept.failures);
        let next = read.now.after(pause).min(kept.held.valid_until());
        kept.key = self.wheel.insert_at(id, read.when(next));
        send.then(|| kept.held.clone())
    }

    fn renew(&self, batch: Vec<Arc<Held>>) {
        let (backend, answers, clock) = (self.backend.clone(), self.answers.clone(), self.clock.clone());
        tokio::spawn(async move {
            let asked_at = clock.now();
            let renews: Vec<_> =
                batch.iter().map(|held| Renew { claim: &held.claim, proof: &held.proof }).collect();
            let span = tracing::debug_span!("leasehold.renew", claims = batch.len());
            let renewals = backend.renew(&renews).instrument(span).await;
            debug_assert_eq!(renewals.len(), batch.len(), "a backend answers every claim of a batch");
            let renewals = batch.iter().map(|held| held.claim.id).zip(renewals).collect();
            drop(answers.send(Answers { asked_at, renewals }));
        });
    }

    fn take_in(&mut self, answers: Answers) {
        let read = self.read();
        for (id, renewal) in answers.renewals {
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            kept.pending = kept.pending.saturating_sub(1);
            let confirmed = match renewal {
                Renewal::Renewed | Renewal::Alive => kept.held.renewed(answers.asked_at),
                Renewal::Lost => {
                    kept.held.lose(LossCause::Gone);
                    false
                }
                Renewal::Unknown(failure) => {
                    self.telling.tell(|| Event::NotRenewed { resource: &kept.held.claim.resource });
                    tracing::debug!(resource = %kept.held.claim.resource, %failure, "renewal failed");
                    kept.held.suspect();
                    kept.failures += 1;
                    let pause = retry_pause(kept.held.pace(), kept.failures);
                    let next = read.now.after(pause).min(kept.held.valid_until());
                    self.wheel.reset_at(&kept.key, read.when(next));
                    continue;
                }
            };
            let due = if confirmed {
                kept.failures = 0;
                let held = kept.held.clone();
                let due = std::mem::replace(&mut kept.due, Moment::NEVER);
                self.telling.tell(|| Event::Renewed {
                    resource: &held.claim.resource,
                    lag: read.now.since(due),
                    took: read.now.since(answers.asked_at),
                });
                first_due(&held, answers.asked_at, self.renew_at)
            } else {
                read.now
            };
            if let Some(kept) = self.kept.get_mut(&id) {
                kept.due = due;
                self.wheel.reset_at(&kept.key, read.when(due));
            }
        }
    }

    /// Now, by both clocks: by the runtime's as the base has it, unless that is not right any more.
    fn read(&self) -> Reading {
        let mut read = Reading { now: self.clock.now(), wheel: Instant::now() };
        if let Some(base) = self.base.get() {
            // Others may have had the processor between the two looks, but hardly each time.
            for _ in 0..READINGS {
                let wheel = base.when(read.now);
                if wheel.max(read.wheel) - wheel.min(read.wheel) <= SKEW {
                    return Reading { wheel, ..read };
                }
                read = Reading { now: self.clock.now(), wheel: Instant::now() };
            }
        }
        // The machine slept, or somebody set a clock of his own.
        self.base.set(Some(read));
        read
    }

    /// After a suspend the wheel is late by all the time that the machine slept: every claim is looked at.
    fn notice_sleep(&mut self) {
        let offset = self.clock.now().since(Moment::START).saturating_sub(runtime_age());
        let slept = self.offset.is_some_and(|before| offset > before + SLEEP_MIN);
        self.offset = Some(offset);
        if slept {
            let ids: Vec<_> = self.kept.keys().copied().collect();
            for id in ids {
                if let Some(kept) = self.kept.get(&id) {
                    self.wheel.reset(&kept.key, Duration::ZERO);
                }
            }
        }
    }
}

/// When a claim that was confirmed as of `asked_at` is to be looked at next.
fn first_due(held: &Held, asked_at: Moment, renew_at: f64) -> Moment {
    let ttl = held.pace();
    let due = asked_at.after(ttl.mul_f64(renew_at));
    // Moved forward to a common beat, so that leases that were taken one after the other go out together.
    let beat = u64::try_from((ttl / 30).as_nanos()).unwrap_or(u64::MAX).clamp(1_000_000, 1_000_000_000);
    Moment::from_nanos(due.as_nanos() / beat * beat).min(held.valid_until())
}

/// Waits for that moment; for ever where there is none.
async fn passed(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn next_due(wheel: &mut DelayQueue<ClaimId>) -> Option<delay_queue::Expired<ClaimId>> {
    std::future::poll_fn(|cx| wheel.poll_expired(cx)).await
}

/// One more claim that is due already, without waiting.
fn expired_now(wheel: &mut DelayQueue<ClaimId>) -> Option<delay_queue::Expired<ClaimId>> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    // The runtime ends a task's turn by saying that nothing is there, after a hundred claims or so, in the middle of a batch.
    let mut next = std::pin::pin!(tokio::task::unconstrained(next_due(wheel)));
    match next.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(expired) => expired,
        std::task::Poll::Pending => None,
    }
}

/// The pause before a renewal that was not confirmed is tried again: from a twentieth of the ttl, growing to a
/// tenth, so that several tries fit into what is left.
fn retry_pause(ttl: Duration, failures: u32) -> Duration {
    let ceiling = ttl / if failures < 2 { 20 } else { 10 };
    jittered(ceiling.clamp(RETRY_MIN, RETRY_MAX))
}

fn runtime_age() -> Duration {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed()
}

/// The most claims that one tick renews; what is left follows in the next.
const TICK_MAX: usize = 10_000;
/// How often the clocks are read before they are believed to have changed.
const READINGS: u32 = 4;
/// How far the two clocks may be apart from what they were at the base. Part of what a signal of a loss may be late.
const SKEW: Duration = Duration::from_micros(500);
/// The most renewals of one claim that wait for an answer at the same time.
const PENDING_MAX: u32 = 3;
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How often it is checked whether the machine slept, and how long what can wait may lie on the desk. Only while something is held.
const PULSE: Duration = Duration::from_secs(1);
const SLEEP_MIN: Duration = Duration::from_millis(50);
/// How far ahead the wheel is asked to think. It could do two years, and panics beyond.
const LOOK_MAX: Duration = Duration::from_secs(24 * 60 * 60);
