//! The errors of a rig.

/// The error of a rig: what failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RigError {
    /// A plan that cannot work. Nothing was started.
    #[error("{0}")]
    Plan(String),
    /// The store failed before the workers started.
    #[error("the store cannot be used: {0}")]
    Store(#[from] leasehold::Error),
    /// A worker could not be started, or ended by itself.
    #[error("worker {worker}: {what}")]
    Worker {
        /// The number of the worker.
        worker: usize,
        /// The reason.
        what: String,
    },
    /// The run was given up: its workers were killed, and one attempt was made to remove what they left.
    #[error("the run was given up; its locks end with their leases, and {0}")]
    GivenUp(String),
    /// The machine refused something.
    #[error("the rig cannot run: {0}")]
    Machine(#[from] std::io::Error),
}
