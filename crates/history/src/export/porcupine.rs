//! Operations as Porcupine's `Operation` has them: with closed spans.

use std::io::{self, Write};

use serde::Serialize;

use super::Exporter;
use crate::event::{Operation, Stage, Values};
use crate::view::{Call, View};

#[derive(Serialize)]
struct Line<'h> {
    client: u64,
    input: Input<'h>,
    call: u64,
    output: Output<'h>,
    #[serde(rename = "return")]
    end: u64,
}

#[derive(Serialize)]
struct Input<'h> {
    op: &'static str,
    key: Option<&'h str>,
    #[serde(flatten)]
    values: &'h Values,
}

#[derive(Serialize)]
struct Output<'h> {
    /// `ok`, `fail` or `info`; the span of an unknown outcome ends with the history.
    #[serde(rename = "type")]
    stage: Stage,
    #[serde(flatten)]
    values: Option<&'h Values>,
    #[serde(skip_serializing_if = "Option::is_none")]
    err: Option<&'h str>,
}

pub(super) fn all(exporter: &Exporter<'_>, key: Option<&str>, out: &mut impl Write) -> io::Result<()> {
    let is_wanted = |operation, of: Option<&str>| {
        let is_judged =
            matches!(operation, Operation::Acquire | Operation::Release | Operation::Read | Operation::Write);
        is_judged && (key.is_none() || of == key)
    };
    let view = &exporter.view;
    let calls = view.calls.iter().filter(|call| is_wanted(call.invoke.operation, call.invoke.key.as_deref()));
    let mut before = "[\n";
    for call in calls {
        out.write_all(before.as_bytes())?;
        serde_json::to_writer(&mut *out, &line(view, call))?;
        before = ",\n";
    }
    if before == "[\n" {
        out.write_all(b"[")?;
    }
    out.write_all(b"\n]\n")
}

fn line<'h>(view: &View<'h>, call: &Call<'h>) -> Line<'h> {
    let begin = view.times.at(call.invoke);
    let end = call.done.map_or(view.end, |done| view.times.at(done));
    let end_event = call.done.or(call.unknown);
    Line {
        client: call.invoke.process.unwrap_or(0),
        input: Input {
            op: call.invoke.operation.word(),
            key: call.invoke.key.as_deref(),
            values: &call.invoke.values,
        },
        call: begin,
        output: Output {
            stage: end_event.map_or(Stage::Info, |end_event| end_event.stage),
            values: end_event.map(|end_event| &end_event.values),
            err: end_event.and_then(|end_event| end_event.error.as_deref()),
        },
        // A clock that went back ends nothing before it began.
        end: end.max(begin),
    }
}
