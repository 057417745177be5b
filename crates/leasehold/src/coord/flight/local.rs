//! Many callers of one process make one flight.
//!
//! Ground rules: whoever comes first goes, in the order of coming; the others wait for what he brings and not for their turn,
//! and the next of them goes where he brings nothing.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::Resource;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, watch};

/// All flights of one client.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
}

/// A key, and which cache it is in: zero is the store of the client.
type Key = (Resource, usize);

/// What the callers of one key share.
#[derive(Debug)]
pub(super) struct Slot {
    turn: AsyncMutex<()>,
    brought: watch::Sender<Option<Option<Vec<u8>>>>,
    /// Somebody of this process has it loaded behind the callers' backs.
    pub(super) renewing: AtomicBool,
}

/// One caller's part in a slot. The last one takes it away.
#[derive(Debug)]
pub(super) struct Seat {
    flights: Arc<Flights>,
    key: Key,
    pub(super) slot: Arc<Slot>,
}

/// How a caller comes to the value.
pub(super) enum Boarded<'a> {
    /// It is his turn to go.
    Turn(MutexGuard<'a, ()>),
    /// Another brought it.
    Brought(Option<Vec<u8>>),
}

impl Flights {
    pub(super) fn seat(self: &Arc<Self>, key: Key) -> Seat {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || {
            let brought = watch::Sender::new(None);
            Arc::new(Slot { turn: AsyncMutex::default(), brought, renewing: AtomicBool::default() })
        };
        let slot = slots.entry(key.clone()).or_insert_with(fresh).clone();
        drop(slots);
        Seat { flights: self.clone(), key, slot }
    }
}

impl Seat {
    /// Waits for the turn, or for what another brings meanwhile.
    pub(super) async fn board(&self) -> Boarded<'_> {
        let mut brought = self.slot.brought.subscribe();
        let told = tokio::select! {
            biased;
            Ok(()) = brought.changed() => brought.borrow_and_update().clone(),
            turn = self.slot.turn.lock() => return Boarded::Turn(turn),
        };
        match told {
            Some(value) => Boarded::Brought(value),
            // Nobody ever comes back without having brought something; a turn is what is left.
            None => Boarded::Turn(self.slot.turn.lock().await),
        }
    }

    /// Gives the value to all who wait for it in this process.
    pub(super) fn bring(&self, value: &Option<Vec<u8>>) {
        self.slot.brought.send_replace(Some(value.clone()));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut slots = self.flights.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // The map has one and this seat the other: nobody else is here, and nobody can come while the map is locked.
        if Arc::strong_count(&self.slot) == 2 {
            slots.remove(&self.key);
        }
    }
}
