//! Defects of lock libraries, planted as histories: each must be found, and the same history without it must not.
//!
//! They are the sixteen negative controls of the catalogue of faults. A checker that cannot fail is worthless.

use leasehold_history::{Invariant, Mode, Operation, Stage};

use crate::story::Story;

const GONE: &str = "the server no longer knows the claim";
const EXPIRED: &str = "the lease ran out before a renewal was confirmed";

/// One holder is stopped past its lease, and another one is granted the lock.
fn paused_and_followed() -> Story {
    Story::new()
        .ask(0, 1)
        .got(1, 1, "a", 5, 1_000)
        .fault(10, "pause worker 0", Stage::Invoke, &[1])
        .ask(20, 2)
        .got(1_010, 2, "b", 6, 9_000)
        .fault(1_500, "pause worker 0", Stage::Ok, &[1])
        .lost(1_501, 1, "a", EXPIRED)
        .release(1_510, 1, "a")
        .not_released(1_520, 1, "a", "the lock was lost")
}

#[test]
fn m01_a_release_deletes_without_looking_at_the_owner() {
    let third = |at| {
        paused_and_followed().ask(1_511, 3).got(at, 3, "c", 7, 9_900).release(at + 10, 3, "c").released(
            at + 11,
            3,
            "c",
        )
    };
    // Without the defect the third one waits for the second.
    third(2_010).release(2_000, 2, "b").released(2_001, 2, "b").is_clean();
    let mutant =
        third(1_530).lost(2_000, 2, "b", GONE).release(2_010, 2, "b").not_released(2_011, 2, "b", "lost");
    mutant.breaks(&[Invariant::I4, Invariant::I9]);
    // If the store also forgets without any release, nobody can say that the release did it.
    let forgetful = mutant.about("other").ask(1, 4).got(2, 4, "d", 8, 900).lost(300, 4, "d", GONE);
    let forgetful = forgetful.release(301, 4, "d").not_released(302, 4, "d", "lost");
    forgetful.breaks(&[Invariant::I4, Invariant::I13]);
}

#[test]
fn m02_the_validity_counts_from_the_reply() {
    // The request took 800 ms; the store counts 1,000 ms from when it came.
    let story = |until| {
        Story::new()
            .ask(0, 1)
            .got(800, 1, "a", 5, until)
            .ask(810, 2)
            .got(1_050, 2, "b", 6, 2_050)
            .release(1_060, 2, "b")
            .released(1_061, 2, "b")
            .lost(until, 1, "a", EXPIRED)
    };
    story(1_000).is_clean();
    story(1_800).breaks(&[Invariant::I4]);
}

#[test]
fn m03_a_renewal_without_an_answer_extends() {
    let story = |until, stage| {
        Story::new()
            .ask(0, 1)
            .got(1, 1, "a", 5, 1_000)
            .renewal(400, 1, "a", until, stage)
            .lost(until, 1, "a", EXPIRED)
    };
    story(1_000, Stage::Info).is_clean();
    story(1_400, Stage::Ok).is_clean();
    assert!(story(1_400, Stage::Info).broken().contains(&Invariant::I12));
}

#[test]
fn m04_the_counter_of_fences_has_a_ttl() {
    let story = |after| Story::new().held(10, 20, 1, "a", 41).held(5_000, 5_010, 2, "b", after);
    story(42).is_clean();
    story(1).breaks(&[Invariant::I2]);
}

#[test]
fn m05_the_counter_is_incremented_outside_of_the_script() {
    // Process 1 takes its number, waits, and gets the lock with it after process 2 has held with a later one.
    let story = |first, second| {
        Story::new()
            .ask(1, 1)
            .ask(2, 2)
            .got(10, 2, "b", first, 1_000)
            .release(20, 2, "b")
            .released(21, 2, "b")
            .got(22, 1, "a", second, 1_000)
            .release(30, 1, "a")
            .released(31, 1, "a")
    };
    story(6, 7).is_clean();
    story(6, 5).breaks(&[Invariant::I2]);
}

#[test]
fn m06_the_suffix_of_a_sequential_node_is_the_fence() {
    // The parent was removed while nobody waited, and its successor counts from 0 again.
    let story = |again| {
        Story::new().held(10, 20, 1, "a", 1).held(30, 40, 2, "b", 2).held(90_000, 90_010, 3, "c", again)
    };
    story(3).is_clean();
    story(1).breaks(&[Invariant::I2]);
}

#[test]
fn m07_a_node_of_a_dying_session_is_adopted() {
    // Process 1 finds the node of its former session, which the server removes at 500 ms.
    let story = |until| {
        Story::new()
            .ask(0, 1)
            .got(10, 1, "a", 5, until)
            .ask(20, 2)
            .got(510, 2, "b", 6, 2_000)
            .release(600, 2, "b")
            .released(601, 2, "b")
            .lost(until, 1, "a", "the session with the server ended")
    };
    story(500).is_clean();
    story(1_000).breaks(&[Invariant::I4]);
}

#[test]
fn m08_quorum_writes_the_greatest_fence_nowhere() {
    let story = |second| Story::new().held(10, 20, 1, "a", 7).held(30, 40, 2, "b", second);
    story(8).is_clean();
    story(7).breaks(&[Invariant::I2]);
}

#[test]
fn m09_a_member_of_a_quorum_that_forgot_is_counted() {
    let story =
        |third| Story::new().held(10, 20, 1, "a", 7).held(30, 40, 2, "b", 8).held(50, 60, 3, "c", third);
    story(9).is_clean();
    story(2).breaks(&[Invariant::I2]);
}

#[test]
fn m10_the_register_checks_fences_at_writes_only() {
    // Holder 33 reads and is stopped; 34 reads; 33 writes; 34 writes over it.
    let read = |story: Story, at, process, owner, fence| {
        story
            .read(at, process, owner, fence)
            .served(at + 1, owner, fence, Operation::ServedRead, 0, Stage::Ok)
            .was(at + 2, process, owner, fence, 0)
    };
    let write = |story: Story, at, process, owner, fence, stage| {
        story
            .write(at, process, owner, fence, 1)
            .served(at + 1, owner, fence, Operation::ServedWrite, 1, stage)
            .wrote(at + 2, process, owner, fence, 1, stage)
    };
    let story = |late| {
        let story = read(read(Story::new(), 10, 1, "a", 33), 20, 2, "b", 34);
        write(write(story, 30, 1, "a", 33, late), 40, 2, "b", 34, Stage::Ok)
    };
    story(Stage::Fail).is_clean();
    story(Stage::Ok).breaks(&[Invariant::I1, Invariant::I3, Invariant::Linearizable]);
}

#[test]
fn m11_a_release_ignores_the_count() {
    let story = |left| {
        let story = Story::new()
            .ask(0, 1)
            .got_counted(1, 1, "a", 5, 1_000, Some(1))
            .ask(2, 1)
            .got_counted(3, 1, "a", 5, 1_000, Some(2))
            .release(10, 1, "a")
            .released_counted(11, 1, "a", Some(left));
        match left {
            0 => story.held(20, 30, 2, "b", 6).release(40, 1, "a").not_released(41, 1, "a", "not held"),
            _ => story.release(40, 1, "a").released_counted(41, 1, "a", Some(0)).held(50, 60, 2, "b", 6),
        }
    };
    story(1).is_clean();
    assert!(story(0).broken().contains(&Invariant::I8));
}

#[test]
fn m12_a_notification_is_lost() {
    let story = |granted: bool| {
        let story = Story::new()
            .ask(0, 1)
            .got(1, 1, "a", 5, 1_000)
            .ask(10, 2)
            .release(20, 1, "a")
            .released(21, 1, "a");
        match granted {
            true => story.got(30, 2, "b", 6, 1_000).release(40, 2, "b").released(41, 2, "b").until(60_000),
            false => story.until(60_000),
        }
    };
    story(true).is_clean();
    story(false).breaks(&[Invariant::I5, Invariant::I6]);
}

#[test]
fn m13_an_acquisition_that_is_dropped_leaves_its_place() {
    let story = |left: u64, granted: bool| {
        let story = Story::new().ask(0, 1).busy(5, 1).ask(10, 2);
        let story = match granted {
            true => story.got(20, 2, "b", 6, 1_000).release(30, 2, "b").released(31, 2, "b"),
            false => story,
        };
        story.residue(60_000, left)
    };
    story(0, true).is_clean();
    story(1, true).breaks(&[Invariant::I7]);
    story(1, false).breaks(&[Invariant::I5, Invariant::I6, Invariant::I7]);
    // The place is left each time that a future is dropped on its way, and is skipped when its lease is over.
    let turns = |later: u64| {
        (0..4).fold(Story::new(), |story, turn| {
            let (at, owner) = (turn * 20_000, format!("b{turn}"));
            let story = story.ask(at, 1).ask_for(at + 5, 2, 15_000).cancelled(at + 10, 1);
            let got = at + 10 + later;
            let story = story.got(got, 2, &owner, turn + 5, got + 1_000).release(got + 5, 2, &owner);
            story.released(got + 6, 2, &owner)
        })
    };
    turns(5).is_clean();
    turns(10_000).breaks(&[Invariant::I10]);
}

#[test]
fn m14_a_session_lock_goes_through_a_pooler() {
    // Both got `true` from one server connection, and neither has a time to count.
    let story = |second| {
        let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 0).release(100, 1, "a").released(101, 1, "a");
        story.ask(2, 2).got(second, 2, "b", 6, 0).release(second + 10, 2, "b").released(second + 11, 2, "b")
    };
    story(110).is_clean();
    story(3).breaks(&[Invariant::I4]);
}

#[test]
fn m15_a_semaphore_over_a_quorum() {
    // Two of three members have a permit left for each, but not the same two.
    let story = |third| {
        let one = |story: Story, at, process, owner, fence| {
            story.ask(at - 1, process).got(at, process, owner, fence, 2_000)
        };
        let story = Story::new().in_mode(Mode::Permits { taken: 1, of: 2 });
        let story = one(one(one(story, 10, 1, "a", 5), 20, 2, "b", 6), third, 3, "c", 7);
        let story = story.release(100, 1, "a").released(101, 1, "a");
        story.release(300, 2, "b").released(301, 2, "b").release(310, 3, "c").released(311, 3, "c")
    };
    story(110).is_clean();
    story(30).breaks(&[Invariant::I4]);
}

#[test]
fn m16_a_local_hand_off_keeps_the_fence() {
    use leasehold_history::{Event, FenceValue, Values};
    let story = |sub| {
        let mut values = Values::default();
        values.owner = Some("a.1".to_owned());
        values.fence = Some(FenceValue::new(0, 5, sub));
        values.valid_until = Some(crate::story::ms(1_000));
        let got = Event::new(Stage::Ok, Operation::Acquire).by(2).on("job").with(values);
        let story = Story::new().held(10, 20, 1, "a.0", 5).ask(15, 2).add(22, got);
        story.release(30, 2, "a.1").released(31, 2, "a.1")
    };
    story(1).is_clean();
    story(0).breaks(&[Invariant::I2]);
}
