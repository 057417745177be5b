//! Processes whose clocks are slow, fast or jump. All times of a history are the machine's: the process states anew
//! when a validity ends, once its clock is another one.

use leasehold_history::{Invariant, Stage};

use crate::story::Story;

const EXPIRED: &str = "the lease ran out before a renewal was confirmed";
const GONE: &str = "the server no longer knows the claim";
const FAULT: &str = "F15 round 0";

#[test]
fn jump_forward_ends_a_validity_early() {
    let held = || Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000);
    let lost = |story: Story| story.lost(510, 1, "a", EXPIRED).not_released_after(511);
    lost(held().restated(509, 1, "a", 500)).is_clean();
    lost(held()).breaks(&[Invariant::I13]);
    // It is seen as late as any other.
    let late = held().restated(899, 1, "a", 500).lost(900, 1, "a", EXPIRED).not_released_after(901);
    late.breaks(&[Invariant::I12]);
}

#[test]
fn slow_clock_ends_a_validity_late_and_beside_another() {
    let held = || Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000);
    let lost = |story: Story| story.lost(2_000, 1, "a", EXPIRED).not_released_after(2_001);
    lost(held().restated(500, 1, "a", 2_000)).is_clean();
    lost(held()).breaks(&[Invariant::I12]);
    let other = |story: Story| lost(story.held(1_200, 1_300, 2, "b", 6));
    other(held().restated(500, 1, "a", 2_000)).breaks(&[Invariant::I4]);
    other(held()).breaks(&[Invariant::I12]);
}

/// A renewal afterwards counts by the clock as it is then.
#[test]
fn renewal_after_a_change_of_the_clock_moves_the_end() {
    let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 4_000).restated(300, 1, "a", 1_000);
    let story = story.renewed(600, 1, "a", 1_600).lost(1_600, 1, "a", EXPIRED);
    story.not_released_after(1_601).is_clean();
}

#[test]
fn store_may_forget_a_lease_that_is_over_by_its_own_clock() {
    let story = |at: u64| Story::new().ask_with(0, 1, 1_000).got(1, 1, "a", 5, 4_000).lost(at, 1, "a", GONE);
    story(1_200).is_clean();
    story(300).breaks(&[Invariant::I13]);
    let renewed = |at: u64| {
        let story = Story::new().ask_with(0, 1, 1_000).got(1, 1, "a", 5, 4_000).renewed(900, 1, "a", 4_900);
        story.lost(at, 1, "a", GONE)
    };
    renewed(1_900).is_clean();
    renewed(1_200).breaks(&[Invariant::I13]);
}

/// Its validity says nothing about when it was asked for, and it was confirmed before the other one had the lock.
#[test]
fn renewal_by_a_slow_clock_is_none_beside_another_holder() {
    let story = |renewed: u64| {
        Story::new()
            .ask_with(0, 1, 1_000)
            .got(1, 1, "a", 5, 4_000)
            .fault(100, FAULT, Stage::Invoke, &[1])
            .renewed(renewed, 1, "a", renewed + 4_000)
            .fault(600, FAULT, Stage::Ok, &[1])
            .ask_with(700, 2, 1_000)
            .got(1_550, 2, "b", 6, 2_550)
            .renewed(2_000, 2, "b", 3_000)
            .renewed(2_500, 2, "b", 3_500)
            .renewed(3_000, 2, "b", 4_000)
            .renewed(3_500, 2, "b", 4_500)
            .release(4_400, 2, "b")
            .released(4_401, 2, "b")
            .lost(4_450, 1, "a", GONE)
    };
    let found = |story: Story| {
        let violations = story.verdict().violations;
        assert_eq!(violations[0].invariant, Invariant::I4, "{violations:#?}");
        violations[0].meanwhile.is_some()
    };
    assert!(found(story(500)));
    assert!(!found(story(1_700)), "it was renewed when the other one had the lock");
}
