//! The parts that the author of a backend hands to the suite.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::Backend;

/// A backend under examination: how to connect to it, and how to do so from another process.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// Opens one more client connection to the *same* store. It is called several times for one law; the
    /// connections should share no more than those of two processes would.
    ///
    /// `None` where there is nothing to connect to on this machine: the law is skipped. Say why before, for
    /// instance with `skip` of `leasehold-testkit`.
    async fn open(&self) -> Option<Arc<dyn Backend>>;

    /// Returns a program that takes claims in the same store from a process of its own (see
    /// [`taker`](crate::taker)). `None` where other processes cannot reach the store at all: the laws about
    /// crashes are then skipped.
    fn taker(&self) -> Option<TakerCommand> {
        None
    }

    /// Returns the ttl of claims that are left to run out. Laws wait for it several times: choose it short,
    /// but not so short that a loaded machine cannot renew within it. It is kept within the range of the
    /// profile.
    fn ttl(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Returns a function that says which names the store can write: all, unless it contends with another library
    /// that cannot. The laws check that a claim for another name is refused as `Invalid` without effect.
    fn writes(&self) -> fn(&str) -> bool {
        |_| true
    }
}

/// The command that starts a taker.
#[derive(Clone, Debug)]
pub struct TakerCommand {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) store: String,
}

impl TakerCommand {
    /// Starts `program`, which calls [`taker::serve`](crate::taker::serve); `store` says which store to open.
    pub fn new(program: impl Into<PathBuf>, store: impl Into<String>) -> Self {
        TakerCommand { program: program.into(), arguments: Vec::new(), store: store.into() }
    }

    /// Starts the running test program again, for its one test `name`, which calls
    /// [`taker::serve_if_asked`](crate::taker::serve_if_asked). No further program is needed then.
    ///
    /// # Errors
    /// If the system does not report the path of the running program.
    pub fn test(name: &str, store: impl Into<String>) -> std::io::Result<Self> {
        let command = TakerCommand::new(std::env::current_exe()?, store);
        Ok(command.arg(name).arg("--exact").arg("--nocapture"))
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }
}
