//! One lock as a plain mutex: acquisitions and releases, in which leases end by a release of unknown outcome.

use std::collections::HashMap;
use std::fmt::Write;

use crate::event::{Event, Operation, Stage};
use crate::view::View;

/// A line of the export, in the order of time.
struct Line {
    time: u64,
    index: u64,
    process: u64,
    stage: Stage,
    operation: &'static str,
}

pub(super) fn one(view: &View<'_>, key: &str) -> String {
    let mut out = String::new();
    let mut numbers = Numbers::default();
    for (index, line) in lines(view, key).into_iter().enumerate() {
        let process = numbers.of(line.process, line.stage);
        let _ = writeln!(
            out,
            "{{:process {process}, :type :{}, :f :{}, :value nil, :time {}, :index {index}}}",
            line.stage.word(),
            line.operation,
            line.time,
        );
    }
    out
}

fn lines(view: &View<'_>, key: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let line = |event: &Event, stage: Stage| Line {
        time: view.times.at(event),
        index: event.index,
        process: event.process.unwrap_or(0),
        stage,
        operation: event.operation.word(),
    };
    let is_its = |event: &Event| event.key.as_deref() == Some(key);
    for call in view.calls.iter().filter(|call| is_its(call.invoke)) {
        if call.invoke.operation == Operation::Acquire {
            lines.push(line(call.invoke, Stage::Invoke));
            lines.extend(call.done.or(call.unknown).map(|end| line(end, end.stage)));
        }
    }
    for grant in view.grants.iter().filter(|grant| grant.key == key) {
        let released = grant.release.filter(|release| release.succeeded());
        match (released, released.and_then(|release| release.done)) {
            (Some(release), Some(done)) => {
                lines.push(line(release.invoke, Stage::Invoke));
                lines.push(line(done, Stage::Ok));
            }
            // The store may free it as soon as its holder no longer relies on it.
            _ => {
                let (time, index, process) = (grant.until, grant.got.index, grant.process);
                let operation = Operation::Release.word();
                for stage in [Stage::Invoke, Stage::Info] {
                    lines.push(Line { time, index, process, stage, operation });
                }
            }
        }
    }
    lines.sort_by_key(|line| (line.time, line.index));
    lines
}

/// Numbers of processes: after an unknown outcome a process is over, and what follows is another one.
#[derive(Default)]
struct Numbers {
    known: HashMap<u64, u64>,
    next: u64,
}

impl Numbers {
    fn of(&mut self, process: u64, stage: Stage) -> u64 {
        let next = &mut self.next;
        let number = *self.known.entry(process).or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        if stage == Stage::Info {
            self.known.remove(&process);
        }
        number
    }
}
