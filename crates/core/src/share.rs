//! The share of a resource that a claim asks for.

use std::fmt;

/// A weight of a capacity. Mutex, read-write lock and semaphore are constants of this one pair.
///
/// | what | weight | capacity |
/// |---|---|---|
/// | mutex | 1 | 1 |
/// | k of n permits | k | n |
/// | reader | 1 | all |
/// | writer | all | all |
///
/// Claims on one resource that name different capacities are admitted under the *smallest* of those that hold, those
/// ahead in the queue, and their own: a rolling change from five permits to three never lets four hold beside one that
/// names three, and a mutex excludes the readers of the same name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    weight: u32,
    capacity: u32,
}

impl Share {
    /// The whole of a resource, for one holder.
    pub const MUTEX: Share = Share { weight: 1, capacity: 1 };
    /// A share that goes together with any other reader.
    pub const READER: Share = Share { weight: 1, capacity: u32::MAX };
    /// A share that goes together with no other.
    pub const WRITER: Share = Share { weight: u32::MAX, capacity: u32::MAX };

    /// Creates a share of `weight` permits of `capacity`.
    ///
    /// # Errors
    /// [`InvalidShare`] where the weight is zero or does not fit the capacity: such a claim could never be
    /// admitted, or would hold nothing.
    pub const fn permits(weight: u32, capacity: u32) -> Result<Share, InvalidShare> {
        if weight == 0 || weight > capacity {
            return Err(InvalidShare { weight, capacity });
        }
        Ok(Share { weight, capacity })
    }

    /// Returns the weight that the claim adds to the load of the resource.
    pub const fn weight(self) -> u32 {
        self.weight
    }

    /// Returns the load up to which this claim tolerates company.
    pub const fn capacity(self) -> u32 {
        self.capacity
    }

    /// Returns `true` if a holder of this share is alone.
    pub const fn is_exclusive(self) -> bool {
        self.weight == self.capacity
    }

    /// Returns `true` if a holder of this share has all that `wanted` gives, so that asking for it as well
    /// adds nothing.
    pub fn covers(self, wanted: Share) -> bool {
        self == wanted
            || self.is_exclusive()
            || (self.capacity == wanted.capacity && self.weight > wanted.weight)
    }

    /// Returns `true` if it takes a counting backend to admit this share; that of a mutex, a reader or a
    /// writer does not. All permits of a semaphore do, since they have to exclude single ones.
    pub const fn is_counted(self) -> bool {
        !matches!(self, Share::MUTEX | Share::READER | Share::WRITER)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Share::MUTEX => f.write_str("mutex"),
            Share::READER => f.write_str("reader"),
            Share::WRITER => f.write_str("writer"),
            Share { weight, capacity } => write!(f, "{weight}/{capacity}"),
        }
    }
}

/// A share that no claim can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{weight} of {capacity} permits cannot be held: {}", self.advice())]
pub struct InvalidShare {
    weight: u32,
    capacity: u32,
}

impl InvalidShare {
    /// Returns advice on what can be held instead.
    fn advice(self) -> String {
        match self.capacity {
            0 => "let there be at least 1".to_owned(),
            capacity => format!("ask for at least 1 and at most {capacity}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_can_never_be_held_is_refused() {
        assert!(Share::permits(0, 3).is_err());
        assert!(Share::permits(4, 3).is_err());
        let none = Share::permits(0, 0).unwrap_err().to_string();
        assert_eq!(none, "0 of 0 permits cannot be held: let there be at least 1");
        assert_eq!(Share::permits(1, 1), Ok(Share::MUTEX));
    }

    #[test]
    fn kinds_of_shares_are_distinguished() {
        assert!(Share::MUTEX.is_exclusive() && Share::WRITER.is_exclusive());
        assert!(!Share::READER.is_exclusive() && !Share::READER.is_counted());
        let two_of_three = Share::permits(2, 3).unwrap();
        assert!(two_of_three.is_counted());
        assert_eq!(two_of_three.to_string(), "2/3");
        let all = Share::permits(3, 3).unwrap();
        assert!(all.is_exclusive() && all.is_counted() && !Share::WRITER.is_counted());
        // Most shares of the readers' capacity are neither a reader nor a writer: only a counting backend
        // can distinguish them.
        assert!(Share::permits(u32::MAX - 1, u32::MAX).unwrap().is_counted());
    }

    #[test]
    fn larger_share_covers_the_smaller_and_never_the_reverse() {
        let (two, three) = (Share::permits(2, 5).unwrap(), Share::permits(3, 5).unwrap());
        assert!(two.covers(two) && three.covers(two) && !two.covers(three));
        assert!(Share::MUTEX.covers(Share::READER) && Share::WRITER.covers(Share::MUTEX));
        let (two_of_readers, reader) = (Share::permits(2, u32::MAX).unwrap(), Share::READER);
        assert!(two_of_readers.covers(reader) && !reader.covers(two_of_readers));
        assert!(Share::READER.covers(Share::READER) && !Share::READER.covers(Share::WRITER));
        assert!(!three.covers(Share::permits(2, 4).unwrap()), "another capacity is another promise");
    }
}
