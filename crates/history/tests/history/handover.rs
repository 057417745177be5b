//! Hand-overs and waits between the faults: a lock that was released goes to one who waits for it.

use std::time::Duration;

use leasehold_history::{Checker, Invariant, Stage};

use crate::story::Story;

/// Returns what is broken if locks have to be handed over within a second.
fn broken(story: &Story) -> Vec<Invariant> {
    let mut checker = Checker::new();
    checker.handover = Duration::from_secs(1);
    let mut broken: Vec<_> =
        checker.check(&story.history()).violations.iter().map(|one| one.invariant).collect();
    broken.dedup();
    broken
}

/// Process 1 releases a lock again and again while process 2 waits for it, and is granted it so much later.
fn turns(later: &[u64], limit: u64) -> Story {
    let mut story = Story::new();
    for (turn, later) in later.iter().enumerate() {
        let (at, fence) = (turn as u64 * 10_000, turn as u64 * 2 + 5);
        let (one, other) = (format!("a{turn}"), format!("b{turn}"));
        story = story.ask(at, 1).got(at + 1, 1, &one, fence, at + 1_500).ask_for(at + 10, 2, limit);
        story = story.release(at + 20, 1, &one).released(at + 21, 1, &one);
        let got = at + 21 + later;
        story = story.got(got, 2, &other, fence + 1, got + 1_500).release(got + 5, 2, &other);
        story = story.released(got + 6, 2, &other);
    }
    story.until(later.len() as u64 * 10_000)
}

#[test]
fn i5_lock_that_was_released_goes_to_one_who_waits() {
    assert_eq!(broken(&turns(&[5, 900, 20, 5], 8_000)), []);
    // A release that is not sent leaves the lock to its lease.
    assert_eq!(broken(&turns(&[1_480, 1_490, 1_480, 1_470], 8_000)), [Invariant::I5]);
    let some = |late: usize| (0..16).map(|turn| if turn < late { 1_490 } else { 5 }).collect::<Vec<_>>();
    assert_eq!(broken(&turns(&some(3), 8_000)), []);
    assert_eq!(broken(&turns(&some(4), 8_000)), [Invariant::I5]);
    // The one that leaves at once does not want it any more.
    let left = (0..4).fold(Story::new(), |story, turn| {
        let (at, owner) = (turn * 10_000, format!("a{turn}"));
        let story = story.ask(at, 1).got(at + 1, 1, &owner, turn + 5, at + 1_500).ask_for(at + 10, 2, 8_000);
        story.release(at + 20, 1, &owner).released(at + 21, 1, &owner).busy(at + 100, 2)
    });
    assert_eq!(broken(&left.until(40_000)), []);
    // A waiter without patience shows nothing.
    assert_eq!(broken(&turns(&[1_480; 4], 1_010)), [Invariant::I6]);
}

#[test]
fn i5_release_under_a_fault_may_be_late() {
    let story = turns(&[1_490; 8], 8_000);
    let disturbed = |of: u64| {
        let fault =
            |story: Story, turn: u64| story.fault(turn * 10_000 + 100, "lost answers", Stage::Info, &[9]);
        (0..of).fold(story.clone(), fault)
    };
    assert_eq!(broken(&disturbed(4)), [Invariant::I5]);
    assert_eq!(broken(&disturbed(5)), []);
}

#[test]
fn i6_waits_are_woken_before_their_limit() {
    // Each ends at its limit, although the lock was free within a second.
    assert_eq!(broken(&turns(&[960; 4], 1_000)), [Invariant::I6]);
    assert_eq!(broken(&turns(&[960; 4], 2_000)), []);
    assert_eq!(broken(&turns(&[960, 960, 500, 960, 500, 960, 500, 500], 1_000)), []);
    assert_eq!(broken(&turns(&[960, 960, 500, 960, 500, 960, 960, 500], 1_000)), [Invariant::I6]);
}

/// A holder that is stopped keeps those that wait until its lease ends, and nothing wakes them before.
#[test]
fn i6_wait_under_a_fault_may_end_at_its_limit() {
    let disturbed = |of: u64| {
        let fault = |story: Story, turn: u64| story.fault(turn * 10_000 + 100, "pause", Stage::Info, &[9]);
        (0..of).fold(turns(&[960; 8], 1_000), fault)
    };
    assert_eq!(broken(&disturbed(4)), [Invariant::I6]);
    assert_eq!(broken(&disturbed(5)), []);
}

#[test]
fn handovers_are_unjudged_without_enough_of_them() {
    assert!(turns(&[5; 3], 8_000).is_unjudged(Invariant::I6));
    assert!(!turns(&[5; 4], 8_000).is_unjudged(Invariant::I6));
}
