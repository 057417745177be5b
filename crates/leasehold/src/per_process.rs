//! Values of which each process has its own, also a fork.
//!
//! Ground rules: a fork has a copy of everything in memory. What a thread of its parent had locked at that moment
//! stays locked in the copy, because the fork does not have this thread. So the process is found before anything is
//! locked, and without a lock.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_machine::process_id;

/// A value of one process, in a row of such values: one for each process of a chain of forks that each use this
/// library.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    /// The id of its process; zero if it is not taken yet.
    process: AtomicU32,
    value: T,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new(value: T) -> PerProcess<T> {
        PerProcess { process: AtomicU32::new(0), value }
    }

    /// Returns the value of this process; `None` if its ancestors took all.
    pub(crate) fn of_this(row: &[PerProcess<T>]) -> Option<&T> {
        PerProcess::of(process_id(), row)
    }

    pub(crate) fn of(process: u32, row: &[PerProcess<T>]) -> Option<&T> {
        let own = row.iter().find(|one| {
            let taken = one.process.compare_exchange(0, process, Ordering::SeqCst, Ordering::SeqCst);
            taken.map_or_else(|owner| owner == process, |_| true)
        });
        own.map(|own| &own.value)
    }
}

/// The number of values in a row.
pub(crate) const CHAIN: usize = 32;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn fork_gets_a_value_that_its_parent_has_not_locked() {
        static ROW: [PerProcess<Mutex<u32>>; 2] = [const { PerProcess::new(Mutex::new(0)) }; 2];
        let own = PerProcess::of_this(&ROW).unwrap();
        let _locked = own.lock().unwrap();
        let fork = process_id() + 1;
        *PerProcess::of(fork, &ROW).unwrap().try_lock().unwrap() = 7;
        assert!(own.try_lock().is_err());
        assert!(std::ptr::eq(own, PerProcess::of_this(&ROW).unwrap()));
        assert_eq!(*PerProcess::of(fork, &ROW).unwrap().try_lock().unwrap(), 7);
        assert!(PerProcess::of(fork + 1, &ROW).is_none(), "the row has two");
    }
}
