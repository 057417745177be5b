//! One task of a worker: it takes a lock, increments the register under its fence, and releases it, again and again.
//!
//! Ground rules: what is drawn depends on the seed, the start of the worker and the task, and on nothing else. Half of
//! the holders look whether they still hold before they write; the other half are careless, because fences have to
//! protect against those. Half of the holders never look at the lock at all, and learn of a loss when the library tells
//! them: a look would report the loss that nobody was told of.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use leasehold::{Client, Guard, Owner};
use leasehold_history::{BUSY, CANCELLED, Event, Mode, Operation, Stage, Values};
use tokio::sync::watch;

use crate::clock::WorkerClock;
use crate::plan::{Dense, LockKind, LockPlan, Plan};
use crate::register::{Answer, RegisterClient, Request};
use crate::wire::Assignment;
use crate::worker::send_event;

mod held;
mod reentry;
mod request;

use held::HeldLock;
use request::{Asked, Wanted, acquire};

/// Runs the task until the worker has to end.
pub(super) async fn run(
    client: Client,
    clock: Arc<WorkerClock>,
    assignment: Arc<Assignment>,
    number: u64,
    mut until: watch::Receiver<bool>,
) -> io::Result<()> {
    let plan = &assignment.plan;
    let seed = [plan.seed, assignment.spawn, number].into_iter().fold(SALT, mixed);
    let registers = RegisterClient::connect(&assignment.registers).await?;
    let step = plan.all_tasks() as u64;
    let [hearing, reentry] = [HEARING, REENTRY].map(|salt| Rng::with_seed(mixed(seed, salt)));
    let rng = Rng::with_seed(seed);
    let mut task = Task { client, clock, registers, rng, hearing, reentry, process: number, step };
    let pace = Pace::of(plan, number as usize);
    while !*until.borrow() {
        let begun = tokio::time::Instant::now();
        let lock = task.rng.choice(&pace.locks).cloned();
        let Some(lock) = lock else { return Ok(()) };
        let is_well = task.turn(&pace, plan.ttl, &assignment.prefix, &lock).await?;
        // With jitter, so that tasks do not walk in step.
        let rest = pace.pause.mul_f64(task.rng.f64() + 0.5).saturating_sub(begun.elapsed());
        let rest = if is_well { rest } else { rest.max(AFTER_FAILURE) };
        tokio::select! {
            _ = until.wait_for(|over| *over) => {}
            () = tokio::time::sleep(rest) => {}
        }
    }
    Ok(())
}

/// The pace of a task: which locks it takes, how long it keeps one, and how far apart its turns are.
struct Pace {
    locks: Vec<LockPlan>,
    hold: Duration,
    limit: Duration,
    /// So long that all tasks of this pace together keep to the rate.
    pause: Duration,
    cancels: u8,
    cancelled_within: Option<Duration>,
    is_dense: bool,
    is_fenced: bool,
    is_deaf: bool,
}

impl Pace {
    fn of(plan: &Plan, task: usize) -> Pace {
        let mut locks = plan.all_locks();
        let dense = locks.split_off(plan.locks.len());
        let between = |tasks: usize, rate: u32| match rate {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64((plan.processes * tasks) as f64 / f64::from(rate)),
        };
        let usual = Pace {
            locks,
            hold: plan.hold,
            limit: plan.limit,
            pause: between(plan.tasks, plan.rate),
            cancels: plan.cancels,
            cancelled_within: plan.cancelled_within,
            is_dense: false,
            is_fenced: plan.fenced,
            is_deaf: plan.deaf,
        };
        match plan.dense.filter(|_| task >= plan.tasks) {
            Some(Dense { tasks, hold, limit, rate, .. }) => {
                Pace { locks: dense, hold, limit, pause: between(tasks, rate), is_dense: true, ..usual }
            }
            None => usual,
        }
    }

    /// Returns when an acquisition with this limit is dropped on its way, if it is.
    fn cut(&self, rng: &mut Rng, limit: Duration) -> Option<Duration> {
        let is_dropped = self.cancels > 0 && rng.u8(..self.cancels) == 0;
        is_dropped.then(|| match self.cancelled_within {
            Some(within) => within.mul_f64(rng.f64().powi(3)),
            None => limit.mul_f64(0.1 * rng.f64()),
        })
    }
}

struct Task {
    client: Client,
    /// The clock by which the client measures its leases.
    clock: Arc<WorkerClock>,
    registers: RegisterClient,
    rng: Rng,
    /// Decides which holders learn of a loss only by being told.
    hearing: Rng,
    /// Decides which holders acquire again what they hold.
    reentry: Rng,
    /// The number of the logical process, which is a new one after an unknown outcome.
    process: u64,
    step: u64,
}

impl Task {
    /// Takes a lock once. Returns `false` if the store failed.
    async fn turn(&mut self, pace: &Pace, ttl: Duration, prefix: &str, lock: &LockPlan) -> io::Result<bool> {
        let key = format!("{prefix}{}", lock.name);
        let (mode, is_writer) = match lock.kind {
            LockKind::Mutex => (Mode::Exclusive, true),
            LockKind::ReadWrite if self.rng.u8(..4) > 0 => (Mode::Shared, false),
            LockKind::ReadWrite => (Mode::Exclusive, true),
            LockKind::Semaphore(of) => (Mode::Permits { taken: 1, of }, false),
        };
        // Some wait for long, and some hardly at all, so that not all tasks wait behind one long hold.
        let limit = pace.limit.mul_f64(self.rng.f64().powi(3)).max(SHORTEST_WAIT);
        let wanted = Wanted { ttl, limit, kind: lock.kind, mode };
        self.send(Stage::Invoke, Operation::Acquire, &key, wanted.values(), None)?;
        let cut = pace.cut(&mut self.rng, limit);
        let is_owned = mode == Mode::Exclusive && self.reentry.u8(..REENTERS) == 0 && !pace.is_deaf;
        let owner = is_owned.then(Owner::new);
        let guard = match self.ask(wanted, cut, &key, owner.as_ref()).await {
            Asked::Granted(guard) => guard,
            other => return self.not_granted(&key, other).map(|stage| stage.is_none()),
        };
        let mut held = HeldLock::of(guard, (key, self.process), ttl, pace, self.clock.clone());
        // One that acquires again what it holds has to look whether it still does.
        if (self.hearing.bool() || pace.is_deaf) && owner.is_none() {
            held.listen();
        }
        let mut values = held.values();
        (values.mode, values.valid_until) = (Some(mode), held.end());
        values.count = owner.is_some().then_some(1);
        self.send(Stage::Ok, Operation::Acquire, &held.key, values, None)?;
        self.hold(&mut held, is_writer).await?;
        if let Some(owner) = &owner
            && !self.reenter(&mut held, wanted, owner).await?
        {
            return Ok(false);
        }
        self.release(held, owner.is_some()).await
    }

    /// Reports that a lock was not granted. Returns the stage of a failure of the store.
    fn not_granted(&mut self, key: &str, asked: Asked) -> io::Result<Option<Stage>> {
        let (stage, error, failed) = match asked {
            Asked::Failed(error) if error.may_have_happened() => (Stage::Info, error.to_string(), true),
            Asked::Failed(error) => (Stage::Fail, error.to_string(), true),
            Asked::Cancelled => (Stage::Fail, CANCELLED.to_owned(), false),
            Asked::Busy | Asked::Granted(_) => (Stage::Fail, BUSY.to_owned(), false),
        };
        self.send(stage, Operation::Acquire, key, Values::default(), Some(error))?;
        Ok(failed.then_some(stage))
    }

    /// Asks for the lock. The future is dropped after `cut`.
    async fn ask(&self, wanted: Wanted, cut: Option<Duration>, key: &str, owner: Option<&Owner>) -> Asked {
        let waiting = pin!(acquire(&self.client, wanted, key, owner));
        let asked = match cut {
            Some(cut) => match tokio::time::timeout(cut, waiting).await {
                Ok(asked) => asked,
                Err(_) => return Asked::Cancelled,
            },
            None => waiting.await,
        };
        match asked {
            Ok(Some(guard)) => Asked::Granted(guard),
            Ok(None) => Asked::Busy,
            Err(error) => Asked::Failed(error),
        }
    }

    /// Holds the lock for a while, and increments the register if it may write.
    async fn hold(&mut self, held: &mut HeldLock<'_>, is_writer: bool) -> io::Result<()> {
        let pace = held.pace;
        let rounds = if is_writer && !pace.is_dense { self.rng.u8(1..=2) } else { 1 };
        for _ in 0..rounds {
            // A lock that is held for longer than its lease has to be renewed.
            let is_long = !pace.is_dense && self.rng.u8(..LONG_HOLDS) == 0;
            let longest = if is_long { held.ttl * 2 } else { pace.hold };
            let wait = longest.mul_f64(self.rng.f64());
            if !is_writer {
                held.watch(wait).await?;
                continue;
            }
            let read = self.request(held, None).await?;
            let Some(value) = read.value else { return Ok(()) };
            held.watch(wait).await?;
            let is_careful = self.rng.bool() && pace.is_fenced;
            if is_careful {
                held.notice()?;
                if held.lost {
                    return Ok(());
                }
            }
            if self.request(held, Some(value + 1)).await?.value.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads or writes the register.
    async fn request(&mut self, held: &mut HeldLock<'_>, write: Option<u64>) -> io::Result<Answer> {
        let operation = if write.is_some() { Operation::Write } else { Operation::Read };
        let mut values = held.values();
        values.val = write;
        self.send(Stage::Invoke, operation, &held.key, values.clone(), None)?;
        let (key, owner, fence) = (held.key.clone(), held.owner.clone(), held.fence);
        let request = Request { key, owner, fence, write };
        let answer = held.noticing(self.registers.ask(&request)).await??;
        match answer.value {
            Some(value) => {
                values.val = Some(value);
                self.send(Stage::Ok, operation, &held.key, values, None)?;
            }
            None => {
                let highest = answer.highest.unwrap_or_default();
                let error = format!("refused: the register has seen the fence {highest}");
                self.send(Stage::Fail, operation, &held.key, values, Some(error))?;
            }
        }
        Ok(answer)
    }

    async fn release(&mut self, mut held: HeldLock<'_>, is_counted: bool) -> io::Result<bool> {
        held.look()?;
        held.hear_of_the_end().await?;
        let values = held.values();
        self.send(Stage::Invoke, Operation::Release, &held.key, values.clone(), None)?;
        let HeldLock { guard, told, key, .. } = held;
        if let Some(told) = told.filter(|told| !told.is_finished()) {
            told.abort();
            // An error is the abort.
            let _ = told.await;
        }
        self.end(guard, &key, values, is_counted.then_some(0)).await
    }

    /// Ends a guard, after which `left` others of its grant are left, if they are counted. Returns `false` if the
    /// outcome is unknown.
    async fn end(
        &mut self,
        guard: Arc<Guard>,
        key: &str,
        mut values: Values,
        left: Option<u64>,
    ) -> io::Result<bool> {
        let guard = Arc::into_inner(guard).ok_or_else(|| io::Error::other("a guard is still waited for"))?;
        let (stage, error) = match guard.release().await {
            Ok(()) => (Stage::Ok, None),
            Err(error) if error.may_have_happened() => (Stage::Info, Some(error.to_string())),
            Err(error) => (Stage::Fail, Some(error.to_string())),
        };
        values.count = left.filter(|_| stage == Stage::Ok);
        self.send(stage, Operation::Release, key, values, error)?;
        Ok(stage != Stage::Info)
    }

    /// Sends an event. After an unknown outcome, the logical process is another one.
    fn send(
        &mut self,
        stage: Stage,
        operation: Operation,
        key: &str,
        values: Values,
        error: Option<String>,
    ) -> io::Result<()> {
        let mut event = Event::new(stage, operation).by(self.process).on(key).with(values);
        event.error = error;
        if stage == Stage::Info {
            self.process += self.step;
        }
        send_event(event)
    }
}

/// Mixes a number into a seed (SplitMix64, Steele, Lea and Flood 2014).
fn mixed(seed: u64, more: u64) -> u64 {
    let mut z = seed.wrapping_add(more).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const SALT: u64 = 0x6c65_6173_6568_6f6c;
const HEARING: u64 = 0x6865_6172_696e_6721;
const REENTRY: u64 = 0x7265_656e_7472_7921;
/// One of so many holders of a whole lock acquires it again.
const REENTERS: u8 = 16;
/// One of so many holds is longer.
const LONG_HOLDS: u8 = 128;
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
const AFTER_FAILURE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquisitions_are_dropped_on_their_way_and_in_the_queue() {
        let mut plan = Plan::new("file:");
        let within = Duration::from_millis(200);
        (plan.cancels, plan.cancelled_within) = (1, Some(within));
        let (pace, mut rng) = (Pace::of(&plan, 0), Rng::with_seed(1));
        let cuts: Vec<Duration> = (0..1_000).filter_map(|_| pace.cut(&mut rng, plan.limit)).collect();
        let count = |is_it: &dyn Fn(&Duration) -> bool| cuts.iter().filter(|cut| is_it(cut)).count();
        assert_eq!((cuts.len(), count(&|cut| *cut > within)), (1_000, 0));
        assert!(count(&|cut| *cut < within / 100) > 100, "while a request is on its way");
        assert!(count(&|cut| *cut > within / 2) > 100, "when the lock was held for long");
    }
}
