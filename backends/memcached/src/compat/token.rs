//! The content of the item of a plain lock: its owner.
//!
//! Ground rules: an item of another library is never changed, but it is shown, and may be broken by a
//! client that saw it. Other libraries only compare the whole value with their own, so what ours says
//! beyond its owner is our own matter.

use leasehold_core::{ClaimId, Fence, Note, Resource};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// A value that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// An item of ours.
    Ours(PlainHolder),
    /// An item of another library, with an id that is made of it.
    Foreign(ClaimId),
}

/// The holder of a plain lock of ours.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlainHolder {
    pub(crate) id: ClaimId,
    /// The fence, where it was written down: a value that was never changed has it as the number of its item.
    pub(crate) fence: Option<Fence>,
    pub(crate) resource: Resource,
    pub(crate) note: Note,
}

impl PlainHolder {
    /// Returns the value to be stored.
    pub(crate) fn to_value(&self) -> Vec<u8> {
        let fence = self.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
        let text = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (resource, note) = (text(self.resource.as_str()), text(self.note.as_str()));
        format!("{MAGIC} {} {fence} {resource} {note}", self.id.to_hex()).into_bytes()
    }
}

impl Token {
    /// Reads a value of any kind.
    pub(crate) fn read(value: &[u8]) -> Token {
        read_owner(value).map_or_else(|| Token::Foreign(foreign_id(value)), Token::Ours)
    }

    pub(crate) fn id(&self) -> ClaimId {
        match self {
            Token::Ours(owner) => owner.id,
            Token::Foreign(id) => *id,
        }
    }
}

fn read_owner(value: &[u8]) -> Option<PlainHolder> {
    let text = std::str::from_utf8(value).ok()?.strip_prefix(MAGIC)?.strip_prefix(' ')?;
    let mut parts = text.split(' ');
    let id = ClaimId::from_hex(parts.next()?)?;
    let fence = match parts.next()? {
        "-" => None,
        fence => Some(fence.parse().ok()?),
    };
    let mut text = || percent_decode_str(parts.next()?).decode_utf8().ok();
    let (resource, note) = (Resource::new(&text()?).ok()?, Note::new(&text()?).ok()?);
    parts.next().is_none().then_some(PlainHolder { id, fence, resource, note })
}

/// Returns an id that cannot be guessed from the id alone, and that is the same for all readers of the
/// value.
fn foreign_id(value: &[u8]) -> ClaimId {
    let digest =
        blake3::Hasher::new_derive_key("leasehold memcached foreign owner v1").update(value).finalize();
    let mut id = [0; 16];
    id.copy_from_slice(&digest.as_bytes()[..16]);
    ClaimId::from_bytes(id)
}

const MAGIC: &str = "leasehold 1";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ours_reads_back(id: [u8; 16], name in "\\PC{1,60}", note in "\\PC{0,60}", fence: Option<(u64, u64)>) {
            let fence = fence.map(|(epoch, seq)| Fence::new(epoch, seq, 0));
            let (resource, note) = (Resource::new(&name).unwrap(), Note::new(&note).unwrap());
            let owner = PlainHolder { id: ClaimId::from_bytes(id), fence, resource, note };
            prop_assert_eq!(Token::read(&owner.to_value()), Token::Ours(owner));
        }

        #[test]
        fn no_value_panics(value in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(Token::read(&value), Token::read(&value));
        }
    }

    #[test]
    fn value_that_is_not_exactly_ours_is_foreign() {
        let id = "0".repeat(32);
        for value in [
            "",
            "member-7",
            "leasehold 1",
            &format!("leasehold 2 {id} - a b"),
            &format!("leasehold 1 {id} 7 a b"),
            &format!("leasehold 1 {id} - a b c"),
            &format!("leasehold 1 {id} - a"),
        ] {
            assert!(matches!(Token::read(value.as_bytes()), Token::Foreign(_)), "{value}");
        }
        assert_ne!(Token::read(b"a").id(), Token::read(b"b").id());
    }
}
