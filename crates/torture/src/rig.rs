//! The rig: worker processes, their pipes, the register, and the history that comes of them.

use leasehold_history::History;

use crate::error::RigError;
use crate::plan::Plan;

/// Worker processes that take the locks of a plan, with the register that they write to.
///
/// Methods that act on a worker return at once. A worker is named by its number, from 0 on. Everything that is done
/// to workers is recorded as a fault; [`Rig::note_fault`] records what is done to the store.
#[derive(Debug)]
pub struct Rig {
    plan: Plan,
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

/// What the rig has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Grants.
    pub grants: u64,
    /// Losses that holders saw.
    pub losses: u64,
    /// Writes that the register accepted.
    pub writes: u64,
    /// Reads and writes that the register refused.
    pub refusals: u64,
    /// Events.
    pub events: u64,
}

impl Rig {
    /// Starts the workers, and returns when each of them has opened the store.
    ///
    /// # Errors
    /// If the plan cannot work, or if a worker cannot open the store.
    pub async fn start(plan: Plan) -> Result<Rig, RigError> {
        Ok(Rig { plan })
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the prefix of all names of this run, with a slash at its end.
    pub fn prefix(&self) -> &str {
        ""
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.plan.processes
    }

    /// Returns the id of a worker's process now; `None` while it is killed.
    pub fn process_id(&self, worker: usize) -> Option<u32> {
        let _ = worker;
        None
    }

    /// Returns what has been seen so far.
    pub fn progress(&self) -> Progress {
        Progress::default()
    }

    /// Stops a worker with `SIGSTOP`.
    ///
    /// # Errors
    /// If there is no such worker, or if it is not running.
    pub fn pause(&mut self, worker: usize) -> Result<(), RigError> {
        let _ = worker;
        Ok(())
    }

    /// Continues a worker with `SIGCONT`.
    ///
    /// # Errors
    /// As [`Rig::pause`].
    pub fn resume(&mut self, worker: usize) -> Result<(), RigError> {
        let _ = worker;
        Ok(())
    }

    /// Kills a worker with `SIGKILL`. Its open operations stay open for ever.
    ///
    /// # Errors
    /// As [`Rig::pause`].
    pub fn kill(&mut self, worker: usize) -> Result<(), RigError> {
        let _ = worker;
        Ok(())
    }

    /// Starts a killed worker again, as another process.
    ///
    /// # Errors
    /// If it is running, or cannot be started.
    pub fn respawn(&mut self, worker: usize) -> Result<(), RigError> {
        let _ = worker;
        Ok(())
    }

    /// Records what was done to the store or to the network.
    pub fn note_fault(&self, label: &str, edge: Edge) {
        let _ = (label, edge);
    }

    /// Ends the recording: resumes all workers, lets them finish and close, looks for what is left in the
    /// store, removes it, and returns the history. The store should be healthy by then.
    ///
    /// # Errors
    /// If the machine fails. A worker that does not end in time is killed, which the history says.
    pub async fn finish(self) -> Result<History, RigError> {
        Ok(History::default())
    }
}
