//! The comparison of what a history shows with what was expected.

use crate::Expected;
use crate::results::Outcome;
use crate::seen::Seen;

/// Returns the outcome of histories, and whether it is the expected one.
pub fn judge(expected: Expected, seen: &Seen) -> (Outcome, bool) {
    let outcome = if seen.safety > 0 {
        Outcome::Unsafe
    } else if seen.liveness + seen.hygiene > 0 {
        Outcome::Late
    } else if seen.fences > 0 {
        Outcome::Fences
    } else if seen.timing > 0 {
        Outcome::Timing
    } else {
        Outcome::Held
    };
    let allowed = match expected {
        Expected::Holds => outcome == Outcome::Held,
        Expected::TimingBroken(_) => matches!(outcome, Outcome::Held | Outcome::Timing),
        Expected::FencesFall(_) => matches!(outcome, Outcome::Held | Outcome::Timing | Outcome::Fences),
        // It was not refused.
        Expected::Refused(_) | Expected::NotApplicable(_) | Expected::NotRun(_) => false,
    };
    (outcome, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKEN: Expected = Expected::TimingBroken("a reason");

    #[test]
    fn only_what_was_expected_is_allowed() {
        let held = Seen { grants: 5, ..Seen::default() };
        let timing = Seen { timing: 1, ..held };
        let fences = Seen { fences: 1, ..timing };
        let unsafely = Seen { safety: 1, ..held };
        let late = Seen { liveness: 1, ..timing };
        assert_eq!(judge(Expected::Holds, &held), (Outcome::Held, true));
        assert_eq!(judge(Expected::Holds, &timing), (Outcome::Timing, false));
        assert_eq!(judge(BROKEN, &timing), (Outcome::Timing, true));
        assert_eq!(judge(BROKEN, &held), (Outcome::Held, true));
        assert_eq!(judge(BROKEN, &fences), (Outcome::Fences, false));
        assert_eq!(judge(Expected::FencesFall("why"), &fences), (Outcome::Fences, true));
        assert_eq!(judge(Expected::FencesFall("why"), &unsafely), (Outcome::Unsafe, false));
        assert_eq!(judge(BROKEN, &late), (Outcome::Late, false));
        assert!(!judge(Expected::Refused("why"), &held).1);
    }
}
