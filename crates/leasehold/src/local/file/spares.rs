//! The files that released claims leave open for the next claim of this process on the same resource.
//!
//! Ground rules: a spare holds nothing. Its FIFO is not locked, so for every other process it is the leftover
//! of a dead claim, which anyone may remove. Names that are used once leave nothing open, and no more is
//! open than a small part of the descriptors that the process may have.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::Resource;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::kept_dir::KeptDir;
use super::local_claims::Life;

/// The sign of life of a released claim, not locked, and the open files of its resource.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) life: Life,
    pub(super) kept: KeptDir,
}

/// The spares of one backend, at most one for each resource.
#[derive(Debug)]
pub(super) struct Spares {
    spares: Mutex<Table>,
    /// One permit for each resource of which something is kept open, by a claim or by a spare.
    permits: Arc<Semaphore>,
    /// Hashes of names that were used lately, each in the slot of its remainder.
    recent: Box<[AtomicU64]>,
    hashing: RandomState,
}

#[derive(Debug, Default)]
struct Table {
    by_resource: HashMap<Resource, (Spare, u64)>,
    /// Counts what was put in, so that the oldest is known.
    count: u64,
}

impl Spares {
    /// Creates a table of so many spares; with none, nothing is ever kept.
    pub(super) fn new(most: usize) -> Spares {
        Spares {
            spares: Mutex::default(),
            permits: Arc::new(Semaphore::new(most)),
            recent: (0..RECENT).map(|_| AtomicU64::new(0)).collect(),
            hashing: RandomState::new(),
        }
    }

    /// Allows to keep something open of a resource that this process has used lately.
    pub(super) fn permit(&self, resource: &Resource) -> Option<OwnedSemaphorePermit> {
        let hash = self.hashing.hash_one(resource).max(1);
        let slot = usize::try_from(hash).unwrap_or_default() % RECENT;
        // Another name in the slot only means that keeping begins one use later.
        if self.recent[slot].swap(hash, Ordering::Relaxed) != hash {
            return None;
        }
        let permit = || self.permits.clone().try_acquire_owned().ok();
        permit().or_else(|| {
            drop(self.take_oldest()?);
            permit()
        })
    }

    pub(super) fn take(&self, resource: &Resource) -> Option<Spare> {
        self.table().by_resource.remove(resource).map(|(spare, _)| spare)
    }

    pub(super) fn put(&self, resource: &Resource, spare: Spare) {
        let replaced = {
            let mut table = self.table();
            table.count += 1;
            let count = table.count;
            table.by_resource.insert(resource.clone(), (spare, count))
        };
        // Outside of the mutex: it removes a file.
        drop(replaced);
    }

    fn take_oldest(&self) -> Option<Spare> {
        let mut table = self.table();
        let oldest = table.by_resource.iter().min_by_key(|(_, (_, count))| *count)?.0.clone();
        table.by_resource.remove(&oldest).map(|(spare, _)| spare)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of names that are known as used lately.
const RECENT: usize = 1024;
