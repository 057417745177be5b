//! The order of time, in which other checkers read events.
//!
//! The events of one process keep their order, whatever its clock says. Of different processes, those at one time
//! overlap, so invocations come first.

use std::collections::HashMap;

use crate::event::{Event, Stage};
use crate::view::View;

/// An event, and its place in the order of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'h> {
    /// The time of the event, which is not before that of an earlier one of its process.
    pub(super) time: u64,
    pub(super) event: &'h Event,
    /// The turn among the events of one time.
    pub(super) turn: u32,
}

/// Returns all events in the order of time.
pub(super) fn ordered<'h>(view: &View<'h>) -> Vec<Placed<'h>> {
    let mut last: HashMap<u64, (u64, u32)> = HashMap::new();
    let place = |event: &'h Event| {
        let time = view.times.at(event);
        let turn = u32::from(event.stage != Stage::Invoke);
        let Some(process) = event.process else { return Placed { time, event, turn } };
        let (time, turn) = match last.get(&process) {
            Some((before, passed)) if *before >= time => (*before, turn.max(passed.saturating_add(1))),
            _ => (time, turn),
        };
        last.insert(process, (time, turn));
        Placed { time, event, turn }
    };
    let mut placed: Vec<Placed<'_>> = view.events.iter().map(place).collect();
    placed.sort_by_key(|placed| (placed.time, placed.turn, placed.event.index));
    placed
}
