//! Each invariant with a history that keeps it and one that breaks it, which differ in one thing.

use leasehold_history::{Checker, Event, Invariant, Mode, Operation, Stage, Stamps, Values};

use crate::story::{Story, ms};

const GONE: &str = "the server no longer knows the claim";
const EXPIRED: &str = "the lease ran out before a renewal was confirmed";

#[test]
fn i1_a_register_that_accepts_a_stale_fence() {
    let story = |stage| {
        Story::new().served(10, "b", 6, Operation::ServedRead, 0, Stage::Ok).served(
            20,
            "a",
            5,
            Operation::ServedWrite,
            1,
            stage,
        )
    };
    story(Stage::Fail).is_clean();
    story(Stage::Ok).breaks(&[Invariant::I1]);
    let violation = &story(Stage::Ok).verdict().violations[0];
    assert!(violation.what.contains("0.5.0 after 0.6.0"), "{}", violation.what);
    assert_eq!(violation.slice.len(), 2);
}

#[test]
fn i1_a_register_that_accepts_no_fence_after_one() {
    let story = |operation, stage| {
        let story = Story::new().served(10, "b", 6, Operation::ServedRead, 0, Stage::Ok);
        story.served(20, "x", 0, operation, 1, stage)
    };
    for operation in [Operation::ServedRead, Operation::ServedWrite] {
        story(operation, Stage::Fail).is_clean();
        story(operation, Stage::Ok).breaks(&[Invariant::I1]);
    }
    Story::new().served(20, "x", 0, Operation::ServedWrite, 1, Stage::Ok).is_clean();
}

#[test]
fn i2_fences_rise_over_completed_grants() {
    let story = |second| Story::new().held(10, 20, 1, "a", 5).held(40, 50, 2, "b", second);
    story(6).is_clean();
    story(4).breaks(&[Invariant::I2]);
    story(5).breaks(&[Invariant::I2]);
}

/// A process can pass a shared claim on while another one has a later claim.
#[test]
fn i2_shared_claim_that_is_handed_on_keeps_its_fence() {
    let story = |fence| {
        let story = Story::new().in_mode(Mode::Shared).ask(1, 1).got(2, 1, "a", 5, 1_000);
        story.ask(3, 2).got(4, 2, "b", 6, 1_000).ask(5, 1).got(6, 1, "c", fence, 1_000)
    };
    story(5).handed_on().is_clean();
    story(4).breaks(&[Invariant::I2]);
}

#[test]
fn i2_fences_rise_in_the_order_of_exclusive_grants() {
    // Both ask at the same time; who holds later has the greater fence.
    let story = |first, second| {
        Story::new()
            .ask(1, 1)
            .ask(2, 2)
            .got(10, 2, "b", first, 1_000)
            .release(20, 2, "b")
            .released(21, 2, "b")
            .got(30, 1, "a", second, 1_000)
            .release(40, 1, "a")
            .released(41, 1, "a")
    };
    story(5, 6).is_clean();
    story(6, 5).breaks(&[Invariant::I2]);
}

#[test]
fn i2_the_order_of_receipt_hides_no_fence_that_falls() {
    use leasehold_history::History;
    // The second one asks at `asked` by its own clock, and the recorder hears of it after the first one's grant.
    let broken = |asked, fence| {
        let story = Story::new().ask(1, 1).got(10, 1, "a", 9, 1_000).ask(11, 2).release(20, 1, "a");
        let story = story.released(21, 1, "a").got(30, 2, "b", fence, 1_000).release(40, 2, "b");
        let mut events = story.released(41, 2, "b").history().events().to_vec();
        let request = events.iter_mut().find(|event| event.process == Some(2)).unwrap();
        request.stamped = Some(ms(asked));
        let verdict = Checker::new().check(&History::new(events));
        verdict.violations.iter().map(|one| one.invariant).collect::<Vec<_>>()
    };
    for asked in [5, 10, 11] {
        assert_eq!(broken(asked, 10), []);
        assert_eq!(broken(asked, 3), [Invariant::I2], "asked at {asked} ms");
    }
}

#[test]
fn i2_a_grant_that_has_ended_keeps_the_highest_fence() {
    // The second grant has a high fence, and is not over when the third one comes. The first one is.
    let story = |second| {
        let story = Story::new().ask(1, 1).ask(2, 2).ask(3, 3).got(10, 1, "a", 5, 1_000);
        let story = story.release(20, 1, "a").released(21, 1, "a").got(30, 2, "b", 9, 35);
        story
            .lost(35, 2, "b", EXPIRED)
            .got(34, 3, "c", second, 1_000)
            .release(50, 3, "c")
            .released(51, 3, "c")
    };
    story(6).breaks(&[Invariant::I4]);
    story(4).breaks(&[Invariant::I2, Invariant::I4]);
}

#[test]
fn i3_an_acknowledged_increment_is_in_the_counter() {
    let story = |second| Story::new().increment(10, 1, "a", 5, 0).increment(30, 2, "b", 6, second);
    story(1).is_clean();
    // The second one read an old value, and the register took its word for it.
    story(0).breaks(&[Invariant::I3, Invariant::Linearizable]);
    // An acknowledgement without a write behind it.
    Story::new()
        .increment(10, 1, "a", 5, 0)
        .write(40, 2, "b", 6, 2)
        .wrote(50, 2, "b", 6, 2, Stage::Ok)
        .breaks(&[Invariant::I3]);
    // Two acknowledgements, and one write behind them.
    let again = |stage| {
        let story = Story::new().increment(10, 1, "a", 5, 0).write(40, 1, "a", 5, 1);
        story.wrote(50, 1, "a", 5, 1, stage)
    };
    again(Stage::Info).is_clean();
    again(Stage::Ok).breaks(&[Invariant::I3]);
}

#[test]
fn i3_equal_increments_are_found_without_a_log() {
    let write = |story: Story, at, process, owner, val| {
        story.write(at, process, owner, 5 + process, val).wrote(
            at + 1,
            process,
            owner,
            5 + process,
            val,
            Stage::Ok,
        )
    };
    write(write(Story::new(), 10, 1, "a", 1), 20, 2, "b", 2).is_clean();
    write(write(Story::new(), 10, 1, "a", 1), 20, 2, "b", 1).breaks(&[Invariant::I3]);
}

#[test]
fn i4_two_holders_are_never_valid_at_one_time() {
    // The first holder is stopped, and its lease ends at 1,000 ms; the second one comes at `second`.
    let story = |second| {
        Story::new()
            .ask(0, 1)
            .got(1, 1, "a", 5, 1_000)
            .fault(2, "pause worker 0", Stage::Invoke, &[1])
            .ask(5, 2)
            .got(second, 2, "b", 6, second + 1_000)
            .release(second + 10, 2, "b")
            .released(second + 11, 2, "b")
            .fault(3_000, "pause worker 0", Stage::Ok, &[1])
            .lost(3_001, 1, "a", EXPIRED)
    };
    story(1_001).is_clean();
    story(900).breaks(&[Invariant::I4]);
    let violation = &story(900).verdict().violations[0];
    assert!(violation.what.contains("for 10ms"), "{}", violation.what);
    assert!(violation.slice.iter().any(|event| event.operation == Operation::Fault), "the fault is shown");
    assert_eq!(story(900).verdict().seed, Some(7));
}

#[test]
fn i4_a_renewal_extends_the_time_of_a_holder() {
    let story = |renewed: bool| {
        let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000);
        let story = if renewed { story.renewed(500, 1, "a", 2_000) } else { story };
        let story =
            story.ask(5, 2).got(1_010, 2, "b", 6, 2_000).release(1_020, 2, "b").released(1_021, 2, "b");
        if renewed {
            story.release(1_900, 1, "a").released(1_901, 1, "a")
        } else {
            story.lost(1_001, 1, "a", EXPIRED)
        }
    };
    story(false).is_clean();
    story(true).breaks(&[Invariant::I4]);
}

#[test]
fn i4_readers_exclude_a_writer_and_not_each_other() {
    let story = |second| {
        Story::new()
            .in_mode(Mode::Shared)
            .ask(0, 1)
            .got(1, 1, "a", 5, 1_000)
            .in_mode(second)
            .ask(2, 2)
            .got(10, 2, "b", 6, 1_000)
            .release(20, 2, "b")
            .released(21, 2, "b")
            .release(30, 1, "a")
            .released(31, 1, "a")
    };
    story(Mode::Shared).is_clean();
    story(Mode::Exclusive).breaks(&[Invariant::I4]);
}

#[test]
fn i4_permits_are_not_more_than_there_are() {
    let story = |taken| {
        let one = |story: Story, process: u64, owner: &str, taken| {
            story.in_mode(Mode::Permits { taken, of: 3 }).ask(process, process).got(
                10 + process,
                process,
                owner,
                4 + process,
                1_000,
            )
        };
        let story = one(one(Story::new(), 1, "a", 2), 2, "b", taken);
        story.release(50, 1, "a").released(51, 1, "a").release(52, 2, "b").released(53, 2, "b")
    };
    story(1).is_clean();
    story(2).breaks(&[Invariant::I4]);
}

#[test]
fn i4_a_reader_needs_a_permit_that_is_left() {
    let story = |taken| {
        let story = Story::new().in_mode(Mode::Permits { taken, of: 3 }).ask(0, 1).got(1, 1, "a", 5, 1_000);
        let story = story.in_mode(Mode::Shared).ask(2, 2).got(10, 2, "b", 6, 1_000);
        story.release(20, 2, "b").released(21, 2, "b").release(30, 1, "a").released(31, 1, "a")
    };
    story(2).is_clean();
    story(3).breaks(&[Invariant::I4]);
}

#[test]
fn i4_another_process_does_not_count_on_a_grant() {
    let story = |process, left| {
        let story = Story::new().ask(0, 1).got_counted(1, 1, "a", 5, 1_000, Some(1)).ask(2, process);
        let story = story.got_counted(3, process, "a", 5, 1_000, Some(2)).release(9, process, "a");
        story
            .released_counted(10, process, "a", Some(1))
            .release(11, 1, "a")
            .released_counted(12, 1, "a", left)
    };
    story(1, Some(0)).is_clean();
    assert!(story(2, Some(0)).broken().contains(&Invariant::I4));
}

#[test]
fn i4_a_killed_holder_relies_on_nothing() {
    let story = |kills: bool| {
        let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 0);
        let story = if kills { story.fault(5, "kill worker 0", Stage::Info, &[1]) } else { story };
        story.held(10, 20, 2, "b", 6)
    };
    story(true).is_clean();
    story(false).breaks(&[Invariant::I4]);
}

#[test]
fn i5_a_lock_can_be_acquired_again_after_a_fault() {
    let story = |granted| {
        Story::new()
            .ask(0, 1)
            .got(1, 1, "a", 5, 1_000)
            .fault(2, "kill worker 0", Stage::Info, &[1])
            .ask_for(10, 2, 600_000)
            .got(granted, 2, "b", 6, granted + 1_000)
            .release(granted + 1, 2, "b")
            .released(granted + 2, 2, "b")
    };
    story(5_000).is_clean();
    story(40_000).breaks(&[Invariant::I5]);
    // While a fault is at work nobody has to be granted anything.
    let story = story(40_000);
    story
        .clone()
        .fault(3, "server down", Stage::Invoke, &[])
        .fault(39_000, "server down", Stage::Ok, &[])
        .is_clean();
    story
        .fault(3, "server down", Stage::Invoke, &[])
        .fault(5_000, "server down", Stage::Ok, &[])
        .breaks(&[Invariant::I5]);
}

#[test]
fn i5_tries_that_follow_each_other_want_the_lock_all_the_time() {
    let mut story = Story::new().fault(0, "kill worker 9", Stage::Info, &[9]);
    for turn in 0..10 {
        story = story.ask_for(turn * 4_000 + 10, 2, 3_500).busy(turn * 4_000 + 3_500, 2);
    }
    story.breaks(&[Invariant::I5]);
}

/// Grants of which the first ones are released in vain, each after 100 ms of a lease of a second.
fn released_in_vain(grants: u64, in_vain: u64, answer: fn(Story, u64, u64, &str) -> Story) -> Story {
    (0..grants).fold(Story::new(), |story, turn| {
        let (at, process, owner) = (turn * 2_000 + 10, turn + 1, format!("a{turn}"));
        let story = story.ask(at, process).got(at + 1, process, &owner, turn + 5, at + 1_001);
        let story = story.release(at + 100, process, &owner);
        match turn < in_vain {
            true => answer(story, at + 101, process, &owner),
            false => story.released(at + 101, process, &owner),
        }
    })
}

#[test]
fn i5_release_that_fails_keeps_the_lock_from_others() {
    let denied = |story: Story, at, process, owner: &str| story.not_released(at, process, owner, "denied");
    released_in_vain(5, 5, denied).breaks(&[Invariant::I5]);
    released_in_vain(5, 1, denied).breaks(&[Invariant::I5]);
    released_in_vain(5, 0, denied).is_clean();
    // A fault of the store or of its process since the grant may be the reason, and one of another process is none.
    let one = || released_in_vain(5, 1, denied);
    one().fault(50, "server down", Stage::Info, &[]).is_clean();
    one().fault(50, "the network of process 1", Stage::Info, &[1]).is_clean();
    one().fault(50, "the network of process 9", Stage::Info, &[9]).breaks(&[Invariant::I5]);
    one().fault(5, "server down", Stage::Info, &[]).breaks(&[Invariant::I5]);
    // The lease was over when the answer came.
    let late =
        |story: Story, at, process, owner: &str| story.not_released(at + 950, process, owner, "denied");
    released_in_vain(5, 1, late).is_clean();
    released_in_vain(5, 5, late).breaks(&[Invariant::I5]);
}

#[test]
fn i5_releases_are_hardly_ever_without_an_answer() {
    let unanswered = |story: Story, at, process, owner: &str| story.release_unanswered(at, process, owner);
    released_in_vain(5, 5, unanswered).breaks(&[Invariant::I5]);
    released_in_vain(16, 4, unanswered).breaks(&[Invariant::I5]);
    // A store that is busy owes some of them, and one that is down all of them.
    released_in_vain(17, 4, unanswered).is_clean();
    released_in_vain(3, 3, unanswered).is_clean();
    let down = released_in_vain(5, 5, unanswered).fault(5, "server down", Stage::Invoke, &[]);
    down.fault(9_900, "server down", Stage::Ok, &[]).is_clean();
}

#[test]
fn i6_a_wait_with_a_limit_returns_by_it() {
    let story = |end| Story::new().ask_for(0, 1, 1_000).busy(end, 1);
    story(1_050).is_clean();
    story(1_500).breaks(&[Invariant::I6]);
    // Not if its process was stopped meanwhile.
    story(1_500)
        .fault(500, "pause worker 0", Stage::Invoke, &[1])
        .fault(1_000, "pause worker 0", Stage::Ok, &[1])
        .is_clean();
    // A wait that never returns is found at the end of the recording.
    Story::new().ask_for(0, 1, 1_000).until(1_050).is_clean();
    Story::new().ask_for(0, 1, 1_000).until(9_000).breaks(&[Invariant::I6]);
    let killed = |at| Story::new().ask_for(0, 1, 1_000).fault(at, "kill worker 0", Stage::Info, &[1]);
    killed(10).until(9_000).is_clean();
    // It had not returned long after its limit, when its process was killed.
    killed(8_000).until(9_000).breaks(&[Invariant::I6]);
}

#[test]
fn i7_nothing_is_left() {
    let story = |left| Story::new().held(10, 20, 1, "a", 5).residue(100, left);
    story(0).is_clean();
    story(2).breaks(&[Invariant::I7]);
    let verdict = Story::new().held(10, 20, 1, "a", 5).verdict();
    assert!(verdict.unjudged.iter().any(|one| one.invariant == Invariant::I7), "nobody looked");
}

#[test]
fn i8_counts_are_exact_and_a_release_too_many_is_an_error() {
    let story = |second, left| {
        Story::new()
            .ask(0, 1)
            .got_counted(1, 1, "a", 5, 1_000, Some(1))
            .ask(2, 1)
            .got_counted(3, 1, "a", 5, 1_000, Some(second))
            .release(4, 1, "a")
            .released_counted(5, 1, "a", Some(left))
            .release(6, 1, "a")
            .released_counted(7, 1, "a", Some(0))
    };
    story(2, 1).is_clean();
    assert!(story(2, 0).broken().contains(&Invariant::I8));
    let twice = |succeeds: bool| {
        let story = Story::new().held(10, 20, 1, "a", 5).release(30, 1, "a");
        if succeeds { story.released(31, 1, "a") } else { story.not_released(31, 1, "a", "not held") }
    };
    twice(false).is_clean();
    twice(true).breaks(&[Invariant::I8]);
}

#[test]
fn i8_loss_ends_the_count() {
    let counted = |lost: bool| {
        let mut values = Values::default();
        (values.count, values.valid_until) = (Some(1), Some(ms(1_000)));
        let got = |story: Story, at| {
            story.ask(at, 1).event(at + 1, 1, Stage::Ok, Operation::Acquire, values.clone())
        };
        let story = got(Story::new(), 0);
        let story = match lost {
            true => {
                let mut expired = Event::new(Stage::Ok, Operation::Lost).by(1).on("job");
                expired.error = Some(EXPIRED.to_owned());
                story.add(1_000, expired)
            }
            false => story,
        };
        got(story, 1_010)
    };
    counted(true).is_clean();
    assert!(counted(false).broken().contains(&Invariant::I8));
}

#[test]
fn i9_a_process_touches_no_grant_but_its_own() {
    let story = |owner| {
        Story::new()
            .ask(0, 1)
            .got(1, 1, "a", 5, 1_000)
            .renewed(100, 1, "a", 1_500)
            .release(200, 1, "a")
            .released(201, 1, owner)
    };
    story("a").is_clean();
    assert!(story("b").broken().contains(&Invariant::I9));
    let renews = |process| {
        let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).renewed(100, process, "a", 1_500);
        story.release(200, 1, "a").released(201, 1, "a")
    };
    renews(1).is_clean();
    renews(2).breaks(&[Invariant::I9]);
}

/// Process 1 drops an acquisition again and again, and process 2, which asks next, is granted the lock so much later.
fn dropped(later: &[u64]) -> Story {
    later.iter().enumerate().fold(Story::new(), |story, (turn, later)| {
        let (at, owner) = (turn as u64 * 20_000, format!("b{turn}"));
        let story = story.ask(at, 1).cancelled(at + 10, 1).ask_for(at + 20, 2, 12_000);
        let got = at + 20 + later;
        let story = story.got(got, 2, &owner, turn as u64 + 5, got + 1_000).release(got + 5, 2, &owner);
        story.released(got + 6, 2, &owner)
    })
}

#[test]
fn i10_acquisition_that_is_dropped_leaves_nothing() {
    dropped(&[5, 900, 20, 5]).is_clean();
    dropped(&[6_000; 4]).breaks(&[Invariant::I10]);
    let violation = &dropped(&[6_000; 4]).verdict().violations[0];
    assert!(violation.slice.iter().any(|event| event.error.as_deref() == Some("cancelled")), "{violation:?}");
    // A machine that is busy delays some of them.
    let some = |late: usize| (0..16).map(|turn| if turn < late { 6_000 } else { 5 }).collect::<Vec<_>>();
    dropped(&some(3)).is_clean();
    dropped(&some(4)).breaks(&[Invariant::I10]);
}

#[test]
fn i10_place_in_a_queue_is_left_when_its_turn_comes() {
    // Process 3 waited before the one that was dropped, and has its turn in time; process 2 waited after it.
    let story = |later: u64| {
        (0..4).fold(Story::new(), |story, turn| {
            let (at, fence) = (turn * 20_000, turn * 3 + 5);
            let (one, two, three) = (format!("a{turn}"), format!("b{turn}"), format!("c{turn}"));
            let story = story.ask(at, 4).got(at + 1, 4, &one, fence, at + 9_000).ask_for(at + 10, 3, 12_000);
            let story = story.ask(at + 20, 1).ask_for(at + 30, 2, 12_000).cancelled(at + 40, 1);
            let story = story.release(at + 100, 4, &one).released(at + 101, 4, &one);
            let story = story.got(at + 110, 3, &three, fence + 1, at + 9_000).release(at + 120, 3, &three);
            let (story, got) = (story.released(at + 121, 3, &three), at + 121 + later);
            let story = story.got(got, 2, &two, fence + 2, got + 1_000).release(got + 5, 2, &two);
            story.released(got + 6, 2, &two)
        })
    };
    story(5).is_clean();
    assert!(story(6_000).broken().contains(&Invariant::I10));
}

#[test]
fn i10_grant_that_is_kept_for_ever_needs_no_second_case() {
    let story = Story::new().ask(0, 1).cancelled(10, 1).ask(20, 2);
    let granted =
        |at| story.clone().got(at, 2, "b", 6, at + 1_000).release(at + 5, 2, "b").released(at + 6, 2, "b");
    granted(8_000).is_clean();
    granted(40_000).breaks(&[Invariant::I5, Invariant::I10]);
    story.clone().until(60_000).breaks(&[Invariant::I5, Invariant::I6, Invariant::I10]);
}

#[test]
fn i10_claim_that_is_left_at_the_end_is_of_one_that_was_dropped() {
    let story = |left, others: bool| {
        let story = Story::new().ask(0, 1).cancelled(5, 1).held(10, 20, 2, "b", 6);
        let story = if others { story.ask_for(30, 3, 1_000).busy(1_030, 3) } else { story };
        story.residue(60_000, left)
    };
    story(0, false).is_clean();
    story(1, false).breaks(&[Invariant::I7, Invariant::I10]);
    // One that waited in vain may have left it as well.
    story(1, true).breaks(&[Invariant::I7]);
}

#[test]
fn i11_a_release_after_a_loss_is_an_error() {
    let story = |succeeds: bool| {
        let story = Story::new()
            .ask(0, 1)
            .got(1, 1, "a", 5, 1_000)
            .lost(1_001, 1, "a", EXPIRED)
            .release(1_100, 1, "a");
        if succeeds {
            story.released(1_101, 1, "a")
        } else {
            story.not_released(1_101, 1, "a", "the lock was lost")
        }
    };
    story(false).is_clean();
    story(true).breaks(&[Invariant::I11]);
}

#[test]
fn i11_release_that_succeeds_after_the_validity_is_an_error() {
    let story =
        |at| Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).release(at, 1, "a").released(at + 1, 1, "a");
    story(1_010).is_clean();
    story(1_200).breaks(&[Invariant::I11, Invariant::I12]);
}

#[test]
fn i12_a_loss_is_reported_when_the_validity_ends() {
    let story = |at| {
        Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).lost(at, 1, "a", EXPIRED).not_released_after(at + 1)
    };
    story(1_040).is_clean();
    story(1_500).breaks(&[Invariant::I12]);
    // A process that is stopped cannot see it earlier.
    story(1_500)
        .fault(900, "pause worker 0", Stage::Invoke, &[1])
        .fault(1_490, "pause worker 0", Stage::Ok, &[1])
        .is_clean();
    // Never is late, too.
    Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).until(5_000).breaks(&[Invariant::I12]);
}

#[test]
fn i13_no_loss_is_reported_while_the_lease_is_renewed() {
    let story = |at| {
        let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).renewed(300, 1, "a", 1_300);
        story.lost(at, 1, "a", EXPIRED).not_released_after(at + 1)
    };
    story(1_300).is_clean();
    story(700).breaks(&[Invariant::I13]);
}

/// Each of these needs a request of the user, which a load without them has not made.
#[test]
fn i13_no_loss_is_reported_for_a_reason_that_nobody_gave() {
    let renewed = || Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).renewed(300, 1, "a", 1_300);
    for cause in [
        "the lock was held for as long as max_hold allows",
        "the client was closed",
        "the lock was transferred to another process",
        "the task that renews the lock in this process ended",
        "the lock was revoked",
    ] {
        let lost = |at| renewed().lost(at, 1, "a", cause).not_released_after(at + 1);
        lost(700).breaks(&[Invariant::I13]);
        lost(1_300).is_clean();
        // The answer to a release may be the first to say it.
        let released = |at| {
            let answer = format!("release: the lock was lost: {cause}; acquire it again");
            renewed().release(at, 1, "a").not_released(at + 1, 1, "a", &answer)
        };
        released(700).breaks(&[Invariant::I13]);
        released(1_300).is_clean();
        let mut with_users = Checker::new();
        with_users.is_ended_by_users = true;
        for story in [lost(700), released(700)] {
            assert!(with_users.check(&story.history()).is_clean(), "{cause}");
        }
    }
    // As it is with a lease that is said to be over, unless the clock may have been changed meanwhile.
    let over = renewed().release(700, 1, "a").not_released(710, 1, "a", EXPIRED);
    over.breaks(&[Invariant::I13]);
    over.fault(705, "the clock of process 1", Stage::Info, &[1]).is_clean();
}

#[test]
fn i13_store_that_knows_the_claim_disproves_its_loss() {
    let held = || Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).renewed(400, 1, "a", 1_400);
    let gone = |story: Story| story.lost(500, 1, "a", GONE).ask(510, 2);
    // The store refused the other one until the end of the lease.
    let refused = gone(held()).got(1_401, 2, "b", 6, 2_401).release(1_500, 2, "b").released(1_501, 2, "b");
    refused.breaks(&[Invariant::I13]);
    let is_doubted = |story: &Story, handover: u64| {
        let mut checker = Checker::new();
        checker.handover = std::time::Duration::from_millis(handover);
        checker.check(&story.history()).violations[0].doubt.is_some()
    };
    // Someone who asks for the lock rarely may find it free long after it was forgotten.
    assert!(is_doubted(&refused, 1_000) && !is_doubted(&refused, 800));
    // It was free at once: the store may have forgotten it.
    let forgotten = gone(held()).got(520, 2, "b", 6, 1_520).release(600, 2, "b").released(601, 2, "b");
    forgotten.breaks(&[Invariant::I13]);
    assert!(is_doubted(&forgotten, 10));
    // With a fault of the store it has.
    gone(held().fault(450, "the server is wiped", Stage::Info, &[]))
        .got(520, 2, "b", 6, 1_520)
        .release(600, 2, "b")
        .released(601, 2, "b")
        .is_clean();
    gone(held().fault(450, "pause worker 0", Stage::Info, &[1])).busy(600, 2).breaks(&[Invariant::I13]);
    gone(held().fault(450, "the network of process 1", Stage::Info, &[1]))
        .busy(600, 2)
        .breaks(&[Invariant::I13]);
    // A session ends with its network, and not without any fault.
    let session = |story: Story| story.lost(500, 1, "a", "the session with the server ended");
    session(held()).breaks(&[Invariant::I13]);
    session(held().fault(450, "the network of process 1", Stage::Info, &[1])).is_clean();
    // A claim whose lease is over is forgotten by right.
    held().lost(1_400, 1, "a", GONE).is_clean();
}

#[test]
fn linearizability_of_the_register() {
    let story = |second| {
        Story::new()
            .write(10, 1, "a", 5, 1)
            .read(12, 2, "b", 6)
            .wrote(20, 1, "a", 5, 1, Stage::Ok)
            .was(21, 2, "b", 6, 1)
            .read(30, 3, "c", 7)
            .was(31, 3, "c", 7, second)
    };
    story(1).is_clean();
    story(0).breaks(&[Invariant::Linearizable]);
}

#[test]
fn unknown_write_appears_never_after_a_higher_fence() {
    let story = |seen_by_c| {
        Story::new()
            .write(10, 1, "a", 5, 1)
            .wrote(11, 1, "a", 5, 1, Stage::Info)
            .read(100, 2, "b", 6)
            .was(101, 2, "b", 6, 0)
            .read(200, 3, "c", 7)
            .was(201, 3, "c", 7, seen_by_c)
    };
    story(0).is_clean();
    story(1).breaks(&[Invariant::Linearizable]);
}

#[test]
fn clocks_that_differ_are_aligned() {
    // The clock of process 2 is ten seconds ahead, as in a time namespace of its own.
    let story = Story::new().held(10, 20, 1, "a", 5).held(40, 50, 2, "b", 6).held(60, 70, 1, "c", 7);
    let mut events = story.history().events().to_vec();
    for event in &mut events {
        if event.process == Some(2) {
            event.stamped = event.stamped.map(|at| at + ms(10_000));
            event.values.valid_until = event.values.valid_until.map(|at| at + ms(10_000));
        }
    }
    let history = leasehold_history::History::new(events);
    let judged = |stamps| {
        let mut checker = Checker::new();
        checker.stamps = stamps;
        checker.check(&history).is_clean()
    };
    assert!(!judged(Stamps::Own), "the fence of the third grant looks as if it went back");
    assert!(judged(Stamps::Aligned) && judged(Stamps::Recorder));
}

#[test]
fn overlaps_are_found_by_the_recorders_clock_as_well() {
    let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).held(100, 110, 2, "b", 6);
    let story = story.release(300, 1, "a").released(301, 1, "a");
    let mut checker = Checker::new();
    checker.stamps = Stamps::Recorder;
    let verdict = checker.check(&story.history());
    assert_eq!(verdict.violations[0].invariant, Invariant::I4);
    assert!(verdict.unjudged.iter().any(|one| one.invariant == Invariant::I12));
}
