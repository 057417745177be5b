//! Numbers of what histories show, as a checker judges them.

mod hits;

use leasehold_history::{Class, Event, History, Invariant, Operation, Stage, Verdict};
use serde::{Deserialize, Serialize};

pub use hits::Hits;
pub(crate) use hits::failures_without_fault;

/// Numbers of what histories show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Seen {
    /// Grants.
    pub grants: u64,
    /// The grants among them that one task of a process left to another, without a request to the store; absent in
    /// results from before they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handed_on: Option<u64>,
    /// Losses that holders saw.
    pub losses: u64,
    /// Renewals; absent in results from before they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewals: Option<u64>,
    /// The renewals among them between whose last confirmation and their own a fault was at work, on whomever it was.
    /// Results have it from before [`Hits`] were counted, and no later ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewals_under_fault: Option<u64>,
    /// The effects of faults on holders and on those that waited; absent in results of older rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<Hits>,
    /// The acquisitions that failed, or have an unknown outcome, although no fault was on their process or on the store,
    /// nor had been for the time in which clients have to be back; absent in results from before they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures_without_fault: Option<u64>,
    /// Writes that the protected register accepted.
    pub writes: u64,
    /// Requests that the protected register refused.
    pub refusals: u64,
    /// Violations of what the fence protects (I1, I3, linearizability).
    pub safety: u64,
    /// Fences that repeat or fall (I2).
    pub fences: u64,
    /// Two holders that were valid at one time (I4).
    pub timing: u64,
    /// Those among them without a fault between the two grants, or with a renewal of the first one beside the other
    /// after the fault, which nothing that was recorded can be the reason of; absent in results from before they were
    /// distinguished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unexplained: Option<u64>,
    /// Waits and losses that came too late, or false ones (I5, I6, I12, I13).
    pub liveness: u64,
    /// Everything else (I7 to I11).
    pub hygiene: u64,
}

impl Seen {
    /// Counts what a checker found in a history.
    pub fn of(verdict: &Verdict, history: &History) -> Seen {
        let counts = verdict.counts;
        let mut seen = Seen {
            grants: counts.grants,
            handed_on: Some(handed_on(history)),
            losses: counts.losses,
            renewals: Some(counts.renewals),
            writes: counts.writes,
            refusals: counts.refusals,
            unexplained: Some(0),
            ..Seen::default()
        };
        for violation in &verdict.violations {
            // The fence is of before, and not a lower one: the store forgot a grant whose holder relies on it.
            let is_of_before = violation.invariant == Invariant::I2 && violation.explained.is_some();
            if violation.invariant == Invariant::I4 && violation.meanwhile.is_none() {
                seen.unexplained = sum(seen.unexplained, Some(1));
            }
            *match (violation.invariant, violation.class) {
                (Invariant::I2, _) if is_of_before => &mut seen.timing,
                (Invariant::I2, _) => &mut seen.fences,
                (_, Class::Safety) => &mut seen.safety,
                (_, Class::Timing) => &mut seen.timing,
                (_, Class::Liveness) => &mut seen.liveness,
                _ => &mut seen.hygiene,
            } += 1;
        }
        seen
    }

    /// Adds the numbers of another history.
    pub fn add(&mut self, other: &Seen) {
        self.grants += other.grants;
        self.handed_on = sum(self.handed_on, other.handed_on);
        self.losses += other.losses;
        self.renewals = sum(self.renewals, other.renewals);
        self.renewals_under_fault = sum(self.renewals_under_fault, other.renewals_under_fault);
        if let Some(hits) = &other.hits {
            self.hits.get_or_insert_default().add(hits);
        }
        self.failures_without_fault = sum(self.failures_without_fault, other.failures_without_fault);
        self.writes += other.writes;
        self.refusals += other.refusals;
        self.safety += other.safety;
        self.fences += other.fences;
        self.timing += other.timing;
        self.unexplained = sum(self.unexplained, other.unexplained);
        self.liveness += other.liveness;
        self.hygiene += other.hygiene;
    }

    /// Returns how often faults hit holders and those that waited, as far as it is known: losses, refusals, and hits.
    /// The count of the older rule is not known to be of hits.
    pub fn all_hits(&self) -> u64 {
        self.losses + self.refusals + self.hits.map_or(0, |hits| hits.all())
    }
}

fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.map(|one| one + other.unwrap_or(0)).or(other)
}

/// Counts the grants whose fence is a part of another grant's.
fn handed_on(history: &History) -> u64 {
    let is_part = |event: &&Event| {
        let is_grant = (event.operation, event.stage) == (Operation::Acquire, Stage::Ok);
        is_grant && event.values.fence.is_some_and(|fence| fence.sub > 0)
    };
    history.events().iter().filter(is_part).count() as u64
}

#[cfg(test)]
mod tests {
    use leasehold_history::{FenceValue, Values};

    use super::*;

    fn of_grant(operation: Operation, owner: &str) -> Event {
        let mut values = Values::default();
        values.owner = Some(owner.to_owned());
        Event::new(Stage::Ok, operation).by(1).on("job").with(values)
    }

    /// Process 1 holds, the server forgets it, process 2 holds and releases, and process 3 is handed the first grant.
    fn handed_on_after(fault: &str) -> History {
        let event =
            |at: u64, process: u64, stage: Stage, operation: Operation, owner: &str, fence: (u64, u32)| {
                let mut values = Values::default();
                if !owner.is_empty() {
                    values.owner = Some(owner.to_owned());
                    values.fence = Some(FenceValue::new(0, fence.0, fence.1));
                    values.valid_until = (operation == Operation::Acquire).then_some(1_000);
                }
                Event::new(stage, operation).by(process).on("job").with(values).at(at)
            };
        let mut wiped = Values::default();
        wiped.label = Some(fault.to_owned());
        let (asked, got) = (Stage::Invoke, Stage::Ok);
        let (take, free) = (Operation::Acquire, Operation::Release);
        History::new([
            event(0, 1, asked, take, "", (0, 0)),
            event(10, 1, got, take, "a.0", (5, 0)),
            Event::new(Stage::Info, Operation::Fault).with(wiped).at(50),
            event(90, 2, asked, take, "", (0, 0)),
            event(100, 2, got, take, "b.0", (6, 0)),
            event(150, 2, asked, free, "b.0", (6, 0)),
            event(151, 2, got, free, "b.0", (6, 0)),
            event(152, 1, asked, free, "a.0", (5, 0)),
            event(153, 1, got, free, "a.0", (5, 0)),
            event(160, 3, asked, take, "", (0, 0)),
            event(170, 3, got, take, "a.1", (5, 1)),
            event(300, 3, asked, free, "a.1", (5, 1)),
            event(301, 3, Stage::Fail, free, "a.1", (5, 1)).because("the server no longer knows the claim"),
        ])
    }

    #[test]
    fn fence_of_a_grant_that_the_store_forgot_has_not_fallen() {
        let seen = |fault: &str| {
            let history = handed_on_after(fault);
            let seen = Seen::of(&leasehold_history::Checker::new().check(&history), &history);
            (seen.fences, seen.timing)
        };
        assert_eq!(seen("the server is wiped"), (0, 2));
        assert_eq!(seen("suspend of the machine"), (1, 1));
    }

    /// Process 1 holds, and process 2 is granted the same lock.
    fn both_hold(fault: (u64, &str)) -> (Seen, bool) {
        let mut values = Values::default();
        values.label = Some(fault.1.to_owned());
        let grant = |at: u64, process: u64| {
            let mut values = Values::default();
            (values.owner, values.fence) =
                (Some(format!("{process}.0")), Some(FenceValue::new(0, process, 0)));
            values.valid_until = Some(1_000_000_000);
            let ask = Event::new(Stage::Invoke, Operation::Acquire).by(process).on("job").at(at);
            [ask, of_grant(Operation::Acquire, "").by(process).with(values).at(at + 1)]
        };
        let mut events = [grant(0, 1), grant(1_000, 2)].concat();
        events.push(Event::new(Stage::Info, Operation::Fault).with(values).at(fault.0));
        events.sort_by_key(|event| event.received);
        let history = History::new(events);
        let mut checker = leasehold_history::Checker::new();
        checker.lateness = std::time::Duration::from_secs(60);
        let seen = Seen::of(&checker.check(&history), &history);
        (seen, crate::judge(crate::Expected::TimingBroken("a failover"), &seen, &[]).1)
    }

    #[test]
    fn fault_excuses_only_what_follows_it() {
        let (before, is_expected) = both_hold((500, "F6 round 0"));
        assert_eq!((before.timing, before.unexplained, is_expected), (1, Some(0), true));
        let (after, is_expected) = both_hold((10_000_000_000, "F6 round 0"));
        assert_eq!((after.timing, after.unexplained, is_expected), (1, Some(1), false));
        let (pause, is_expected) = both_hold((500, "pause worker 1"));
        assert_eq!((pause.timing, pause.unexplained, is_expected), (1, Some(1), false));
    }

    #[test]
    fn grants_that_continue_another_are_handed_on() {
        let with = |sub| {
            let mut event = of_grant(Operation::Acquire, "a");
            event.values.fence = Some(FenceValue::new(1, 7, sub));
            event
        };
        let mut renewed = with(2);
        renewed.operation = Operation::Renew;
        assert_eq!(handed_on(&History::new([with(0), with(1), with(2), renewed])), 2);
    }

    #[test]
    fn numbers_that_are_not_known_stay_so() {
        let mut seen = Seen::default();
        seen.add(&Seen { losses: 2, ..Seen::default() });
        assert_eq!((seen.renewals, seen.all_hits()), (None, 2));
        seen.add(&Seen { renewals: Some(3), renewals_under_fault: Some(1), ..Seen::default() });
        assert_eq!((seen.renewals, seen.hits, seen.all_hits()), (Some(3), None, 2));
        let hits = Hits { renewals: 1, killed: 2, dropped: 3 };
        seen.add(&Seen { hits: Some(hits), ..Seen::default() });
        assert_eq!((seen.hits, seen.all_hits()), (Some(hits), 8));
    }
}
