//! Joins many callers of one process into one flight.
//!
//! Ground rules: the first caller loads; the others wait for its result and not for their turn. If it
//! has no result, the next one loads, in the order of arrival. A slot whose turn does not come, or whose value
//! was invalidated, is left to those that are in it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::Resource;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, watch};

use super::{FlightOutcome, ValueSource};
use crate::error::{Error, Result};

/// All flights of one client.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// The slots, each with the number of its seats.
    slots: Mutex<HashMap<Key, (usize, Arc<Slot>)>>,
}

/// A key, and the number of its cache: zero is the store of the client.
type Key = (Resource, usize);

/// The state that the callers of one key share.
#[derive(Debug)]
pub(super) struct Slot {
    turn: AsyncMutex<()>,
    published: watch::Sender<Option<Result<FlightOutcome>>>,
    /// A task of this process has it loaded in the background.
    pub(super) refreshing: AtomicBool,
}

/// The part of one caller in a slot. The last one removes the slot.
#[derive(Debug)]
pub(super) struct SlotRef {
    flights: Arc<Flights>,
    key: Key,
    pub(super) slot: Arc<Slot>,
}

/// The way in which a caller gets the value.
pub(super) enum JoinedFlight<'a> {
    /// It is the turn of this caller to load.
    Turn(MutexGuard<'a, ()>),
    /// Another caller loaded it, or found that the store does not answer.
    Finished(Result<FlightOutcome>),
    /// The time to wait is over.
    Overdue,
}

impl Flights {
    pub(super) fn join(self: &Arc<Self>, key: Key) -> SlotRef {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || {
            let published = watch::Sender::new(None);
            Arc::new(Slot { turn: AsyncMutex::default(), published, refreshing: AtomicBool::default() })
        };
        let (callers, slot) = slots.entry(key.clone()).or_insert_with(|| (0, fresh()));
        *callers += 1;
        let slot = slot.clone();
        drop(slots);
        SlotRef { flights: self.clone(), key, slot }
    }

    /// Leaves the slot of a key to those that are in it: callers that join from here on have another one.
    pub(super) fn abandon(&self, key: &Key) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

impl SlotRef {
    /// Waits for the turn, or for the result of another caller, until `limit` ends.
    pub(super) async fn wait_turn_or_result(&self, limit: impl Future<Output = ()>) -> JoinedFlight<'_> {
        let mut published = self.slot.published.subscribe();
        let finished = tokio::select! {
            biased;
            Ok(()) = published.changed() => published.borrow_and_update().clone(),
            turn = self.slot.turn.lock() => return JoinedFlight::Turn(turn),
            () = limit => return JoinedFlight::Overdue,
        };
        match finished {
            Some(outcome) => JoinedFlight::Finished(outcome),
            // No caller ever returns without a result; a turn is the only other outcome.
            None => JoinedFlight::Turn(self.slot.turn.lock().await),
        }
    }

    /// Leaves the slot to those that are in it: callers that join from here on have another one.
    pub(super) fn abandon(&self) {
        let mut slots = self.flights.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.get(&self.key).is_some_and(|(_, slot)| Arc::ptr_eq(slot, &self.slot)) {
            slots.remove(&self.key);
        }
    }

    /// Passes the loaded value to all callers of this process that wait for it. For them
    /// another caller loaded it.
    pub(super) fn publish(&self, loaded: &FlightOutcome) {
        let origin = match loaded.origin {
            ValueSource::Loaded => ValueSource::Kept,
            origin => origin,
        };
        self.slot.published.send_replace(Some(Ok(FlightOutcome { value: loaded.value.clone(), origin })));
    }

    /// Reports a failure of the store to all callers of this process that wait.
    pub(super) fn fail(&self, error: &Error) {
        self.slot.published.send_replace(Some(Err(error.clone())));
    }
}

impl Drop for SlotRef {
    fn drop(&mut self) {
        let mut slots = self.flights.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // Counted here, and not read from the slot's own count: that falls only after the map is
        // unlocked, and two callers that leave together would each see the other.
        if let Some((callers, slot)) = slots.get_mut(&self.key)
            && Arc::ptr_eq(slot, &self.slot)
        {
            *callers -= 1;
            if *callers == 0 {
                slots.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_that_leave_together_leave_no_slot() {
        let flights = Arc::new(Flights::default());
        let key = (Resource::new("a").unwrap(), 0);
        for _ in 0..2_000 {
            let callers = [flights.join(key.clone()), flights.join(key.clone())];
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for slot_ref in callers {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        drop(slot_ref);
                    });
                }
            });
            assert!(flights.slots.lock().unwrap().is_empty());
        }
    }
}
