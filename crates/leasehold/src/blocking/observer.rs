//! Who leads, for a thread that blocks until somebody else does.

use super::runtime::wait;
use crate::coord::Leader;
use crate::error::{Error, Result};

/// Tells who leads, each time somebody else does, as [`leasehold::Observer`](crate::Observer).
///
/// ```
/// let locks = leasehold::blocking::Leasehold::open("mem:")?;
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
    /// There unless the process was forked while it was away.
    observer: Option<crate::Observer>,
}

impl Observer {
    pub(super) fn new(observer: crate::Observer) -> Observer {
        Observer { observer: Some(observer) }
    }

    /// Blocks until something else is true than what was told last: at once for the first time. `None` is that nobody leads.
    ///
    /// # Errors
    /// As [`Observer::next`](crate::Observer::next), and `Closed` in a forked process.
    pub fn next_leader(&mut self) -> Result<Option<Leader>> {
        let Some(mut observer) = self.observer.take() else { return Err(Error::closed("observe")) };
        let (observer, told) = wait("observe", async move {
            let told = observer.next().await;
            (observer, told)
        })?;
        self.observer = Some(observer);
        told
    }
}
