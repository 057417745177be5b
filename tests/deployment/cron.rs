//! The cron job, by the shell that cron starts.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::{leasehold, packaging};

/// Runs `leasehold-once nightly sh -c SCRIPT` on a store, with the little environment that cron gives.
fn once(folder: &Path, script: &str) -> Output {
    let source = fs::read_to_string(packaging().join("cron/leasehold-once")).unwrap();
    assert!(source.contains("--min-hold 50s"), "{source}");
    let program = folder.join("leasehold-once");
    // The tests have no time for the minimum hold.
    fs::write(&program, source.replace("--min-hold 50s", "--min-hold 0s")).unwrap();
    let path = format!("{}:/usr/bin:/bin", leasehold().parent().unwrap().display());
    let mut command = Command::new("/bin/sh");
    command.arg(program).args(["nightly", "sh", "-c", script]);
    command.env_clear().env("PATH", path).env("TMPDIR", folder).env("LEASEHOLD_URL", url(folder));
    command.stdin(Stdio::null()).output().unwrap()
}

fn url(folder: &Path) -> String {
    format!("file://{}/store", folder.display())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn job_that_runs_is_reported_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let output = once(folder.path(), "echo out; echo err >&2; exit 3");
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(3), "out\nerr\n".to_owned()),
        "{output:?}"
    );
    let output = once(folder.path(), "exit 0");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()), "{output:?}");
}

#[test]
fn job_that_fails_with_the_code_of_a_taken_lock_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let output = once(folder.path(), "echo failed; exit 75");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(75), "failed\n".to_owned()), "{output:?}");
}

#[test]
fn job_that_another_machine_does_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = Command::new(leasehold());
    other
        .args(["run", "nightly", "--", "sh", "-c", "echo held; read line"])
        .env("LEASEHOLD_URL", url(folder.path()));
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let output = once(folder.path(), "echo a second one");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!((text(&output.stdout), text(&output.stderr)), (String::new(), String::new()));
    drop(other.stdin.take());
    other.wait().unwrap();
}

#[test]
fn store_that_is_away_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("store"), "a file where the store's folder should be").unwrap();
    let output = once(folder.path(), "echo never");
    assert!(!output.status.success() && !output.stdout.is_empty(), "{output:?}");
    assert!(!text(&output.stdout).contains("never"), "{output:?}");
}

/// Cron ignores a file without a user in the sixth field, or without an end of its last line.
#[test]
fn crontab_has_the_form_of_a_system_crontab() {
    let crontab = fs::read_to_string(packaging().join("cron/leasehold-nightly")).unwrap();
    assert!(crontab.ends_with('\n'));
    let lines: Vec<&str> =
        crontab.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let (jobs, settings): (Vec<&str>, Vec<&str>) =
        lines.iter().partition(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    assert!(settings.iter().any(|line| line.starts_with("LEASEHOLD_URL=")), "{settings:?}");
    assert!(settings.iter().any(|line| line.starts_with("PATH=")), "{settings:?}");
    let words: Vec<&str> = jobs[0].split_whitespace().collect();
    assert_eq!(words[5..8], ["root", "leasehold-once", "nightly"]);
    assert!(!jobs[0].contains('%'), "cron makes an end of line of it");
}
