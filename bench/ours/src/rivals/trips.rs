//! The round trips of a command, counted by the test kit's proxy between it and the server.

use std::process::{Command, Stdio};

use leasehold_testkit::Proxy;
use tokio::runtime::Runtime;

use super::stores::Store;
use crate::Outcome;

/// The number of times that each command is counted.
pub(super) const TIMES: usize = 3;

/// Runs the command some times, and returns the round trips of each. What the first one prepares is not counted.
pub(super) fn count(store: &Store, at: fn(&Store) -> String, runtime: &Runtime) -> Outcome<Vec<u64>> {
    let Store::Postgres(server) = store else { return Err("only PostgreSQL is counted".into()) };
    let proxy = runtime.block_on(Proxy::start(server.addr()))?;
    let words: Vec<String> = serde_json::from_str(&at(store))?;
    let words: Vec<String> = words
        .into_iter()
        .map(|word| word.replace(&server.addr().to_string(), &proxy.addr().to_string()))
        .collect();
    let [program, arguments @ ..] = words.as_slice() else { return Err("no command was named".into()) };
    let mut counts = Vec::new();
    for _ in 0..=TIMES {
        let before = proxy.round_trips();
        let mut command = Command::new(program);
        let status = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("{program} failed: {status}").into());
        }
        counts.push(proxy.round_trips() - before);
    }
    counts.remove(0);
    Ok(counts)
}
