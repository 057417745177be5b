//! Registers of the model, right in every way but the defect that they are given.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Clock, Durability, Effect, Failure, FailureKind, Moment, Patience, Put, RegisterPromise, Registered,
    Registers, Resource, Stamp, WaitMode,
};
use tokio::sync::Notify;

use super::{Defect, Model, Store};

/// All registers of one store.
#[derive(Default)]
pub struct Slots {
    slots: Mutex<HashMap<Resource, Slot>>,
    last: Mutex<u64>,
    /// Held from the read to the write.
    deciding: Mutex<()>,
    pub changed: Arc<Notify>,
}

#[derive(Clone)]
struct Slot {
    value: Vec<u8>,
    stamp: Stamp,
    until: Moment,
    /// The value before, and until when a reader of the past still sees it.
    past: Option<(Vec<u8>, Moment)>,
}

impl Store {
    pub fn promise(&self, opened: usize) -> RegisterPromise {
        let differs = self.is(Defect::RegistersDiffer);
        let max_bytes = MAX_BYTES + if differs { opened } else { 0 };
        let promise = RegisterPromise::new(max_bytes, self.profile.waiting, Durability::Strict);
        let promise = if self.is_session() { promise } else { promise.forgets() };
        if self.is(Defect::RemovalsAreAlike) { promise.names_removals() } else { promise }
    }

    fn found(&self, at: &Resource) -> Registered {
        let (at, now) = (self.name(at), self.clock.now());
        let mut slots = self.registers.slots.lock().unwrap();
        if slots.get(&at).is_some_and(|slot| slot.until <= now) {
            slots.remove(&at);
        }
        let Some(slot) = slots.get(&at).cloned() else {
            return Registered { value: None, stamp: Stamp::new("none"), left: None };
        };
        let past = slot.past.filter(|(_, until)| self.is(Defect::ReadsThePast) && now < *until);
        let value = past.map_or(slot.value, |(value, _)| value);
        let value = match self.is(Defect::ReadsText) {
            true => String::from_utf8_lossy(&value).into_owned().into_bytes(),
            false => value,
        };
        let left = (slot.until != Moment::NEVER).then(|| now.until(slot.until));
        let left = left.map(|left| match self.is(Defect::RoundsUpWhatIsLeft) {
            true => Duration::from_millis(left.as_millis().div_ceil(1000) as u64 * 1000),
            false => left,
        });
        Registered { value: Some(value), stamp: slot.stamp, left }
    }

    fn write(&self, at: &Resource, put: &Put) -> Stamp {
        let (at, now) = (self.name(at), self.clock.now());
        let mut slots = self.registers.slots.lock().unwrap();
        let Some(value) = put.value.clone() else {
            slots.remove(&at);
            return Stamp::new("none");
        };
        let mut last = self.registers.last.lock().unwrap();
        *last += 1;
        let stamp = match self.is(Defect::StampNamesTheValue) {
            true => Stamp::new(format!("{value:?}")),
            false => Stamp::new(last.to_string()),
        };
        let keep = put.keep.map(|keep| match self.defect {
            Some(Defect::ForgetsEarly) => keep / 4,
            Some(Defect::NeverForgets) => Duration::MAX / 2,
            _ => keep,
        });
        let until = keep.map_or(Moment::NEVER, |keep| now.after(keep));
        let past = slots.get(&at).map(|slot| (slot.value.clone(), now.after(Duration::from_millis(20))));
        slots.insert(at, Slot { value, stamp: stamp.clone(), until, past });
        stamp
    }

    /// Reads and writes in one step.
    fn swap_at_once(&self, at: &Resource, seen: &Stamp, put: &Put) -> Option<Stamp> {
        let _deciding = self.registers.deciding.lock().unwrap();
        let is_current = self.found(at).stamp == *seen || self.is(Defect::StaleStampsWrite);
        is_current.then(|| self.write(at, put))
    }

    /// Reads, and writes later: in two steps, or by half.
    async fn swap_in_steps(&self, at: &Resource, seen: &Stamp, put: &Put) -> Option<Stamp> {
        if self.found(at).stamp != *seen {
            return None;
        }
        if self.is(Defect::ChecksBeforeItWrites) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let length = put.value.as_ref().map_or(0, Vec::len);
        if self.is(Defect::WritesByHalf) && length > 1 {
            let half = put.value.as_ref().map(|value| value[..length / 2].to_vec());
            self.write(at, &Put { value: half, keep: None });
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Some(self.write(at, put))
    }

    /// Ends a claim of this name, which wrongly takes the register with it.
    pub fn end_register(&self, at: &Resource) {
        if self.is(Defect::RegistersAreLocks) {
            self.registers.slots.lock().unwrap().remove(at);
        }
    }
}

#[async_trait]
impl Registers for Model {
    fn promise(&self) -> &RegisterPromise {
        &self.promise
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        Ok(self.store.found(at))
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        let store = &self.store;
        let refused = |kind| Err(Failure::new(kind, Effect::None, "refused"));
        let length = put.value.as_ref().map_or(0, Vec::len);
        if length > self.promise.max_bytes && !store.is(Defect::TakesAnyLength) {
            return refused(FailureKind::Invalid);
        }
        if put.keep.is_some() && !self.promise.forgets && !store.is(Defect::KeepsInSilence) {
            return refused(FailureKind::Unsupported);
        }
        let in_steps = store.is(Defect::ChecksBeforeItWrites) || store.is(Defect::WritesByHalf);
        let written = match in_steps {
            true => store.swap_in_steps(at, seen, put).await,
            false => store.swap_at_once(at, seen, put),
        };
        let Some(stamp) = written else { return Ok(None) };
        if !store.is(Defect::ChangesInSilence) {
            store.registers.changed.notify_waiters();
        }
        Ok(Some(if store.is(Defect::ReportsAnotherStamp) { Stamp::new("another") } else { stamp }))
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        let (store, changed) = (&self.store, Arc::clone(&self.store.registers.changed));
        let mut past = store.is(Defect::WaitsForTheNextChange);
        loop {
            let mut change = std::pin::pin!(changed.notified());
            if !store.is(Defect::ChecksBeforeItSubscribes) {
                change.as_mut().enable();
            }
            let found = store.found(at);
            if patience.is_ended() && store.is(Defect::StaysBeyondPatience) {
                tokio::time::sleep(Duration::from_secs(4)).await;
            }
            let polls = self.promise.waiting == WaitMode::Polls;
            if polls || patience.is_ended() || (found.stamp != *seen && !past) {
                return Ok(found);
            }
            if store.is(Defect::ChecksBeforeItSubscribes) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                // Only a new one has received nothing yet.
                change.set(changed.notified());
            }
            let silent = store.is(Defect::EndsInSilence);
            let left = found.left.filter(|_| !silent).unwrap_or(Duration::from_secs(3600));
            tokio::select! {
                () = change => past = false,
                () = patience.ended() => {}
                () = tokio::time::sleep(left.max(Duration::from_millis(1))) => {}
            }
        }
    }
}

const MAX_BYTES: usize = 100_000;
