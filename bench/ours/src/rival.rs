//! The rival: another library, in a program of its own, so that its dependencies weigh on no other
//! program.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

use crate::Outcome;
use crate::load::Load;

/// The program of `bench/rivals`, where it was built.
#[derive(Debug)]
pub(crate) struct Rival {
    program: PathBuf,
}

/// The output that it prints: see `bench/rivals`.
#[derive(Debug, Deserialize)]
struct RivalOutput {
    by_task: Vec<u64>,
    seconds: f64,
}

impl Rival {
    pub(crate) const NAME: &str = "crate rslock, one server";
    pub(crate) const MISSING: &str = "the rival was not built: `cargo xtask bench --rivals` does";

    /// Finds the crate rslock, where it was built.
    pub(crate) fn find() -> Option<Rival> {
        Rival::in_same_directory("leasehold-bench-rivals")
    }

    /// Finds the crate distributed-lock on PostgreSQL, where it was built.
    pub(crate) fn postgres() -> Option<Rival> {
        Rival::in_same_directory("leasehold-bench-rival-postgres")
    }

    fn in_same_directory(name: &str) -> Option<Rival> {
        let program = std::env::current_exe().ok()?.with_file_name(name);
        program.is_file().then_some(Rival { program })
    }

    /// Lets `tasks` tasks lock and unlock on `locks` locks for `length`.
    pub(crate) async fn run(&self, url: &str, tasks: usize, locks: usize, length: Duration) -> Outcome<Load> {
        let numbers = [tasks, locks, usize::try_from(length.as_millis())?];
        let mut command = Command::new(&self.program);
        command.arg(url).args(numbers.map(|number| number.to_string()));
        let output = command.kill_on_drop(true).output().await?;
        if !output.status.success() {
            return Err(format!("the rival failed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let parsed: RivalOutput = serde_json::from_slice(&output.stdout)?;
        let took = Duration::from_secs_f64(parsed.seconds);
        Ok(Load { by_task: parsed.by_task, took, cpu: Duration::ZERO })
    }
}
