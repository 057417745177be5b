//! The bounds by which histories are judged, beside those that the catalogue of faults asks for.
//!
//! Ground rules: the page prints them, so that nobody takes a wide bound for a narrow one.

use std::time::Duration;

use leasehold_history::Checker;

use crate::{Fault, Store};

/// The time by which a wait may outlast its limit (I6): the two seconds for which the engine waits for the last answer
/// of a store that hangs, and one more for a machine whose cores are shared.
pub(crate) const OVERSTAY: Duration = Duration::from_secs(3);
/// The time by which a loss may be seen late, or a release may succeed late (I11, I12, I13).
pub(crate) const LATENESS: Duration = Duration::from_millis(500);

/// The time by which a loss may be seen later in F15: the engine reads a clock once a second, because its timers know
/// nothing of a jump.
pub(crate) const CLOCK_READ: Duration = Duration::from_secs(1);

/// The bounds that the catalogue asks for.
pub(crate) const ASKED_OVERSTAY: Duration = Duration::from_millis(100);
/// The same, of a loss.
pub(crate) const ASKED_LATENESS: Duration = Duration::from_millis(50);
/// The same, of a recovery, beside the ttl.
pub(crate) const ASKED_RECOVERY: Duration = Duration::from_secs(1);

/// Returns the checker of a store under a fault. Its bounds are wider by the allowance, but two holders are never valid
/// at one time.
pub(crate) fn checker(store: Store, fault: Fault, allowance: Duration) -> Checker {
    let mut checker = Checker::new();
    checker.recovery = store.recovery() + allowance;
    checker.handover = store.handover() + allowance;
    checker.overstay = OVERSTAY + allowance;
    let read = if fault == Fault::number(15) { CLOCK_READ } else { Duration::ZERO };
    checker.lateness = LATENESS + read + allowance;
    checker.is_held_by_connection = store.is_session();
    checker
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_never_narrower_than_the_promises() {
        for (store, allowance) in
            Store::ALL.into_iter().flat_map(|store| [(store, Duration::ZERO), (store, LATENESS)])
        {
            let (here, promised) = (checker(store, Fault::number(1), allowance), Checker::new());
            assert_eq!(checker(store, Fault::number(15), allowance).lateness, here.lateness + CLOCK_READ);
            assert!(here.overstay >= promised.overstay && here.lateness >= promised.lateness);
            assert!(here.tolerance.is_zero(), "two holders at once are judged without a tolerance");
        }
        assert_eq!((Checker::new().overstay, Checker::new().lateness), (ASKED_OVERSTAY, ASKED_LATENESS));
    }
}
