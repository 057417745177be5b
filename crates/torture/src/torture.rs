//! What is to be done to a store.

use std::time::Duration;

use crate::nemesis::FaultKind;
use crate::plan::Plan;

/// What is to be done to a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Torture {
    /// What the workers do.
    pub plan: Plan,
    /// How long they do it.
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
