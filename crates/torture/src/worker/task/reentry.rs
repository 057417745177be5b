//! Reentrancy: a holder acquires again what it holds, and ends each of these acquisitions.
//!
//! Ground rules: an acquisition counts on top of the others if the library says that it is the same grant, by its tag
//! and its fence. A lock that was lost meanwhile is asked for like any other: the loss is reported before the answer,
//! because the process may be over after it.

use std::io;

use leasehold::Owner;
use leasehold_history::{Operation, Stage};

use super::{Asked, HeldLock, Task, Wanted};

impl Task {
    /// Acquires a lock again through its owner, a few times, and ends all of that. Returns `false` if the logical
    /// process is over.
    pub(super) async fn reenter(
        &mut self,
        held: &mut HeldLock<'_>,
        wanted: Wanted,
        owner: &Owner,
    ) -> io::Result<bool> {
        let deepest = self.reentry.u8(1..=DEEPEST);
        let mut inner: Vec<HeldLock> = Vec::new();
        while inner.len() < usize::from(deepest) {
            held.look()?;
            if held.lost {
                break;
            }
            self.send(Stage::Invoke, Operation::Acquire, &held.key, wanted.values(), None)?;
            let asked = self.ask(wanted, None, &held.key, Some(owner)).await;
            held.notice()?;
            let guard = match asked {
                Asked::Granted(guard) => guard,
                other => match self.not_granted(&held.key, other)? {
                    Some(Stage::Info) => return Ok(false),
                    _ => break,
                },
            };
            let of = (held.key.clone(), self.process);
            let again = HeldLock::of(guard, of, held.ttl, held.pace, self.clock.clone());
            let is_same = again.owner == held.owner && again.fence == held.fence;
            let mut values = again.values();
            (values.mode, values.valid_until) = (Some(wanted.mode), again.end());
            values.count = Some(if is_same { inner.len() as u64 + 2 } else { 1 });
            self.send(Stage::Ok, Operation::Acquire, &held.key, values, None)?;
            inner.push(again);
            if !is_same {
                break;
            }
        }
        if !inner.is_empty() {
            held.watch(held.pace.hold.mul_f64(self.reentry.f64() * 0.5)).await?;
        }
        while let Some(again) = inner.pop() {
            let left = if again.owner == held.owner { inner.len() as u64 + 1 } else { 0 };
            let values = again.values();
            self.send(Stage::Invoke, Operation::Release, &again.key, values.clone(), None)?;
            if !self.end(again.guard, &again.key, values, Some(left)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The most acquisitions on top of the first one.
const DEEPEST: u8 = 3;
