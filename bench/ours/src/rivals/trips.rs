//! The round trips of a command, counted by the test kit's relay between it and the server.
//!
//! A proxy would change the port. Then the client asks the server whether a pooler is in between, which takes longer.

use std::process::{Command, Stdio};

use leasehold_testkit::PostgresRelay;
use tokio::runtime::Runtime;

use super::stores::Store;
use crate::Outcome;

/// The number of times that each command is counted.
pub(super) const TIMES: usize = 3;

/// Runs the command some times, and returns the round trips of each. What the first one prepares is not counted.
pub(super) fn count(store: &Store, at: fn(&Store) -> String, runtime: &Runtime) -> Outcome<Vec<u64>> {
    let Store::Postgres(server) = store else { return Err("only PostgreSQL is counted".into()) };
    let folder = tempfile::tempdir()?;
    let relay = {
        let _entered = runtime.enter();
        PostgresRelay::start(folder.path(), server)?
    };
    let words: Vec<String> = serde_json::from_str(&at(store))?;
    let (direct, relayed) = (store.url(), relay.url());
    let by_relay = |word: String| {
        // The relay's URL has an option already.
        word.replace(&format!("{direct}?"), &format!("{relayed}&")).replace(&direct, &relayed)
    };
    let words: Vec<String> = words.into_iter().map(by_relay).collect();
    let [program, arguments @ ..] = words.as_slice() else { return Err("no command was named".into()) };
    let mut counts = Vec::new();
    for _ in 0..=TIMES {
        let before = relay.round_trips();
        let mut command = Command::new(program);
        let status = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("{program} failed: {status}").into());
        }
        counts.push(relay.round_trips() - before);
    }
    counts.remove(0);
    Ok(counts)
}
