//! A fuzz target: the stored state of a barrier, which another client has written.

use std::collections::HashSet;

use leasehold_fuzz::Target;

use super::state::{Arrival, Cause, Ended, State};
use crate::coord::fuzz::{check_refusal, register};
use crate::engine::registers::record::Record;

fn read(input: &[u8]) -> Result<State, crate::Error> {
    State::read(register(), Some(input))
}

/// Returns the parts of a state.
fn parts(state: &State) -> impl PartialEq + std::fmt::Debug {
    let State { made, generation, parties, broken, ended, arrived, before } = state.clone();
    (made, generation, parties, broken, ended, arrived, before)
}

/// Takes each step that a party may take.
fn check_steps(state: &State) {
    let parties = state.parties.max(1);
    let next_party = (0..).find(|id| !state.arrived.contains(id)).unwrap_or_default();
    let mut arrived = state.clone();
    let generation = state.generation;
    match arrived.arrive(next_party, parties) {
        Arrival::Waits(result) => {
            assert!(!result.is_leader() && arrived.outcome_of(generation).is_none());
            assert_eq!(arrived.arrived.len() + result.index as usize, parties as usize, "passed by too few");
        }
        Arrival::Passed(result) => {
            assert!(result.is_leader());
            let passed: HashSet<_> = arrived.before.iter().collect();
            assert_eq!(passed.len(), parties as usize, "passed by too few or too many");
            assert_eq!(arrived.outcome_of(generation), Some(Ended::Passed));
        }
        Arrival::Refused(_) => unreachable!(),
    }
    let mut broken = state.clone();
    broken.break_by(Cause::Died);
    assert_eq!(broken.outcome_of(generation), Some(Ended::Broken(Cause::Died)));
    assert_eq!(state.outcome_of(generation), None);
    for id in state.arrived.iter().chain(&state.before) {
        assert!(state.earlier_arrival(*id, parties).is_some() || generation == 0);
    }
    // The number of the last generation of all is refused.
    if generation < u64::MAX - 1 {
        for next in [arrived, broken] {
            assert_eq!(parts(&read(&next.written()).unwrap()), parts(&next));
        }
    }
}

#[test]
fn barrier() {
    let state = State {
        made: 9,
        generation: 7,
        parties: 3,
        broken: None,
        ended: b"PTCDR-".to_vec(),
        arrived: vec![1, u64::MAX],
        before: vec![4, 5, 6],
    };
    let broken = State { broken: Some(Cause::TimedOut), arrived: Vec::new(), ..state.clone() };
    let late = State { generation: u64::MAX - 2, ..state.clone() };
    let first = Record::of(b'b').number(7).number(3).byte(b'T').text(b"TP").numbers(&[]).numbers(&[2, 3]);
    let seeds = [state.written(), broken.written(), late.written(), State::default().written(), first.done()];
    let words = ["\0\0\0\0\0\0\0\x01", "B", "b", "P", "T", "\0"];
    Target::new("barrier", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&words).run(|input| {
        match read(input) {
            Ok(state) => {
                if input.first() == Some(&b'B') {
                    assert_eq!(state.written(), input, "written otherwise than it was read");
                }
                assert_eq!(parts(&read(&state.written()).unwrap()), parts(&state));
                check_steps(&state);
                let (arrived, before) = (state.arrived.len().min(3), state.before.len().min(3));
                format!("{arrived} of {}, {before} before, {:?}", state.parties.min(4), state.broken)
            }
            Err(error) => {
                check_refusal(&error, "barrier");
                "refused".to_owned()
            }
        }
    });
}
