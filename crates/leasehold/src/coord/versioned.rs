//! Optimistic update: compare and set, again and again, and a lock if that does not end.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Resource, Stamp};

use crate::engine::{Change, Engine, Register, Seen};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::Mutex;

/// A compare-and-set value.
///
/// No update waits for another as long as few change the value: each reads, computes, and writes if no
/// other has written. After [`Versioned::escalate_after`] conflicts an update takes a lock among those
/// that had as many, so that it ends even if many want the same value.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let stock = locks.versioned("stock/42");
/// let count = |old: Option<&[u8]>| old.map_or(0, |old| old.len());
/// let done = stock.update(|old| Some(vec![b'x'; count(old) + 1])).await?;
/// assert_eq!((done.value.as_deref(), done.conflicts), (Some(&b"x"[..]), 0));
/// assert_eq!(stock.read().await?.value(), Some(&b"x"[..]));
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// Of several updates that saw the same value, one is written and the others are called again with the
/// new value: no update is lost. An update whose answer is lost on the way is found again by a mark
/// that it left with the value.
///
/// # Does not promise
/// Updates have no order. A value can be lost if the store itself may lose writes, see
/// [`Durability`](crate::Durability) of the store. Other programs do not find the bare value in the
/// store: it follows up to 129 bytes that identify the last writer.
#[derive(Clone, Debug)]
pub struct Versioned {
    engine: Arc<Engine>,
    name: Result<Resource>,
    /// The lock of updates whose conflicts do not end.
    gate: Mutex,
    escalate_after: u32,
}

/// A value as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedValue {
    value: Option<Vec<u8>>,
    stamp: Stamp,
}

/// The result of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpdateOutcome {
    /// The value after this update; `None` if it was removed, or if there was none and none was written.
    pub value: Option<Vec<u8>>,
    /// The number of times that another update was first.
    pub conflicts: u32,
    /// `true` if it took the lock in the end.
    pub escalated: bool,
}

impl Versioned {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, gate: Mutex) -> Versioned {
        let name = Resource::new(name).map_err(Error::from);
        Versioned { engine, name, gate, escalate_after: ESCALATE_AFTER }
    }

    /// Returns the name of the lock for updates whose conflicts do not end.
    pub(crate) fn gate_name(name: &str) -> String {
        format!("{name}!updating")
    }

    /// Sets after how many conflicts in a row an update takes the lock. Default: eight; zero takes it
    /// at once, which is pessimistic locking.
    #[must_use]
    pub fn escalate_after(mut self, conflicts: u32) -> Self {
        self.escalate_after = conflicts;
        self
    }

    /// Returns the present value.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Unsupported` if the store keeps no values; otherwise the failure of the store.
    pub async fn read(&self) -> Result<VersionedValue> {
        self.register("read")?.read().await.map(VersionedValue::from)
    }

    /// Waits up to `limit` until the value differs from `seen`, and returns it.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Versioned::read`].
    pub async fn changed(&self, seen: &VersionedValue, limit: Duration) -> Result<VersionedValue> {
        self.register("read")?.changed(&seen.stamp, limit).await.map(VersionedValue::from)
    }

    /// Writes the result of `new` for the present value; `None` removes it, or leaves it absent.
    ///
    /// `new` is called again whenever another update was first, so it must have no side effects.
    ///
    /// # Cancel safety
    /// If the future is dropped, the update may or may not be made.
    ///
    /// # Errors
    /// `Unsupported` if the store keeps no values; `Invalid` for a value that is too long for it, or a name of more
    /// than 503 bytes;
    /// `OutcomeUnknown` if it is not known whether it was written, or whether a removal whose answer
    /// was lost is this one or that of another client. A first value whose answer was lost and that is not there
    /// may have been written and removed since, so it is not written again, except on etcd and ZooKeeper, which know
    /// each removal. `Timeout` after ten thousand conflicts behind
    /// the lock, with nothing written; otherwise the failure of the store or of
    /// [`Mutex::lock`](crate::Mutex::lock).
    pub async fn update(
        &self,
        mut new: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<UpdateOutcome> {
        let register = self.register("update")?;
        // Otherwise a name would be refused only after conflicts.
        self.gate.named("update")?;
        let mut change = |old: Option<&[u8]>| {
            Ok(match (old, new(old)) {
                (_, Some(value)) => Change::Write(value.clone(), None, Some(value)),
                (None, None) => Change::Leave(None),
                (Some(_), None) => Change::Remove(None),
            })
        };
        let mut conflicts = 0;
        if self.escalate_after > 0 {
            match register.update(self.escalate_after - 1, &mut change).await {
                Ok(done) => {
                    return Ok(UpdateOutcome {
                        value: done.result,
                        conflicts: done.conflicts,
                        escalated: false,
                    });
                }
                Err(error) if error.kind() != ErrorKind::Timeout => return Err(error),
                Err(_) => conflicts = self.escalate_after,
            }
        }
        let guard = self.gate.lock().await?;
        let done = register.update(LAST_CONFLICTS, &mut change).await?;
        drop(guard);
        Ok(UpdateOutcome { value: done.result, conflicts: conflicts + done.conflicts, escalated: true })
    }

    fn register(&self, op: &'static str) -> Result<Register> {
        Register::open(&self.engine, self.name.clone().map_err(|error| error.with_op(op))?, op)
    }
}

impl VersionedValue {
    /// Returns the value; `None` if there is none.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }
}

impl From<Seen> for VersionedValue {
    fn from(seen: Seen) -> Self {
        VersionedValue { value: seen.value, stamp: seen.stamp }
    }
}

const ESCALATE_AFTER: u32 = 8;
/// The most conflicts behind the lock: only newcomers conflict there, each of them a few times at most.
const LAST_CONFLICTS: u32 = 10_000;
