//! Events about the use of locks, for subscribers: times, losses, waits.
//!
//! Ground rules: events carry values only. An event is made only if there is a subscriber; otherwise
//! nothing is measured.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{LossCause, Resource, Share};

use crate::error::ErrorKind;
use crate::panics::contained;

/// A subscriber that is notified of what happens to the locks of one client, see
/// [`ClientBuilder::subscriber`](crate::ClientBuilder::subscriber).
///
/// It is called by the tasks of the engine and of the users alike, in the middle of their work: it must
/// not block, and must not use the client. If it panics, it misses that event, and nothing else
/// changes: locks are kept alive, and their losses reported, as without it.
///
/// ```
/// use leasehold::{Event, Client, EventSubscriber};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// /// Counts what is lost.
/// #[derive(Debug, Default)]
/// struct Losses(AtomicU32);
///
/// impl EventSubscriber for Losses {
///     fn on_event(&self, event: &Event<'_>) {
///         if let Event::Lost { .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let losses = Arc::new(Losses::default());
/// let locks = Client::builder().subscriber(losses.clone()).open("mem:").await?;
/// locks.mutex("orders/42").lock().await?.release().await?;
/// assert_eq!(losses.0.load(Ordering::Relaxed), 0);
/// # Ok(())
/// # }
/// ```
pub trait EventSubscriber: Debug + Send + Sync {
    /// Handles an event.
    fn on_event(&self, event: &Event<'_>);
}

/// Something that happened to a lock.
///
/// Each [`Event::AcquireStarted`] is followed by one [`Event::Acquired`] or [`Event::AcquireFailed`],
/// even if its caller is cancelled. All times are those of the local clock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The start of an acquisition.
    AcquireStarted {
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
        source: AcquireSource,
    },
    /// An acquisition that did not succeed.
    AcquireFailed {
        /// The lock that was requested.
        resource: &'a Resource,
        /// The time from the start of the acquisition.
        waited: Duration,
        /// The reason.
        failure: AcquireFailure,
    },
    /// The answer of the server that a claim has to wait.
    Queued {
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
    RenewalFailed {
        /// The lock of the lease.
        resource: &'a Resource,
    },
    /// The moment from which it is not certain that a lock is still held.
    BecameSuspect {
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
    LeaseStarted {
        /// The lock of the claim.
        resource: &'a Resource,
    },
    /// The end of keeping a claim alive: it was released, or lost.
    LeaseEnded {
        /// The lock of the claim.
        resource: &'a Resource,
    },
}

/// The source of a lock that was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AcquireSource {
    /// A grant by the server.
    Server,
    /// An earlier claim of this client: one that another task handed off, that was requested for another task, or
    /// that lingered after its last use.
    LocalQueue,
    /// A lock that its owner held already.
    Reentrant,
}

/// The reason why an acquisition did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AcquireFailure {
    /// The lock was held, and the caller did not wait (`try_*`).
    Busy,
    /// The caller was cancelled while it waited.
    Cancelled,
    /// The acquisition failed; a timeout is among these kinds.
    Error(ErrorKind),
}

/// The engine's end: a subscriber, or none.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventSink(Option<Arc<dyn EventSubscriber>>);

impl EventSink {
    pub(crate) fn to(subscriber: Option<Arc<dyn EventSubscriber>>) -> EventSink {
        EventSink(subscriber)
    }

    /// Returns `true` if there is a subscriber.
    pub(crate) fn has_subscriber(&self) -> bool {
        self.0.is_some()
    }

    /// Reports the event that `event` makes. The closure is not called without a subscriber.
    pub(crate) fn emit<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(subscriber) = &self.0 {
            contained(|| subscriber.on_event(&event()));
        }
    }
}

impl Event<'_> {
    /// Returns the outcome of an acquisition as one of a few words; empty for other events.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Event::Acquired { source: AcquireSource::Server, .. } => "granted",
            Event::Acquired { source: AcquireSource::LocalQueue, .. } => "local_queue",
            Event::Acquired { source: AcquireSource::Reentrant, .. } => "reentrant",
            Event::AcquireFailed { failure: AcquireFailure::Busy, .. } => "busy",
            Event::AcquireFailed { failure: AcquireFailure::Cancelled, .. } => "cancelled",
            Event::AcquireFailed { failure: AcquireFailure::Error(kind), .. } => match kind {
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
