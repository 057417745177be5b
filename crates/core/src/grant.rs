//! The server's yes, and the ways in which it can end.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use crate::{Fence, Moment};

/// The server said yes.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Local time *before* the request that was granted left this process. Validity is counted from here, never
    /// from the arrival of the reply, which may have waited in a socket while the lease ran out.
    pub asked_at: Moment,
    /// The fencing token, where the backend has one.
    pub fence: Option<Fence>,
    /// Tells of an end that only the backend can see: a session that ended, a claim that was broken.
    pub lost: Option<LossSignal>,
    /// What the backend keeps with the grant.
    pub proof: Proof,
}

/// Why a held claim ended before it was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// The lease ran out on the local clock before a renewal was confirmed.
    Expired,
    /// The server no longer knows the claim: it was broken, evicted, or forgotten with the server's data.
    Gone,
    /// The session with the server ended.
    SessionEnded,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// The client was closed.
    Closed,
    /// The process is a fork of the one that took the lock.
    Forked,
    /// It was handed over, and is somebody else's to hold.
    HandedOver,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossCause::Expired => "the lease ran out before a renewal was confirmed",
            LossCause::Gone => "the server no longer knows the claim",
            LossCause::SessionEnded => "the session with the server ended",
            LossCause::MaxHold => "it was held for as long as max_hold allows",
            LossCause::Closed => "the client was closed",
            LossCause::Forked => "this process is a fork of the one that took it",
            LossCause::HandedOver => "it was handed over to another process",
        })
    }
}

/// The backend's end of a loss signal. Dropping it signals nothing.
#[derive(Debug)]
pub struct LossTrigger(watch::Sender<Option<LossCause>>);

impl LossTrigger {
    /// A trigger and the signal that it sets off.
    pub fn new() -> (LossTrigger, LossSignal) {
        let (sender, receiver) = watch::channel(None);
        (LossTrigger(sender), LossSignal(receiver))
    }

    /// Says that the claim is lost. The first cause stays.
    pub fn fire(&self, cause: LossCause) {
        self.0.send_if_modified(|present| {
            let first = present.is_none();
            if first {
                *present = Some(cause);
            }
            first
        });
    }
}

/// The engine's end of a loss signal.
#[derive(Clone, Debug)]
pub struct LossSignal(watch::Receiver<Option<LossCause>>);

impl LossSignal {
    /// Waits until the claim is lost; forever where it never is.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn fired(&mut self) -> LossCause {
        let cause = self.0.wait_for(Option::is_some).await.ok().and_then(|cause| *cause);
        match cause {
            Some(cause) => cause,
            None => std::future::pending().await,
        }
    }

    /// The cause, where the claim is lost already.
    pub fn cause(&self) -> Option<LossCause> {
        *self.0.borrow()
    }
}

/// What a backend keeps with a grant and hands out to those who know its type, for instance the key whose
/// revision a user compares in a transaction of their own.
#[derive(Clone, Default)]
pub struct Proof(Option<Arc<dyn Any + Send + Sync>>);

impl Proof {
    /// Nothing is kept.
    pub fn none() -> Proof {
        Proof(None)
    }

    /// Keeps `value` for as long as the grant is remembered.
    pub fn of<T: Any + Send + Sync>(value: T) -> Proof {
        Proof(Some(Arc::new(value)))
    }

    /// The kept value, where it is of this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.as_deref().and_then(|value| value.downcast_ref())
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Proof(..)" } else { "Proof(none)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_cause_stays_and_late_listeners_hear_it() {
        let (trigger, mut signal) = LossTrigger::new();
        assert_eq!(signal.cause(), None);
        trigger.fire(LossCause::SessionEnded);
        trigger.fire(LossCause::Gone);
        drop(trigger);
        assert_eq!(signal.clone().fired().await, LossCause::SessionEnded);
        assert_eq!(signal.fired().await, LossCause::SessionEnded);
    }

    #[tokio::test]
    async fn a_dropped_trigger_is_no_loss() {
        let (trigger, mut signal) = LossTrigger::new();
        drop(trigger);
        tokio::select! {
            biased;
            cause = signal.fired() => panic!("{cause:?}"),
            () = std::future::ready(()) => {}
        }
    }

    #[test]
    fn a_proof_is_known_by_its_type() {
        let proof = Proof::of(7u32);
        assert_eq!(proof.get::<u32>(), Some(&7));
        assert_eq!(proof.get::<u64>(), None);
    }
}
