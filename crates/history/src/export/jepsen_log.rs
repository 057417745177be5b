//! Lines with tabs, in the form of Porcupine's test data.

use std::collections::HashSet;
use std::fmt::Write;

use crate::event::{Event, Operation, Stage};
use crate::view::{Call, View};

pub(super) fn one(view: &View<'_>, key: &str) -> String {
    let refused = refused(view);
    let mut events: Vec<&Event> = view
        .events
        .iter()
        .filter(|event| event.key.as_deref() == Some(key) && event.process.is_some())
        .filter(|event| !refused.contains(&event.index))
        .collect();
    // Porcupine takes the order of the lines as that of time, and processes stamp before and after.
    events.sort_by_key(|event| (view.times.at(event), event.stage != Stage::Invoke, event.index));
    let mut out = String::new();
    for event in events {
        let value = match (event.operation, event.stage) {
            (Operation::Acquire | Operation::Release | Operation::Lost, _) => "nil".to_owned(),
            (Operation::Read | Operation::Write, Stage::Info) => ":timed-out".to_owned(),
            (Operation::Read, Stage::Invoke) => "nil".to_owned(),
            // A register that nobody has written reads as nil there, and as 0 here.
            (Operation::Read, Stage::Ok) if event.values.val == Some(0) => "nil".to_owned(),
            (Operation::Read | Operation::Write, _) => event.values.val.unwrap_or(0).to_string(),
            _ => continue,
        };
        let (process, stage) = (event.process.unwrap_or(0), event.stage.word());
        let _ =
            writeln!(out, "INFO  jepsen.util - {process}\t:{stage}\t:{}\t{value}", event.operation.word());
    }
    out
}

/// Returns the places of refused reads and writes and of their invocations. They did not happen, and a reader that
/// does not know refusals would take them for operations without an answer.
fn refused(view: &View<'_>) -> HashSet<u64> {
    let is_register = |call: &&Call<'_>| matches!(call.invoke.operation, Operation::Read | Operation::Write);
    let ended = view.calls.iter().filter(is_register).filter_map(|call| Some((call.invoke, call.done?)));
    let failed = ended.filter(|(_, done)| done.stage == Stage::Fail);
    failed.flat_map(|(invoke, done)| [invoke.index, done.index]).collect()
}
