//! A command that locks, runs `true` and unlocks: a process for each cycle.

use std::process::Stdio;

use leasehold_bench_peer::Contestant;
use tokio::process::Command;

use crate::Outcome;

/// The words of the command.
pub(super) struct Program(Vec<String>);

impl Program {
    /// Reads a list of words in JSON.
    pub(super) fn read(at: &str) -> Outcome<Program> {
        Ok(Program(serde_json::from_str(at)?))
    }
}

impl Contestant for Program {
    type Held = ();

    async fn lock(&self, _: usize) -> Outcome<()> {
        let [program, arguments @ ..] = self.0.as_slice() else { return Err("no command was named".into()) };
        let mut command = Command::new(program);
        let command = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.kill_on_drop(true).status().await?;
        if status.success() { Ok(()) } else { Err(format!("{program} failed: {status}").into()) }
    }

    async fn unlock(&self, _: usize, (): ()) -> Outcome<()> {
        Ok(())
    }
}
