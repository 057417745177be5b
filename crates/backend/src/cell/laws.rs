//! Laws of a store of cells, for the tests of each store: every outcome of a write.
//!
//! Ground rules: a law fails by a panic. It begins with cells that do not exist, and uses each name once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use leasehold_core::{Fence, Resource};

use crate::cell::cells::{
    Call, Cell, CellStore, ClockSource, Locked, Put, Write, WriteAnswer, WriteCondition, WriteOutcome,
    read_one, write_one,
};
use crate::cell::wait::timing::draw_version;

/// Checks every condition, where it holds and where it does not, and that a refused write changes nothing.
pub async fn writes_are_made_on_their_condition(cells: &impl CellStore) {
    let keeps_time = cells.clock_source() == ClockSource::Store;
    let at = Resource::new("one").unwrap();
    let first = made(cells, &write(&at, WriteCondition::Free, "first")).await;
    let found = cell(cells, &at).await;
    assert_eq!((&*found.text, found.version, found.fence), ("first", first.version, first.fence));

    // A claim lives in it.
    let shown = refused(cells, &write(&at, WriteCondition::Free, "x")).await;
    assert!(shown.is_none_or(|shown| shown.version == first.version));
    let epoch = found.floor.epoch;
    let living = |version, epoch: u64| {
        let epoch = (!keeps_time).then_some(epoch);
        WriteCondition::Living { version, epoch }
    };
    let seen = |version, epoch| WriteCondition::Seen { version, epoch };
    for wrong in [living(first.version + 1, epoch), seen(first.version + 1, epoch)] {
        let shown = refused(cells, &write(&at, wrong, "x")).await;
        assert!(shown.is_none_or(|shown| shown.version == first.version && shown.text == "first"));
    }
    if epoch > 0 {
        refused(cells, &write(&at, seen(first.version, epoch + 1), "x")).await;
        let other = WriteCondition::Living { version: first.version, epoch: Some(epoch + 1) };
        refused(cells, &write(&at, other, "x")).await;
    }
    assert_eq!(cell(cells, &at).await.text, "first", "a refused write changes nothing");

    // What was read is changed under a fence of the client, and its age continues.
    tokio::time::sleep(AGE).await;
    let next = Fence { seq: found.floor.seq + 7, ..found.floor };
    let change =
        Write { put: Put { fence: next, ..put("second") }, ..write(&at, seen(first.version, epoch), "") };
    let second = made(cells, &change).await;
    let found = cell(cells, &at).await;
    assert_eq!((&*found.text, found.version), ("second", second.version));
    assert!(!keeps_time || (found.fence == next && found.age >= Some(AGE)), "{found:?}");

    // A claim continues under the same fence, and its age begins anew.
    let epoch = found.floor.epoch;
    let renewal = Write {
        put: Put { fence: found.fence, ..put("third") },
        ..write(&at, living(second.version, epoch), "")
    };
    let begun = std::time::Instant::now();
    let third = made(cells, &renewal).await;
    let found = cell(cells, &at).await;
    // The clocks of server and client may tick at different moments.
    let since_renewal = begun.elapsed() + TICK;
    assert_eq!((&*found.text, found.version), ("third", third.version));
    assert!(!keeps_time || (found.fence == next && found.age <= Some(since_renewal)), "{found:?}");

    // It ends, and the next one has a higher fence.
    let empty = Put::nothing(found.fence, draw_version().unwrap());
    let end = Write { put: empty.clone(), ..write(&at, living(third.version, epoch), "") };
    let end = cells.write(&[&end], Locked::Wait).await.pop().unwrap().unwrap();
    assert!(matches!(end, WriteOutcome::Written { .. }), "{end:?}");
    let left = read_one(cells, &at).await.unwrap();
    assert_eq!(left.map(|left| left.text), keeps_time.then(String::new));
    let mut last = found.fence;
    if keeps_time {
        refused(cells, &write(&at, living(empty.version, epoch), "x")).await;
        refused(cells, &write(&at, WriteCondition::Emptied(empty.version + 1), "x")).await;
        let back = made(cells, &write(&at, WriteCondition::Emptied(empty.version), "fourth")).await;
        assert!(back.fence > last, "{back:?}");
        last = back.fence;
        let put = Put { keep: Duration::ZERO, ..Put::nothing(last, draw_version().unwrap()) };
        let end = Write { put, ..write(&at, living(back.version, epoch), "") };
        made(cells, &end).await;
    }
    let again = made(cells, &write(&at, WriteCondition::Free, "fifth")).await;
    assert!(again.fence > last, "{again:?}");
}

/// Checks that each of several writes has the outcome of its own condition.
pub async fn several_writes_are_decided_one_by_one(cells: &impl CellStore) {
    let keeps_time = cells.clock_source() == ClockSource::Store;
    let names: Vec<Resource> = ('a'..='m').map(|name| Resource::new(&name.to_string()).unwrap()).collect();
    for locked in [Locked::Wait, Locked::Skip] {
        // Few and more: a store may have a statement for each.
        for count in [2, 3, names.len()] {
            for is_own in [false, true] {
                let (mut writes, mut holds) = (Vec::new(), Vec::new());
                for (n, at) in names[..count].iter().enumerate() {
                    let found = match read_one(cells, at).await.unwrap() {
                        Some(found) if !found.text.is_empty() => found,
                        _ => {
                            made(cells, &write(at, WriteCondition::Free, "held")).await;
                            cell(cells, at).await
                        }
                    };
                    let (mut version, epoch) = (found.version, found.floor.epoch);
                    let is_emptied = is_own && keeps_time && n % 3 == 1;
                    if is_emptied {
                        let put = Put::nothing(found.fence, draw_version().unwrap());
                        version = put.version;
                        let end = WriteCondition::Living { version: found.version, epoch: None };
                        made(cells, &Write { put, ..write(at, end, "") }).await;
                    }
                    let version = if n % 2 == 0 { version } else { version + 1 };
                    let when = match (is_own, is_emptied) {
                        (true, true) => WriteCondition::Emptied(version),
                        (true, false) => {
                            WriteCondition::Living { version, epoch: (!keeps_time).then_some(epoch) }
                        }
                        (false, _) => WriteCondition::Seen { version, epoch },
                    };
                    let put = Put { fence: found.fence, ..put("changed") };
                    writes.push(Write { put, answer: WriteAnswer::Brief, ..write(at, when, "") });
                    holds.push(n % 2 == 0);
                }
                let sent: Vec<&Write> = writes.iter().collect();
                let outcomes = cells.write(&sent, locked).await;
                let done = outcomes
                    .iter()
                    .map(|outcome| matches!(outcome.as_ref().unwrap(), WriteOutcome::Written { .. }));
                assert_eq!(done.collect::<Vec<_>>(), holds, "{locked:?}, {count} {writes:?}");
                for (write, holds) in writes.iter().zip(holds) {
                    assert_eq!(cell(cells, &write.at).await.text == "changed", holds, "{write:?}");
                    let found = cell(cells, &write.at).await;
                    let when = WriteCondition::Seen { version: found.version, epoch: found.floor.epoch };
                    made(
                        cells,
                        &Write {
                            put: Put { fence: found.fence, ..put("held") },
                            ..self::write(&write.at, when, "")
                        },
                    )
                    .await;
                }
            }
        }
    }
}

/// Checks that a write on a state of a cell that does not exist any more is refused, and leaves nothing that a reader
/// could take for what was to be written.
pub async fn write_on_a_missing_cell_leaves_nothing(cells: &impl CellStore) {
    let keeps_time = cells.clock_source() == ClockSource::Store;
    let known = Resource::new("known").unwrap();
    let Made { version, .. } = made(cells, &write(&known, WriteCondition::Free, "known")).await;
    let epoch = cell(cells, &known).await.floor.epoch;
    let mut conditions = vec![
        WriteCondition::Living { version, epoch: (!keeps_time).then_some(epoch) },
        WriteCondition::Living { version, epoch: Some(epoch) },
        WriteCondition::Seen { version, epoch },
    ];
    if keeps_time {
        conditions.push(WriteCondition::Emptied(version));
    }
    for (n, when) in conditions.into_iter().enumerate() {
        for answer in [WriteAnswer::Brief, WriteAnswer::Full] {
            let at = Resource::new(&format!("missing {n} {answer:?}")).unwrap();
            let late = Write { answer, ..write(&at, when, "late") };
            // The second one finds what the first one left.
            for _ in 0..2 {
                let shown = refused(cells, &late).await;
                assert!(shown.is_none_or(|shown| shown.text.is_empty()), "{late:?}");
                let left = read_one(cells, &at).await.unwrap();
                assert!(left.as_ref().is_none_or(|left| left.text.is_empty()), "{late:?} left {left:?}");
            }
            made(cells, &write(&at, WriteCondition::Free, "first")).await;
            assert_eq!(cell(cells, &at).await.text, "first");
        }
    }
}

/// Checks that a claim whose time is over is found dead: it can be taken, and does not continue.
pub async fn lapsed_cell_is_free(cells: &impl CellStore, lease: Duration) {
    let at = Resource::new("short").unwrap();
    let short = |when| Write { put: Put { keep: lease, ..put("short") }, ..write(&at, when, "") };
    let first = made(cells, &short(WriteCondition::Free)).await;
    refused(cells, &short(WriteCondition::Free)).await;
    let epoch = cell(cells, &at).await.floor.epoch;
    tokio::time::sleep(lease + cells.profile().overrun + AGE).await;
    if cells.clock_source() == ClockSource::Store {
        let late = WriteCondition::Living { version: first.version, epoch: None };
        refused(cells, &short(late)).await;
        refused(cells, &short(WriteCondition::Living { version: first.version, epoch: Some(epoch) })).await;
    }
    assert!(made(cells, &short(WriteCondition::Free)).await.fence > first.fence);
}

/// Checks that a cell without claims can be taken also if it has not lapsed, as after a step back of the store's clock.
/// For stores that keep time.
pub async fn empty_cell_is_free(cells: &impl CellStore) {
    let at = Resource::new("empty").unwrap();
    let first = made(cells, &write(&at, WriteCondition::Free, "first")).await;
    let when = WriteCondition::Living { version: first.version, epoch: None };
    made(cells, &Write { put: Put { fence: first.fence, ..put("") }, ..write(&at, when, "") }).await;
    let second = made(cells, &write(&at, WriteCondition::Free, "second")).await;
    assert!(second.fence > first.fence, "{second:?} follows {first:?}");
    let found = cell(cells, &at).await;
    assert_eq!((&*found.text, found.version, found.fence), ("second", second.version, second.fence));
    assert!(found.age.unwrap() < SOON, "{found:?}");
    // It lapses anew.
    refused(cells, &write(&at, WriteCondition::Free, "x")).await;
    let when = WriteCondition::Living { version: second.version, epoch: None };
    made(cells, &Write { put: Put { fence: found.fence, ..put("third") }, ..write(&at, when, "") }).await;
}

/// Checks that a transaction which locks the cell "locked" delays no write that need not wait for it.
/// `lock` begins that transaction, and `unlock` ends it.
pub async fn locked_cell_delays_no_other(
    cells: &impl CellStore,
    lock: impl AsyncFnOnce(),
    unlock: impl AsyncFnOnce(),
) {
    let names = ["locked", "other"].map(|name| Resource::new(name).unwrap());
    let mut found = Vec::new();
    for at in &names {
        made(cells, &write(at, WriteCondition::Free, "held")).await;
        found.push(cell(cells, at).await);
    }
    let change = |n: usize, when: fn(&Cell) -> WriteCondition| {
        let put = Put { fence: found[n].fence, ..put("changed") };
        Write { put, answer: WriteAnswer::Brief, ..write(&names[n], when(&found[n]), "") }
    };
    let seen = |cell: &Cell| WriteCondition::Seen { version: cell.version, epoch: cell.floor.epoch };
    let living = |cell: &Cell| WriteCondition::Living { version: cell.version, epoch: None };
    lock().await;
    let begun = std::time::Instant::now();
    for when in [seen, living] {
        assert!(!is_written(&cells.write(&[&change(0, when)], Locked::Skip).await[0]));
    }
    let outcomes = cells.write(&[&change(0, seen), &change(1, seen)], Locked::Skip).await;
    assert_eq!(outcomes.iter().map(is_written).collect::<Vec<_>>(), [false, true]);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    // What several tasks want at once waits a little at most.
    found[1] = cell(cells, &names[1]).await;
    let change = |n: usize, when: fn(&Cell) -> WriteCondition| {
        let put = Put { fence: found[n].fence, ..put("changed") };
        Write { put, answer: WriteAnswer::Brief, ..write(&names[n], when(&found[n]), "") }
    };
    let outcomes = cells.write(&[&change(0, living), &change(1, living)], Locked::Wait).await;
    assert!(!is_written(&outcomes[0]), "{outcomes:?}");
    assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
    // Alone it waits, and is made when the transaction has ended.
    let alone = [change(0, living)];
    let waiting = write_one(cells, &alone[0], Locked::Wait);
    let unlocking = async {
        tokio::time::sleep(AGE).await;
        unlock().await;
    };
    let (outcome, ()) = tokio::join!(waiting, unlocking);
    assert!(is_written(&outcome), "{outcome:?}");
}

/// Checks that a write without an answer is reported as such, and that a read distinguishes it from one that
/// was made.
/// `stop` lets the server answer nothing, and `resume` lets it continue.
pub async fn unanswered_write_may_have_happened(
    cells: &impl CellStore,
    stop: impl FnOnce(),
    resume: impl AsyncFnOnce(),
) {
    let at = Resource::new("unanswered").unwrap();
    made(cells, &write(&at, WriteCondition::Free, "before")).await;
    let found = cell(cells, &at).await;
    let when = WriteCondition::Seen { version: found.version, epoch: found.floor.epoch };
    let change = Write { put: Put { fence: found.fence, ..put("after") }, ..write(&at, when, "") };
    stop();
    let failure = write_one(cells, &change, Locked::Wait).await.unwrap_err();
    assert_eq!(failure.effect, leasehold_core::Effect::Unknown, "{failure}");
    resume().await;
    for _ in 0..50 {
        // It is made now, or it was; and never twice.
        match write_one(cells, &change, Locked::Wait).await {
            Ok(_) => break,
            Err(_) => tokio::time::sleep(AGE).await,
        }
    }
    assert_eq!(cell(cells, &at).await.text, "after");
    refused(cells, &change).await;
}

fn is_written(outcome: &Result<WriteOutcome, leasehold_core::Failure>) -> bool {
    matches!(outcome.as_ref().unwrap(), WriteOutcome::Written { .. })
}

/// A write that was made.
#[derive(Debug)]
struct Made {
    version: u64,
    fence: Fence,
}

async fn made(cells: &impl CellStore, write: &Write) -> Made {
    match write_one(cells, write, Locked::Wait).await.unwrap() {
        WriteOutcome::Written { version, fence } => Made { version: version.unwrap_or_default(), fence },
        WriteOutcome::Refused(found) => panic!("{write:?} was refused: {found:?}"),
    }
}

async fn refused(cells: &impl CellStore, write: &Write) -> Option<Cell> {
    match write_one(cells, write, Locked::Wait).await.unwrap() {
        WriteOutcome::Refused(found) => found,
        WriteOutcome::Written { .. } => panic!("{write:?} was made"),
    }
}

async fn cell(cells: &impl CellStore, at: &Resource) -> Cell {
    read_one(cells, at).await.unwrap().unwrap()
}

fn write(at: &Resource, when: WriteCondition, text: &str) -> Write {
    Write { at: at.clone(), when, put: put(text), answer: WriteAnswer::Full }
}

fn put(text: &str) -> Put {
    let (version, keep) = (draw_version().unwrap(), Duration::from_secs(60));
    Put { text: text.to_owned(), version, fence: Fence::default(), keep, call: Call::None }
}

/// Long enough to be seen by every clock.
const AGE: Duration = Duration::from_millis(100);
/// The most by which two clocks of one machine may differ.
const TICK: Duration = Duration::from_millis(5);
/// Long enough for a few requests, and shorter than a wait for a row.
const SOON: Duration = Duration::from_secs(2);
