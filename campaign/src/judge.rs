//! The comparison of what a history shows with what was expected.

pub(crate) mod bounds;

use leasehold_history::{History, Invariant, Unjudged, Verdict};

use crate::Expected;
use crate::results::Outcome;
use crate::seen::Seen;

/// Returns the outcome of histories, and whether it is the expected one. With a gap, nothing that is allowed was shown.
/// Two holders at one time are expected nowhere if no fault was at work between their grants, or if both are renewed after
/// it.
pub fn judge(expected: Expected, seen: &Seen, gaps: &[String]) -> (Outcome, bool) {
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
    let allowed = allowed && seen.unexplained.unwrap_or(0) == 0;
    match allowed && (seen.grants == 0 || !gaps.is_empty()) {
        true => (Outcome::NotJudged, false),
        false => (outcome, allowed),
    }
}

/// Returns why a history shows nothing, a sentence each: no grants, a worker that ended without being asked to or that
/// never opened the store, or a promise about exclusion, about recovery (I5) or about what is left (I7) that could not be
/// judged. Neither does a history that is not well formed.
pub fn gaps(history: &History, verdict: &Verdict) -> Vec<String> {
    let mut gaps = Vec::new();
    if let Err(error) = history.validate() {
        gaps.push(format!("the recording is not well formed: {error}"));
    }
    if verdict.counts.grants == 0 {
        gaps.push("nothing was granted".to_owned());
    }
    let labels = verdict.faults.iter().filter_map(|fault| fault.values.label.as_deref());
    for label in labels {
        if UNPLANNED.iter().any(|begin| label.starts_with(begin)) {
            gaps.push(format!("a worker ended by itself: {label}"));
        } else if label.starts_with(UNSTARTED) {
            gaps.push(format!("a worker could not take the place of another one: {label}"));
        }
    }
    // Names that could not be removed keep nobody out.
    let is_unasked = |one: &Unjudged| one.invariant == Invariant::I7 && !one.why.starts_with("names");
    let unjudged = verdict.unjudged.iter().filter(|one| one.invariant <= Invariant::I5 || is_unasked(one));
    gaps.extend(unjudged.map(|one| format!("{} could not be judged: {}", one.invariant, one.why)));
    gaps
}

/// The beginnings of the rig's labels for a worker that ended, or that had to be ended, without a plan.
const UNPLANNED: [&str; 2] = ["exit of worker", "no end of worker"];
/// The beginning of the rig's label for a worker that took another one's place, and did not open the store.
const UNSTARTED: &str = "no start of worker";

#[cfg(test)]
mod tests {
    use leasehold_history::{Checker, Event, Operation, Stage, Values};

    use super::*;

    const BROKEN: Expected = Expected::TimingBroken("a reason");

    #[test]
    fn only_what_was_expected_is_allowed() {
        let held = Seen { grants: 5, ..Seen::default() };
        let timing = Seen { timing: 1, ..held };
        let fences = Seen { fences: 1, ..timing };
        let unsafely = Seen { safety: 1, ..held };
        let late = Seen { liveness: 1, ..timing };
        assert_eq!(judge(Expected::Holds, &held, &[]), (Outcome::Held, true));
        assert_eq!(judge(Expected::Holds, &timing, &[]), (Outcome::Timing, false));
        assert_eq!(judge(BROKEN, &timing, &[]), (Outcome::Timing, true));
        assert_eq!(judge(BROKEN, &held, &[]), (Outcome::Held, true));
        assert_eq!(judge(BROKEN, &fences, &[]), (Outcome::Fences, false));
        assert_eq!(judge(Expected::FencesFall("why"), &fences, &[]), (Outcome::Fences, true));
        assert_eq!(judge(Expected::FencesFall("why"), &unsafely, &[]), (Outcome::Unsafe, false));
        assert_eq!(judge(BROKEN, &late, &[]), (Outcome::Late, false));
        assert!(!judge(Expected::Refused("why"), &held, &[]).1);
        let without_reason = Seen { unexplained: Some(1), ..timing };
        assert_eq!(judge(BROKEN, &without_reason, &[]), (Outcome::Timing, false));
        assert_eq!(judge(Expected::FencesFall("why"), &without_reason, &[]), (Outcome::Timing, false));
        assert_eq!(judge(BROKEN, &Seen { unexplained: Some(0), ..timing }, &[]), (Outcome::Timing, true));
    }

    #[test]
    fn a_history_that_shows_nothing_is_not_judged() {
        let held = Seen { grants: 5, ..Seen::default() };
        let gap = ["a worker ended by itself".to_owned()];
        assert_eq!(judge(Expected::Holds, &Seen::default(), &[]), (Outcome::NotJudged, false));
        assert_eq!(judge(Expected::Holds, &held, &gap), (Outcome::NotJudged, false));
        assert_eq!(judge(BROKEN, &Seen { timing: 1, ..held }, &gap), (Outcome::NotJudged, false));
        // What is bad stays so.
        assert_eq!(judge(BROKEN, &Seen { safety: 1, ..held }, &gap), (Outcome::Unsafe, false));
    }

    fn fault(label: &str) -> Event {
        let mut values = Values::default();
        values.label = Some(label.to_owned());
        Event::new(Stage::Info, Operation::Fault).with(values)
    }

    fn gaps_of(history: &History) -> Vec<String> {
        gaps(history, &Checker::new().check(history))
    }

    /// The end of a process would cut off what it believes to hold.
    #[test]
    fn a_history_in_which_a_killed_process_acts_is_not_judged() {
        let kill = |target: u64| {
            let mut kill = fault("kill worker 0");
            kill.values.target = vec![target];
            kill
        };
        let story = |dead: u64| {
            let of = |stage: Stage| Event::new(stage, Operation::Acquire).by(1).on("job");
            History::new([of(Stage::Invoke), kill(dead), of(Stage::Ok)])
        };
        let is_gap = |gap: &String| gap.contains("not well formed") && gap.contains("after it was killed");
        assert!(gaps_of(&story(1)).iter().any(is_gap), "{:?}", gaps_of(&story(1)));
        assert!(!gaps_of(&story(2)).iter().any(is_gap), "{:?}", gaps_of(&story(2)));
    }

    #[test]
    fn gaps_are_no_grants_ends_of_workers_and_what_is_unjudged() {
        let empty = gaps_of(&History::default());
        for part in ["nothing was granted", "I1", "I2", "I3", "I4", "I5", "I7"] {
            assert!(empty.iter().any(|gap| gap.contains(part)), "{part}: {empty:?}");
        }
        assert!(!empty.iter().any(|gap| gap.starts_with("I8")), "{empty:?}");
        let ends =
            ["exit of worker 2: no memory", "no end of worker 0", "kill worker 1", "F1 round 0"].map(fault);
        let ended = gaps_of(&History::new(ends));
        let unstarted = gaps_of(&History::new([fault("no start of worker 1, which ended at its start")]));
        assert!(unstarted.iter().any(|gap| gap.contains("the place of another")), "{unstarted:?}");
        assert_eq!(ended.iter().filter(|gap| gap.contains("by itself")).count(), 2, "{ended:?}");
    }
}
