//! An optional seam: registers, which are small values beside the locks, with conditional writes and waits for a
//! change.
//!
//! A state that several parties agree on without holding it, such as how far a latch has come or which
//! tasks wait for a condition, is kept in a register. It is not a lock: it has no holder, and no lease ends
//! it. Primitives over registers are written once over this seam, as locks are over
//! [`Backend`](crate::Backend).

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Durability, Effect, Failure, FailureKind, Patience, Resource, WaitMode};

/// Small values in the store of a backend, one for each name.
///
/// A register and a lock may have the same name; they have nothing to do with each other.
///
/// Promises, each a law of the conformance suite:
/// 1. **Linearizable**: a swap that took effect is seen by every read that begins after its answer, and of
///    several swaps on one seen state one takes effect at most. The empty state can occur
///    again, when the value is removed: then another swap that expects it takes effect, even if it is a repetition of
///    the first request. A store where no state occurs twice [says so](RegisterPromise::names_removals).
/// 2. **Never by half**: a read returns a written value as a whole, or none.
/// 3. **Honesty**: an answer that may have taken effect is [`Effect::Unknown`].
/// 4. **Wake**: a waiter learns of a change within what `waiting` promises, also of one between look and
///    wait.
/// 5. **Own kind only**: a value that was not written by a register is left as it is, and is a failure.
///
/// The engine never drops a future of this trait midway, as with [`Backend`](crate::Backend); it need not be
/// cancel safe.
#[async_trait]
pub trait Registers: Debug + Send + Sync {
    /// Returns the promises of this store for its registers. Constant for the life of the connection.
    fn promise(&self) -> &RegisterPromise;

    /// Reads the register.
    ///
    /// # Errors
    /// A [`Failure`]; reading changes nothing.
    async fn read(&self, at: &Resource) -> Result<Registered, Failure>;

    /// Writes or removes the value, if the register still has the state that was seen. Returns `None`
    /// otherwise: nothing was written.
    ///
    /// # Errors
    /// `Invalid` for a value longer than [`RegisterPromise::max_bytes`] or kept for longer than
    /// [`RegisterPromise::max_keep`], `Unsupported` for one with a lifetime if the store does not forget, all before
    /// anything is sent. After any other whose effect is `Unknown` a read shows whether it was written, if the value
    /// names its writer and was not removed since.
    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure>;

    /// Returns the state of the register as soon as it is not the one that was seen, or when patience ends.
    ///
    /// A store that promises [`WaitMode::Polls`] answers at once, and its caller calls again after a pause.
    ///
    /// # Errors
    /// A [`Failure`]; looking changes nothing.
    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure>;
}

/// The promises of a store for its registers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisterPromise {
    /// The longest value, in bytes: 4,096 at least.
    pub max_bytes: usize,
    /// The way in which a client learns of a change.
    pub waiting: WaitMode,
    /// The events that can take a written value away, or bring an old one back.
    pub durability: Durability,
    /// `true` if values can be written that the store itself forgets after a while.
    pub forgets: bool,
    /// The longest time after which the store forgets a value; one that is to be kept for longer is refused.
    pub max_keep: Duration,
    /// The largest difference by which [`Registered::left`] is rounded down.
    pub rounding: Duration,
    /// `true` if a removal leaves a state of its own, so that a register which was written and removed is not in the
    /// state before.
    ///
    /// A write whose answer was lost can then be sent again, also where there was no value. The end of a value by its
    /// time to live may bring back the state before.
    pub names_removals: bool,
}

impl RegisterPromise {
    /// Creates the promise of a store that never forgets a value.
    pub const fn new(max_bytes: usize, waiting: WaitMode, durability: Durability) -> RegisterPromise {
        RegisterPromise {
            max_bytes,
            waiting,
            durability,
            forgets: false,
            max_keep: Duration::MAX,
            rounding: Duration::ZERO,
            names_removals: false,
        }
    }

    /// Promises that values can be written that the store itself forgets after a while.
    #[must_use]
    pub const fn forgets(mut self) -> RegisterPromise {
        self.forgets = true;
        self
    }

    /// Sets [`RegisterPromise::max_keep`].
    #[must_use]
    pub const fn max_keep(mut self, max: Duration) -> RegisterPromise {
        self.max_keep = max;
        self
    }

    /// Sets [`RegisterPromise::rounding`].
    #[must_use]
    pub const fn rounding(mut self, rounding: Duration) -> RegisterPromise {
        self.rounding = rounding;
        self
    }

    /// Promises that a removal leaves a state of its own.
    #[must_use]
    pub const fn names_removals(mut self) -> RegisterPromise {
        self.names_removals = true;
        self
    }

    /// Checks that such a write can be made at all.
    ///
    /// # Errors
    /// As [`Registers::swap`] says, with [`Effect::None`].
    pub fn check(&self, put: &Put) -> Result<(), Failure> {
        let refused = |kind, text| Err(Failure::new(kind, Effect::None, text));
        if let Some(value) = put.value.as_ref().filter(|value| value.len() > self.max_bytes) {
            let text = format!("a value of {} bytes is too long: {} at most", value.len(), self.max_bytes);
            return refused(FailureKind::Invalid, text);
        }
        if put.keep.is_some() && !self.forgets {
            let text = "this store forgets nothing by itself: remove the value when its time is over";
            return refused(FailureKind::Unsupported, text.to_owned());
        }
        if let Some(keep) = put.keep.filter(|keep| *keep > self.max_keep) {
            let (keep, max) = (keep.as_secs(), self.max_keep.as_secs());
            let text =
                format!("this store cannot keep a value for {keep} s and then forget it: {max} s at most");
            return refused(FailureKind::Invalid, text);
        }
        Ok(())
    }
}

/// The state of a register when it was read. No field will be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The value; `None` if the register is empty.
    pub value: Option<Vec<u8>>,
    /// The name of this state.
    pub stamp: Stamp,
    /// The remaining time to live, by the store's clock and rounded down: no more than what is left of the time that
    /// the value was written for, although the store may keep it for longer. `None` if the store never forgets the
    /// value, or if the register is empty.
    pub left: Option<Duration>,
}

/// A name of one state of a register, without further meaning.
///
/// No two values that were ever written under one name have the same stamp, even if they are equal. All
/// states without a value may have the same one, unless the store [promises](RegisterPromise::names_removals)
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(String);

impl Stamp {
    /// Creates a stamp from the text that a backend distinguishes states by.
    pub fn new(text: impl Into<String>) -> Stamp {
        Stamp(text.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The value to write. No field will be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The value; `None` removes the present one.
    pub value: Option<Vec<u8>>,
    /// The time after which the store is to forget it, not earlier; `None` for never.
    pub keep: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_cannot_keep_is_refused() {
        let never = RegisterPromise::new(4, WaitMode::Polls, Durability::Strict);
        let put = |length: Option<usize>, keep: Option<u64>| Put {
            value: length.map(|length| vec![0; length]),
            keep: keep.map(Duration::from_secs),
        };
        for fits in [put(None, None), put(Some(0), None), put(Some(4), None)] {
            assert!(never.check(&fits).is_ok(), "{fits:?}");
        }
        let refusal = |promise: &RegisterPromise, put| {
            let failure = promise.check(&put).unwrap_err();
            assert_eq!(failure.effect, Effect::None, "{failure}");
            failure.kind
        };
        assert_eq!(refusal(&never, put(Some(5), None)), FailureKind::Invalid);
        assert_eq!(refusal(&never, put(Some(4), Some(9))), FailureKind::Unsupported);
        let forgetful = never.clone().forgets();
        assert!(forgetful.check(&put(Some(4), Some(9))).is_ok());
        let brief = forgetful.clone().max_keep(Duration::from_secs(9));
        assert!(brief.check(&put(Some(4), Some(9))).is_ok());
        assert!(brief.check(&put(Some(4), None)).is_ok());
        assert_eq!(refusal(&brief, put(Some(4), Some(10))), FailureKind::Invalid);
        assert_eq!(refusal(&forgetful, put(Some(5), Some(9))), FailureKind::Invalid);
    }

    #[test]
    fn a_stamp_has_its_text() {
        assert_eq!(Stamp::new("17").as_str(), "17");
    }
}
