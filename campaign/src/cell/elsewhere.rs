//! A cell that another test program is: it is run as a person would run it.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;

use super::Findings;
use crate::Existing;
use crate::results::Outcome as Found;

/// The longest that it may take, its compilation included.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs the tests, of which at least one has to run and none may be skipped.
///
/// They are built with the features of the whole workspace, as its own test run builds them.
pub(super) async fn run(existing: Existing) -> Findings {
    let command = existing.command();
    match tokio::time::timeout(LIMIT, outcome_of(&existing)).await {
        Err(_) => {
            Findings::without_history(Found::Failed, false, format!("{command}: not over in {LIMIT:?}"))
        }
        Ok(Err(why)) => Findings::without_history(Found::Failed, false, format!("{command}: {why}")),
        Ok(Ok(output)) => judged(&command, &output),
    }
}

async fn outcome_of(existing: &Existing) -> Result<Output, String> {
    let (program, folder) = built(existing).await?;
    let mut running = Command::new(program);
    running.arg(existing.names()).current_dir(&folder).env("CARGO_MANIFEST_DIR", folder);
    running.stdin(Stdio::null()).kill_on_drop(true);
    running.output().await.map_err(|error| format!("the test cannot be started: {error}"))
}

/// Builds the test program, and returns it with the folder of its package.
async fn built(existing: &Existing) -> Result<(PathBuf, PathBuf), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut building = Command::new(cargo);
    building.args(["test", "--workspace", "--no-run", "--message-format", "json"]);
    // `--lib` would build the tests of libraries that have none, too, and one of them cannot be built so.
    if let Some(test) = existing.test {
        building.args(["--test", test]);
    }
    // A cargo that started this program describes this package, and build scripts of others run again on that. Nor
    // is a test built as the campaign is.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_PROFILE_"].iter().any(|begin| text.starts_with(begin)) {
            building.env_remove(&name);
        }
    }
    building.stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    let output = building.output().await.map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        return Err("it cannot be built".to_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let found = messages.lines().find_map(|line| program_of(existing, line));
    found.ok_or_else(|| "such a test program does not exist".to_owned())
}

/// Returns the program and the folder of a message of cargo, if it is about this test program.
fn program_of(existing: &Existing, message: &str) -> Option<(PathBuf, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let program = PathBuf::from(message.get("executable")?.as_str()?);
    let folder = Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_owned();
    let (_, id) = message.get("package_id")?.as_str()?.rsplit_once('#')?;
    // A package that is called as its folder is has its version alone there.
    let package = match id.split_once('@') {
        Some((name, _)) => name,
        None => folder.file_name()?.to_str()?,
    };
    let target = message.get("target")?;
    let kinds = target.get("kind")?.as_array()?;
    let is_it = match existing.test {
        Some(test) => target.get("name")? == test && kinds.iter().any(|kind| kind == "test"),
        None => kinds.iter().any(|kind| kind == "lib"),
    };
    (is_it && package == existing.package).then_some((program, folder))
}

fn judged(command: &str, output: &Output) -> Findings {
    let errors = String::from_utf8_lossy(&output.stderr);
    if let Some(skipped) = errors.lines().find(|line| line.starts_with("LEASEHOLD-SKIPPED")) {
        let why = skipped.splitn(3, ' ').nth(2).unwrap_or_default();
        return Findings::not_run(format!("{command}: {why}"));
    }
    let passed = passed(&String::from_utf8_lossy(&output.stdout));
    if output.status.success() && passed > 0 {
        let mut findings =
            Findings::without_history(Found::Passed, true, format!("{passed} tests of `{command}`"));
        findings.faults = passed;
        return findings;
    }
    Findings::without_history(Found::Failed, false, format!("{command} failed, or has no such test"))
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

    #[test]
    fn the_program_of_a_test_is_found_by_its_package_and_name() {
        let message = |id: &str, name: &str, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/crates/leasehold#{id}","manifest_path":"/w/crates/leasehold/Cargo.toml","target":{{"name":"{name}","kind":["{kind}"]}},"executable":"/w/target/{name}"}}"#
            )
        };
        let existing = crate::existing(crate::Store::Redis, crate::Fault::number(27)).unwrap();
        let found = program_of(&existing, &message("0.1.0", "engine_fork", "test")).unwrap();
        assert_eq!(found, (PathBuf::from("/w/target/engine_fork"), PathBuf::from("/w/crates/leasehold")));
        assert!(program_of(&existing, &message("leasehold@0.1.0", "engine_fork", "test")).is_some());
        for (id, name) in [("leasehold-redis@0.1.0", "engine_fork"), ("0.1.0", "engine_owner")] {
            assert_eq!(program_of(&existing, &message(id, name, "test")), None);
        }
        assert_eq!(program_of(&existing, r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn a_program_without_a_test_that_passes_is_no_success() {
        use std::os::unix::process::ExitStatusExt;

        let of = |stdout: &str, stderr: &str| {
            let status = std::process::ExitStatus::from_raw(0);
            let output = Output { status, stdout: stdout.into(), stderr: stderr.into() };
            judged("cargo test", &output).outcome
        };
        assert_eq!(of("test result: ok. 1 passed; 0 failed\n", ""), Found::Passed);
        assert_eq!(of("test result: ok. 0 passed; 0 failed\n", ""), Found::Failed);
        let skipped = "LEASEHOLD-SKIPPED redis it is not installed\n";
        assert_eq!(of("test result: ok. 1 passed; 0 failed\n", skipped), Found::NotRun);
    }
}
