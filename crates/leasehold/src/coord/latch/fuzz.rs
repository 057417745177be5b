//! A fuzz target: the stored state of a latch, which another client has written.

use std::collections::HashSet;

use leasehold_fuzz::Target;

use super::State;
use crate::coord::fuzz::{check_refusal, register};

#[test]
fn latch() {
    let state = |count, counted: &[u64]| State { made: 7, count, counted: counted.to_vec() };
    // The last one has a member that counted twice.
    let seeds = [
        state(3, &[]),
        state(3, &[1, u64::MAX]),
        state(2, &[5, 6]),
        state(u32::MAX, &[1]),
        state(3, &[5, 5]),
    ];
    let seeds = seeds.map(|state| state.written());
    Target::new("latch", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&["\0\0\0\0\0\0\0\x01", "L"]).run(
        |input| match State::read(register(), input) {
            Ok(state) => {
                assert_eq!(state.written(), input, "written otherwise than it was read");
                // No waiter passes before so many different members have counted.
                let members = state.counted.iter().collect::<HashSet<_>>().len();
                assert_eq!(state.is_open(), members >= state.count as usize, "a count that was made twice");
                format!("{} counted of {}", members.min(4), state.count.min(4))
            }
            Err(error) => {
                check_refusal(&error, "latch");
                "refused".to_owned()
            }
        },
    );
}
