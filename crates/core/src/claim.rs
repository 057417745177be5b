//! One request to hold part of a resource.

use std::fmt;
use std::time::Duration;

use crate::{Note, Resource, Share};

/// One request to hold (part of) a resource.
///
/// The id is drawn before the first attempt, so that every call of the seam can be repeated after any
/// failure: the backend recognises the claim and gives the same answer again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The identity of the claim; the secret that renews and releases it.
    pub id: ClaimId,
    /// The requested resource.
    pub resource: Resource,
    /// The requested share of the resource.
    pub share: Share,
    /// The time for which the server keeps the claim without a sign of life. It serves crash recovery, and is
    /// not a business limit.
    pub ttl: Duration,
    /// The note that others see.
    pub note: Note,
}

impl Claim {
    /// Creates a claim without a note.
    pub fn new(id: ClaimId, resource: Resource, share: Share, ttl: Duration) -> Claim {
        Claim { id, resource, share, ttl, note: Note::default() }
    }

    /// Sets the id: the same request, as another claim.
    #[must_use]
    pub fn id(self, id: ClaimId) -> Claim {
        Claim { id, ..self }
    }

    /// Sets the requested resource.
    #[must_use]
    pub fn resource(self, resource: Resource) -> Claim {
        Claim { resource, ..self }
    }

    /// Sets the requested share.
    #[must_use]
    pub fn share(self, share: Share) -> Claim {
        Claim { share, ..self }
    }

    /// Sets the time for which the server keeps the claim without a sign of life.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Claim {
        Claim { ttl, ..self }
    }

    /// Sets the note that others see.
    #[must_use]
    pub fn note(self, note: Note) -> Claim {
        Claim { note, ..self }
    }
}

/// 128 random bits that name one claim.
///
/// Any client that knows it can end the claim, so it is never logged; the fence is the public number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// Creates the id from these bytes, which must come from the operating system's random source.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        ClaimId(bytes)
    }

    /// Returns the bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the id as 32 lower-case hexadecimal digits, the form in which backends store it.
    pub fn to_hex(self) -> String {
        // Written for every request, and so without formatting, which makes a string for each byte.
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair[0] = HEX_DIGITS[usize::from(byte >> 4)];
            pair[1] = HEX_DIGITS[usize::from(byte & 15)];
        }
        // Digits are text.
        std::str::from_utf8(&digits).unwrap_or_default().to_owned()
    }

    /// Returns a public name of the claim, which cannot be used to end it: 32 hexadecimal digits of BLAKE3
    /// over the id.
    pub fn tag(self) -> String {
        let digest =
            blake3::Hasher::new_derive_key("leasehold claim tag v1").update(&self.0).finalize().to_hex();
        digest[..32].to_owned()
    }

    /// Reads what [`ClaimId::to_hex`] wrote; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 32 {
            return None;
        }
        let mut bytes = [0u8; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
        }
        Some(ClaimId(bytes))
    }
}

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Debug for ClaimId {
    /// Shows the first bytes only: enough to follow a claim through a log, too little to end it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimId({:02x}{:02x}{:02x}…)", self.0[0], self.0[1], self.0[2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_reads_back_and_refuses_everything_else() {
        let id = ClaimId::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(ClaimId::from_hex(&id.to_hex()), Some(id));
        for bad in ["", "00", "000102030405060708090A0B0C0D0EFF", &"g".repeat(32), &"é".repeat(16)] {
            assert_eq!(ClaimId::from_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn debug_output_does_not_give_the_secret_away() {
        let id = ClaimId::from_bytes([7; 16]);
        assert!(!format!("{id:?}").contains(&id.to_hex()));
    }
}
