//! `cargo xtask bench`: builds what is measured, in release, and starts it.
//!
//! The measures, and how they are taken, are described by the program that this starts: `bench/ours`.

use std::path::Path;
use std::process::Command;

/// Builds the command and, where asked for, the rivals; then runs the benchmark with the other options.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let (own, passed): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| *argument == "--rivals");
    if !passed.iter().any(|argument| matches!(argument.as_str(), "-h" | "--help")) {
        cargo(root, &["build", "--release", "--package", "leasehold-cli"], &[])?;
        if !own.is_empty() {
            // A workspace of its own, whose programs have to lie beside the others.
            let target = crate::target(root).to_string_lossy().into_owned();
            let manifest = ["--manifest-path", "bench/rivals/Cargo.toml", "--target-dir", &target];
            cargo(root, &["build", "--release", "--features", "postgres"], &manifest)?;
        }
    }
    let passed: Vec<&str> = passed.into_iter().map(String::as_str).collect();
    cargo(root, &["run", "--release", "--package", "leasehold-bench", "--"], &passed)
}

fn cargo(root: &Path, arguments: &[&str], more: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // The output is for the benchmark's own table, so that it can be read by a program.
    command.current_dir(root).arg("--quiet").args(arguments).args(more);
    let status = command.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} failed: {status}", arguments.join(" "))) }
}
