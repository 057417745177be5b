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
    let ending = ENDINGS.of(change);
    key.truncate(head);
    key.extend((0..LETTERS).map(|letter| char::from(FIRST | nibble(ending, letter))));
    key.push_str(END);
    key
}

/// The endings by which the slot is changed, four bits a letter.
static ENDINGS: LazyLock<Endings> = LazyLock::new(Endings::find);

/// The change of each ending is linear, so some of them, combined, make every change.
#[derive(Default)]
struct Endings {
    /// For each bit of a slot, an ending and its change, of which this is the highest bit.
    pivots: [(u16, u16); SLOT_BITS],
    /// The endings that change nothing.
    neutral: Vec<u16>,
}

impl Endings {
    fn find() -> Endings {
        let mut found = Endings::default();
        for bit in 0..u16::BITS {
            let ending = 1 << bit;
            let (ending, change) = found.reduce(ending, crc16(&letters(ending)) % SLOTS);
            match change.checked_ilog2() {
                Some(highest) => found.pivots[highest as usize] = (ending, change),
                None => found.neutral.push(ending),
            }
        }
        found
    }

    /// Combines an ending with those known, as long as they take a bit from its change.
    fn reduce(&self, mut ending: u16, mut change: u16) -> (u16, u16) {
        for (bit, pivot) in self.pivots.iter().enumerate().rev() {
            if (change >> bit) & 1 == 1 && *pivot != (0, 0) {
                ending ^= pivot.0;
                change ^= pivot.1;
            }
        }
        (ending, change)
    }

    /// Returns the greatest ending that makes this change.
    fn of(&self, change: u16) -> u16 {
        let (ending, _) = self.reduce(0, change);
        let mut same = vec![ending];
        for neutral in &self.neutral {
            same.extend_from_within(..);
            let half = same.len() / 2;
            same[half..].iter_mut().for_each(|ending| *ending ^= neutral);
        }
        same.into_iter().max().unwrap_or_default()
    }
}

const SLOT_BITS: usize = 14;

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

    /// All clients have to use the same key.
    #[test]
    fn endings_are_the_greatest_that_make_each_change() {
        let mut greatest = vec![0; usize::from(SLOTS)];
        for ending in 0..=u16::MAX {
            greatest[usize::from(crc16(&letters(ending)) % SLOTS)] = ending;
        }
        for change in 0..SLOTS {
            assert_eq!(ENDINGS.of(change), greatest[usize::from(change)], "{change}");
        }
        assert_eq!(usize::from(SLOTS), 1 << SLOT_BITS);
    }

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
