//! A cell that another test program is: it is run as a person would run it.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::Findings;
use crate::Existing;
use crate::results::Outcome as Found;

/// The longest that it may take, its compilation included.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs the tests, of which at least one has to run and none may be skipped.
pub(super) async fn run(existing: Existing) -> Findings {
    let command = existing.command();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut running = Command::new(cargo);
    running.args(command.split(' ').skip(1)).stdin(Stdio::null()).kill_on_drop(true);
    // A cargo that started this program describes this package, and build scripts of others run again on that.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            running.env_remove(&name);
        }
    }
    match tokio::time::timeout(LIMIT, running.output()).await {
        Err(_) => {
            Findings::without_history(Found::Failed, false, format!("{command}: not over in {LIMIT:?}"))
        }
        Ok(Err(error)) => Findings::not_run(format!("cargo cannot be started: {error}")),
        Ok(Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            if let Some(skipped) = errors.lines().find(|line| line.starts_with("LEASEHOLD-SKIPPED")) {
                let why = skipped.splitn(3, ' ').nth(2).unwrap_or_default();
                return Findings::not_run(format!("{command}: {why}"));
            }
            let passed = passed(&text);
            if output.status.success() && passed > 0 {
                let mut findings =
                    Findings::without_history(Found::Passed, true, format!("{passed} tests of `{command}`"));
                findings.faults = passed;
                return findings;
            }
            Findings::without_history(Found::Failed, false, format!("{command} failed, or has no such test"))
        }
    }
}

/// Returns how many tests have passed.
fn passed(text: &str) -> u64 {
    let summaries = text.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    summaries.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_counted_over_programs() {
        let text =
            "test a ... ok\ntest result: ok. 2 passed; 0 failed\n\ntest result: ok. 3 passed; 0 failed\n";
        assert_eq!(passed(text), 5);
        assert_eq!(passed("test result: FAILED. 1 passed; 1 failed\n"), 0);
    }
}
