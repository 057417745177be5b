//! The cells that this client left empty, and their states: they let it return by a change of an existing
//! cell, which a store does with less than a change of a cell that may exist, and together with others.
//!
//! Ground rules: this is a guess that the store proves or refutes. Forgetting costs nothing but the longer
//! way. One that was tried is forgotten, so that a cell which others use is guessed at once for each time
//! that it was left.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use leasehold_core::Resource;

/// The cells that one client left empty, with their versions.
#[derive(Debug, Default)]
pub(crate) struct EmptyCells(Mutex<HashMap<Resource, u64>>);

impl EmptyCells {
    /// Remembers that no claim was in this cell when the client left it, in the state of this version.
    pub(crate) fn remember(&self, resource: &Resource, version: u64) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if left.len() >= MAX_CELLS && !left.contains_key(resource) {
            // Names that are never used again would fill it for good.
            left.clear();
        }
        left.insert(resource.clone(), version);
    }

    /// Returns the version under which it was left empty, and forgets it.
    pub(crate) fn take(&self, resource: &Resource) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(resource)
    }
}

/// Cells that are remembered.
const MAX_CELLS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_returned_once_and_memory_is_bounded() {
        let (left, first) = (EmptyCells::default(), Resource::new("first").unwrap());
        assert_eq!(left.take(&first), None);
        left.remember(&first, 7);
        assert_eq!(left.take(&first), Some(7));
        assert_eq!(left.take(&first), None);
        for n in 0..=MAX_CELLS {
            left.remember(&Resource::new(&n.to_string()).unwrap(), 1);
        }
        assert!(left.0.lock().unwrap().len() <= MAX_CELLS);
        assert!(left.take(&Resource::new(&MAX_CELLS.to_string()).unwrap()).is_some());
    }
}
