//! A new value of a leader, on its way to the store.
//!
//! Ground rules: the task of the id waits for it beside everything else, so that a slow store delays no sign of life.
//! The loss of leadership ends it at once.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::command::Ask;
use super::request::HeldLock;
use crate::problem::{Code, Problem};

/// A request for a new value that the store does not show yet.
pub(super) struct Proclaiming<'a> {
    pub(super) ask: Ask,
    work: Pin<Box<dyn Future<Output = Result<(), Problem>> + Send + 'a>>,
}

impl fmt::Debug for Proclaiming<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proclaiming").field("ask", &self.ask).finish_non_exhaustive()
    }
}

impl<'a> Proclaiming<'a> {
    pub(super) fn begin(held: &'a HeldLock, ask: Ask, value: String) -> Proclaiming<'a> {
        Proclaiming { ask, work: Box::pin(proclaim(held, value)) }
    }

    /// Waits until it is over; for ever if there is none.
    pub(super) async fn over(one: &mut Option<Proclaiming<'a>>) -> Result<(), Problem> {
        match one {
            Some(one) => one.work.as_mut().await,
            None => std::future::pending().await,
        }
    }
}

/// Shows observers a new value of a leader.
async fn proclaim(held: &HeldLock, value: String) -> Result<(), Problem> {
    let HeldLock::Leader(leadership) = held else {
        return Err(Problem::invalid("only a leader has a value: acquire with mode \"leader\""));
    };
    let proclaimed = leadership.run(tokio::time::timeout(PROCLAIM_MAX, leadership.proclaim(&value))).await?;
    let late =
        || Problem::new(Code::OutcomeUnknown, "the store did not answer in time: the value may be visible");
    Ok(proclaimed.map_err(|_| late())??)
}

/// The time that the store has to show a new value.
const PROCLAIM_MAX: Duration = Duration::from_secs(5);
