//! Joins many callers of one process into one flight.
//!
//! Ground rules: the first caller loads; the others wait for its result and not for their turn. If it
//! has no result, the next one loads, in the order of arrival. A result that is not kept is only for callers that
//! came before the load began: another client may have invalidated it since. A slot whose turn does not come, or
//! whose value was invalidated here, is left to those that are in it.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::Resource;
use leasehold_machine::Process;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, watch};

use super::{FlightOutcome, ValueSource};
use crate::error::{Error, Result};

/// All flights of one client. A fork neither locks nor drops what is in them: another thread may have locked it.
#[derive(Debug)]
pub(crate) struct Flights {
    /// The process of the client.
    process: Process,
    /// The slots, each with the number of its seats.
    slots: Mutex<HashMap<Key, (usize, Arc<Slot>)>>,
}

/// A key, and the number of its cache: zero is the store of the client.
type Key = (Resource, usize);

/// The state that the callers of one key share.
#[derive(Debug)]
pub(super) struct Slot {
    turn: AsyncMutex<()>,
    /// The number of callers that have joined so far.
    joined: AtomicU64,
    published: watch::Sender<Option<Published>>,
    /// A task of this process has it loaded in the background.
    pub(super) refreshing: AtomicBool,
}

/// The result of one caller for the others.
#[derive(Clone, Debug)]
struct Published {
    result: Result<FlightOutcome>,
    /// It is for the callers with a lower number.
    below: u64,
}

/// The part of one caller in a slot. The last one removes the slot.
#[derive(Debug)]
pub(super) struct SlotRef {
    flights: Arc<Flights>,
    key: Key,
    /// The number of the caller, in the order of arrival.
    number: u64,
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

impl Default for Flights {
    fn default() -> Self {
        Flights { process: Process::this(), slots: Mutex::default() }
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

impl Flights {
    /// Joins the callers of a key.
    ///
    /// # Errors
    /// `Closed` in a fork, in which the task that has the turn does not exist.
    pub(super) fn join(self: &Arc<Self>, key: Key) -> Result<SlotRef> {
        if !self.process.is_this() {
            return Err(Error::closed("load").on(&key.0));
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || {
            let (turn, joined, refreshing) =
                (AsyncMutex::default(), AtomicU64::new(0), AtomicBool::default());
            Arc::new(Slot { turn, joined, published: watch::Sender::new(None), refreshing })
        };
        let (callers, slot) = slots.entry(key.clone()).or_insert_with(|| (0, fresh()));
        *callers += 1;
        let slot = slot.clone();
        let number = slot.joined.fetch_add(1, Ordering::SeqCst);
        drop(slots);
        Ok(SlotRef { flights: self.clone(), key, number, slot })
    }

    /// Leaves the slot of a key to those that are in it: callers that join from here on have another one.
    pub(super) fn abandon(&self, key: &Key) {
        if !self.process.is_this() {
            return;
        }
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

impl SlotRef {
    /// Waits for the turn, or for the result of another caller, until `limit` ends.
    pub(super) async fn wait_turn_or_result(&self, limit: impl Future<Output = ()>) -> JoinedFlight<'_> {
        let mut published = self.slot.published.subscribe();
        let (mut turn, mut limit) = (pin!(self.slot.turn.lock()), pin!(limit));
        loop {
            tokio::select! {
                biased;
                Ok(()) = published.changed() => {
                    let found = published.borrow_and_update().clone();
                    if let Some(found) = found.filter(|found| self.number < found.below) {
                        return JoinedFlight::Finished(found.result);
                    }
                }
                turn = &mut turn => return JoinedFlight::Turn(turn),
                () = &mut limit => return JoinedFlight::Overdue,
            }
        }
    }

    /// Returns the number that is above those of all callers so far.
    pub(super) fn joined(&self) -> u64 {
        self.slot.joined.load(Ordering::SeqCst)
    }

    /// Leaves the slot to those that are in it: callers that join from here on have another one.
    pub(super) fn abandon(&self) {
        if !self.flights.process.is_this() {
            return;
        }
        let mut slots = self.flights.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.get(&self.key).is_some_and(|(_, slot)| Arc::ptr_eq(slot, &self.slot)) {
            slots.remove(&self.key);
        }
    }

    /// Passes a value to the callers of this process that wait for it; one that is not kept only to those with a
    /// number below `began`, which came before it was loaded. For them another caller loaded it.
    pub(super) fn publish(&self, loaded: &FlightOutcome, began: u64) {
        let (origin, below) = match loaded.origin {
            ValueSource::Loaded => (ValueSource::Kept, u64::MAX),
            ValueSource::NotKept => (ValueSource::NotKept, began),
            origin => (origin, u64::MAX),
        };
        let result = Ok(FlightOutcome { value: loaded.value.clone(), origin });
        self.slot.published.send_replace(Some(Published { result, below }));
    }

    /// Reports a failure of the store to all callers of this process that wait.
    pub(super) fn fail(&self, error: &Error) {
        let failed = Published { result: Err(error.clone()), below: u64::MAX };
        self.slot.published.send_replace(Some(failed));
    }
}

impl Drop for SlotRef {
    fn drop(&mut self) {
        if !self.flights.process.is_this() {
            // The drop of the slot would lock as well.
            std::mem::forget(self.slot.clone());
            return;
        }
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
            let callers = [(), ()].map(|()| flights.join(key.clone()).unwrap());
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
