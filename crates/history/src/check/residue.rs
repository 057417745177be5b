//! I7: nothing is left after everything was closed.

use crate::event::{Operation, Stage};
use crate::report::Report;
use crate::verdict::Invariant;
use crate::view::View;

pub(super) fn check(view: &View<'_>, report: &mut Report<'_, '_>) {
    let mut found = view.events.iter().filter(|event| event.operation == Operation::Residue).peekable();
    if found.peek().is_none() {
        report.unjudged(Invariant::I7, "nobody looked for what was left");
    }
    for event in found {
        let label = event.values.label.as_deref().unwrap_or("something");
        match event.stage {
            Stage::Fail => {
                let count = event.values.count.unwrap_or(1);
                let what = format!("{count} left after everything was closed: {label}");
                report.violated(Invariant::I7, event.key.as_deref(), what, [event]);
            }
            Stage::Info => {
                let why = event.error.as_deref().unwrap_or("no reason given");
                report.unjudged(Invariant::I7, format!("{label} could not be counted: {why}"));
            }
            Stage::Ok | Stage::Invoke => {}
        }
    }
}
