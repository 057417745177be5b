//! The store as an excuse: what a client says about it later is none, and a recorded fault of it is one.

use leasehold_history::{Checker, Event, FenceValue, Invariant, Operation, Stage, Values};

use crate::story::{Story, ms};

const GONE: &str = "the server no longer knows the claim";

/// Two holders at one time, of whom the first says later that the store did not know its grant.
fn gone(cause: &str) -> Story {
    let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).held(100, 110, 2, "b", 6);
    story.lost(300, 1, "a", cause).not_released_after(301)
}

fn wiped(story: Story, at: u64) -> Story {
    story.fault(at, "the server is wiped", Stage::Info, &[])
}

#[test]
fn only_a_fault_of_the_store_explains_an_overlap() {
    // The library says so itself, and it may be wrong.
    gone(GONE).breaks(&[Invariant::I4]);
    assert!(gone(GONE).verdict().violations[0].doubt.is_some());
    let explained = |story: Story| {
        let violations = story.verdict().violations;
        assert_eq!(violations.len(), 1, "{violations:#?}");
        violations[0].explained.is_some() && violations[0].doubt.is_none()
    };
    assert!(explained(wiped(gone(GONE), 50)));
    // After the other was granted the lock is too late.
    assert!(!explained(wiped(gone(GONE), 200)));
    // A fault of a process does not make the store forget.
    assert!(!explained(gone(GONE).fault(50, "pause worker 7", Stage::Info, &[7])));
    assert!(!explained(gone(GONE).fault(50, "suspend of the machine", Stage::Info, &[])));
    // Nor is a loss of another kind one of the store.
    let held = wiped(gone("the lock was held for as long as max_hold allows"), 50).verdict().violations;
    assert!(held[0].explained.is_none() && held[0].doubt.is_none(), "{held:#?}");
}

/// A fault explains nothing by itself, and without one there is nothing that could.
#[test]
fn overlap_names_the_fault_between_its_grants() {
    let meanwhile = |story: Story| story.verdict().violations[0].meanwhile.clone();
    let both = || Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).held(100, 110, 2, "b", 6).until(900);
    assert_eq!(meanwhile(both()), None);
    assert_eq!(meanwhile(wiped(both(), 50)).as_deref(), Some("the server is wiped"));
    // Of a network, too, but not of the processes and not at another time.
    let named = both().fault(50, "answers are lost", Stage::Info, &[1]);
    assert_eq!(meanwhile(named).as_deref(), Some("answers are lost"));
    // That of other clients did nothing to the first holder, and the second one only found the lock free.
    for others in [&[2][..], &[9]] {
        let named = both().fault(50, "F15 round 0", Stage::Info, others);
        assert_eq!(meanwhile(named), None, "{others:?}");
    }
    // Where nobody knows which of the two was granted first, it may be one of either.
    let unordered = || {
        let asked = Story::new().ask(0, 1).ask(0, 2);
        asked.got(60, 1, "a", 5, 1_000).got(70, 2, "b", 6, 1_000).until(900)
    };
    for holder in [1, 2] {
        let named = unordered().fault(50, "F15 round 0", Stage::Info, &[holder]);
        assert_eq!(meanwhile(named).as_deref(), Some("F15 round 0"), "{holder}");
    }
    for other in ["pause worker 0", "kill worker 0", "suspend of the machine"] {
        assert_eq!(meanwhile(both().fault(50, other, Stage::Info, &[7])), None, "{other}");
    }
    assert_eq!(meanwhile(wiped(both(), 500)), None);
    let late = Story::new().ask(60, 1).got(61, 1, "a", 5, 1_000).held(100, 110, 2, "b", 6).until(900);
    assert_eq!(meanwhile(wiped(late, 50)), None);
    // Who holds an older claim of its process has what the store granted then.
    let older = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).release(60, 1, "a").released(61, 1, "a");
    let older = older.ask(62, 3).got(63, 3, "c", 5, 1_000).handed_on().held(100, 110, 2, "b", 6).until(900);
    assert_eq!(meanwhile(wiped(older, 50)).as_deref(), Some("the server is wiped"));
}

/// The store that granted the lock to another has nothing of the first holder to renew.
#[test]
fn no_fault_of_before_explains_a_renewal_beside_another_holder() {
    let with_ttl = |at: u64, process: u64| {
        let mut values = Values::default();
        values.ttl = Some(ms(900));
        (at, Event::new(Stage::Invoke, Operation::Acquire).by(process).on("job").with(values))
    };
    let ask = |story: Story, at: u64, process: u64| {
        let (at, event) = with_ttl(at, process);
        story.add(at, event)
    };
    // The server is wiped from 50 on, process 2 is granted the lock at 100, and process 1 is renewed at 400.
    let story = |asked: u64, until: u64, healed: u64| {
        let story = ask(Story::new(), asked, 1).got(asked + 1, 1, "a", 5, asked + 900);
        let story = story.fault(50, "the server is wiped", Stage::Invoke, &[]);
        let story = ask(story, 95, 2).got(100, 2, "b", 6, 995).renewed(400, 1, "a", until);
        story.fault(healed, "the server is wiped", Stage::Ok, &[]).release(500, 2, "b")
    };
    let meanwhile = |story: Story, answer: &str| {
        let story = match answer {
            "" => story.released(501, 2, "b"),
            error => story.not_released(501, 2, "b", error),
        };
        let gone = story.release(600, 1, "a").not_released(601, 1, "a", GONE).verdict();
        let found: Vec<_> = gone.violations.iter().filter(|one| one.invariant == Invariant::I4).collect();
        assert_eq!(found.len(), 1, "{:#?}", gone.violations);
        assert_eq!(found[0].explained.is_some(), found[0].meanwhile.is_some(), "{found:#?}");
        (found[0].meanwhile.is_some(), found[0].what.contains("renewed beside"))
    };
    assert_eq!(meanwhile(story(0, 1_290, 110), ""), (false, true));
    // That renewal was asked for before the other one knew of its grant, or while the fault was at work.
    assert_eq!(meanwhile(story(0, 999, 110), ""), (true, false));
    assert_eq!(meanwhile(story(0, 1_290, 395), ""), (true, false));
    // Another fault may have brought the first claim back.
    assert_eq!(meanwhile(wiped(story(0, 1_290, 110), 300), ""), (true, false));
    // The other one was not the holder for the store.
    assert_eq!(meanwhile(story(0, 1_290, 110), GONE), (true, false));
    // A store that gives 20 ms more may have been asked for that renewal before the fault was over.
    let mut longer = Values::default();
    longer.ttl = Some(ms(920));
    let plan = Event::new(Stage::Info, Operation::Plan).with(longer);
    assert_eq!(meanwhile(story(0, 1_290, 380).first(plan), ""), (true, false));
    assert_eq!(meanwhile(story(0, 1_290, 380), ""), (false, true));
    // A pause of a process explains nothing.
    let paused = story(0, 1_290, 110).fault(300, "pause worker 7", Stage::Info, &[7]);
    assert_eq!(meanwhile(paused, ""), (false, true));
}

#[test]
fn a_holder_may_notice_only_at_its_release() {
    let story =
        Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).held(100, 110, 2, "b", 6).release(120, 1, "a");
    let story = wiped(story, 50);
    let verdict = story.clone().not_released(121, 1, "a", GONE).verdict();
    assert!(verdict.violations[0].explained.is_some());
    story.released(121, 1, "a").breaks(&[Invariant::I4]);
}

#[test]
fn a_fence_that_falls_is_never_explained() {
    let story = Story::new().held(10, 20, 1, "a", 9).ask(90, 2).got(100, 2, "b", 3, 1_000);
    let story = wiped(story, 50).lost(200, 2, "b", GONE).release(210, 2, "b").not_released(211, 2, "b", GONE);
    // The wipe was before the second grant, which nothing ended.
    story.breaks(&[Invariant::I2, Invariant::I13]);
    assert!(story.verdict().violations[0].doubt.is_none());
}

#[test]
fn holder_may_learn_of_its_grant_when_another_has_its_own() {
    // The store grants process 1 the lock, forgets it, and grants it to process 2, whose answer is the faster one.
    let story = |asked: u64| {
        let story = Story::new().ask(asked, 1).ask(40, 2).got(60, 2, "b", 6, 1_000).got(70, 1, "a", 5, 1_000);
        story.lost(300, 1, "a", GONE).not_released_after(301)
    };
    let violations = wiped(story(10), 30).verdict().violations;
    assert!(
        !violations.is_empty() && violations.iter().all(|one| one.explained.is_some()),
        "{violations:#?}"
    );
    // The grant is later than the fault.
    let violations = wiped(story(35), 30).verdict().violations;
    assert!(violations.iter().all(|one| one.explained.is_none()), "{violations:#?}");
}

#[test]
fn grant_may_be_noticed_when_the_next_one_has_ended() {
    // As above, and process 2 is done with its grant when process 1 learns of its own.
    let story_of = |asked: u64, ttl: Option<u64>, answer: &str| {
        let mut values = Values::default();
        values.ttl = ttl.map(ms);
        let asking = Event::new(Stage::Invoke, Operation::Acquire).by(1).on("job").with(values);
        let story = Story::new().add(asked, asking).ask(asked, 2).got(60, 2, "b", 6, 1_000);
        let story = story.release(65, 2, "b").released(66, 2, "b").got(70, 1, "a", 5, 1_000);
        match answer {
            "" => story.release(300, 1, "a").released(301, 1, "a"),
            error => story.release(300, 1, "a").not_released(301, 1, "a", error),
        }
    };
    let story = |asked, answer| story_of(asked, Some(1_000 - asked), answer);
    story(10, GONE).breaks(&[Invariant::I2]);
    let explained = |story: Story| {
        let violations = story.verdict().violations;
        assert_eq!(violations.len(), 1, "{violations:#?}");
        violations[0].explained.is_some()
    };
    assert!(explained(wiped(story(10, GONE), 50)));
    // Process 1 asked after the fault, the fault came after the other grant, or the store knew the claim to its end.
    assert!(!explained(wiped(story(55, GONE), 50)));
    assert!(!explained(wiped(story(10, GONE), 63)));
    assert!(!explained(wiped(story(10, ""), 50)));
    // It may have been granted after all that.
    assert!(!explained(wiped(story_of(10, None, GONE), 50)));
}

#[test]
fn fault_before_the_request_that_was_granted_is_no_excuse() {
    // Process 2 waits from the beginning, and is granted the lock beside process 1, long after the fault.
    let story = |until: u64| {
        let mut values = Values::default();
        values.ttl = Some(ms(1_000));
        let asked = Event::new(Stage::Invoke, Operation::Acquire).by(2).on("job").with(values);
        let story = Story::new().add(10, asked).ask(90, 1).got(100, 1, "a", 5, 1_000);
        story.got(150, 2, "b", 6, until).lost(170, 2, "b", GONE).not_released_after(171)
    };
    let explained = |until| {
        let violations = wiped(story(until), 20).verdict().violations;
        assert!(!violations.is_empty());
        violations.iter().any(|one| one.explained.is_some())
    };
    assert!(!explained(1_140), "it was granted after 140");
    assert!(explained(1_015), "it may have been granted at 15");
}

#[test]
fn forgotten_grant_that_is_handed_on_is_the_stores() {
    // Process 1 hands its grant to process 3, while process 2 is granted the lock; process 3 hears of it at the end.
    let story = |answer: &str| {
        let mut values = Values::default();
        (values.owner, values.valid_until) = (Some("a.1".to_owned()), Some(ms(1_000)));
        values.fence = Some(FenceValue::new(0, 5, 1));
        let handed_on = Event::new(Stage::Ok, Operation::Acquire).by(3).on("job").with(values);
        let story = Story::new().ask(0, 1).got(1, 1, "a.0", 5, 1_000).held(100, 200, 2, "b", 6);
        let story = story.release(150, 1, "a.0").released(151, 1, "a.0").ask(152, 3).add(160, handed_on);
        let story = story.release(300, 3, "a.1");
        match answer {
            "" => story.released(301, 3, "a.1"),
            error => story.not_released(301, 3, "a.1", error),
        }
    };
    let verdict = wiped(story(GONE), 50).verdict();
    assert!(verdict.violations.len() >= 2, "{:#?}", verdict.violations);
    assert!(verdict.violations.iter().all(|one| one.explained.is_some()), "{:#?}", verdict.violations);
    for story in [story(GONE), wiped(story(""), 50)] {
        let verdict = story.verdict();
        assert!(verdict.violations.iter().all(|one| one.explained.is_none()), "{:#?}", verdict.violations);
    }
}

/// A release that finds nothing to release is the report of a loss as well.
#[test]
fn i13_release_that_makes_up_a_loss() {
    // Process 2 is granted the lock at `next`, while or before process 1 releases its own.
    let story = |next: u64, answered: u64| {
        let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).renewed(300, 1, "a", 1_300);
        let story = story.ask(310, 2).release(400, 1, "a").not_released(answered, 1, "a", GONE);
        story.got(next, 2, "b", 6, next + 1_000).release(next + 1, 2, "b").released(next + 2, 2, "b")
    };
    // The lock was free at once: the release had ended the grant, and said something else.
    for next in [401, 450] {
        story(next, 440).breaks(&[Invariant::I13]);
        let violations = story(next, 440).verdict().violations;
        assert!(violations[0].doubt.is_some(), "the store may have ended it: {violations:#?}");
    }
    // A fault of the store since the grant may have ended it, and one of another process may not.
    wiped(story(450, 440), 350).is_clean();
    story(450, 440).fault(350, "answers are lost", Stage::Info, &[1]).breaks(&[Invariant::I13]);
    // A fault of the network ends a connection, and what it holds.
    let mut of_connection = Checker::new();
    of_connection.is_held_by_connection = true;
    let troubled = story(450, 440).fault(350, "answers are lost", Stage::Info, &[1]);
    assert!(of_connection.check(&troubled.history()).is_clean());
    assert!(!of_connection.check(&story(450, 440).history()).is_clean());
    // When the answer came, the lease was over.
    story(1_400, 1_290).is_clean();
    // The store gave it to another before: that is broken, and the answer is right.
    story(390, 440).breaks(&[Invariant::I4]);
}

/// The store forgot what a process has, which its next task finds at the release.
#[test]
fn i13_loss_of_a_grant_that_was_handed_on() {
    let story = |wiped_at: u64| {
        let story = Story::new().ask(0, 1).got(1, 1, "a.0", 5, 1_000);
        let story = wiped(story, wiped_at).release(100, 1, "a.0").released(101, 1, "a.0");
        let story = story.ask(102, 3).got(103, 3, "a.1", 5, 1_000).handed_on();
        story.release(200, 3, "a.1").not_released(201, 3, "a.1", GONE)
    };
    story(50).is_clean();
    assert!(story(300).broken().contains(&Invariant::I13));
}
