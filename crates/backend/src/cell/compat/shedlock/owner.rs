//! The content of `locked_by`: the owner of a row.
//!
//! Ground rules: ShedLock's other users only compare it with their own, or show it to people. A row of
//! theirs is shown, and may be ended by a client that saw it.

use leasehold_core::{Claim, ClaimId, Note};

/// A `locked_by` that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LockedBy {
    /// The claim's, or one that is made of what another program wrote.
    pub(crate) id: ClaimId,
    pub(crate) note: Note,
}

/// Returns the text that a claim writes: its id, and as much of its note as the column carries.
pub(crate) fn owner_text(claim: &Claim, width: usize) -> String {
    let head = format!("{MAGIC}{} ", claim.id.to_hex());
    // A database may refuse control characters, and nobody wants to read them.
    let note = claim.note.as_str().chars().map(|c| if c.is_control() { ' ' } else { c });
    let width_left = width.saturating_sub(head.len());
    head + &note.take(width_left).collect::<String>()
}

impl LockedBy {
    /// Reads a text that any program may have written.
    pub(crate) fn read(text: &str) -> LockedBy {
        let ours = text.strip_prefix(MAGIC).and_then(|text| text.split_once(' '));
        let ours = ours.and_then(|(id, note)| Some((ClaimId::from_hex(id)?, note)));
        match ours {
            Some((id, note)) => LockedBy { id, note: Note::clipped(note) },
            None => LockedBy { id: foreign_id(text), note: Note::clipped(text) },
        }
    }
}

/// Returns an id that cannot be guessed from the id alone, and that is the same for all readers of the row.
fn foreign_id(text: &str) -> ClaimId {
    let mut digest = blake3::Hasher::new_derive_key("leasehold shedlock foreign owner v1");
    let digest = digest.update(text.as_bytes()).finalize();
    let mut id = [0; 16];
    id.copy_from_slice(&digest.as_bytes()[..16]);
    ClaimId::from_bytes(id)
}

const MAGIC: &str = "leasehold ";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::{Resource, Share};
    use proptest::prelude::*;

    use super::*;

    fn claim(id: [u8; 16], note: &str) -> Claim {
        let resource = Resource::new("a").unwrap();
        let (id, note) = (ClaimId::from_bytes(id), Note::new(note).unwrap());
        Claim::new(id, resource, Share::MUTEX, Duration::from_secs(1)).note(note)
    }

    proptest! {
        #[test]
        fn ours_reads_back(id: [u8; 16], note in "\\PC{0,60}") {
            let claim = claim(id, &note);
            let owner = LockedBy::read(&owner_text(&claim, 255));
            prop_assert_eq!((owner.id, owner.note), (claim.id, claim.note));
        }

        #[test]
        fn it_never_passes_the_column(note in ".{0,300}", width in 64usize..300) {
            prop_assert!(owner_text(&claim([7; 16], &note), width).chars().count() <= width);
        }

        #[test]
        fn nothing_that_was_written_panics(text in ".{0,60}") {
            prop_assert_eq!(LockedBy::read(&text), LockedBy::read(&text));
        }
    }

    #[test]
    fn foreign_owners_have_distinct_ids_and_are_shown() {
        let (one, two) = (LockedBy::read("host-1"), LockedBy::read("host-2"));
        assert!(one.id != two.id && one.note.as_str() == "host-1");
        assert_eq!(LockedBy::read("leasehold of mine").note.as_str(), "leasehold of mine");
    }
}
