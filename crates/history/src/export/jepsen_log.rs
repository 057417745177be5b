//! Lines with tabs, in the form of Porcupine's test data.

use std::collections::HashSet;
use std::io::{self, Write};

use super::Exporter;
use crate::event::{Operation, Stage};
use crate::view::Call;

pub(super) fn one(exporter: &Exporter<'_>, key: &str, out: &mut impl Write) -> io::Result<()> {
    let refused = refused(exporter.calls_of(key));
    for placed in exporter.events_of(key) {
        let event = placed.event;
        let Some(process) = event.process.filter(|_| !refused.contains(&event.index)) else { continue };
        let value = match (event.operation, event.stage) {
            (Operation::Acquire | Operation::Release | Operation::Lost, _) => "nil".to_owned(),
            (Operation::Read | Operation::Write, Stage::Info) => ":timed-out".to_owned(),
            (Operation::Read, Stage::Invoke) => "nil".to_owned(),
            // A register that nobody has written reads as nil there, and as 0 here.
            (Operation::Read, Stage::Ok) if event.values.val == Some(0) => "nil".to_owned(),
            (Operation::Read | Operation::Write, _) => event.values.val.unwrap_or(0).to_string(),
            _ => continue,
        };
        let (stage, operation) = (event.stage.word(), event.operation.word());
        writeln!(out, "INFO  jepsen.util - {process}\t:{stage}\t:{operation}\t{value}")?;
    }
    Ok(())
}

/// Returns the places of refused reads and writes and of their invocations. They did not happen, and a reader that
/// does not know refusals would take them for operations without an answer.
fn refused<'c, 'h: 'c>(calls: impl Iterator<Item = &'c Call<'h>>) -> HashSet<u64> {
    let of_register =
        calls.filter(|call| matches!(call.invoke.operation, Operation::Read | Operation::Write));
    let ended = of_register.filter_map(|call| Some((call.invoke, call.done?)));
    let failed = ended.filter(|(_, done)| done.stage == Stage::Fail);
    failed.flat_map(|(invoke, done)| [invoke.index, done.index]).collect()
}
