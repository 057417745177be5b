//! The part of a node's name that may be shown. An id is the secret that ends its claim, and it is part
//! of the name of its node.

use std::fmt;

/// A name or a path of nodes without the ids in it: enough to find the node, too little to end its claim.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some((begin, end)) = id_in(rest) {
            // Both are next to ASCII characters.
            write!(f, "{}…", &rest[..begin + KEPT])?;
            rest = &rest[end..];
        }
        f.write_str(rest)
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// Finds the first id: 32 hexadecimal digits, in one piece or with hyphens between them as in a UUID.
fn id_in(text: &str) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let id_at = |begin: usize| {
        let mut digits = 0;
        for (at, byte) in bytes.iter().enumerate().skip(begin) {
            match byte {
                b'-' if digits > 0 => {}
                byte if byte.is_ascii_hexdigit() => digits += 1,
                _ => return None,
            }
            if digits == ID_DIGITS {
                return Some((begin, at + 1));
            }
        }
        None
    };
    (0..bytes.len()).find_map(id_at)
}

const ID_DIGITS: usize = 32;
/// The number of digits that the `Debug` of an id shows.
const KEPT: usize = 6;

#[cfg(test)]
mod tests {
    use leasehold_core::{ClaimId, Share};

    use super::*;
    use crate::protocol::dialect::Dialect;

    #[test]
    fn no_dialects_id_is_shown_and_the_rest_is() {
        let id = ClaimId::from_bytes([0xe7; 16]);
        for dialect in [Dialect::Native, Dialect::Curator, Dialect::Kazoo] {
            for stem in [dialect.stem(id, Share::MUTEX), dialect.lease(id)] {
                let path = format!("/leasehold/é-job/{stem}0000000009/{stem}0000000010");
                let shown = Shown(&path).to_string();
                assert_eq!(shown.matches("e7e7e7…").count(), 2, "{shown}");
                assert!(!shown.contains("e7e7e7e7") && !shown.contains("e7e7-e7"), "{shown}");
                assert!(shown.starts_with("/leasehold/é-job/") && shown.ends_with("0000000010"), "{shown}");
            }
        }
        for plain in ["", "_c_e7e2cd8e-lock-0000000009", "/orders/42", "deadbeef-0000000001"] {
            assert_eq!(Shown(plain).to_string(), plain);
        }
    }
}
