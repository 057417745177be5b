//! The key that replaces the fences that were removed from a slot.
//!
//! A fence may go only where something else keeps later ones above it, and a script reaches keys of one
//! slot only. So each slot has a key of its own, whose tag belongs to no resource: a name never has a
//! blank in a key. There are at most as many as there are slots, however many names were removed.

use std::sync::LazyLock;

use crate::protocol::slots::{SLOTS, crc16};

/// Returns the floor's key of a slot under `prefix`.
pub(crate) fn floor_key(prefix: &str, slot: u16) -> String {
    let mut key = String::with_capacity(1 + prefix.len() + 2 + LETTERS + END.len());
    key.push('{');
    key.push_str(prefix);
    key.push_str(": ");
    let head = key.len();
    key.extend([char::from(FIRST); LETTERS]);
    // The checksum is linear: what another ending changes in it depends on the ending alone.
    let change = (crc16(&key.as_bytes()[1..]) ^ slot) % SLOTS;
    let ending = ENDINGS.get(usize::from(change)).copied().unwrap_or_default();
    key.truncate(head);
    key.extend((0..LETTERS).map(|letter| char::from(FIRST | nibble(ending, letter))));
    key.push_str(END);
    key
}

/// The ending that makes each change of a slot, four bits a letter.
static ENDINGS: LazyLock<Vec<u16>> = LazyLock::new(|| {
    let mut endings = vec![0; usize::from(SLOTS)];
    let changes: Vec<u16> = (0..16).map(|bit| crc16(&letters(1 << bit))).collect();
    for ending in 0..=u16::MAX {
        let bits = (0..16).filter(|bit| (ending >> bit) & 1 == 1);
        let change = bits.fold(0, |change, bit| change ^ changes[bit]);
        endings[usize::from(change % SLOTS)] = ending;
    }
    endings
});

/// Four letters of four bits are enough for every slot.
const LETTERS: usize = 4;
const FIRST: u8 = b'@';
/// The end of each key.
const END: &str = "}:floor";

fn letters(ending: u16) -> [u8; LETTERS] {
    std::array::from_fn(|letter| nibble(ending, letter))
}

fn nibble(ending: u16, letter: usize) -> u8 {
    let [.., low] = (ending >> (4 * (LETTERS - 1 - letter))).to_be_bytes();
    low & 0xf
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::protocol::slots::slot_of;

    #[test]
    fn every_slot_has_a_key_of_its_own() {
        for prefix in ["lh", "app", "", "tenant/42 é"] {
            let keys: HashSet<String> = (0..SLOTS)
                .map(|slot| {
                    let key = floor_key(prefix, slot);
                    assert_eq!(slot_of(&key), slot, "{key}");
                    key
                })
                .collect();
            assert_eq!(keys.len(), usize::from(SLOTS));
        }
    }
}
