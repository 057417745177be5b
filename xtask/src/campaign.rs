//! `cargo xtask campaign`: builds the campaign and starts it.
//!
//! The program itself describes its options: `campaign/src/arguments.rs`. For `run --newest` this chore fetches the
//! servers, and chooses them for the test kit.

use std::path::Path;

use crate::{cargo, versions};

/// Builds the campaign, and passes the options on.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let mut command = cargo::command();
    command
        .current_dir(root)
        .args(["run", "--quiet", "--package", "leasehold-campaign", "--"])
        .args(arguments);
    // Half of the processor time of a dense history is the code of this workspace, without the optimiser.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    if arguments.iter().any(|argument| argument == "--newest") {
        for version in versions::newest() {
            // One that the caller has chosen stays.
            if std::env::var_os(version.server.variable).is_none() {
                versions::fetch(&crate::target(root), version)?;
                command.env(version.server.variable, version.name);
            }
        }
    }
    let status = command.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the campaign ended with {status}")) }
}
