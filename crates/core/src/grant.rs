//! The grant of a claim, and the ways in which it can end.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;

use crate::{Fence, Moment};

/// The grant of a claim by the server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// Local time *before* the request that was granted left this process. Validity is counted from here,
    /// never from the arrival of the reply, which may have waited in a socket while the lease ran out.
    pub asked_at: Moment,
    /// The fencing token, if the backend has one.
    pub fence: Option<Fence>,
    /// A signal for an end that only the backend can see: a session that ended, a claim that was broken.
    pub lost: Option<LossSignal>,
    /// The proof that the backend keeps with the grant.
    pub proof: Proof,
}

impl Grant {
    /// Creates the grant of a claim that was requested at `asked_at`: without a fence, a signal or a proof.
    pub fn new(asked_at: Moment) -> Grant {
        Grant { asked_at, fence: None, lost: None, proof: Proof::none() }
    }

    /// Sets the fencing token.
    #[must_use]
    pub fn fence(self, fence: Option<Fence>) -> Grant {
        Grant { fence, ..self }
    }

    /// Sets the signal for an end that only the backend can see.
    #[must_use]
    pub fn lost(self, lost: Option<LossSignal>) -> Grant {
        Grant { lost, ..self }
    }

    /// Sets the proof.
    #[must_use]
    pub fn proof(self, proof: Proof) -> Grant {
        Grant { proof, ..self }
    }
}

/// The reason why a held claim ended before it was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// The lease ran out on the local clock before a renewal was confirmed.
    Expired,
    /// The server no longer knows the claim: it was broken, evicted, or forgotten with the server's data.
    Gone,
    /// The session with the server ended.
    SessionEnded,
    /// The claim was held for as long as `max_hold` allows.
    MaxHold,
    /// The client was closed.
    Closed,
    /// The process is a fork of the one that took the lock.
    Forked,
    /// The claim was transferred, and another process holds it now.
    Transferred,
    /// Nothing renews it any more: the runtime that the client was opened in ended, or the task that renews
    /// failed.
    RenewalEnded,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossCause::Expired => "the lease ran out before a renewal was confirmed",
            LossCause::Gone => "the server no longer knows the claim",
            LossCause::SessionEnded => "the session with the server ended",
            LossCause::MaxHold => "the lock was held for as long as max_hold allows",
            LossCause::Closed => "the client was closed",
            LossCause::Forked => "this process is a fork of the one that acquired the lock",
            LossCause::Transferred => "the lock was transferred to another process",
            LossCause::RenewalEnded => "the task that renews the lock in this process ended",
        })
    }
}

/// The backend's end of a loss signal. Dropping it signals nothing.
#[derive(Debug)]
pub struct LossTrigger(Arc<Loss>);

impl LossTrigger {
    /// Returns a trigger and the signal that it sets off.
    pub fn new() -> (LossTrigger, LossSignal) {
        let loss = Arc::new(Loss { cause: watch::Sender::new(None), listeners: Mutex::default() });
        (LossTrigger(loss.clone()), LossSignal(loss))
    }

    /// Signals that the claim is lost. The first cause stays.
    ///
    /// It calls the [listeners](LossSignal::on_loss) before it returns, so the caller must not hold a lock
    /// that they need. If a listener panics, the others are called all the same, and this call continues.
    pub fn fire(&self, cause: LossCause) {
        let first = self.0.cause.send_if_modified(|present| {
            let first = present.is_none();
            if first {
                *present = Some(cause);
            }
            first
        });
        if first {
            let listeners = std::mem::take(&mut self.0.listeners().waiting);
            for listener in listeners.into_values() {
                // The panic hook has reported it.
                drop(catch_unwind(AssertUnwindSafe(|| listener(cause))));
            }
        }
    }
}

/// The engine's end of a loss signal. Clones are one signal, and many claims may share it.
#[derive(Clone, Debug)]
pub struct LossSignal(Arc<Loss>);

impl LossSignal {
    /// Waits until the claim is lost; forever if it is never lost.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn fired(&mut self) -> LossCause {
        let mut cause = self.0.cause.subscribe();
        // It ends with its sender, which lives for as long as this signal.
        match cause.wait_for(Option::is_some).await.ok().and_then(|cause| *cause) {
            Some(cause) => cause,
            None => std::future::pending().await,
        }
    }

    /// Returns the cause, if the claim is lost already.
    pub fn cause(&self) -> Option<LossCause> {
        *self.0.cause.borrow()
    }

    /// Registers a listener that is called once, when the claim is lost; at once if it is lost already. It
    /// is not called after the returned value was dropped, though a call that has begun continues.
    ///
    /// The code that finds the loss calls the listener, which must neither block nor panic. No task waits
    /// meanwhile, so a claim that is held only for a moment costs no switch of tasks.
    pub fn on_loss(&self, listener: impl FnOnce(LossCause) + Send + 'static) -> LossSubscription {
        let mut listeners = self.0.listeners();
        // The cause is set before the listeners are called: a listener that finds none here is among those
        // that are called.
        let cause = self.cause();
        let number = listeners.next;
        if let Some(cause) = cause {
            drop(listeners);
            listener(cause);
        } else {
            listeners.next += 1;
            listeners.waiting.insert(number, Box::new(listener));
        }
        LossSubscription { loss: Arc::downgrade(&self.0), number }
    }
}

/// A subscription to the loss of a claim. Dropping it ends the subscription.
#[derive(Debug)]
#[must_use = "nobody is called after it was dropped"]
pub struct LossSubscription {
    /// The signal may go away before its listener, with all other listeners.
    loss: Weak<Loss>,
    number: u64,
}

impl Drop for LossSubscription {
    fn drop(&mut self) {
        if let Some(loss) = self.loss.upgrade() {
            let left = loss.listeners().waiting.remove(&self.number);
            // The listener may own other subscriptions, so it is dropped when the list is unlocked again.
            drop(left);
        }
    }
}

/// The state that both ends of a loss signal share.
struct Loss {
    cause: watch::Sender<Option<LossCause>>,
    listeners: Mutex<Listeners>,
}

/// The listeners to call, by numbers that are never used twice.
#[derive(Default)]
struct Listeners {
    next: u64,
    waiting: HashMap<u64, Box<dyn FnOnce(LossCause) + Send>>,
}

impl Loss {
    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        // No foreign code is called while it is locked.
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loss").field("cause", &*self.cause.borrow()).finish_non_exhaustive()
    }
}

/// A value that a backend keeps with a grant and hands out to callers that know its type, for instance the
/// key whose revision a user compares in a transaction of their own.
#[derive(Clone, Default)]
pub struct Proof(Option<Arc<dyn Any + Send + Sync>>);

impl Proof {
    /// Returns an empty proof.
    pub fn none() -> Proof {
        Proof(None)
    }

    /// Keeps `value` for as long as the grant is remembered.
    pub fn of<T: Any + Send + Sync>(value: T) -> Proof {
        Proof(Some(Arc::new(value)))
    }

    /// Returns `true` if nothing is kept.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the kept value, if it has this type.
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

    #[test]
    fn a_grant_has_what_was_set() {
        let (_trigger, signal) = LossTrigger::new();
        let grant = Grant::new(Moment::from_millis(1)).fence(Some(Fence::new(1, 2, 3))).lost(Some(signal));
        let grant = grant.proof(Proof::of(7_u8));
        assert_eq!((grant.asked_at, grant.fence), (Moment::from_millis(1), Some(Fence::new(1, 2, 3))));
        assert!(grant.lost.is_some());
        assert_eq!(grant.proof.get::<u8>(), Some(&7));
    }

    #[test]
    fn each_cause_of_a_loss_is_shown_in_its_own_words() {
        use LossCause::{Closed, Expired, Forked, Gone, MaxHold, RenewalEnded, SessionEnded, Transferred};
        let causes = [Expired, Gone, SessionEnded, MaxHold, Closed, Forked, Transferred, RenewalEnded];
        let shown: std::collections::BTreeSet<String> = causes.map(|cause| cause.to_string()).into();
        assert_eq!(shown.len(), causes.len());
    }

    #[tokio::test]
    async fn first_loss_cause_is_kept_for_late_listeners() {
        let (trigger, mut signal) = LossTrigger::new();
        assert_eq!(signal.cause(), None);
        trigger.fire(LossCause::SessionEnded);
        trigger.fire(LossCause::Gone);
        drop(trigger);
        assert_eq!(signal.clone().fired().await, LossCause::SessionEnded);
        assert_eq!(signal.fired().await, LossCause::SessionEnded);
    }

    #[tokio::test]
    async fn dropping_a_trigger_reports_no_loss() {
        let (trigger, mut signal) = LossTrigger::new();
        drop(trigger);
        tokio::select! {
            biased;
            cause = signal.fired() => panic!("{cause:?}"),
            () = std::future::ready(()) => {}
        }
    }

    #[test]
    fn loss_listener_is_called_once_and_not_after_it_was_dropped() {
        let received = Arc::new(Mutex::new(Vec::new()));
        let listener = |name: &'static str| {
            let received = received.clone();
            move |cause| received.lock().unwrap().push((name, cause))
        };
        let (trigger, signal) = LossTrigger::new();
        let early = signal.on_loss(listener("early"));
        drop(signal.clone().on_loss(listener("left")));
        trigger.fire(LossCause::Gone);
        trigger.fire(LossCause::SessionEnded);
        let late = signal.on_loss(listener("late"));
        drop((early, late));
        assert_eq!(*received.lock().unwrap(), [("early", LossCause::Gone), ("late", LossCause::Gone)]);
    }

    #[test]
    fn loss_listener_keeps_nothing_alive_and_may_drop_another() {
        let (trigger, signal) = LossTrigger::new();
        let (other, of_other) = LossTrigger::new();
        let beside = of_other.on_loss(|_| {});
        let listening = signal.on_loss(move |_| drop(beside));
        trigger.fire(LossCause::Gone);
        drop((trigger, signal, other, of_other));
        assert!(listening.loss.upgrade().is_none());
    }

    #[test]
    fn listener_of_a_loss_of_before_may_register_another() {
        let (trigger, signal) = LossTrigger::new();
        trigger.fire(LossCause::Gone);
        let received = Arc::new(Mutex::new(Vec::new()));
        let (inner, of_inner) = (signal.clone(), received.clone());
        // It is called by the registration itself, which must not keep the list locked.
        let outer =
            signal.on_loss(move |_| drop(inner.on_loss(move |cause| of_inner.lock().unwrap().push(cause))));
        assert_eq!(*received.lock().unwrap(), [LossCause::Gone]);
        drop(outer);
    }

    #[test]
    fn panicking_listener_does_not_hide_the_loss_from_others() {
        let (trigger, signal) = LossTrigger::new();
        let received = Arc::new(Mutex::new(0));
        let count = || {
            let received = received.clone();
            move |_| *received.lock().unwrap() += 1
        };
        let listening: Vec<_> = (0..8)
            .map(|number| match number % 2 {
                0 => signal.on_loss(|_| panic!("not my loss")),
                _ => signal.on_loss(count()),
            })
            .collect();
        trigger.fire(LossCause::SessionEnded);
        assert_eq!(*received.lock().unwrap(), 4);
        drop(listening);
    }

    #[test]
    fn a_proof_is_known_by_its_type() {
        let proof = Proof::of(7u32);
        assert_eq!(proof.get::<u32>(), Some(&7));
        assert_eq!(proof.get::<u64>(), None);
        assert!(!proof.is_none() && Proof::none().is_none());
    }
}
