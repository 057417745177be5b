//! The slow checker: is each fenced register linearizable?
//!
//! Each lock has one register, and histories of different registers are judged apart, which is sound because
//! linearizability is local (Herlihy and Wing, "Linearizability: a correctness condition for concurrent objects",
//! 1990). The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993) in the
//! just-in-time form of Lowe ("Testing for linearizability", 2017): the history is read once, all configurations
//! that explain it so far are kept, and an operation takes effect no earlier than something has to follow from it.
//! Configurations that are equal are kept once, which is the memory of the search. So a history needs no windows:
//! memory depends on how many operations overlap, not on how many there are.
//!
//! An operation with an unknown outcome stays open for ever. It may take effect at any later time, or never. If the
//! register has seen a higher fence, the operation can change nothing any more, and is forgotten.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::event::Event;
use crate::report::Report;
use crate::verdict::Invariant;
use crate::view::View;

mod model;

use model::{Model, RegisterCall};

pub(crate) fn check(view: &View<'_>, states: usize, report: &mut Report<'_, '_>) {
    let mut registers: BTreeMap<&str, Vec<Op>> = BTreeMap::new();
    for call in &view.calls {
        let Some(key) = call.invoke.key.as_deref() else { continue };
        let Some(what) = RegisterCall::of(call.invoke, call.done) else { continue };
        let events = [Some(call.invoke), call.done.or(call.unknown)];
        let from = view.times.at(call.invoke);
        // A clock that went back ends nothing before it began.
        let until = call.done.map(|done| view.times.at(done).max(from));
        registers.entry(key).or_default().push(Op { what, from, until, events });
    }
    if registers.is_empty() {
        report.unjudged(Invariant::Linearizable, "no register was read or written");
    }
    for (key, ops) in registers {
        match linearize(&ops, states) {
            Outcome::Linearizable => {}
            Outcome::TooMany => report.unjudged(
                Invariant::Linearizable,
                format!("the register of {key} has more than {states} explanations at one time"),
            ),
            Outcome::Stuck { at, around, states } => {
                let what = format!(
                    "no order of the operations on {key} explains the answer to the last one: {states}"
                );
                let events: Vec<&Event> = around
                    .iter()
                    .chain([&at])
                    .flat_map(|place| ops[*place].events.iter().copied().flatten())
                    .collect();
                report.violated(Invariant::Linearizable, Some(key), what, events);
            }
        }
    }
}

/// One operation on a register, from its invocation to its answer.
#[derive(Clone, Debug)]
pub(crate) struct Op<'h> {
    what: RegisterCall,
    from: u64,
    /// The time of the answer; none if the outcome is unknown.
    until: Option<u64>,
    events: [Option<&'h Event>; 2],
}

/// The outcome of a search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Linearizable,
    /// There are too many explanations to keep.
    TooMany,
    /// No explanation survives the answer to this operation.
    Stuck {
        at: usize,
        /// The operations that were open then, and the last ones before.
        around: Vec<usize>,
        /// The states in which the register could have been.
        states: String,
    },
}

/// One explanation of the history so far: the register, and the open operations that have taken effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Configuration {
    model: Model,
    done: BTreeSet<usize>,
}

impl Configuration {
    /// Forgets the operations of unknown outcome that can change nothing any more: whether they took effect makes
    /// no difference to what follows.
    fn tidied(mut self, ops: &[Op<'_>]) -> Configuration {
        let model = self.model;
        self.done.retain(|place| ops[*place].until.is_some() || model.admits(&ops[*place].what));
        self
    }
}

/// Searches for an order of the operations that explains all answers.
pub(crate) fn linearize(ops: &[Op<'_>], limit: usize) -> Outcome {
    let mut steps: Vec<(u64, bool, usize)> = Vec::with_capacity(ops.len() * 2);
    for (place, op) in ops.iter().enumerate() {
        // At one time, invocations come first: such operations overlap.
        steps.push((op.from, false, place));
        steps.extend(op.until.map(|until| (until, true, place)));
    }
    steps.sort_unstable();
    let mut open: Vec<usize> = Vec::new();
    let mut recent: Vec<usize> = Vec::new();
    let mut known = HashSet::from([Configuration::default()]);
    for (_, is_answer, place) in steps {
        if !is_answer {
            open.push(place);
            continue;
        }
        let Some(next) = explain(ops, &open, &known, place, limit) else { return Outcome::TooMany };
        if next.is_empty() {
            open.retain(|other| *other != place);
            let around = recent.into_iter().chain(open).collect();
            return Outcome::Stuck { at: place, around, states: states_of(&known) };
        }
        known = next;
        open.retain(|other| {
            let is_over = *other == place;
            // An unknown outcome that can no longer matter in any explanation.
            let op = &ops[*other];
            let is_inert = op.until.is_none() && !known.iter().any(|config| config.model.admits(&op.what));
            !is_over && !is_inert
        });
        recent.push(place);
        if recent.len() > RECENT {
            recent.remove(0);
        }
    }
    Outcome::Linearizable
}

/// Returns all configurations in which the operation at `place` has taken effect; `None` if they are too many.
fn explain(
    ops: &[Op<'_>],
    open: &[usize],
    known: &HashSet<Configuration>,
    place: usize,
    limit: usize,
) -> Option<HashSet<Configuration>> {
    let mut next = HashSet::new();
    let mut seen: HashSet<Configuration> = known.clone();
    let mut todo: Vec<Configuration> = known.iter().cloned().collect();
    while let Some(config) = todo.pop() {
        if config.done.contains(&place) {
            let mut config = config;
            config.done.remove(&place);
            next.insert(config.tidied(ops));
            continue;
        }
        for other in open.iter().copied().filter(|other| !config.done.contains(other)) {
            let Some(model) = config.model.after(&ops[other].what) else { continue };
            if model == config.model && other != place && ops[other].until.is_none() {
                // An unknown outcome without an effect explains nothing.
                continue;
            }
            let mut done = config.done.clone();
            done.insert(other);
            let after = Configuration { model, done };
            if seen.insert(after.clone()) {
                todo.push(after);
            }
        }
        if seen.len() > limit {
            return None;
        }
    }
    Some(next)
}

fn states_of(known: &HashSet<Configuration>) -> String {
    let mut states: Vec<String> = known.iter().map(|config| config.model.to_string()).collect();
    states.sort_unstable();
    states.dedup();
    states.truncate(4);
    format!("before it the register was {}", states.join(" or "))
}

/// The operations before the stuck one that a report shows.
const RECENT: usize = 4;

#[cfg(test)]
mod tests {
    use super::model::Answer;
    use super::*;
    use crate::event::FenceValue;
    use proptest::prelude::*;

    /// Tries every order of every choice of the operations: those with an answer, and any of the others.
    fn brute_force(ops: &[Op<'_>]) -> bool {
        fn search(ops: &[Op<'_>], model: Model, left: &mut Vec<usize>) -> bool {
            if left.iter().all(|place| ops[*place].until.is_none()) {
                return true;
            }
            for turn in 0..left.len() {
                let place = left[turn];
                // No operation that was answered before this one began may come after it.
                let is_next =
                    left.iter().all(|other| ops[*other].until.is_none_or(|until| until >= ops[place].from));
                let Some(after) = model.after(&ops[place].what).filter(|_| is_next) else { continue };
                left.remove(turn);
                let found = search(ops, after, left);
                left.insert(turn, place);
                if found {
                    return true;
                }
            }
            false
        }
        search(ops, Model::default(), &mut (0..ops.len()).collect())
    }

    fn op(what: RegisterCall, from: u64, until: Option<u64>) -> Op<'static> {
        Op { what, from, until, events: [None, None] }
    }

    fn calls() -> impl Strategy<Value = RegisterCall> {
        let fence = prop_oneof![
            1 => Just(None),
            5 => (1..4u64).prop_map(|seq| Some(FenceValue::new(0, seq, 0)))
        ];
        (fence, any::<bool>(), 0..3u64, 0..8u8).prop_map(|(fence, writes, value, answer)| {
            let written = writes.then_some(value);
            let answer = match (answer, writes) {
                (0 | 1, _) if fence.is_some() => Answer::Refused,
                (2, _) => Answer::Unknown,
                (_, true) => Answer::Accepted,
                (_, false) => Answer::Value(value),
            };
            RegisterCall { fence, written, answer }
        })
    }

    fn ops() -> impl Strategy<Value = Vec<Op<'static>>> {
        let one = (calls(), 0..12u64, 1..6u64).prop_map(|(what, from, length)| {
            op(what, from, (what.answer != Answer::Unknown).then_some(from + length))
        });
        proptest::collection::vec(one, 1..7)
    }

    /// A history that a real register produced: the answers are made in some order within the spans.
    fn honest() -> impl Strategy<Value = Vec<Op<'static>>> {
        proptest::collection::vec((calls(), 1..4u64, 1..9u64), 1..8).prop_map(|drawn| {
            let mut model = Model::default();
            let mut ops = Vec::new();
            for (turn, (mut what, before, after)) in (0u64..).zip(drawn) {
                let at = turn * 4 + 4;
                let answer = match (model.admits(&what), what.written) {
                    (false, _) => Answer::Refused,
                    (true, Some(_)) => Answer::Accepted,
                    (true, None) => Answer::Value(model.value_for_tests()),
                };
                let is_unknown = what.answer == Answer::Unknown;
                what.answer = answer;
                model = model.after(&what).unwrap();
                if is_unknown {
                    what.answer = Answer::Unknown;
                }
                ops.push(op(what, at - before.min(at), (!is_unknown).then_some(at + after)));
            }
            ops
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        #[test]
        fn search_agrees_with_trying_everything(ops in ops()) {
            let found = linearize(&ops, usize::MAX);
            prop_assert_eq!(found == Outcome::Linearizable, brute_force(&ops), "{:?}", ops);
        }

        #[test]
        fn what_a_register_answered_is_linearizable(ops in honest()) {
            prop_assert_eq!(linearize(&ops, usize::MAX), Outcome::Linearizable, "{:?}", ops);
        }
    }

    #[test]
    fn drawn_histories_are_of_both_kinds() {
        use proptest::strategy::ValueTree;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let verdicts: Vec<bool> =
            (0..500).map(|_| brute_force(&ops().new_tree(&mut runner).unwrap().current())).collect();
        let good = verdicts.iter().filter(|good| **good).count();
        assert!((50..450).contains(&good), "{good} of 500 are linearizable: the other kind is hardly tried");
    }

    #[test]
    fn open_operations_do_not_add_up() {
        // A thousand writes of unknown outcome, each under a fence that the next holder passes.
        let mut ops = Vec::new();
        for turn in 0..1_000u64 {
            let fence = Some(FenceValue::new(0, turn, 0));
            let lost = RegisterCall { fence, written: Some(7), answer: Answer::Unknown };
            let read = RegisterCall { fence, written: None, answer: Answer::Value(0) };
            ops.push(op(read, turn * 10, Some(turn * 10 + 1)));
            ops.push(op(lost, turn * 10 + 2, None));
        }
        assert_eq!(linearize(&ops, 10_000), Outcome::Linearizable);
    }

    #[test]
    fn too_many_explanations_are_not_a_verdict() {
        let blind = |turn| RegisterCall { fence: None, written: Some(turn), answer: Answer::Unknown };
        let mut ops: Vec<Op> = (0..20).map(|turn| op(blind(turn), 0, None)).collect();
        let read = RegisterCall { fence: None, written: None, answer: Answer::Value(99) };
        ops.push(op(read, 5, Some(6)));
        assert_eq!(linearize(&ops, 500), Outcome::TooMany);
    }
}
