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
}

impl Torture {
    /// Returns a run of one minute with all faults.
    pub fn new(plan: Plan) -> Torture {
        Torture { plan, duration: Duration::from_secs(60), faults: FaultKind::ALL.to_vec() }
    }
}
