//! Promises that a history does not try: they are unjudged, and never count as kept.

use leasehold_history::{Invariant, Stage};

use crate::story::Story;

const EXPIRED: &str = "the lease ran out before a renewal was confirmed";

/// A lock that nobody is granted for ten minutes, while processes are killed every five seconds.
fn starved(killed: impl Fn(u64) -> u64) -> Story {
    let mut story = Story::new().held(10, 20, 1, "a", 5);
    for turn in 0..120 {
        let begun = 1_000 + turn * 5_000;
        story = story.ask_for(begun, 2 + turn, 4_500);
        story = story.fault(begun + 4_500, "kill worker 3", Stage::Info, &[killed(turn)]);
        story = if killed(turn) == 2 + turn { story } else { story.busy(begun + 4_000, 2 + turn) };
    }
    story
}

#[test]
fn i5_faults_of_others_do_not_excuse_a_lock_that_nobody_gets() {
    starved(|turn| 1_000 + turn).breaks(&[Invariant::I5]);
    // If each waiter is killed, there is never a time in which somebody had to get it, and that is said.
    let excused = starved(|turn| 2 + turn);
    excused.is_clean();
    assert!(excused.is_unjudged(Invariant::I5));
}

#[test]
fn i5_a_fault_excuses_only_the_locks_of_its_process() {
    let story = |key| {
        let story = Story::new().about(key).ask(0, 1).got(1, 1, "a", 5, 1_000).about("job");
        let story = story.ask_for(10, 2, 100_000).fault(900, "pause worker 0", Stage::Invoke, &[1]);
        let story = story.fault(41_000, "pause worker 0", Stage::Ok, &[1]).about(key);
        let story = story.lost(41_001, 1, "a", EXPIRED).not_released_after(41_002).about("job");
        story.got(42_000, 2, "b", 6, 43_000).release(42_001, 2, "b").released(42_002, 2, "b")
    };
    story("job").is_clean();
    story("other").breaks(&[Invariant::I5]);
}

#[test]
fn i5_needs_a_lock_that_is_in_use_for_long() {
    let story = |turns| {
        let held = |story: Story, turn: u64| story.held(turn * 500 + 10, turn * 500 + 400, 1, "a", turn + 1);
        (0..turns).fold(Story::new(), held)
    };
    // 30 seconds are the bound of these tests.
    assert!(story(40).is_unjudged(Invariant::I5));
    assert!(!story(80).is_unjudged(Invariant::I5));
    // A fault of the store in the middle leaves two times that are too short.
    let cut = story(80).fault(20_000, "server down", Stage::Info, &[]);
    assert!(cut.is_unjudged(Invariant::I5));
    assert!(!story(80).fault(20_000, "kill worker 9", Stage::Info, &[9]).is_unjudged(Invariant::I5));
}

#[test]
fn i10_needs_dropped_acquisitions_and_nothing_else_in_the_way() {
    let story = |turns: u64, drops: bool, late: u64| {
        (0..turns).fold(Story::new(), |story, turn| {
            let (at, owner) = (turn * 40_000 + 1_000, format!("b{turn}"));
            let story = if drops { story.ask(at, 1).cancelled(at + 10, 1) } else { story };
            let story =
                story.ask_for(at + 20, 2, 20_000).got(at + 20 + late, 2, &owner, turn + 5, at + 30_000);
            story.release(at + 30 + late, 2, &owner).released(at + 31 + late, 2, &owner)
        })
    };
    assert!(story(8, false, 5).is_unjudged(Invariant::I10));
    assert!(story(3, true, 5).is_unjudged(Invariant::I10) && !story(4, true, 5).is_unjudged(Invariant::I10));
    // A request of unknown outcome, a process that is killed, and any other fault explain a late grant.
    let beside = |add: fn(Story, u64, u64) -> Story| {
        (0..4).fold(story(4, true, 6_000), |story, turn| add(story, turn * 40_000 + 1_000, turn + 10))
    };
    assert!(story(4, true, 6_000).broken().contains(&Invariant::I10));
    let unknown = beside(|story, at, process| story.ask(at, process).no_answer(at + 5, process));
    let fault = |story: Story, at, label, process| story.fault(at, label, Stage::Info, &[process]);
    let killed = (0..4).fold(story(4, true, 6_000), |story, turn| {
        let (at, process) = (turn * 40_000 + 900, turn + 10);
        fault(story.ask(at, process), at + 5, "kill worker 3", process)
    });
    let paused = (0..4).fold(story(4, true, 6_000), |story, turn| {
        fault(story, turn * 40_000 + 2_000, "pause worker 3", turn + 10)
    });
    for story in [unknown, killed, paused] {
        story.is_clean();
        assert!(story.is_unjudged(Invariant::I10));
    }
}

#[test]
fn i10_is_unjudged_where_every_grant_is_late() {
    let story = |story: Story, first: u64, drops: bool| {
        (first..first + 4).fold(story, |story, turn| {
            let (at, owner) = (turn * 20_000, format!("b{turn}"));
            let story = if drops { story.ask(at, 1).cancelled(at + 10, 1) } else { story };
            let (story, got) = (story.ask_for(at + 20, 2, 12_000), at + 6_020);
            let story = story.got(got, 2, &owner, turn + 5, got + 1_000);
            story.release(got + 5, 2, &owner).released(got + 6, 2, &owner)
        })
    };
    let both = story(story(Story::new(), 0, false), 4, true);
    assert!(!both.broken().contains(&Invariant::I10) && both.is_unjudged(Invariant::I10));
}

#[test]
fn what_comes_after_a_loss_is_unjudged_without_a_loss() {
    let kept = Story::new().held(10, 20, 1, "a", 5);
    let expired = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).lost(1_001, 1, "a", EXPIRED);
    let released = expired.clone().not_released_after(1_010);
    for invariant in [Invariant::I11, Invariant::I12] {
        assert!(kept.is_unjudged(invariant) && !released.is_unjudged(invariant), "{invariant}");
    }
    // The loss was seen, and nobody tried to release.
    assert!(expired.is_unjudged(Invariant::I11) && !expired.is_unjudged(Invariant::I12));
}

#[test]
fn what_renewals_prevent_is_unjudged_without_renewals() {
    let story = |is_renewed: bool| {
        let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000);
        let story = if is_renewed { story.renewed(300, 1, "a", 1_300) } else { story };
        story.release(900, 1, "a").released(901, 1, "a")
    };
    story(true).is_clean();
    assert!(story(false).is_unjudged(Invariant::I13) && !story(true).is_unjudged(Invariant::I13));
}
