//! The resources that were not free when a direct request asked for them a moment ago.
//!
//! It is a matter of cost only: a direct request leaves no place in the queue, so if it is refused, another one
//! follows. A resource that others use again and again is asked for by the slow path from the start.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::Moment;

/// The times of the last refusals, by the hash of the resource. Resources of the same hash share a time.
#[derive(Debug)]
pub(crate) struct LatelyBusy([AtomicU64; SLOTS]);

impl Default for LatelyBusy {
    fn default() -> Self {
        LatelyBusy([const { AtomicU64::new(0) }; SLOTS])
    }
}

impl LatelyBusy {
    /// Records that the resource of this hash was not free.
    pub(super) fn record(&self, hash: u64, now: Moment) {
        self.slot(hash).store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Returns `true` if it was not free a moment ago.
    pub(super) fn includes(&self, hash: u64, now: Moment) -> bool {
        let at = self.slot(hash).load(Ordering::Relaxed);
        at > 0 && now.since(Moment::from_nanos(at)) < MEMORY
    }

    fn slot(&self, hash: u64) -> &AtomicU64 {
        &self.0[(hash % SLOTS as u64) as usize]
    }
}

const SLOTS: usize = 64;
/// The time for which a refusal is remembered: long beside a request, short beside a change of use.
const MEMORY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_is_remembered_for_a_while_and_for_its_resource() {
        let (busy, at) = (LatelyBusy::default(), Moment::from_nanos(7));
        assert!(!busy.includes(5, at), "nothing was refused yet");
        busy.record(5, at);
        assert!(busy.includes(5, at) && busy.includes(5, at.after(MEMORY - Duration::from_nanos(1))));
        assert!(!busy.includes(5, at.after(MEMORY)) && !busy.includes(6, at));
    }
}
