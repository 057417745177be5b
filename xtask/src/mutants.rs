//! `cargo xtask mutants`: builds the program that tries small changes of the code, and starts it.
//!
//! The program itself describes its options: `mutants/src/main.rs`. It needs a parser of Rust, which takes longer to
//! compile than all other chores.

use std::path::Path;

use crate::cargo;

/// Builds the program, and passes the options on.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let mut command = cargo::command();
    command
        .current_dir(root)
        .args(["run", "--quiet", "--package", "leasehold-mutants", "--"])
        .args(arguments);
    let status = command.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the mutants ended with {status}")) }
}
