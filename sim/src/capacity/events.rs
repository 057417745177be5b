//! Events in the order of their times; those of one time come in the order in which they were planned.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The plan, and its time.
#[derive(Debug)]
pub struct EventHeap<E> {
    planned: BinaryHeap<Planned<E>>,
    number: u64,
    now: u64,
}

#[derive(Debug)]
struct Planned<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> Default for EventHeap<E> {
    fn default() -> Self {
        EventHeap { planned: BinaryHeap::new(), number: 0, now: 0 }
    }
}

impl<E> EventHeap<E> {
    /// Returns the time of the last event that was taken, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Plans an event; one in the past comes next.
    pub fn plan(&mut self, at: u64, event: E) {
        self.number += 1;
        self.planned.push(Planned { at: at.max(self.now), number: self.number, event });
    }

    /// Takes the next event that comes before `end`, and moves the time to it.
    pub fn take(&mut self, end: u64) -> Option<E> {
        if self.planned.peek()?.at >= end {
            return None;
        }
        let next = self.planned.pop()?;
        self.now = next.at;
        Some(next.event)
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives out the greatest first.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Planned<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_planning() {
        let mut events = EventHeap::default();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (4, 'b'), (9, 'x')] {
            events.plan(at, event);
        }
        assert_eq!(std::iter::from_fn(|| events.take(9)).collect::<String>(), "abcd");
        assert_eq!(events.now(), 5);
        events.plan(1, 'e');
        assert_eq!((events.take(9), events.now()), (Some('e'), 5));
        assert_eq!((events.take(9), events.take(10)), (None, Some('x')));
    }
}
