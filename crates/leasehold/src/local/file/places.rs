//! The place of each claim of a ledger, and the FIFO by which it lives.
//!
//! Ground rules: a claim lives by the FIFO that has its name, unless its place says otherwise. A FIFO that is
//! used by one claim after the other keeps the name of the first, so that it need not be renamed for each.
//! A reader that does not know this form takes the ledger for a damaged one, and rebuilds it from the FIFOs that
//! are locked.

use std::collections::HashMap;

use leasehold_core::{ClaimId, Entry};

use super::liveness_fifo::{FifoName, LAST_PLACE};

/// The places of all claims in a queue.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<ClaimId, Place>);

/// The place of one claim. It rises with each claim of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    number: u64,
    /// The place and the id in the name of its FIFO, if they are not its own.
    fifo: Option<(u64, ClaimId)>,
}

impl Places {
    /// Reads what [`Places::text`] wrote for these claims; `None` if it is something else.
    pub(super) fn parse(text: &str, entries: &[Entry]) -> Option<Places> {
        if entries.is_empty() {
            return text.is_empty().then(Places::default);
        }
        let mut places = HashMap::new();
        let mut listed = text.split(',');
        for entry in entries {
            places.insert(entry.id, Place::parse(listed.next()?)?);
        }
        (listed.next().is_none() && places.len() == entries.len()).then_some(Places(places))
    }

    pub(super) fn text(&self, entries: &[Entry]) -> String {
        let texts: Vec<String> = entries.iter().map(|entry| self.of(entry).text()).collect();
        texts.join(",")
    }

    /// Returns the name of the FIFO by which the claim of an entry lives.
    pub(super) fn name_of(&self, entry: &Entry) -> FifoName {
        let Place { number, fifo } = self.of(entry);
        let (place, id) = fifo.unwrap_or((number, entry.id));
        FifoName { place, share: entry.share, id }
    }

    /// Gives a claim a place. It lives by the FIFO that has its name.
    pub(super) fn insert(&mut self, id: ClaimId, number: u64) {
        self.0.insert(id, Place { number, fifo: None });
    }

    /// Lets a claim live by a FIFO that has another name. The share in that name is its own.
    pub(super) fn lives_by(&mut self, id: ClaimId, fifo: &FifoName) {
        if let Some(place) = self.0.get_mut(&id) {
            place.fifo = Some((fifo.place, fifo.id));
        }
    }

    pub(super) fn remove(&mut self, id: ClaimId) {
        self.0.remove(&id);
    }

    pub(super) fn contains(&self, id: ClaimId) -> bool {
        self.0.contains_key(&id)
    }

    /// Returns the last place that was given to one of these claims.
    pub(super) fn last(&self) -> Option<u64> {
        self.0.values().map(|place| place.number).max()
    }

    fn of(&self, entry: &Entry) -> Place {
        // Invariant: every entry has a place; a head that lacks one is damaged. Place 0 is never assigned.
        let place = self.0.get(&entry.id).copied().unwrap_or(Place { number: 0, fifo: None });
        debug_assert!(place.number != 0, "an entry without a place: {entry:?}");
        place
    }
}

impl Place {
    fn text(self) -> String {
        match self.fifo {
            None => self.number.to_string(),
            Some((place, id)) => format!("{}={place}={}", self.number, id.to_hex()),
        }
    }

    fn parse(text: &str) -> Option<Place> {
        let mut parts = text.split('=');
        // No claim has place 0.
        let number = parts.next()?.parse().ok().filter(|number| (1..=LAST_PLACE).contains(number))?;
        let fifo = match (parts.next(), parts.next()) {
            (None, _) => None,
            (Some(place), Some(id)) => {
                let place = place.parse().ok().filter(|place| *place <= LAST_PLACE)?;
                Some((place, ClaimId::from_hex(id)?))
            }
            (Some(_), None) => return None,
        };
        parts.next().is_none().then_some(Place { number, fifo })
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Moment, Note, Share};

    use super::*;

    fn entry(id: u8) -> Entry {
        Entry {
            id: ClaimId::from_bytes([id; 16]),
            share: Share::MUTEX,
            granted: None,
            until: Moment::NEVER,
            since: Moment::START,
            beats: 0,
            note: Note::default(),
        }
    }

    #[test]
    fn places_read_back_with_the_fifo_of_another_name() {
        let entries = [entry(1), entry(2)];
        let mut places = Places::default();
        assert_eq!(Places::parse(&places.text(&[]), &[]).unwrap().last(), None);
        places.insert(entries[0].id, 7);
        places.insert(entries[1].id, 8);
        let own = places.name_of(&entries[1]);
        let fifo = FifoName { place: 3, share: Share::MUTEX, id: ClaimId::from_bytes([9; 16]) };
        places.lives_by(entries[0].id, &fifo);
        let read = Places::parse(&places.text(&entries), &entries).unwrap();
        assert_eq!([read.name_of(&entries[0]), read.name_of(&entries[1])], [fifo, own]);
        assert_eq!(read.last(), Some(8));
    }

    /// A release from before FIFOs kept their names parses each place as a number.
    #[test]
    fn place_with_a_fifo_of_another_name_is_no_number() {
        let mut places = Places::default();
        places.insert(entry(1).id, 7);
        places.lives_by(entry(1).id, &FifoName { place: 3, share: Share::MUTEX, id: entry(9).id });
        assert!(places.text(&[entry(1)]).parse::<u64>().is_err());
        for bad in [
            "",
            "x",
            "0",
            "0=3=09090909090909090909090909090909",
            "7=",
            "7=3",
            "7=3=x",
            "7=3=09=1",
            "7,8",
            "18446744073709551615",
        ] {
            assert!(Places::parse(bad, &[entry(1)]).is_none(), "{bad}");
        }
    }
}
