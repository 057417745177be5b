//! `cargo xtask campaign`: builds the campaign and starts it.
//!
//! The program itself describes its options: `campaign/src/arguments.rs`.

use std::path::Path;

use crate::cargo;

/// Builds the campaign, and passes the options on.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let mut command = cargo::command();
    command
        .current_dir(root)
        .args(["run", "--quiet", "--package", "leasehold-campaign", "--"])
        .args(arguments);
    // Half of the processor time of a dense history is the code of this workspace, without the optimiser.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    let status = command.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the campaign ended with {status}")) }
}
