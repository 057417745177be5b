//! The request to torture a store.

use std::time::Duration;

use crate::nemesis::FaultKind;
use crate::plan::Plan;

/// The request to torture a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Torture {
    /// The plan of the workers.
    pub plan: Plan,
    /// The time for which they work.
    pub duration: Duration,
    /// The faults on the workers; none if it is empty.
    pub faults: Vec<FaultKind>,
    /// The most events that are recorded. The run ends early when there are so many: a history is judged in memory,
    /// and each of them takes about half a kilobyte of it.
    pub most_events: u64,
}

impl Torture {
    /// Returns a run of one minute with all faults.
    pub fn new(plan: Plan) -> Torture {
        Torture {
            plan,
            duration: Duration::from_secs(60),
            faults: FaultKind::ALL.to_vec(),
            most_events: MOST_EVENTS,
        }
    }
}

/// More than half an hour at the default rate.
const MOST_EVENTS: u64 = 5_000_000;
