//! Keys that are used again: the claims of one client on one resource take turns on few of them.
//!
//! A deleted key stays in the servers' index until the history is compacted, and every look at a queue
//! passes over every key that was in it since. So a client that returns to a lock does not write a new
//! key for each claim, but reuses a key that an earlier claim of its own has left. The value shows which
//! claim has the key now, and the revision that created it shows which claim's turn it is.
//!
//! Ground rules: a slot is taken out for each use, so it belongs to one claim at a time. A claim puts its
//! slot back only once none of its requests can be under way any more (the lease table knows), so a late
//! request never meets the next claim. A name that is used once costs nothing: its only claim has a key
//! of its own.

use std::collections::HashMap;

use leasehold_core::{ClaimId, Resource, Share};

use crate::protocol::txn::Erase;

/// The slots of one client that are free.
#[derive(Debug, Default)]
pub(crate) struct Slots(HashMap<(Resource, Share), Vec<ClaimId>>);

/// The id that the key of a claim is named after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The claim itself.
    Own,
    /// A slot: an id like that of a claim, which no claim has.
    Reused(ClaimId),
}

/// A claim's key, and how it is removed and reused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyRef {
    pub(crate) slot: Slot,
    /// The way in which the key is removed.
    pub(crate) erase: Erase,
    pub(crate) reused_by: ReusedBy,
}

/// The claims that may reuse the key of a claim after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReusedBy {
    /// Another claim of this client.
    Us,
    /// No claim.
    None,
    /// Another claim of the client that has put it: this one came to the same claim later.
    Others,
}

impl Slots {
    /// Returns the slot for the next claim. `fresh` is a new id, used if no slot exists yet.
    pub(crate) fn take(&mut self, resource: &Resource, share: Share, fresh: Option<ClaimId>) -> Slot {
        // An entry exists from the first claim on, and stays while its slots are out.
        match self.0.get_mut(&(resource.clone(), share)) {
            Some(free) => free.pop().or(fresh).map_or(Slot::Own, Slot::Reused),
            None => Slot::Own,
        }
    }

    /// Puts back a slot whose claim ended, with nothing of it under way.
    pub(crate) fn put_back(&mut self, resource: &Resource, share: Share, slot: Slot) {
        let name = (resource.clone(), share);
        if self.0.len() >= NAMES_MAX && !self.0.contains_key(&name) {
            let other = self.0.keys().next().cloned();
            other.and_then(|other| self.0.remove(&other));
        }
        let free = self.0.entry(name).or_default();
        if let Slot::Reused(id) = slot
            && free.len() < FREE_MAX
        {
            free.push(id);
        }
    }
}

/// The most names that are remembered.
const NAMES_MAX: usize = 256;
/// The most slots that are kept of one name: as many of its claims can be in the queue at once without a new
/// key.
const FREE_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> ClaimId {
        ClaimId::from_bytes([n; 16])
    }

    fn name(name: &str) -> Resource {
        Resource::new(name).unwrap()
    }

    #[test]
    fn the_second_claim_opens_a_slot_and_the_third_takes_it_again() {
        let mut slots = Slots::default();
        let job = name("job");
        let take = |slots: &mut Slots, n| slots.take(&job, Share::MUTEX, Some(id(n)));
        assert_eq!(take(&mut slots, 1), Slot::Own);
        slots.put_back(&job, Share::MUTEX, Slot::Own);
        assert_eq!(take(&mut slots, 2), Slot::Reused(id(2)));
        assert_eq!(take(&mut slots, 3), Slot::Reused(id(3)), "the other one is out");
        slots.put_back(&job, Share::MUTEX, Slot::Reused(id(2)));
        assert_eq!(take(&mut slots, 4), Slot::Reused(id(2)));
        assert_eq!(slots.take(&job, Share::READER, Some(id(5))), Slot::Own, "another share, another key");
        assert_eq!(slots.take(&name("other"), Share::MUTEX, Some(id(6))), Slot::Own);
        assert_eq!(slots.take(&job, Share::MUTEX, None), Slot::Own, "without an id no new one is made");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut slots = Slots::default();
        for n in 0..NAMES_MAX * 2 {
            slots.put_back(&name(&format!("job/{n}")), Share::MUTEX, Slot::Own);
        }
        assert_eq!(slots.0.len(), NAMES_MAX);
        let last = name(&format!("job/{}", NAMES_MAX * 2 - 1));
        for n in 0..=FREE_MAX as u8 {
            slots.put_back(&last, Share::MUTEX, Slot::Reused(id(n)));
        }
        assert_eq!(slots.0[&(last, Share::MUTEX)].len(), FREE_MAX);
    }
}
