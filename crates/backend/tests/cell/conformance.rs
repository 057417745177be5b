//! Cells in memory before all laws: by the store's clock and by the observers', called and polling, queued
//! and unordered, and on a store that makes every fifth write lose its race.

use std::sync::Arc;

use leasehold_backend::cell::ClockSource;
use leasehold_conformance::Subject;
use leasehold_core::{Backend, QueueOrder, WaitMode};

use crate::store::{Faults, Kind, LONG, Store, TABLE, claim};

struct Subjected(Arc<Store>, Kind, Faults);

impl Subjected {
    fn new(clock_source: ClockSource, waiting: WaitMode, order: QueueOrder, faults: Faults) -> Self {
        Subjected(Store::new(), Kind { clock_source, waiting, order }, faults)
    }
}

#[async_trait::async_trait]
impl Subject for Subjected {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(self.0.open(self.1, self.2)))
    }
}

mod by_the_store {
    use super::*;
    leasehold_conformance::suite!(Subjected::new(
        ClockSource::Store,
        WaitMode::Notifies,
        QueueOrder::Fifo,
        Faults::default()
    ));
}

mod by_observers {
    use super::*;
    leasehold_conformance::suite!(Subjected::new(
        ClockSource::Observer,
        WaitMode::Polls,
        QueueOrder::Fifo,
        Faults::default()
    ));
}

mod losing_every_fifth_race {
    use super::*;
    leasehold_conformance::suite!(Subjected::new(
        ClockSource::Store,
        WaitMode::Polls,
        QueueOrder::Unordered,
        Faults { lost_races: 200, ..Faults::default() },
    ));
}

/// The laws of registers and of transfers are for the backends that say that they have them.
#[test]
fn cells_have_registers_and_hand_claims_over() {
    let client = Store::new().open(TABLE, Faults::default());
    assert!(client.registers().is_some() && client.supports_transfer());
}

#[tokio::test]
async fn part_of_a_claim_and_findings_are_those_of_the_store() {
    let client = Store::new().open(TABLE, Faults::default());
    assert_eq!(client.part(&claim("four", LONG)), 4);
    assert_eq!(client.diagnose(LONG).await.len(), 1);
}
