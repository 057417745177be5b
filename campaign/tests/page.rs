//! The page of the grid is what the results in the repository say.

#![allow(clippy::unwrap_used, reason = "a test panics on an unexpected error")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_campaign::{Results, page};
use leasehold_testkit::require;

#[test]
fn page_and_track_record_are_current() {
    page::check(&root()).unwrap();
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root()).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A result that is inconvenient stays: every line that any commit had is still there.
#[test]
fn results_are_only_added() {
    are_only_added(Results::FILE);
    are_only_added(page::newest::FILE);
}

fn are_only_added(file: &str) {
    let Some(commits) = git(&["log", "--format=%H", "--", file]).filter(|commits| !commits.is_empty()) else {
        return require::skip("git", &format!("the sources are in no repository with a history of {file}"));
    };
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    let now: BTreeSet<&str> = text.lines().collect();
    for commit in commits.lines() {
        // A shallow copy may lack it.
        let Some(then) = git(&["show", &format!("{commit}:{file}")]) else { continue };
        for line in then.lines() {
            assert!(now.contains(line), "{commit} had a result that is not there any more: {line}");
        }
    }
}
