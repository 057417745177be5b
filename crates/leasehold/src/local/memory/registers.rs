//! Registers in the memory of the same store.
//!
//! Ground rules: every change is made under one mutex, which is never held across an await. A waiter
//! registers for changes before it reads.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::changes::{until_changed, within};
use leasehold_core::{
    Durability, Failure, Moment, Patience, Put, RegisterPromise, Registered, Registers, Resource, Stamp,
    WaitMode,
};
use tokio::sync::Notify;

use super::MemoryBackend;

/// All registers of one store.
#[derive(Default)]
pub(super) struct RegisterTable {
    values: Mutex<Values>,
    changed: Notify,
}

#[derive(Default)]
struct Values {
    entries: HashMap<Resource, StoredValue>,
    /// The stamp of the last write to any of them.
    last: u64,
    /// The number of registers after the last sweep.
    swept: usize,
}

struct StoredValue {
    value: Vec<u8>,
    stamp: u64,
    until: Moment,
}

impl RegisterTable {
    fn values(&self) -> MutexGuard<'_, Values> {
        // No invariant spans a panic: every change is one insertion or removal.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Values {
    fn read(&mut self, at: &Resource, now: Moment) -> Registered {
        if self.entries.get(at).is_some_and(|stored| stored.until <= now) {
            self.entries.remove(at);
        }
        match self.entries.get(at) {
            None => Registered { value: None, stamp: stamp(0), left: None },
            Some(stored) => Registered {
                value: Some(stored.value.clone()),
                stamp: stamp(stored.stamp),
                left: (stored.until != Moment::NEVER).then(|| now.until(stored.until)),
            },
        }
    }

    fn write(&mut self, at: &Resource, put: &Put, now: Moment) -> Stamp {
        let Some(value) = put.value.clone() else {
            self.entries.remove(at);
            return stamp(0);
        };
        self.last += 1;
        let until = put.keep.map_or(Moment::NEVER, |keep| now.after(keep));
        self.entries.insert(at.clone(), StoredValue { value, stamp: self.last, until });
        self.sweep(now);
        stamp(self.last)
    }

    /// Removes expired values, each time the number has doubled: constant work per write.
    fn sweep(&mut self, now: Moment) {
        if self.entries.len() >= super::store::MIN_SWEEP.max(self.swept * 2) {
            self.entries.retain(|_, stored| stored.until > now);
            self.swept = self.entries.len();
        }
    }
}

#[async_trait]
impl Registers for MemoryBackend {
    fn promise(&self) -> &RegisterPromise {
        if self.polls() { &POLLED } else { &PROMISE }
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        Ok(self.registers.values().read(at, self.clock.now()))
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.promise().check(put)?;
        let written = {
            let mut values = self.registers.values();
            let now = self.clock.now();
            (values.read(at, now).stamp == *seen).then(|| values.write(at, put, now))
        };
        if written.is_some() {
            self.registers.changed.notify_waiters();
        }
        Ok(written)
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        if self.polls() {
            return self.read(at).await;
        }
        let look = || async {
            // Notified of every change from here on.
            let woken = self.registers.changed.notified();
            let found = self.read(at).await?;
            let until = found.left.unwrap_or(Duration::MAX).min(patience.left());
            Ok((found, within(until.clamp(super::MIN_PAUSE, super::MAX_PAUSE), woken)))
        };
        until_changed(patience, |found| found.stamp != *seen, look).await
    }
}

fn stamp(number: u64) -> Stamp {
    Stamp::new(number.to_string())
}

/// The longest value: enough for a cached page, and no more than other stores can take.
const MAX_BYTES: usize = 512 * 1024;
const PROMISE: RegisterPromise =
    RegisterPromise::new(MAX_BYTES, WaitMode::Notifies, Durability::Strict).forgets();
const POLLED: RegisterPromise =
    RegisterPromise::new(MAX_BYTES, WaitMode::Polls, Durability::Strict).forgets();
