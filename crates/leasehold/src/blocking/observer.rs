//! An observer of an election, for a thread that blocks until the leader changes.

use super::mirror::IntoTwin;
use super::runtime::wait;
use crate::coord::Leader;
use crate::error::{Error, Result};

/// A subscription to the leader of an election, as [`leasehold::Observer`](crate::Observer).
///
/// ```
/// let locks = leasehold::blocking::Client::open("mem:")?;
/// let election = locks.election("boss");
/// let mut observer = election.observe();
/// assert_eq!(observer.next_leader()?, None); // nobody yet
/// let leadership = election.campaign("ann")?;
/// assert_eq!(observer.next_leader()?.unwrap().value, "ann");
/// leadership.resign()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
pub struct Observer {
    /// The inner observer; absent if the process was forked during a call.
    observer: Option<crate::Observer>,
}

impl IntoTwin for crate::Observer {
    type Twin = Observer;

    fn into_twin(self) -> Observer {
        Observer { observer: Some(self) }
    }
}

impl Observer {
    /// Blocks until the leader or its value differs from the one returned before: the first call returns
    /// at once. `None` means that the election has no leader.
    ///
    /// # Errors
    /// As [`Observer::next`](crate::Observer::next), and `Closed` if the process was forked during a call.
    pub fn next_leader(&mut self) -> Result<Option<Leader>> {
        let Some(mut observer) = self.observer.take() else { return Err(Error::closed("observe")) };
        let (observer, outcome) = wait("observe", async move {
            let outcome = observer.next().await;
            (observer, outcome)
        })?;
        self.observer = Some(observer);
        outcome
    }
}
