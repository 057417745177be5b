//! What the engine tells those who want to know how locks are used: times, losses, waits.
//!
//! Ground rules: values only. Nothing is measured where nobody listens: an event is made only for a witness.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{LossCause, Resource, Share};

use crate::error::ErrorKind;
use crate::panics::contained;

/// Somebody who is told what happens to the locks of one client, see [`Builder::witness`](crate::Builder::witness).
///
/// It is called by the tasks of the engine and of the users alike, in the middle of their work: it must not block, and
/// must not use the client. Where it panics, that event is lost to it, and nothing else: locks are kept, and their losses reported, as
/// without it.
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
    /// Takes in what happened.
    fn witness(&self, event: &Event<'_>);
}

/// What happened.
///
/// Each [`Event::Asked`] is followed by one [`Event::Acquired`] or [`Event::Missed`], also where its caller left. All
/// times are those of the local clock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Somebody asks for a lock.
    Asked {
        /// What is asked for.
        resource: &'a Resource,
        /// How much of it.
        share: Share,
    },
    /// Who asked has got it.
    Acquired {
        /// What it is.
        resource: &'a Resource,
        /// How much of it.
        share: Share,
        /// How long that took.
        waited: Duration,
        /// How it came.
        way: Way,
    },
    /// Who asked has not got it.
    Missed {
        /// What was asked for.
        resource: &'a Resource,
        /// After how long.
        waited: Duration,
        /// Why not.
        miss: Miss,
    },
    /// The server said that a claim has to wait.
    Blocked {
        /// Of what.
        resource: &'a Resource,
        /// How many claims are ahead of it, holders included, where that is known.
        ahead: Option<u32>,
    },
    /// A user of a lock gave it back, to the next task or to the server.
    Released {
        /// What it was.
        resource: &'a Resource,
        /// For how long it was held by that user.
        held: Duration,
    },
    /// A lease was extended.
    Renewed {
        /// Of what.
        resource: &'a Resource,
        /// How much later than it was due that was confirmed.
        lag: Duration,
        /// How long the server took to answer.
        took: Duration,
    },
    /// A renewal was not answered, or not with a yes or no.
    NotRenewed {
        /// Of what.
        resource: &'a Resource,
    },
    /// It is not sure any more that a lock is held.
    Suspected {
        /// What it is.
        resource: &'a Resource,
    },
    /// It is sure again.
    Recovered {
        /// What it is.
        resource: &'a Resource,
        /// For how long it was not.
        suspect: Duration,
    },
    /// What was held is held no longer.
    Lost {
        /// What it was.
        resource: &'a Resource,
        /// Why.
        cause: LossCause,
        /// How long ago the server granted it.
        held: Duration,
        /// For how long it had been suspect; `None` where the loss came without a warning.
        suspect: Option<Duration>,
        /// How much later than the end of its validity that was noticed; zero where the end was told by the store.
        late: Duration,
    },
    /// A granted claim is kept alive from now on.
    Kept {
        /// Of what.
        resource: &'a Resource,
    },
    /// It is no more: given back, or lost.
    LetGo {
        /// Of what.
        resource: &'a Resource,
    },
}

/// How somebody came to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// The server granted it.
    Granted,
    /// Another task of this client gave it on.
    HandedOver,
    /// Its owner held it already.
    Reentered,
}

/// Why somebody who asked does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Miss {
    /// It was not free, and he did not want to wait.
    Busy,
    /// He went away while he waited.
    Left,
    /// It failed; a time that ran out is among these kinds.
    Failed(ErrorKind),
}

/// The engine's end: a witness, or nobody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Telling(Option<Arc<dyn Witness>>);

impl Telling {
    pub(crate) fn to(witness: Option<Arc<dyn Witness>>) -> Telling {
        Telling(witness)
    }

    /// Whether anybody listens.
    pub(crate) fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    /// Tells what `event` makes, which is not asked where nobody listens.
    pub(crate) fn tell<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(witness) = &self.0 {
            contained(|| witness.witness(&event()));
        }
    }
}

impl Event<'_> {
    /// How an acquisition ended, in a word of which there are few; empty for other events.
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
