//! One lock as a plain mutex: acquisitions and releases, in which leases end by a release of unknown outcome.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use super::Exporter;
use crate::event::{Event, Operation, Stage};

/// A line of the export, in the order of time.
struct Line {
    time: u64,
    /// The turn among the lines of one time.
    turn: u32,
    index: u64,
    by: By,
    stage: Stage,
    operation: &'static str,
}

/// The actor of a line.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum By {
    Process(u64),
    /// The store, which frees the grant of this place: its process may do something else at that time.
    EndOf(u64),
}

pub(super) fn one(exporter: &Exporter<'_>, key: &str, out: &mut impl Write) -> io::Result<()> {
    let mut numbers = Numbers::default();
    for (index, line) in lines(exporter, key).into_iter().enumerate() {
        let process = numbers.of(line.by, line.stage);
        writeln!(
            out,
            "{{:process {process}, :type :{}, :f :{}, :value nil, :time {}, :index {index}}}",
            line.stage.word(),
            line.operation,
            line.time,
        )?;
    }
    Ok(())
}

fn lines(exporter: &Exporter<'_>, key: &str) -> Vec<Line> {
    let places: HashMap<u64, (u64, u32)> =
        exporter.events_of(key).map(|placed| (placed.event.index, (placed.time, placed.turn))).collect();
    let line = |event: &Event, stage: Stage| {
        let (time, turn) = places.get(&event.index).copied().unwrap_or_default();
        let by = By::Process(event.process.unwrap_or(0));
        Line { time, turn, index: event.index, by, stage, operation: event.operation.word() }
    };
    let mut lines = Vec::new();
    let granted: HashSet<u64> = exporter.grants_of(key).map(|grant| grant.got.index).collect();
    for call in exporter.calls_of(key).filter(|call| call.invoke.operation == Operation::Acquire) {
        // One that only counts, of a holder that has the lock, is nothing that a plain mutex knows.
        if call.done.is_some_and(|done| done.stage == Stage::Ok && !granted.contains(&done.index)) {
            continue;
        }
        lines.push(line(call.invoke, Stage::Invoke));
        lines.extend(call.done.or(call.unknown).map(|end| line(end, end.stage)));
    }
    for grant in exporter.grants_of(key) {
        let released = grant.release.filter(|release| release.succeeded());
        match (released, released.and_then(|release| release.done)) {
            (Some(release), Some(done)) => {
                lines.push(line(release.invoke, Stage::Invoke));
                lines.push(line(done, Stage::Ok));
            }
            // The store may free it as soon as its holder no longer relies on it.
            _ => {
                let got = line(grant.got, Stage::Ok);
                let (time, index, by) = (grant.until.max(got.time), got.index, By::EndOf(got.index));
                // After the grant itself, if that ends at once.
                let turn = if time == got.time { got.turn + 1 } else { 0 };
                let operation = Operation::Release.word();
                for (stage, turn) in [(Stage::Invoke, turn), (Stage::Info, turn + 1)] {
                    lines.push(Line { time, turn, index, by, stage, operation });
                }
            }
        }
    }
    lines.sort_by_key(|line| (line.time, line.turn, line.index));
    lines
}

/// Numbers of processes: after an unknown outcome a process is over, and what follows is another one.
#[derive(Default)]
struct Numbers {
    known: HashMap<By, u64>,
    next: u64,
}

impl Numbers {
    fn of(&mut self, by: By, stage: Stage) -> u64 {
        let next = &mut self.next;
        let number = *self.known.entry(by).or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        if stage == Stage::Info {
            self.known.remove(&by);
        }
        number
    }
}
