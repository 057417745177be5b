//! Registers in the memory of the same store.
//!
//! Ground rules: every change is made under one mutex, which is never held across an await. A waiter
//! listens before it looks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Durability, Failure, Moment, Patience, Put, RegisterPromise, Registered, Registers, Resource, Stamp,
    WaitMode,
};
use tokio::sync::Notify;

use super::MemoryBackend;

/// All registers of one store.
#[derive(Default)]
pub(super) struct Slots {
    slots: Mutex<Shelf>,
    changed: Notify,
}

#[derive(Default)]
struct Shelf {
    slots: HashMap<Resource, Slot>,
    /// The stamp of the last write to any of them.
    last: u64,
    /// The number of registers after the last sweep.
    swept: usize,
}

struct Slot {
    value: Vec<u8>,
    stamp: u64,
    until: Moment,
}

impl Slots {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // No invariant spans a panic: every change is one insertion or removal.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn read(&mut self, at: &Resource, now: Moment) -> Registered {
        if self.slots.get(at).is_some_and(|slot| slot.until <= now) {
            self.slots.remove(at);
        }
        match self.slots.get(at) {
            None => Registered { value: None, stamp: stamp(0), left: None },
            Some(slot) => Registered {
                value: Some(slot.value.clone()),
                stamp: stamp(slot.stamp),
                left: (slot.until != Moment::NEVER).then(|| now.until(slot.until)),
            },
        }
    }

    fn write(&mut self, at: &Resource, put: &Put, now: Moment) -> Stamp {
        let Some(value) = put.value.clone() else {
            self.slots.remove(at);
            return stamp(0);
        };
        self.last += 1;
        let until = put.keep.map_or(Moment::NEVER, |keep| now.after(keep));
        self.slots.insert(at.clone(), Slot { value, stamp: self.last, until });
        self.sweep(now);
        stamp(self.last)
    }

    /// Removes expired values, each time the number has doubled: constant work per write.
    fn sweep(&mut self, now: Moment) {
        if self.slots.len() >= super::store::MIN_SWEEP.max(self.swept * 2) {
            self.slots.retain(|_, slot| slot.until > now);
            self.swept = self.slots.len();
        }
    }
}

#[async_trait]
impl Registers for MemoryBackend {
    fn promise(&self) -> &RegisterPromise {
        if self.polls() { &POLLED } else { &PROMISE }
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        Ok(self.registers.shelf().read(at, self.clock.now()))
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.promise().check(put)?;
        let written = {
            let mut shelf = self.registers.shelf();
            let now = self.clock.now();
            (shelf.read(at, now).stamp == *seen).then(|| shelf.write(at, put, now))
        };
        if written.is_some() {
            self.registers.changed.notify_waiters();
        }
        Ok(written)
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        loop {
            let mut rung = std::pin::pin!(self.registers.changed.notified());
            rung.as_mut().enable();
            let patient = !patience.is_ended() && !self.polls();
            let found = self.read(at).await?;
            if !patient || found.stamp != *seen {
                return Ok(found);
            }
            let until = found.left.unwrap_or(Duration::MAX).min(patience.left());
            tokio::select! {
                () = rung => {}
                () = patience.ended() => {}
                () = tokio::time::sleep(until.clamp(super::MIN_PAUSE, super::MAX_PAUSE)) => {}
            }
        }
    }
}

fn stamp(number: u64) -> Stamp {
    Stamp::new(number.to_string())
}

/// The longest value: enough for a cached page, and no more than other stores can take.
const MAX_BYTES: usize = 512 * 1024;
const PROMISE: RegisterPromise = RegisterPromise {
    max_bytes: MAX_BYTES,
    waiting: WaitMode::Notifies,
    durability: Durability::Strict,
    forgets: true,
};
const POLLED: RegisterPromise = RegisterPromise { waiting: WaitMode::Polls, ..PROMISE };
