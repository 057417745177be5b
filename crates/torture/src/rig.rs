//! The rig: worker processes, their pipes, the register, and the history that comes of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_history::{Event, History, Operation, Stage, Values};
use tempfile::TempDir;

use crate::clock::{Change, Offset, nanos};
use crate::error::RigError;
use crate::plan::Plan;
use crate::recorder::{Progress, Recorder};
use crate::register::{Checks, RegisterServer};
use crate::rig::process::{Spawner, Start, Worker};
use crate::wire::{Assignment, Facts};
use crate::worker::{facts, supports};

pub(crate) mod process;
pub(crate) mod residue;

/// Worker processes that take the locks of a plan, with the register that they write to.
///
/// A worker is named by its number, from 0 on. What is done to a worker is recorded as a fault on it;
/// [`Rig::note_fault`] records what is done to the store. Methods that act on a worker return at once.
///
/// # Promises
/// Only processes that the rig has started are paused and killed. All names in the store begin with
/// [`Rig::prefix`]. If the process of the rig ends, however it ends, its workers end too.
///
/// ```no_run
/// use leasehold_torture::{Edge, Plan, Rig};
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), leasehold_torture::RigError> {
/// let mut rig = Rig::start(Plan::new("redis://localhost")).await?;
/// rig.pause(0)?;
/// tokio::time::sleep(Duration::from_secs(5)).await;
/// rig.resume(0)?;
/// rig.note_fault("the server restarts", Edge::Once);
/// let history = rig.finish().await?;
/// assert!(leasehold_torture::history::Checker::new().check(&history).is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Rig {
    plan: Plan,
    prefix: String,
    facts: Facts,
    recorder: Arc<Recorder>,
    workers: Vec<Worker>,
    spawner: Spawner,
    spawns: u64,
    offset: Offset,
    register: RegisterServer,
    /// The folder of the socket; removed with the rig.
    _folder: TempDir,
}

/// Which edge of a fault is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Edge {
    /// The fault begins.
    Start,
    /// The fault ends.
    Stop,
    /// The fault has no end of its own.
    Once,
}

impl Rig {
    /// Starts the workers, and returns when each of them has opened the store.
    ///
    /// # Errors
    /// If the plan cannot work, or if a worker cannot open the store. Nothing is left then.
    pub async fn start(plan: Plan) -> Result<Rig, RigError> {
        Rig::start_under(plan, prefix()).await
    }

    /// Does as [`Rig::start`], with names that begin with this prefix.
    pub(crate) async fn start_under(mut plan: Plan, prefix: String) -> Result<Rig, RigError> {
        plan.check()?;
        let client = Client::open(&plan.url).await?;
        let more = std::mem::take(&mut plan.if_supported);
        plan.locks.extend(more.into_iter().filter(|lock| supports(&client, lock.kind).is_ok()));
        let facts = facts(&client, &plan);
        client.close(Duration::from_secs(1)).await;
        if let Some(why) = facts.unsupported.first() {
            return Err(RigError::Plan(format!("this store does not have all locks of the plan: {why}")));
        }
        let folder = tempfile::Builder::new().prefix("leasehold-torture-").tempdir()?;
        let recorder = Arc::new(Recorder::default());
        let checks = if plan.fenced { Checks::Fences } else { Checks::Nothing };
        let register = RegisterServer::start(folder.path().join("registers"), checks, recorder.clone())?;
        let offset = Offset::now();
        recorder.served(described(&plan, &facts));
        let (workers, spawner) = (Vec::new(), Spawner::start()?);
        let _folder = folder;
        let mut rig =
            Rig { plan, prefix, facts, recorder, workers, spawner, spawns: 0, offset, register, _folder };
        let starts: Vec<(usize, Start)> =
            (0..rig.plan.processes).map(|number| rig.assigned(number, false)).collect();
        for (number, start) in starts {
            let worker = rig.spawner.spawn(start, rig.recorder.clone())?;
            rig.workers.push(worker);
            // One after the other: a machine that is busy starts them no faster all at once.
            rig.workers[number].opened().await.map_err(|what| RigError::Worker { worker: number, what })?;
        }
        Ok(rig)
    }

    /// Returns what starts a worker for the next time.
    fn assigned(&mut self, worker: usize, is_patient: bool) -> (usize, Start) {
        self.spawns += 1;
        let spawn = self.spawns;
        self.recorder.expect(spawn, self.plan.all_tasks() as u64);
        let (prefix, registers) = (self.prefix.clone(), self.register.path().to_owned());
        let assignment = Assignment { plan: self.plan.clone(), worker, spawn, prefix, registers, is_patient };
        (worker, Start { assignment })
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the prefix of all names of this run, with a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Returns the id of a worker's process now; `None` while it is killed.
    pub fn process_id(&self, worker: usize) -> Option<u32> {
        self.workers.get(worker)?.process_id()
    }

    /// Returns the numbers of the logical processes that a worker has had since its last start: one for each task, and
    /// another one after each unknown outcome.
    pub fn logical_processes(&self, worker: usize) -> Vec<u64> {
        self.workers.get(worker).map_or_else(Vec::new, |worker| self.recorder.processes(worker.spawn()))
    }

    /// Returns what has been seen so far.
    pub fn progress(&self) -> Progress {
        self.recorder.progress()
    }

    /// Returns the last error of an acquisition, in the words of the library.
    pub fn last_error(&self) -> Option<String> {
        self.recorder.last_error()
    }

    /// Returns the longest time for which the store may keep the lock of a killed worker.
    pub fn stays(&self) -> Duration {
        self.facts.stays
    }

    /// Returns `true` if the store grants waiting requests in the order in which they came, as it promises.
    pub fn is_ordered(&self) -> bool {
        self.facts.is_ordered
    }

    /// Returns the grade of the store's fences, in the words of the library.
    pub fn grade(&self) -> &str {
        &self.facts.grade
    }

    /// Stops a worker with `SIGSTOP`.
    ///
    /// # Errors
    /// If there is no such worker, or if it is not running.
    pub fn pause(&mut self, worker: usize) -> Result<(), RigError> {
        let recorder = self.recorder.clone();
        self.worker(worker)?.pause(&recorder)
    }

    /// Continues a worker with `SIGCONT`.
    ///
    /// # Errors
    /// As [`Rig::pause`].
    pub fn resume(&mut self, worker: usize) -> Result<(), RigError> {
        let recorder = self.recorder.clone();
        self.worker(worker)?.resume(&recorder)
    }

    /// Kills a worker with `SIGKILL`. Its open operations stay open for ever.
    ///
    /// # Errors
    /// As [`Rig::pause`].
    pub fn kill(&mut self, worker: usize) -> Result<(), RigError> {
        let recorder = self.recorder.clone();
        self.worker(worker)?.kill(&recorder)
    }

    /// Starts a killed worker again, as another process. It opens the store as soon as it can. If it has not by the end of
    /// the recording, the history says so.
    ///
    /// # Errors
    /// If it is running, or cannot be started.
    pub fn respawn(&mut self, worker: usize) -> Result<(), RigError> {
        if self.worker(worker)?.process_id().is_some() {
            return Err(RigError::Worker { worker, what: "is running: kill it first".to_owned() });
        }
        let (_, start) = self.assigned(worker, true);
        self.workers[worker] = self.spawner.spawn(start, self.recorder.clone())?;
        Ok(())
    }

    /// Changes the clock by which a worker measures its leases, and returns when that is done: it jumps forward, and
    /// runs at this rate of the machine's clock from then on. [`Rig::note_fault`] records it as a fault.
    ///
    /// # Errors
    /// If the workers of the plan have no clocks of their own, if a clock cannot run like that, or if the worker does
    /// not exist or does not run.
    pub fn change_clock(&mut self, worker: usize, jump: Duration, rate: f64) -> Result<(), RigError> {
        let change = Change { rate, jump };
        if !self.plan.own_clocks || !change.is_possible() {
            let what = "a clock is changed if the plan has clocks of their own, at a rate from 0.01 to 100";
            return Err(RigError::Plan(what.to_owned()));
        }
        self.worker(worker)?.change_clock(change)
    }

    /// Returns what the wall clock of a worker shows, since 1970: a library before the worker may have moved it.
    ///
    /// # Errors
    /// If the worker does not exist, does not run or does not answer.
    pub fn wall_clock(&mut self, worker: usize) -> Result<Duration, RigError> {
        self.worker(worker)?.wall_clock()
    }

    fn worker(&mut self, worker: usize) -> Result<&mut Worker, RigError> {
        let what = || "there is no such worker".to_owned();
        self.workers.get_mut(worker).ok_or_else(|| RigError::Worker { worker, what: what() })
    }

    /// Changes the URL at which the end of the recording looks for what is left: that of another server, if the one of
    /// the plan has been replaced meanwhile. Workers keep their own.
    pub fn look_at(&mut self, url: impl Into<String>) {
        self.plan.url = url.into();
    }

    /// Records what was done to the store or to the network.
    pub fn note_fault(&self, label: &str, edge: Edge) {
        let stage = match edge {
            Edge::Start => Stage::Invoke,
            Edge::Stop => Stage::Ok,
            Edge::Once => Stage::Info,
        };
        self.recorder.fault(label, stage, None);
    }

    /// Ends the recording: resumes all workers, lets those that were started again open the store, lets all finish and
    /// close, looks for what is left in the store, removes it, and returns the history. The store should be healthy by then.
    ///
    /// # Errors
    /// If the machine fails. A worker that does not end in time is killed, and the history says so.
    pub async fn finish(mut self) -> Result<History, RigError> {
        for worker in &mut self.workers {
            worker.resume_if_paused(&self.recorder);
        }
        for worker in &mut self.workers {
            worker.notice_start(&self.recorder).await;
        }
        self.recorder.served(Event::new(Stage::Info, Operation::Drain));
        for worker in &mut self.workers {
            worker.ask_to_end();
        }
        let deadline = Instant::now()
            + self.plan.limit
            + (self.plan.hold + self.plan.ttl) * 4
            + self.facts.stays
            + TO_CLOSE;
        for worker in &mut self.workers {
            while !worker.has_ended() && Instant::now() < deadline {
                tokio::time::sleep(LOOK).await;
            }
            worker.end(&self.recorder);
        }
        residue::look(&self.plan, &self.prefix, self.facts.stays, &self.recorder).await;
        if let Some(time) = self.offset.suspended() {
            self.recorder.fault(&format!("suspend of the machine for {time:.1?}"), Stage::Info, None);
        }
        Ok(self.recorder.history())
    }
}

/// Returns the first event of a history.
fn described(plan: &Plan, facts: &Facts) -> Event {
    let mut values = Values::default();
    values.seed = Some(plan.seed);
    values.ttl = facts.ttl.map(nanos);
    values.label = Some(facts.store.clone());
    values.grade = Some(facts.grade.clone());
    values.count = Some(plan.processes as u64);
    Event::new(Stage::Info, Operation::Plan).with(values)
}

/// Returns the beginning of the names of one run, which no other run has. It does not depend on the seed, so that
/// two runs with one seed do not meet.
pub(crate) fn prefix() -> String {
    let mut rng = fastrand::Rng::new();
    let name: String = (0..12).map(|_| rng.alphanumeric().to_ascii_lowercase()).collect();
    format!("{PREFIX}{name}/")
}

/// The beginning of all names of all runs.
pub(crate) const PREFIX: &str = "leasehold-torture/";
const TO_CLOSE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
