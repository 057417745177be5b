//! Since when this observer has seen which claim in which state, for stores without a clock that can be used.
//!
//! Ground rules: counted on the local clock only. A claim whose state changed is seen anew. Forgetting
//! costs one more span of waiting behind a dead claim, and nothing else, so the memory may be bounded.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use leasehold_core::{ClaimId, Entry, Fence, Moment, Resource};

/// The memory of one client.
#[derive(Debug, Default)]
pub(crate) struct ObservedClaims(Mutex<HashMap<Resource, HashMap<ClaimId, Observation>>>);

#[derive(Clone, Copy, Debug)]
struct Observation {
    state: State,
    first: Moment,
}

/// State of a claim, which each sign of life and each call changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    granted: Option<Fence>,
    beats: u64,
    span: Moment,
}

impl State {
    fn of(entry: &Entry) -> State {
        State { granted: entry.granted, beats: entry.beats, span: entry.until }
    }
}

impl ObservedClaims {
    /// Records these claims of a resource, as their text says, and answers since when each has been as it is.
    ///
    /// `now` must be taken after the text had arrived: a claim is not dead before it was seen for its whole
    /// span.
    pub(crate) fn observe(&self, resource: &Resource, entries: &[Entry], now: Moment) -> Vec<Moment> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.is_empty() {
            // The others have left, so nothing of the resource is worth its memory.
            seen.remove(resource);
            return Vec::new();
        }
        if seen.len() >= MAX_RESOURCES && !seen.contains_key(resource) {
            seen.clear();
        }
        let old = seen.entry(resource.clone()).or_default();
        let present: HashMap<ClaimId, Observation> = entries
            .iter()
            .map(|entry| {
                let state = State::of(entry);
                let known = old.get(&entry.id).filter(|known| known.state == state);
                let first = known.map_or(now, |known| known.first);
                (entry.id, Observation { state, first })
            })
            .collect();
        let since =
            entries.iter().map(|entry| present.get(&entry.id).map_or(now, |seen| seen.first)).collect();
        *old = present;
        since
    }
}

/// Resources whose claims are remembered.
const MAX_RESOURCES: usize = 100_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::{Note, Share};

    use super::*;

    #[test]
    fn what_is_seen_is_remembered_for_a_bounded_number_of_resources() {
        let observed = ObservedClaims::default();
        let entry = Entry {
            id: ClaimId::from_bytes([1; 16]),
            share: Share::MUTEX,
            granted: Some(Fence::new(1, 1, 0)),
            until: Moment::START.after(Duration::from_secs(1)),
            since: Moment::START,
            beats: 0,
            note: Note::default(),
        };
        let count = || observed.0.lock().unwrap().len();
        let see = |name: usize, now| {
            let at = Resource::new(&name.to_string()).unwrap();
            observed.observe(&at, std::slice::from_ref(&entry), Moment::from_millis(now))
        };
        for name in 0..MAX_RESOURCES {
            assert_eq!(see(name, 5), [Moment::from_millis(5)]);
        }
        assert_eq!(count(), MAX_RESOURCES);
        assert_eq!(see(0, 7), [Moment::from_millis(5)], "it is known");
        assert_eq!(see(MAX_RESOURCES, 7), [Moment::from_millis(7)], "one more is new");
        assert!(count() <= MAX_RESOURCES);
        assert_eq!(see(MAX_RESOURCES, 8), [Moment::from_millis(7)]);
        let last = Resource::new(&MAX_RESOURCES.to_string()).unwrap();
        assert_eq!(observed.observe(&last, &[], Moment::from_millis(9)), []);
        assert_eq!(count(), 0, "a resource without claims is forgotten");
    }
}
