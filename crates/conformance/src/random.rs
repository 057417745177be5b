//! Random bytes for identities and for the times at which races are run.

use leasehold_core::ClaimId;

use crate::not_kept::{Checked, NotKept};

/// Bytes of the operating system's random source.
pub(crate) fn bytes<const N: usize>() -> Checked<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| NotKept::broken(format!("no random bytes from the system: {error}")))?;
    Ok(bytes)
}

/// Returns an identity that no other claim has.
pub(crate) fn id() -> Checked<ClaimId> {
    Ok(ClaimId::from_bytes(bytes()?))
}

/// A small generator for delays and choices, not for identities.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Checked<Random> {
        Ok(Random(u64::from_le_bytes(bytes()?) | 1))
    }

    /// Returns a number from zero to `below`, without it; zero where `below` is zero.
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.checked_rem(below).unwrap_or_default()
    }
}
