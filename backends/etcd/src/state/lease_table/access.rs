//! A client's access to its lease table: one user at a time, and losses that are found are reported
//! afterwards.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{LossCause, LossTrigger};

use super::LeaseTable;

/// The lease table for one of its users. Dropping it unlocks the table, and then reports the losses that
/// were found: a listener may block, or need the table.
#[derive(Debug)]
pub(crate) struct Access<'a> {
    // Dropped in this order.
    table: MutexGuard<'a, LeaseTable>,
    losses: Losses,
}

/// The losses that are reported when it is dropped.
#[derive(Debug, Default)]
struct Losses(Vec<(LossTrigger, LossCause)>);

impl<'a> Access<'a> {
    /// Waits for the lease table.
    pub(crate) fn to(table: &'a Mutex<LeaseTable>) -> Access<'a> {
        // No invariant spans a panic that does not fail the whole call.
        let table = table.lock().unwrap_or_else(PoisonError::into_inner);
        Access { table, losses: Losses::default() }
    }
}

impl Deref for Access<'_> {
    type Target = LeaseTable;

    fn deref(&self) -> &LeaseTable {
        &self.table
    }
}

impl DerefMut for Access<'_> {
    fn deref_mut(&mut self) -> &mut LeaseTable {
        &mut self.table
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        self.losses.0 = std::mem::take(&mut self.table.losses);
    }
}

impl Drop for Losses {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(trigger, cause)| trigger.fire(cause));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn loss_listener_may_access_the_lease_table() {
        let shared = Arc::new(Mutex::new(LeaseTable::default()));
        let (trigger, signal) = LossTrigger::new();
        let needs = shared.clone();
        let (sender, received) = std::sync::mpsc::channel();
        let _listening = signal.on_loss(move |_| _ = sender.send(needs.try_lock().is_ok()));
        let mut access = Access::to(&shared);
        access.table.losses.push((trigger, LossCause::Gone));
        assert_eq!(signal.cause(), None);
        drop(access);
        assert_eq!((signal.cause(), received.try_recv()), (Some(LossCause::Gone), Ok(true)));
    }
}
