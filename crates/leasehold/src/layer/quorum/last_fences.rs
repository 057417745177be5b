//! The last fence that this client was granted for each resource.
//!
//! A client that returns to a resource sends it along with the first round. A member that has taken no greater
//! fence takes the next one at once, so the second round is not needed if a majority does. The model `quorum` of
//! the `sim` crate has this as `returns`.
//!
//! Ground rules: a fence that is old or forgotten costs nothing but the second round.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{Fence, Resource};

/// The fences, of a limited number of resources.
#[derive(Debug, Default)]
pub(super) struct LastFences(Mutex<HashMap<Resource, Fence>>);

impl LastFences {
    /// Returns the last fence of the resource, if it is known.
    pub(super) fn get(&self, resource: &Resource) -> Option<Fence> {
        self.fences().get(resource).copied()
    }

    /// Notes a fence that was granted.
    pub(super) fn set(&self, resource: &Resource, fence: Fence) {
        let mut fences = self.fences();
        if fences.len() >= MAX && !fences.contains_key(resource) {
            // A client of so many resources returns to few of them soon.
            fences.clear();
        }
        fences.insert(resource.clone(), fence);
    }

    fn fences(&self) -> MutexGuard<'_, HashMap<Resource, Fence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most resources of which the fence is kept.
const MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_of_many_resources_take_bounded_memory() {
        let (fences, fence) = (LastFences::default(), Fence::new(1, 1, 0));
        for n in 0..3 * MAX {
            fences.set(&Resource::new(&format!("job {n}")).unwrap(), fence);
        }
        assert_eq!(fences.fences().len(), MAX, "it is cleared for another one alone");
        fences.set(&Resource::new(&format!("job {}", 2 * MAX)).unwrap(), fence);
        assert_eq!(fences.fences().len(), MAX, "this one is known");
        let last = Resource::new(&format!("job {}", 3 * MAX - 1)).unwrap();
        assert_eq!(fences.get(&last), Some(fence));
    }
}
