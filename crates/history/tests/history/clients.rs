//! Single clients: nobody is left out while others are granted what it asks for.

use std::time::Duration;

use leasehold_history::{Checker, Invariant, Stage};

use crate::story::Story;

/// Process 1 takes the lock again and again, so many times and so many milliseconds apart, for 2 ms each.
fn taken(mut story: Story, times: u64, apart: u64) -> Story {
    for turn in 0..times {
        let (at, owner) = (10 + turn * apart, format!("a{turn}"));
        story = story.ask(at, 1).got(at + 1, 1, &owner, turn + 5, at + 1_500);
        story = story.release(at + 3, 1, &owner).released(at + 4, 1, &owner);
    }
    story.until(times * apart)
}

/// Process 2 asks again and again, for so long each time, and the lock is busy.
fn busy(mut story: Story, from: u64, times: u64, limit: u64) -> Story {
    for turn in 0..times {
        let at = from + turn * (limit + 1);
        story = story.ask_for(at, 2, limit).busy(at + limit, 2);
    }
    story
}

/// Process 2 asks again and again, and fails at once.
fn failing(mut story: Story, from: u64, times: u64, apart: u64) -> Story {
    for turn in 0..times {
        let at = from + turn * apart;
        story = story.ask_for(at, 2, 5_000).failed(at + 1, 2);
    }
    story
}

fn checker() -> Checker {
    let mut checker = Checker::new();
    (checker.recovery, checker.is_ordered) = (Duration::from_secs(8), true);
    checker
}

/// Returns what is broken if a client has to be back within 8 s.
fn broken(story: &Story, change: impl FnOnce(&mut Checker)) -> Vec<Invariant> {
    let mut checker = checker();
    change(&mut checker);
    let verdict = checker.check(&story.history());
    let mut broken: Vec<_> = verdict.violations.iter().map(|one| one.invariant).collect();
    broken.dedup();
    broken
}

#[test]
fn i6_process_that_is_always_passed_over_is_found() {
    let always = taken(busy(Story::new(), 1, 3, 5_000), 300, 50);
    assert_eq!(broken(&always, |_| ()), [Invariant::I6]);
    // Without an order the store may grant the lock to whom it likes.
    assert_eq!(broken(&always, |checker| checker.is_ordered = false), []);
    let for_a_while = taken(busy(Story::new(), 1, 1, 5_000), 300, 50);
    assert_eq!(broken(&for_a_while, |_| ()), []);
    let by_few = taken(busy(Story::new(), 1, 3, 5_000), 90, 150);
    assert_eq!(broken(&by_few, |_| ()), []);
}

#[test]
fn i6_wait_is_explained_by_a_fault_of_its_process_or_of_the_store() {
    let with = |target: &[u64]| {
        let story = busy(Story::new(), 1, 3, 5_000).fault(7_000, "F8 round 0", Stage::Info, target);
        broken(&taken(story, 300, 50), |_| ())
    };
    assert_eq!((with(&[2]), with(&[])), (vec![], vec![]));
    assert_eq!(with(&[1]), [Invariant::I6]);
}

/// A claim that a process hands on to its own tasks was not free for others.
#[test]
fn i6_process_may_be_passed_over_by_hand_offs() {
    let mut story = busy(Story::new(), 1, 3, 5_000);
    for turn in 0..300 {
        let (at, owner) = (10 + turn * 50, format!("a{turn}"));
        story = story.ask(at, 1).got(at + 1, 1, &owner, turn + 5, at + 1_500).handed_on();
        story = story.release(at + 3, 1, &owner).released(at + 4, 1, &owner);
    }
    assert_eq!(broken(&story.until(15_100), |_| ()), []);
}

#[test]
fn i5_process_that_always_fails_is_found() {
    let always = |fault: Option<(u64, &[u64])>| {
        let story = failing(Story::new(), 1, 50, 300);
        let story = match fault {
            Some((at, target)) => story.fault(at, "F8 round 0", Stage::Info, target),
            None => story,
        };
        broken(&taken(story, 75, 200), |checker| checker.is_ordered = false)
    };
    assert_eq!(always(None), [Invariant::I5]);
    assert_eq!(always(Some((2_000, &[2]))), [Invariant::I5]);
    assert_eq!(always(Some((7_000, &[1]))), [Invariant::I5]);
    // It had only seven seconds before and eight after it.
    assert_eq!((always(Some((7_000, &[2]))), always(Some((7_000, &[])))), (vec![], vec![]));
}

/// A client of two processes, of which each fails with an unknown outcome, and is another one afterwards.
#[test]
fn i5_client_that_is_granted_nothing_is_found() {
    let unknown = |mut story: Story, from: u64, process: u64| {
        for turn in 0..3 {
            let (at, process) = (from + turn * 5_000, process + turn * 10);
            story = story.ask_for(at, process, 4_000).no_answer(at + 4_000, process);
        }
        story
    };
    let story = unknown(unknown(Story::new(), 100, 12), 200, 13);
    let client = || vec![12, 13, 22, 23, 32, 33];
    let judged = |story: &Story| broken(story, |checker| checker.clients = vec![vec![1], client()]);
    assert_eq!(judged(&taken(story.clone(), 75, 200)), [Invariant::I5]);
    // One grant is enough.
    let granted = story.clone().ask(14_500, 43).got(14_501, 43, "c", 77, 16_000).handed_on();
    let granted = granted.release(14_502, 43, "c").released(14_503, 43, "c");
    let with_it = |checker: &mut Checker| checker.clients = vec![[client(), vec![43]].concat()];
    assert_eq!(broken(&taken(granted, 75, 200), with_it), []);
    let disturbed = |target: &[u64]| {
        judged(&taken(story.clone().fault(7_500, "F8 round 0", Stage::Info, target), 75, 200))
    };
    assert_eq!((disturbed(&[22]), disturbed(&[])), (vec![], vec![]));
    // Where nobody is granted anything, the lock is to blame.
    assert_eq!(judged(&story.until(15_000)), [Invariant::I5]);
}
