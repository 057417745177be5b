//! The plan of a recording: what the workers do, how many there are, and with which seed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::RigError;

/// The plan of a recording. [`Plan::new`] gives defaults; the fields can be changed before the start.
///
/// The plan goes to each worker over its standard input, so the URL with its password is in no argument list.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// The URL of the store.
    pub url: String,
    /// The URLs of single workers where they differ, such as that of a proxy.
    pub worker_urls: Vec<(usize, String)>,
    /// The locks, each with its own register.
    pub locks: Vec<LockPlan>,
    /// More locks, of which the start leaves out those that the store does not have. The plan of the rig has the others
    /// among [`Plan::locks`].
    pub if_supported: Vec<LockPlan>,
    /// The worker processes.
    pub processes: usize,
    /// The tasks of each worker; each of them does one thing at a time.
    pub tasks: usize,
    /// The ttl of the leases.
    pub ttl: Duration,
    /// The longest wait for a lock.
    pub limit: Duration,
    /// The longest time for which a task usually keeps a lock; the seed decides about each one. Now and then it is up
    /// to two leases.
    pub hold: Duration,
    /// The most acquisitions of all workers in a second; zero for no limit.
    pub rate: u32,
    /// Locks beside the others that change hands quickly, with tasks of their own.
    pub dense: Option<Dense>,
    /// Of so many acquisitions one is dropped on its way; zero for none.
    pub cancels: u8,
    /// The longest time after which it is dropped, where half are dropped within an eighth of that: as long as a
    /// request takes, and as long as a wait does. A tenth of its own limit if there is none.
    pub cancelled_within: Option<Duration>,
    /// The seed of everything that is drawn.
    pub seed: u64,
    /// `true` if the register checks fences. `false` is for tests that show that it matters: then no holder looks
    /// whether it still holds before it writes, either.
    pub fenced: bool,
    /// `true` if those that wait for the loss of a lock are never told of it. This is for tests that show that it is
    /// noticed.
    pub deaf: bool,
    /// `true` if each worker measures its leases by a clock of its own, which
    /// [`Rig::change_clock`](crate::Rig::change_clock) lets run apart from the machine's. Its timers stay those of the
    /// machine.
    pub own_clocks: bool,
    /// The program of a worker.
    #[serde(skip)]
    pub program: Program,
    /// The words before the program of single workers, such as `ip netns exec NAME`.
    #[serde(skip)]
    pub wrappers: Vec<(usize, Vec<OsString>)>,
    /// Variables of single workers, such as `LD_PRELOAD`.
    #[serde(skip)]
    pub variables: Vec<(usize, OsString, OsString)>,
}

/// One lock of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockPlan {
    /// The name, without the prefix of the run.
    pub name: String,
    /// The kind of lock.
    pub kind: LockKind,
}

/// Mutexes that are held for hardly any time, and the tasks of each worker that take nothing else.
///
/// A few locks with long holds, as [`Plan::locks`] are, show little else than renewals. These show many grants beside
/// them, so that few seconds carry thousands of acquisitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Dense {
    /// The mutexes.
    pub locks: usize,
    /// The tasks of each worker, beside [`Plan::tasks`].
    pub tasks: usize,
    /// The longest time for which one is held.
    pub hold: Duration,
    /// The longest wait for one: short, so that a task is soon back from a lock whose holder is stopped.
    pub limit: Duration,
    /// The most acquisitions of them by all workers in a second; zero for no limit.
    pub rate: u32,
}

impl Default for Dense {
    /// Returns a dozen mutexes with four tasks of each worker.
    fn default() -> Dense {
        Dense {
            locks: 12,
            tasks: 4,
            hold: Duration::from_millis(1),
            limit: Duration::from_millis(150),
            rate: 1_500,
        }
    }
}

/// The kind of a lock of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LockKind {
    /// One holder at a time, who increments the register under its fence.
    Mutex,
    /// Readers and writers. Writers increment the register, readers touch nothing.
    ReadWrite,
    /// So many permits. Holders touch nothing.
    Semaphore(u32),
}

impl LockKind {
    /// Returns a word for it.
    pub fn word(self) -> &'static str {
        match self {
            LockKind::Mutex => "mutex",
            LockKind::ReadWrite => "rwlock",
            LockKind::Semaphore(_) => "semaphore",
        }
    }
}

/// The program of a worker. It calls [`worker::run`](crate::worker::run).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl Default for Program {
    /// Returns this program, with the hidden verb `torture-worker`.
    fn default() -> Program {
        let path = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("leasehold"));
        Program { path, arguments: vec!["torture-worker".into()] }
    }
}

impl Program {
    /// Creates a program with these arguments.
    pub fn new(
        path: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Program {
        Program { path: path.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }
}

impl LockPlan {
    /// Creates a lock.
    pub fn new(name: impl Into<String>, kind: LockKind) -> LockPlan {
        LockPlan { name: name.into(), kind }
    }
}

impl Plan {
    /// Creates a plan for this store: three mutexes, four workers of two tasks, leases of two seconds.
    pub fn new(url: impl Into<String>) -> Plan {
        Plan {
            url: url.into(),
            worker_urls: Vec::new(),
            locks: Plan::mutexes(3),
            if_supported: Vec::new(),
            processes: 4,
            tasks: 2,
            ttl: Duration::from_secs(2),
            limit: Duration::from_secs(5),
            hold: Duration::from_millis(20),
            rate: 200,
            dense: None,
            cancels: 32,
            cancelled_within: None,
            seed: 0,
            fenced: true,
            deaf: false,
            own_clocks: false,
            program: Program::default(),
            wrappers: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// Returns so many mutexes.
    pub fn mutexes(count: usize) -> Vec<LockPlan> {
        (1..=count).map(|number| LockPlan::new(format!("mutex-{number}"), LockKind::Mutex)).collect()
    }

    /// Returns a read-write lock and a semaphore of two permits, for [`Plan::if_supported`].
    pub fn shared_locks() -> Vec<LockPlan> {
        vec![
            LockPlan::new("rwlock-1", LockKind::ReadWrite),
            LockPlan::new("semaphore-1", LockKind::Semaphore(2)),
        ]
    }

    /// Returns all locks, the dense ones last.
    pub fn all_locks(&self) -> Vec<LockPlan> {
        let dense = 1..=self.dense.map_or(0, |dense| dense.locks);
        let dense = dense.map(|number| LockPlan::new(format!("dense-{number}"), LockKind::Mutex));
        self.locks.iter().cloned().chain(dense).collect()
    }

    /// Returns how many tasks a worker has in all. Those of [`Plan::tasks`] come first.
    pub fn all_tasks(&self) -> usize {
        self.tasks + self.dense.map_or(0, |dense| dense.tasks)
    }

    /// Checks that the plan can work.
    pub(crate) fn check(&self) -> Result<(), RigError> {
        let refuse = |text: &str| Err(RigError::Plan(text.to_owned()));
        if self.url.starts_with("mem:") {
            return refuse(
                "mem: keeps locks in the memory of one process, so its workers would not exclude each other: name a \
                 store that several processes use, such as file:",
            );
        }
        if self.processes == 0 || self.processes > MOST_PROCESSES {
            return refuse("a plan has 1 to 500 processes");
        }
        if self.tasks == 0 || self.all_tasks() > MOST_TASKS {
            return refuse("a worker has 1 to 100 tasks");
        }
        if self.locks.is_empty() || self.all_locks().len() > MOST_LOCKS {
            return refuse("a plan has 1 to 10,000 locks");
        }
        let has_work = |dense: Dense| dense.locks > 0 && dense.tasks > 0 && !dense.limit.is_zero();
        if !self.dense.is_none_or(has_work) {
            return refuse(
                "dense locks need at least one lock, one task, and a wait that is longer than zero",
            );
        }
        if self.ttl.is_zero() || self.limit.is_zero() {
            return refuse("the ttl and the longest wait have to be longer than zero");
        }
        Ok(())
    }

    /// Returns the URL of a worker.
    pub fn url_of(&self, worker: usize) -> &str {
        let own = self.worker_urls.iter().find(|(of, _)| *of == worker);
        own.map_or(&self.url, |(_, url)| url)
    }
}

const MOST_PROCESSES: usize = 500;
const MOST_TASKS: usize = 100;
const MOST_LOCKS: usize = 10_000;
