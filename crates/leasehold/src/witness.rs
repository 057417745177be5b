//! Events about the use of locks, for subscribers: times, losses, waits.
//!
//! Ground rules: events carry values only. An event is made only if there is a witness; otherwise
//! nothing is measured.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{LossCause, Resource, Share};

use crate::error::ErrorKind;
use crate::panics::contained;

/// A subscriber that is notified of what happens to the locks of one client, see
/// [`Builder::witness`](crate::Builder::witness).
///
/// It is called by the tasks of the engine and of the users alike, in the middle of their work: it must
/// not block, and must not use the client. If it panics, it misses that event, and nothing else
/// changes: locks are kept alive, and their losses reported, as without it.
///
/// ```
/// use leasehold::{Event, Leasehold, Witness};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// /// Counts what is lost.
/// #[derive(Debug, Default)]
/// struct Losses(AtomicU32);
///
/// impl Witness for Losses {
///     fn witness(&self, event: &Event<'_>) {
///         if let Event::Lost { .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let losses = Arc::new(Losses::default());
/// let locks = Leasehold::builder().witness(losses.clone()).open("mem:").await?;
/// locks.mutex("orders/42").lock().await?.release().await?;
/// assert_eq!(losses.0.load(Ordering::Relaxed), 0);
/// # Ok(())
/// # }
/// ```
pub trait Witness: Debug + Send + Sync {
    /// Handles an event.
    fn witness(&self, event: &Event<'_>);
}

/// Something that happened to a lock.
///
/// Each [`Event::Asked`] is followed by one [`Event::Acquired`] or [`Event::Missed`], even if its
/// caller is cancelled. All times are those of the local clock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The start of an acquisition.
    Asked {
        /// The lock that is requested.
        resource: &'a Resource,
        /// The share that is requested.
        share: Share,
    },
    /// A successful acquisition.
    Acquired {
        /// The lock that was acquired.
        resource: &'a Resource,
        /// The share that was acquired.
        share: Share,
        /// The time from the start of the acquisition.
        waited: Duration,
        /// The source of the lock.
        way: Way,
    },
    /// An acquisition that did not succeed.
    Missed {
        /// The lock that was requested.
        resource: &'a Resource,
        /// The time from the start of the acquisition.
        waited: Duration,
        /// The reason.
        miss: Miss,
    },
    /// The answer of the server that a claim has to wait.
    Blocked {
        /// The lock that the claim waits for.
        resource: &'a Resource,
        /// The number of claims ahead of it, holders included, if it is known.
        ahead: Option<u32>,
    },
    /// The release of a lock by its user, to the next task or to the server.
    Released {
        /// The lock that was released.
        resource: &'a Resource,
        /// The time for which that user held it.
        held: Duration,
    },
    /// The extension of a lease.
    Renewed {
        /// The lock of the lease.
        resource: &'a Resource,
        /// The time between when the renewal was due and when it was confirmed.
        lag: Duration,
        /// The time that the server took to answer.
        took: Duration,
    },
    /// A renewal without an answer, or without a yes or no.
    NotRenewed {
        /// The lock of the lease.
        resource: &'a Resource,
    },
    /// The moment from which it is not certain that a lock is still held.
    Suspected {
        /// The lock that is suspect.
        resource: &'a Resource,
    },
    /// The moment from which it is certain again that a lock is held.
    Recovered {
        /// The lock that is certain again.
        resource: &'a Resource,
        /// The time for which it was suspect.
        suspect: Duration,
    },
    /// The loss of a lock that was held.
    Lost {
        /// The lock that was lost.
        resource: &'a Resource,
        /// The cause of the loss.
        cause: LossCause,
        /// The time since the server granted it.
        held: Duration,
        /// The time for which it had been suspect; `None` if the loss came without a warning.
        suspect: Option<Duration>,
        /// The time between the end of its validity and when that was noticed; zero if the store
        /// reported the end.
        late: Duration,
    },
    /// The start of keeping a granted claim alive.
    Kept {
        /// The lock of the claim.
        resource: &'a Resource,
    },
    /// The end of keeping a claim alive: it was released, or lost.
    LetGo {
        /// The lock of the claim.
        resource: &'a Resource,
    },
}

/// The source of a lock that was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// A grant by the server.
    Granted,
    /// A hand-over by another task of this client.
    HandedOver,
    /// A lock that its owner held already.
    Reentered,
}

/// The reason why an acquisition did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Miss {
    /// The lock was held, and the caller did not wait (`try_*`).
    Busy,
    /// The caller was cancelled while it waited.
    Left,
    /// The acquisition failed; a timeout is among these kinds.
    Failed(ErrorKind),
}

/// The engine's end: a witness, or none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Telling(Option<Arc<dyn Witness>>);

impl Telling {
    pub(crate) fn to(witness: Option<Arc<dyn Witness>>) -> Telling {
        Telling(witness)
    }

    /// Returns `true` if there is a witness.
    pub(crate) fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    /// Reports the event that `event` makes. The closure is not called without a witness.
    pub(crate) fn tell<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(witness) = &self.0 {
            contained(|| witness.witness(&event()));
        }
    }
}

impl Event<'_> {
    /// Returns the outcome of an acquisition as one of a few words; empty for other events.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Event::Acquired { way: Way::Granted, .. } => "granted",
            Event::Acquired { way: Way::HandedOver, .. } => "handed_over",
            Event::Acquired { way: Way::Reentered, .. } => "reentered",
            Event::Missed { miss: Miss::Busy, .. } => "busy",
            Event::Missed { miss: Miss::Left, .. } => "left",
            Event::Missed { miss: Miss::Failed(kind), .. } => match kind {
                ErrorKind::Timeout => "timeout",
                ErrorKind::Unavailable => "unavailable",
                ErrorKind::OutcomeUnknown => "outcome_unknown",
                ErrorKind::Closed => "closed",
                ErrorKind::Deadlock => "deadlock",
                _ => "failed",
            },
            _ => "",
        }
    }
}
