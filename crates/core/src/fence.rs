//! The fencing token: a number by which a protected resource refuses an earlier holder.

use std::fmt;
use std::str::FromStr;

/// A fencing token: strictly increasing per resource in the order of grants.
///
/// Compared from left to right. `epoch` rises with a failover of the lock service (0 where there is
/// none), `seq` is the server's own counter or revision, `sub` is advanced without asking the server: when
/// a held lock is handed from one task of a process to the next, and when it is transferred to another
/// process.
///
/// No field will be added: resources outside of leasehold keep fences as text, or as bytes.
///
/// Its text and its bytes sort as the fence itself does. The text of the common case, no epoch and no
/// `sub`, is the counter as twenty decimal digits, so `int()`, `sort -n` and SQL read it as a number:
///
/// ```
/// use leasehold_core::Fence;
/// assert_eq!(Fence::new(0, 42, 0).to_string(), "00000000000000000042");
/// assert_eq!(Fence::new(0, 42, 1).to_string(), "00000000000000000042.0000000001");
/// assert_eq!(Fence::new(3, 42, 0).to_string(), "e00000000000000000003.00000000000000000042");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence {
    /// Generation of the lock service.
    pub epoch: u64,
    /// The server's counter or revision within the epoch.
    pub seq: u64,
    /// Local hand-offs and transfers under one grant.
    pub sub: u32,
}

impl Fence {
    /// Length of [`Fence::to_bytes`].
    pub const BYTES: usize = 20;

    /// Creates the fence from these parts.
    pub const fn new(epoch: u64, seq: u64, sub: u32) -> Self {
        Fence { epoch, seq, sub }
    }

    /// Returns twenty bytes, big-endian, that compare as the fence does.
    pub fn to_bytes(self) -> [u8; Fence::BYTES] {
        let mut bytes = [0; Fence::BYTES];
        bytes[..8].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_be_bytes());
        bytes[16..].copy_from_slice(&self.sub.to_be_bytes());
        bytes
    }

    /// Reads what [`Fence::to_bytes`] wrote.
    pub fn from_bytes(bytes: [u8; Fence::BYTES]) -> Self {
        let [e0, e1, e2, e3, e4, e5, e6, e7, s0, s1, s2, s3, s4, s5, s6, s7, u0, u1, u2, u3] = bytes;
        Fence {
            epoch: u64::from_be_bytes([e0, e1, e2, e3, e4, e5, e6, e7]),
            seq: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            sub: u32::from_be_bytes([u0, u1, u2, u3]),
        }
    }

    /// Returns the fence as one signed integer for a column or a header, where it fits.
    ///
    /// `None` where the fence has an epoch or a `sub`, or the counter passes `i64::MAX`: a number that left
    /// these out would not rise strictly, so there is none.
    pub fn as_i64(self) -> Option<i64> {
        if self.epoch != 0 || self.sub != 0 {
            return None;
        }
        i64::try_from(self.seq).ok()
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 'e' sorts after every digit and '.' extends a text, so the text sorts as the fence does.
        if self.epoch != 0 {
            write!(f, "e{:020}.", self.epoch)?;
        }
        write!(f, "{:020}", self.seq)?;
        if self.sub != 0 {
            write!(f, ".{:010}", self.sub)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({self})")
    }
}

impl FromStr for Fence {
    type Err = ParseFenceError;

    fn from_str(text: &str) -> Result<Self, ParseFenceError> {
        let (epoch, rest) = match text.strip_prefix('e') {
            None => (0, text),
            Some(rest) => {
                let (epoch, rest) = rest.split_once('.').ok_or(ParseFenceError)?;
                (written(parse_part::<u64>(epoch, 20)?)?, rest)
            }
        };
        let (seq, sub) = match rest.split_once('.') {
            None => (rest, 0),
            Some((seq, sub)) => (seq, written(parse_part::<u32>(sub, 10)?)?),
        };
        Ok(Fence { epoch, seq: parse_part(seq, 20)?, sub })
    }
}

/// Refuses a part that is zero: it would not have been written, and fences are compared as text.
fn written<N: Default + PartialEq>(part: N) -> Result<N, ParseFenceError> {
    if part == N::default() { Err(ParseFenceError) } else { Ok(part) }
}

fn parse_part<N: FromStr>(digits: &str, width: usize) -> Result<N, ParseFenceError> {
    let plain = digits.len() == width && digits.bytes().all(|b| b.is_ascii_digit());
    if !plain {
        return Err(ParseFenceError);
    }
    digits.parse().map_err(|_| ParseFenceError)
}

/// The error of a text that is not a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a fence: expected twenty decimal digits, as LEASEHOLD_FENCE holds them")]
pub struct ParseFenceError;

/// The degree to which a fence can be trusted on a given connection, weakest first.
///
/// A grade is demanded with `.require_fencing(grade)`; it is never lowered silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FenceGrade {
    /// No fence.
    None,
    /// Rises while the server keeps its data; after a loss of data it rises by the server's wall clock at
    /// best.
    BestEffort,
    /// Rises also over a failover, by an epoch, with the exceptions that the backend's page names.
    AcrossFailover,
    /// Rises as long as the server keeps its documented durability.
    Strict,
}

impl fmt::Display for FenceGrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FenceGrade::None => "none",
            FenceGrade::BestEffort => "best effort",
            FenceGrade::AcrossFailover => "across failover",
            FenceGrade::Strict => "strict",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fences() -> impl Strategy<Value = Fence> {
        let number = prop_oneof![Just(0u64), 1..3u64, any::<u64>(), Just(u64::MAX)];
        let sub = prop_oneof![Just(0u32), 1..3u32, any::<u32>()];
        (number.clone(), number, sub).prop_map(|(epoch, seq, sub)| Fence { epoch, seq, sub })
    }

    proptest! {
        #[test]
        fn text_and_bytes_sort_as_the_fence_does(a in fences(), b in fences()) {
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
            prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
        }

        #[test]
        fn text_and_bytes_read_back(a in fences()) {
            prop_assert_eq!(a.to_string().parse::<Fence>(), Ok(a));
            prop_assert_eq!(Fence::from_bytes(a.to_bytes()), a);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            if let Ok(fence) = text.parse::<Fence>() {
                prop_assert!(!fence.to_string().is_empty());
            }
        }
    }

    #[test]
    fn integer_exists_only_for_a_fence_without_epoch_and_sub() {
        assert_eq!(Fence::new(0, 9, 0).as_i64(), Some(9));
        assert_eq!(Fence::new(0, 9, 1).as_i64(), None);
        assert_eq!(Fence::new(1, 9, 0).as_i64(), None);
        assert_eq!(Fence::new(0, u64::MAX, 0).as_i64(), None);
    }

    #[test]
    fn part_of_another_width_or_with_a_sign_is_refused() {
        assert_eq!("00000000000000000005".parse(), Ok(Fence::new(0, 5, 0)));
        for text in ["", "5", "+0000000000000000005", "0000000000000000000a", "000000000000000000005"] {
            assert_eq!(text.parse::<Fence>(), Err(ParseFenceError), "{text}");
        }
    }

    #[test]
    fn grades_are_ordered_weakest_first() {
        assert!(
            FenceGrade::None < FenceGrade::BestEffort && FenceGrade::BestEffort < FenceGrade::AcrossFailover
        );
        assert!(FenceGrade::AcrossFailover < FenceGrade::Strict);
    }

    #[test]
    fn grades_are_shown_in_words() {
        use FenceGrade::{AcrossFailover, BestEffort, None, Strict};
        let shown = [None, BestEffort, AcrossFailover, Strict].map(|grade| grade.to_string());
        assert_eq!(shown, ["none", "best effort", "across failover", "strict"]);
    }
}
