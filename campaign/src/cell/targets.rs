//! The processes that a fault concerns, put into the events of a history: a fault without them is one on the store.

use std::collections::BTreeMap;

use leasehold_history::{Event, History, NOBODY, Operation};

use crate::world::Target;

/// Puts the logical processes of the workers that faults were on into their events. A label begins with the one that is
/// given here.
///
/// The rig names all processes of a worker that it stops or kills. Those of any other worker are given here: one for each
/// task, and one more for each unknown outcome, after which a task continues under another number.
pub(super) fn with_targets(
    history: History,
    of_workers: &[Vec<u64>],
    labels: &BTreeMap<String, Target>,
) -> History {
    let events = history.events();
    let processes = |place: usize, label: &str, worker: usize| {
        let is_other = |event: &&Event| label_of(event).is_some_and(|other| !is_of(other, label));
        let until = events.iter().skip(place).take_while(|event| !is_end(event, label));
        let named = until
            .filter(is_other)
            .find(|event| label_of(event).is_some_and(|other| other.ends_with(&format!(" worker {worker}"))));
        let own = || of_workers.get(worker).cloned().unwrap_or_default();
        named.map_or_else(own, |event| event.values.target.clone())
    };
    let mut found: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (label, target) in labels {
        let workers = match target {
            Target::Store => continue,
            Target::Workers(workers) => workers.as_slice(),
            Target::Nobody => &[],
        };
        let Some(place) = events.iter().position(|event| label_of(event) == Some(label.as_str())) else {
            continue;
        };
        let mut all: Vec<u64> = workers.iter().flat_map(|worker| processes(place, label, *worker)).collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            all.push(NOBODY);
        }
        found.insert(label, all);
    }
    History::new(events.iter().cloned().map(|mut event| {
        let hit = label_of(&event).and_then(|of| found.iter().find(|(label, _)| is_of(of, label)));
        if let Some((_, processes)) = hit {
            event.values.target = processes.clone();
        }
        event
    }))
}

fn label_of(event: &Event) -> Option<&str> {
    event.values.label.as_deref().filter(|_| event.operation == Operation::Fault)
}

fn is_end(event: &Event, label: &str) -> bool {
    label_of(event) == Some(label) && event.stage == leasehold_history::Stage::Ok
}

/// Returns `true` for the label itself, and for what was added to it.
fn is_of(label: &str, of: &str) -> bool {
    label.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use leasehold_history::{Stage, Values};

    use super::*;

    fn fault(stage: Stage, label: &str, target: &[u64]) -> Event {
        let mut values = Values::default();
        (values.label, values.target) = (Some(label.to_owned()), target.to_vec());
        Event::new(stage, Operation::Fault).with(values)
    }

    #[test]
    fn faults_on_workers_name_their_processes_and_others_none() {
        let history = History::new([
            fault(Stage::Invoke, "F1 round 0", &[]),
            fault(Stage::Invoke, "pause worker 1", &[2, 3, 8]),
            fault(Stage::Info, "F1 round 0: worker 1 is stopped (1)", &[]),
            fault(Stage::Ok, "pause worker 1", &[2, 3, 8]),
            fault(Stage::Ok, "F1 round 0", &[]),
            fault(Stage::Invoke, "F1 round 00", &[]),
            fault(Stage::Invoke, "F8 round 0", &[]),
            fault(Stage::Ok, "F8 round 0", &[]),
            fault(Stage::Invoke, "F15 round 0", &[]),
        ]);
        let labels = BTreeMap::from([
            ("F1 round 0".to_owned(), Target::Workers(vec![1])),
            ("F1 round 00".to_owned(), Target::Store),
            ("F8 round 0".to_owned(), Target::Workers(vec![0, 2])),
            ("F15 round 0".to_owned(), Target::Nobody),
        ]);
        // Process 9 is that of a task of worker 2 whose last outcome was unknown.
        let of_workers = [vec![0, 1], vec![2, 3], vec![4, 5, 9]];
        let history = with_targets(history, &of_workers, &labels);
        let targets: Vec<&[u64]> = history.faults().map(|event| event.values.target.as_slice()).collect();
        let (paused, cut): (&[u64], &[u64]) = (&[2, 3, 8], &[0, 1, 4, 5, 9]);
        assert_eq!(targets, [paused, paused, paused, paused, paused, &[], cut, cut, &[NOBODY]]);
    }
}
