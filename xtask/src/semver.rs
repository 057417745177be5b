//! The step `semver`: whether the public API of each published crate may be changed so in its next version.
//!
//! It compares with the last release, which is the last tag that begins with `v`. Before the first release
//! nothing is promised yet, so the step says so and ends well.

use std::path::Path;
use std::process::Command;

use crate::cargo;

/// Members of the workspace that are not published, and so promise nothing.
const UNPUBLISHED: &[&str] =
    &["leasehold-bench", "leasehold-engine-sim", "leasehold-sim", "leasehold-tests", "xtask"];

/// Compares the API with that of the last release.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let Some(release) = last_release(root)? else {
        println!("No tag begins with `v`: nothing is released yet, so nothing is compared.");
        return Ok(());
    };
    let mut command = cargo::command();
    command.current_dir(root).args(arguments(&release));
    let status = command.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the API differs from that of {release} by more than `version` allows ({status})"))
}

/// Returns the arguments of cargo for a comparison with this tag.
fn arguments(release: &str) -> Vec<String> {
    let excluded = UNPUBLISHED.iter().map(|name| format!("--exclude={name}"));
    let fixed = ["semver-checks", "--workspace", "--baseline-rev", release].map(str::to_owned);
    fixed.into_iter().chain(excluded).collect()
}

/// Returns the last tag of a release before this commit, if there is one.
fn last_release(root: &Path) -> Result<Option<String>, String> {
    let mut command = Command::new("git");
    command.current_dir(root).args(["tag", "--list", "v*", "--sort=-version:refname", "--merged", "HEAD"]);
    let output = command.output().map_err(|error| format!("git could not be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("git tag: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(root: &Path, arguments: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let output = Command::new("git").current_dir(root).args(identity).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn the_last_release_is_the_highest_version() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "--quiet"]);
        git(root, &["commit", "--quiet", "--allow-empty", "-m", "Begin"]);
        git(root, &["tag", "other"]);
        assert_eq!(last_release(root), Ok(None));
        for tag in ["v0.2.0", "v0.10.0"] {
            git(root, &["tag", tag]);
        }
        assert_eq!(last_release(root), Ok(Some("v0.10.0".to_owned())));
    }

    #[test]
    fn crates_that_are_not_published_are_left_out() {
        let arguments = arguments("v0.1.0");
        assert_eq!(arguments[..4], ["semver-checks", "--workspace", "--baseline-rev", "v0.1.0"]);
        assert_eq!(arguments[4], "--exclude=leasehold-bench");
    }
}
