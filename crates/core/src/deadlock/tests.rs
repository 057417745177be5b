//! Small graphs, drawn by hand: which are deadlocks, which are not, and which waiters are notified.

use super::*;
use crate::{ClaimInfo, Note, SnapshotVersion};

/// Returns the id of claim `n`, and of the wait `n`.
fn id(n: u8) -> ClaimId {
    ClaimId::from_bytes([n; 16])
}

fn name(text: &str) -> Resource {
    Resource::new(text).unwrap()
}

fn line(resource: &str, holders: &[(u8, Share)]) -> Snapshot {
    let info = |(claim, share): &(u8, Share)| ClaimInfo {
        id: id(*claim),
        share: *share,
        fence: None,
        since_unix_ms: None,
        remaining: None,
        note: Note::default(),
    };
    let holders = holders.iter().map(info).collect();
    let version = SnapshotVersion::new("");
    Snapshot { resource: name(resource), version, holders, waiting: Vec::new(), fence: None }
}

/// Returns a wait whose waiter is named as its number.
fn wait(number: u8, resource: &str, share: Share, holds: &[u8]) -> Announced {
    Announced {
        place: name("waits"),
        id: id(100 + number),
        number: u64::from(number),
        resource: name(resource),
        share,
        asks: None,
        holds: holds.iter().map(|claim| Tag::of(id(*claim))).collect(),
        note: number.to_string(),
    }
}

fn notes(found: &[Deadlock]) -> Vec<Vec<&str>> {
    found.iter().map(|deadlock| deadlock.waits.iter().map(|wait| wait.note.as_str()).collect()).collect()
}

const MUTEX: Share = Share::MUTEX;
const READER: Share = Share::READER;
const WRITER: Share = Share::WRITER;

#[test]
fn cycle_is_reported_from_the_waiter_that_closed_it() {
    let lines = [line("a", &[(1, MUTEX)]), line("b", &[(2, MUTEX)]), line("c", &[(3, MUTEX)])];
    let waits = [wait(7, "b", MUTEX, &[1]), wait(9, "c", MUTEX, &[2]), wait(8, "a", MUTEX, &[3])];
    let found = find(&waits, &lines);
    assert_eq!(notes(&found), [["9", "8", "7"]]);
    assert_eq!(found[0].waits[0].holds, [name("b")]);
    let text = "\"9\" holds b and waits for c (mutex); \"8\" holds c and waits for a (mutex); \
                \"7\" holds a and waits for b (mutex)";
    assert_eq!(found[0].to_string(), text);
}

#[test]
fn each_wait_is_reported_behind_the_one_that_it_keeps_waiting() {
    let lines = [line("a", &[(1, MUTEX)]), line("b", &[(2, MUTEX)]), line("c", &[(3, MUTEX)])];
    let waits = [wait(9, "b", MUTEX, &[1]), wait(7, "c", MUTEX, &[2]), wait(8, "a", MUTEX, &[3])];
    assert_eq!(notes(&find(&waits, &lines)), [["9", "7", "8"]]);
}

#[test]
fn resources_that_others_wait_for_are_reported_in_their_order() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut lines: Vec<Snapshot> =
        (1..).zip(names).map(|(claim, name)| line(name, &[(claim, MUTEX)])).collect();
    lines.push(line("last", &[(9, WRITER)]));
    let mut waits = vec![wait(99, "last", MUTEX, &[1, 2, 3, 4, 5, 6])];
    waits.extend((1..).zip(names).map(|(number, name)| wait(number, name, MUTEX, &[9])));
    let found = find(&waits, &lines);
    assert_eq!(found[0].waits[0].holds, names.map(name));
}

#[test]
fn chain_is_not_a_deadlock_even_if_it_ends_at_an_unknown_claim() {
    let lines = [line("a", &[(1, MUTEX)]), line("b", &[(2, MUTEX)])];
    assert_eq!(find(&[wait(1, "b", MUTEX, &[1])], &lines), []);
    assert_eq!(find(&[wait(1, "b", MUTEX, &[1]), wait(2, "a", MUTEX, &[5])], &lines), []);
    // Without a snapshot of one of the queues nothing can be said.
    let circle = [wait(1, "b", MUTEX, &[1]), wait(2, "a", MUTEX, &[2])];
    assert_eq!(find(&circle, &lines[..1]), []);
    assert_eq!(find(&circle, &lines).len(), 1);
    assert_eq!(find(&circle[..1], &lines), []);
}

#[test]
fn waiter_behind_a_cycle_is_not_part_of_it() {
    let lines = [line("a", &[(1, MUTEX)]), line("b", &[(2, MUTEX)]), line("c", &[(3, MUTEX)])];
    let circle = [wait(1, "b", MUTEX, &[1]), wait(2, "a", MUTEX, &[2])];
    let behind = wait(3, "a", MUTEX, &[3]);
    assert_eq!(notes(&find(&[&circle[..], &[behind]].concat(), &lines)), [["2", "1"]]);
}

#[test]
fn readers_are_in_the_way_of_a_writer_and_not_of_readers() {
    let lines = [line("a", &[(1, READER), (2, READER)]), line("b", &[(3, MUTEX)])];
    assert_eq!(find(&[wait(1, "b", MUTEX, &[1]), wait(2, "a", READER, &[3])], &lines), []);
    assert_eq!(
        notes(&find(&[wait(1, "b", MUTEX, &[1]), wait(2, "a", WRITER, &[3])], &lines)),
        [["2", "1"]],
        "the release of another reader does not help"
    );
    assert_eq!(notes(&find(&[wait(1, "a", WRITER, &[1]), wait(2, "a", WRITER, &[2])], &lines)), [["2", "1"]]);
}

#[test]
fn reader_behind_a_writer_waits_for_the_same_holders() {
    let mut read = line("a", &[(1, READER)]);
    let queue = line("a", &[(8, WRITER), (9, READER)]);
    read.waiting = queue.holders;
    let lines = [read, line("b", &[(2, MUTEX)])];
    let queued = Announced { asks: Some(Tag::of(id(9))), ..wait(2, "a", READER, &[2]) };
    let waits = [wait(1, "b", MUTEX, &[1]), queued.clone()];
    assert_eq!(notes(&find(&waits, &lines)), [["2", "1"]]);
    let passes = Announced { asks: None, ..queued.clone() };
    assert_eq!(
        find(&[waits[0].clone(), passes], &lines),
        [],
        "if the writer can be passed, this is not a deadlock"
    );
    let ahead = Announced { asks: Some(Tag::of(id(8))), ..queued };
    assert_eq!(find(&[waits[0].clone(), ahead], &lines), [], "and neither if it stood ahead of the writer");
}

#[test]
fn holder_that_will_release_hides_no_deadlock_with_the_others() {
    let lines = [line("a", &[(1, READER), (2, READER)]), line("b", &[(3, MUTEX)]), line("c", &[(4, MUTEX)])];
    // The third waits for what comes free, and then releases its share of a.
    let waits = [wait(1, "b", MUTEX, &[1]), wait(2, "a", WRITER, &[3]), wait(3, "c", MUTEX, &[2])];
    assert_eq!(notes(&find(&waits, &lines)), [["2", "1"]], "the first reader never releases");
}

#[test]
fn permits_deadlock_only_if_no_other_permit_can_be_freed() {
    let two = |weight| Share::permits(weight, 2).unwrap();
    let lines = [line("s", &[(1, two(1)), (2, two(1))]), line("a", &[(3, MUTEX)])];
    let waits = [wait(1, "s", two(1), &[3]), wait(2, "a", MUTEX, &[1])];
    assert_eq!(find(&waits, &lines), [], "the other permit comes free");
    let both = [waits[0].clone(), waits[1].clone(), wait(3, "a", MUTEX, &[2])];
    assert_eq!(find(&both, &lines).first().map(|found| found.waits.len()), Some(3));
    // A holder that allows two in all counts for one that would allow more.
    let five = [wait(1, "s", Share::permits(1, 5).unwrap(), &[3]), both[1].clone(), both[2].clone()];
    assert_eq!(find(&five, &lines).first().map(|found| found.waits.len()), Some(3));
    let whole = [wait(1, "s", two(2), &[3]), wait(2, "a", MUTEX, &[1])];
    assert_eq!(notes(&find(&whole, &lines)), [["2", "1"]], "both permits are asked for");
}

#[test]
fn owner_with_two_waits_is_deadlocked_only_if_both_are() {
    let lines = [line("a", &[(1, MUTEX)]), line("b", &[(2, MUTEX)]), line("c", &[(3, MUTEX)])];
    let one = [wait(1, "b", MUTEX, &[1]), wait(2, "a", MUTEX, &[2]), wait(3, "c", MUTEX, &[1])];
    assert_eq!(find(&one, &lines), [], "c comes free, and then perhaps a");
    let both = [one[0].clone(), one[1].clone(), wait(3, "b", MUTEX, &[1])];
    assert_eq!(notes(&find(&both, &lines)), [["3", "2", "1"]]);
}

#[test]
fn separate_deadlocks_are_reported_separately() {
    let lines = [
        line("a", &[(1, MUTEX)]),
        line("b", &[(2, MUTEX)]),
        line("c", &[(3, MUTEX)]),
        line("d", &[(4, MUTEX)]),
        line("e", &[(5, MUTEX)]),
    ];
    let waits = [
        wait(1, "b", MUTEX, &[1]),
        wait(2, "a", MUTEX, &[2]),
        wait(3, "d", MUTEX, &[3]),
        wait(4, "c", MUTEX, &[4]),
        wait(5, "e", MUTEX, &[5]),
    ];
    assert_eq!(notes(&find(&waits, &lines)), [vec!["2", "1"], vec!["4", "3"], vec!["5"]]);
}
