//! Claims whose end could not be confirmed, until a server says that they are gone.
//!
//! Each has its own pauses, so that one whose end fails again and again delays no other. An end that
//! the servers refuse is tried less often: a person has to repair something first.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Backoff, Claim, ClaimId, Moment};
use tokio::sync::Notify;

/// Abandoned claims that may still exist.
#[derive(Default)]
pub(crate) struct Leftovers {
    claims: Mutex<HashMap<ClaimId, Leftover>>,
    pub(crate) added: Arc<Notify>,
}

struct Leftover {
    claim: Claim,
    failed_as: EndFailure,
    backoff: Backoff,
    due: Moment,
}

/// The way in which an attempt to end a claim failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EndFailure {
    /// No server was reached, or none answered.
    Transient,
    /// It cannot succeed before something is repaired.
    Refused,
}

impl Leftovers {
    /// Records a failed attempt to end a claim, which is due again after a pause. Returns `true` if it is the
    /// first that was refused.
    pub(crate) fn failed(&self, claim: &Claim, failed_as: EndFailure, now: Moment, chance: u32) -> bool {
        let mut claims = self.lock();
        let former = claims.remove(&claim.id).filter(|former| former.failed_as == failed_as);
        let is_first = former.is_none();
        let mut backoff = former.map_or_else(|| failed_as.pauses(), |former| former.backoff);
        let due = now.after(backoff.failed(chance));
        claims.insert(claim.id, Leftover { claim: claim.clone(), failed_as, backoff, due });
        drop(claims);
        self.added.notify_one();
        is_first && failed_as == EndFailure::Refused
    }

    pub(crate) fn remove(&self, id: ClaimId) {
        self.lock().remove(&id);
    }

    /// Returns so many of those that are due, those that have waited longest first.
    pub(crate) fn due(&self, now: Moment, count: usize) -> Vec<Claim> {
        let claims = self.lock();
        let mut due: Vec<_> = claims.values().filter(|leftover| leftover.due <= now).collect();
        due.sort_unstable_by_key(|leftover| leftover.due);
        due.into_iter().take(count).map(|leftover| leftover.claim.clone()).collect()
    }

    /// Returns the time at which the next one is due.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        self.lock().values().map(|leftover| leftover.due).min()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Leftover>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EndFailure {
    fn pauses(self) -> Backoff {
        match self {
            EndFailure::Transient => Backoff::new(RETRY_FIRST, RETRY_LAST),
            EndFailure::Refused => Backoff::new(REFUSED_FIRST, REFUSED_LAST),
        }
    }
}

impl fmt::Debug for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leftovers({} claims)", self.lock().len())
    }
}

impl Drop for Leftovers {
    /// Wakes the background once more, to find that the client is gone.
    fn drop(&mut self) {
        self.added.notify_one();
    }
}

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(2);
const REFUSED_FIRST: Duration = Duration::from_secs(1);
const REFUSED_LAST: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use leasehold_core::{Resource, Share};

    use super::*;

    fn claim(n: u8) -> Claim {
        let id = ClaimId::from_bytes([n; 16]);
        Claim::new(id, Resource::new("job").unwrap(), Share::MUTEX, Duration::from_secs(9))
    }

    fn due(leftovers: &Leftovers, now: Moment, count: usize) -> Vec<ClaimId> {
        leftovers.due(now, count).iter().map(|claim| claim.id).collect()
    }

    #[test]
    fn one_that_fails_again_and_again_keeps_no_other_from_its_turn() {
        let (leftovers, mut now) = (Leftovers::default(), Moment::START);
        for n in 1..=9 {
            leftovers.failed(&claim(n), EndFailure::Transient, now, u32::MAX);
        }
        assert!(due(&leftovers, now, 9).is_empty());
        let mut tried = Vec::new();
        while tried.len() < 9 {
            now = now.max(leftovers.next_due().unwrap());
            for claim in leftovers.due(now, 2) {
                leftovers.failed(&claim, EndFailure::Transient, now, u32::MAX);
                assert!(!tried.contains(&claim.id), "{claim:?} has a second turn before others have one");
                tried.push(claim.id);
            }
        }
        for n in 1..=9 {
            leftovers.remove(claim(n).id);
        }
        assert_eq!(leftovers.next_due(), None);
    }

    #[test]
    fn a_refused_end_has_longer_pauses_and_is_reported_once() {
        let (leftovers, now) = (Leftovers::default(), Moment::START);
        let one = claim(1);
        assert!(!leftovers.failed(&one, EndFailure::Transient, now, u32::MAX));
        assert_eq!(due(&leftovers, now.after(RETRY_FIRST), 9), [one.id]);
        assert!(leftovers.failed(&one, EndFailure::Refused, now, u32::MAX));
        assert_eq!(leftovers.next_due(), Some(now.after(REFUSED_FIRST)));
        for _ in 0..9 {
            assert!(!leftovers.failed(&one, EndFailure::Refused, now, u32::MAX));
        }
        assert_eq!(leftovers.next_due(), Some(now.after(REFUSED_LAST)));
        leftovers.failed(&one, EndFailure::Transient, now, u32::MAX);
        assert_eq!(leftovers.next_due(), Some(now.after(RETRY_FIRST)), "it begins anew");
    }
}
