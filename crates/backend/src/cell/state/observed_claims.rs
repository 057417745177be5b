//! Until when this observer takes which claim for alive, for stores without a clock that can be used.
//!
//! Ground rules: counted on the local clock only. Each look at a claim is a bound for its end: the span that the text
//! names, from the look on. The least bound counts, for as long as the claim gives no sign of life. Forgetting
//! costs one more span of waiting behind a dead claim, and nothing else, so the memory may be bounded. It would cost
//! a span again and again if all were forgotten at once, so what was looked at least recently is forgotten first.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{ClaimId, Entry, Fence, Moment, Resource};

/// The claims that one client has seen.
#[derive(Debug, Default)]
pub(crate) struct ObservedClaims(Mutex<Generations>);

/// The claims of the resources, in two generations: what is looked at moves to the recent one.
#[derive(Debug, Default)]
struct Generations {
    recent: HashMap<Resource, Observations>,
    older: HashMap<Resource, Observations>,
}

type Observations = HashMap<ClaimId, Observation>;

#[derive(Clone, Copy, Debug)]
struct Observation {
    granted: Option<Fence>,
    beats: u64,
    /// The span that the text named, since [`Moment::START`].
    span: Moment,
    /// The end of the claim without another sign of life, by the local clock.
    end: Moment,
}

impl Observation {
    /// Returns the observation of a claim as its text has it, after what was known of it before.
    fn of(entry: &Entry, known: Option<&Observation>, now: Moment) -> Observation {
        let Entry { granted, beats, until: span, .. } = *entry;
        // Without a sign of life a span only becomes shorter. A longer one is that of a claim that left and returned.
        let is_silent =
            |known: &&Observation| known.granted == granted && known.beats == beats && span <= known.span;
        let end = now.after(Duration::from_nanos(span.as_nanos()));
        let end = known.filter(is_silent).map_or(end, |known| end.min(known.end));
        Observation { granted, beats, span, end }
    }
}

impl ObservedClaims {
    /// Records these claims of a resource, as their text says, and answers when each ends without another sign of
    /// life.
    ///
    /// `now` must be taken after the text had arrived, and each span must cover its claim from the moment of the
    /// write: then no claim is judged dead early.
    pub(crate) fn observe(&self, resource: &Resource, entries: &[Entry], now: Moment) -> Vec<Moment> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let old = seen.remove(resource);
        if entries.is_empty() {
            // The others have left, so nothing of the resource is worth its memory.
            return Vec::new();
        }
        let known = |id| old.as_ref().and_then(|old| old.get(id));
        let present: Vec<(ClaimId, Observation)> =
            entries.iter().map(|entry| (entry.id, Observation::of(entry, known(&entry.id), now))).collect();
        let ends = present.iter().map(|(_, observation)| observation.end).collect();
        seen.insert(resource, present.into_iter().collect());
        ends
    }
}

impl Generations {
    fn remove(&mut self, resource: &Resource) -> Option<Observations> {
        self.recent.remove(resource).or_else(|| self.older.remove(resource))
    }

    fn insert(&mut self, resource: &Resource, present: Observations) {
        if self.recent.len() >= MAX_RESOURCES {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(resource.clone(), present);
    }
}

/// Resources whose claims are remembered in each generation.
const MAX_RESOURCES: usize = 100_000;

#[cfg(test)]
mod tests {
    use leasehold_core::{Note, Share};

    use super::*;

    fn at(name: usize) -> Resource {
        Resource::new(&name.to_string()).unwrap()
    }

    fn entry(span: u64, beats: u64) -> Entry {
        Entry {
            id: ClaimId::from_bytes([1; 16]),
            share: Share::MUTEX,
            granted: Some(Fence::new(1, 1, 0)),
            until: Moment::from_millis(span),
            since: Moment::START,
            beats,
            note: Note::default(),
        }
    }

    fn see(observed: &ObservedClaims, name: usize, entry: &Entry, now: u64) -> u64 {
        let ends = observed.observe(&at(name), std::slice::from_ref(entry), Moment::from_millis(now));
        ends[0].as_nanos() / 1_000_000
    }

    #[test]
    fn least_bound_counts_until_the_next_sign_of_life() {
        let observed = ObservedClaims::default();
        assert_eq!(see(&observed, 1, &entry(1_000, 0), 5), 1_005);
        assert_eq!(see(&observed, 1, &entry(1_000, 0), 400), 1_005);
        assert_eq!(see(&observed, 1, &entry(700, 0), 500), 1_005, "counted from its own look on");
        assert_eq!(see(&observed, 1, &entry(300, 0), 600), 900, "another had seen it for longer");
        assert_eq!(see(&observed, 1, &entry(300, 0), 700), 900);
        assert_eq!(see(&observed, 1, &entry(1_000, 0), 800), 1_800, "it left and returned");
        assert_eq!(see(&observed, 1, &entry(1_000, 1), 900), 1_900);
        assert_eq!(see(&observed, 1, &entry(500, 2), 950), 1_450);
        let granted = Entry { granted: Some(Fence::new(1, 2, 0)), ..entry(500, 2) };
        assert_eq!(see(&observed, 1, &granted, 990), 1_490);
    }

    #[test]
    fn what_is_looked_at_is_remembered_though_the_memory_is_bounded() {
        let (observed, dead) = (ObservedClaims::default(), entry(1_000, 0));
        let count = || {
            let seen = observed.0.lock().unwrap();
            seen.recent.len() + seen.older.len()
        };
        assert_eq!(see(&observed, 0, &dead, 5), 1_005);
        for name in 1..=4 * MAX_RESOURCES {
            see(&observed, name, &dead, 6);
            if name % 10_000 == 0 {
                assert_eq!(see(&observed, 0, &dead, 7), 1_005, "forgotten after {name} others");
            }
        }
        assert!(count() <= 2 * MAX_RESOURCES);
        assert_eq!(see(&observed, 1, &dead, 8), 1_008, "not looked at for long");
        assert_eq!(see(&observed, 4 * MAX_RESOURCES, &dead, 8), 1_006);
        let before = count();
        assert_eq!(observed.observe(&at(0), &[], Moment::from_millis(9)), []);
        assert_eq!(count(), before - 1, "a resource without claims is forgotten");
    }
}
