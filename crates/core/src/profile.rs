//! The promises of a backend, known before any request is sent.

use std::fmt;
use std::time::Duration;

use crate::{FenceGrade, Note, Share};

/// The promises of a backend on this connection. All enums are ordered, weakest first, so that a demand is
/// a comparison.
///
/// [`Profile::new`] promises the least; a backend adds what its server keeps.
///
/// ```
/// use leasehold_core::{Liveness, LockSupport, Profile, WaitMode};
///
/// let profile = Profile::new("mine", Liveness::Session)
///     .admission(LockSupport::SharedExclusive)
///     .waiting(WaitMode::Notifies);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// The backend's name, as its URL scheme says it.
    pub name: &'static str,
    /// The shares that it can admit.
    pub admission: LockSupport,
    /// The order in which waiting claims are granted.
    pub order: QueueOrder,
    /// The way in which a waiter learns that its turn has come.
    pub waiting: WaitMode,
    /// The mechanism that keeps a granted claim alive.
    pub liveness: Liveness,
    /// The degree to which its fences can be trusted.
    pub fencing: FenceGrade,
    /// The events that can take a granted claim away.
    pub durability: Durability,
    /// The time for which the place of a silent waiter stays in the queue, or the ttl of its claim if that
    /// is longer; zero if the server knows at once, or has no queue.
    pub place_ttl: Duration,
    /// The coarseness of the server's own clock, which is subtracted from the validity of every grant.
    pub granularity: Duration,
    /// The time by which a claim of a dead client outlives its ttl, or `place_ttl` while it waits: the
    /// margin that the server adds to the requested time. Zero if the claim ends in time.
    pub overrun: Duration,
    /// The most claims that one `renew` call sends to the server in one request.
    pub renew_batch_max: usize,
    /// The bytes of a holder's note that others are sure to see; a longer note may be cut off.
    pub note_max: usize,
}

/// The shares that a backend can admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LockSupport {
    /// One holder.
    Exclusive,
    /// One writer or many readers.
    SharedExclusive,
    /// The same, and one permit per claim of a capacity that all claims of one name agree on. A semaphore
    /// is another lock there than the mutex or the read-write lock of its name: they do not exclude each
    /// other.
    Permits,
    /// Any weight of any capacity, and all claims of one name under one rule, no matter what their shares
    /// are.
    Counted,
}

impl fmt::Display for LockSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockSupport::Exclusive => "mutex",
            LockSupport::SharedExclusive => "mutex, rwlock",
            LockSupport::Permits => "mutex, rwlock, single permits",
            LockSupport::Counted => "mutex, rwlock, semaphore",
        })
    }
}

/// The order in which waiting claims are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum QueueOrder {
    /// The first client that calls after a release.
    Unordered,
    /// First come, first served, over all processes.
    Fifo,
}

impl fmt::Display for QueueOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueOrder::Unordered => "any",
            QueueOrder::Fifo => "first come, first served",
        })
    }
}

/// The way in which a waiter learns that its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum WaitMode {
    /// The client polls, with growing pauses.
    Polls,
    /// The server, or another client through it, sends a notification.
    Notifies,
    /// The request itself blocks in the server or in the kernel.
    Blocks,
}

/// The mechanism that keeps a granted claim alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// A lease that runs out unless it is renewed, with the shortest and the longest ttl.
    Lease {
        /// The shortest ttl.
        min: Duration,
        /// The longest ttl.
        max: Duration,
    },
    /// A session: a connection or a process that the server, or the kernel, watches.
    Session,
    /// A session that the server ends after a time of silence. No matter what the ttl of a claim is, its
    /// holder may count on it for `valid` from the request of the last confirmed renewal, and no longer.
    Heartbeat {
        /// The validity of a grant or a renewal.
        valid: Duration,
    },
}

impl Liveness {
    /// Returns the time for which the holder of a claim of this ttl may count on it after a confirmed
    /// renewal; `None` if only a signal ends it, without a time to count.
    pub fn valid_for(self, ttl: Duration) -> Option<Duration> {
        match self {
            Liveness::Lease { .. } => Some(ttl),
            Liveness::Session => None,
            Liveness::Heartbeat { valid } => Some(valid),
        }
    }
}

/// The events that can take a granted claim away although its holder does everything right, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Memory pressure in the server is enough.
    Evictable,
    /// A failover or a restart without data.
    LostOnFailover,
    /// Only a breach of the server's documented durability.
    Strict,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Evictable => "lost under memory pressure",
            Durability::LostOnFailover => "lost on failover",
            Durability::Strict => "strict",
        })
    }
}

impl Profile {
    /// Creates a profile that promises the least: exclusive locks in any order, for which clients poll, that
    /// memory pressure can take away, without fences, one renewal a request, and notes that nobody sees.
    pub fn new(name: &'static str, liveness: Liveness) -> Profile {
        Profile {
            name,
            admission: LockSupport::Exclusive,
            order: QueueOrder::Unordered,
            waiting: WaitMode::Polls,
            liveness,
            fencing: FenceGrade::None,
            durability: Durability::Evictable,
            place_ttl: Duration::ZERO,
            granularity: Duration::ZERO,
            overrun: Duration::ZERO,
            renew_batch_max: 1,
            note_max: 0,
        }
    }

    /// Sets [`Profile::name`].
    pub fn name(self, name: &'static str) -> Profile {
        Profile { name, ..self }
    }

    /// Sets [`Profile::admission`].
    pub fn admission(self, admission: LockSupport) -> Profile {
        Profile { admission, ..self }
    }

    /// Sets [`Profile::order`].
    pub fn order(self, order: QueueOrder) -> Profile {
        Profile { order, ..self }
    }

    /// Sets [`Profile::waiting`].
    pub fn waiting(self, waiting: WaitMode) -> Profile {
        Profile { waiting, ..self }
    }

    /// Sets [`Profile::liveness`].
    pub fn liveness(self, liveness: Liveness) -> Profile {
        Profile { liveness, ..self }
    }

    /// Sets [`Profile::fencing`].
    pub fn fencing(self, fencing: FenceGrade) -> Profile {
        Profile { fencing, ..self }
    }

    /// Sets [`Profile::durability`].
    pub fn durability(self, durability: Durability) -> Profile {
        Profile { durability, ..self }
    }

    /// Sets [`Profile::place_ttl`].
    pub fn place_ttl(self, place_ttl: Duration) -> Profile {
        Profile { place_ttl, ..self }
    }

    /// Sets [`Profile::granularity`].
    pub fn granularity(self, granularity: Duration) -> Profile {
        Profile { granularity, ..self }
    }

    /// Sets [`Profile::overrun`].
    pub fn overrun(self, overrun: Duration) -> Profile {
        Profile { overrun, ..self }
    }

    /// Sets [`Profile::renew_batch_max`].
    pub fn renew_batch_max(self, renew_batch_max: usize) -> Profile {
        Profile { renew_batch_max, ..self }
    }

    /// Sets [`Profile::note_max`].
    pub fn note_max(self, note_max: usize) -> Profile {
        Profile { note_max, ..self }
    }

    /// Checks that claims of this share can be admitted.
    ///
    /// # Errors
    /// [`Unmet`], with the demand and the promise.
    pub fn admits(&self, share: Share) -> Result<(), Unmet> {
        let needed = match share {
            Share::MUTEX => LockSupport::Exclusive,
            Share::READER | Share::WRITER => LockSupport::SharedExclusive,
            _ if share.weight() == 1 => LockSupport::Permits,
            _ => LockSupport::Counted,
        };
        self.demand("admission", needed, self.admission)
    }

    /// Checks that waiting claims are granted in this order at least.
    ///
    /// # Errors
    /// [`Unmet`], with the demand and the promise.
    pub fn orders(&self, order: QueueOrder) -> Result<(), Unmet> {
        self.demand("order", order, self.order)
    }

    /// Checks that its fences have this grade at least.
    ///
    /// # Errors
    /// [`Unmet`], with the demand and the promise.
    pub fn fences(&self, grade: FenceGrade) -> Result<(), Unmet> {
        self.demand("fencing", grade, self.fencing)
    }

    /// Checks that a granted claim is as safe as this at least.
    ///
    /// # Errors
    /// [`Unmet`], with the demand and the promise.
    pub fn keeps(&self, durability: Durability) -> Result<(), Unmet> {
        self.demand("durability", durability, self.durability)
    }

    /// Checks that others see so many bytes of a holder's note at least.
    ///
    /// # Errors
    /// [`Unmet`], with the demand and the promise.
    pub fn shows(&self, bytes: usize) -> Result<(), Unmet> {
        self.demand("bytes of a note", bytes, self.note_max)
    }

    /// Checks that clients can announce their waits, which needs room for a whole note: otherwise others see
    /// no deadlock.
    ///
    /// # Errors
    /// [`Unmet`], with the demand and the promise.
    pub fn announces_waits(&self) -> Result<(), Unmet> {
        self.shows(Note::MAX_BYTES)
    }

    fn demand<T: PartialOrd + fmt::Display>(
        &self,
        what: &'static str,
        needed: T,
        given: T,
    ) -> Result<(), Unmet> {
        if given >= needed {
            return Ok(());
        }
        Err(Unmet { backend: self.name, what, needed: needed.to_string(), given: given.to_string() })
    }
}

/// A demand that a backend does not meet. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {backend} backend cannot provide {what} \"{needed}\": this connection provides \"{given}\"")]
pub struct Unmet {
    /// The backend's name.
    pub backend: &'static str,
    /// The name of the promise.
    pub what: &'static str,
    /// The requirement.
    pub needed: String,
    /// The promise of the connection.
    pub given: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weak() -> Profile {
        Profile::new("weak", Liveness::Session)
            .admission(LockSupport::SharedExclusive)
            .fencing(FenceGrade::BestEffort)
            .durability(Durability::LostOnFailover)
            .note_max(100)
    }

    #[test]
    fn heartbeat_session_has_a_validity_of_its_own() {
        let (ttl, valid) = (Duration::from_secs(30), Duration::from_secs(5));
        let lease = Liveness::Lease { min: valid, max: ttl };
        assert_eq!(lease.valid_for(ttl), Some(ttl));
        assert_eq!(Liveness::Session.valid_for(ttl), None);
        assert_eq!(Liveness::Heartbeat { valid }.valid_for(ttl), Some(valid));
    }

    #[test]
    fn demands_are_compared_not_guessed() {
        assert!(weak().admits(Share::MUTEX).is_ok());
        assert!(weak().admits(Share::WRITER).is_ok());
        let permits = |weight, capacity| Share::permits(weight, capacity).unwrap();
        assert!(weak().admits(permits(1, 2)).is_err());
        assert!(
            weak().admits(permits(2, 2)).is_err(),
            "all permits exclude single ones, which it cannot admit"
        );
        let single = weak().admission(LockSupport::Permits);
        assert!(single.admits(permits(1, 2)).is_ok() && single.admits(Share::WRITER).is_ok());
        assert!(single.admits(permits(2, 3)).is_err() && single.admits(permits(2, 2)).is_err());
        assert!(weak().orders(QueueOrder::Fifo).is_err());
        assert!(weak().fences(FenceGrade::BestEffort).is_ok());
        assert!(weak().keeps(Durability::Strict).is_err());
        assert!(weak().shows(100).is_ok() && weak().shows(101).is_err());
        assert!(weak().announces_waits().is_err());
        assert!(weak().note_max(Note::MAX_BYTES).announces_waits().is_ok());
        let error = weak().fences(FenceGrade::Strict).unwrap_err().to_string();
        assert_eq!(
            error,
            r#"the weak backend cannot provide fencing "strict": this connection provides "best effort""#
        );
        let error = weak().admits(permits(1, 2)).unwrap_err().to_string();
        assert!(error.ends_with(r#"this connection provides "mutex, rwlock""#), "{error}");
    }
}
