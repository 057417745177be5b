//! Which registers may have a write of this client that too few replicas have.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::Resource;

/// The registers whose last write by this client is of unknown outcome. What is found there may be that write, so
/// replicas have to confirm it before it is reported.
#[derive(Debug, Default)]
pub(crate) struct Doubts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    count: u64,
    doubts: HashMap<Resource, u64>,
}

impl Doubts {
    /// Returns the number of the last doubt about a register, if there is one.
    pub(crate) fn of(&self, at: &Resource) -> Option<u64> {
        self.lock().doubts.get(at).copied()
    }

    /// Begins a doubt: a write was not confirmed.
    pub(crate) fn begin(&self, at: &Resource) {
        let known = &mut *self.lock();
        if known.doubts.len() >= MAX_DOUBTS
            && let Some(any) = known.doubts.keys().next().cloned()
        {
            known.doubts.remove(&any);
        }
        known.count += 1;
        known.doubts.insert(at.clone(), known.count);
    }

    /// Ends a doubt: what was written before was confirmed. A later one about the same register stays.
    pub(crate) fn end(&self, at: &Resource, number: u64) {
        let known = &mut *self.lock();
        if known.doubts.get(at) == Some(&number) {
            known.doubts.remove(at);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most doubts that are kept. Each is resolved, or given up, within seconds.
const MAX_DOUBTS: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_doubt_outlives_the_end_of_an_earlier_one() {
        let (doubts, at) = (Doubts::default(), Resource::new("job").unwrap());
        assert_eq!(doubts.of(&at), None);
        doubts.begin(&at);
        let first = doubts.of(&at).unwrap();
        doubts.begin(&at);
        doubts.end(&at, first);
        let second = doubts.of(&at).unwrap();
        assert_ne!(first, second);
        doubts.end(&at, second);
        assert_eq!(doubts.of(&at), None);
    }
}
