//! The files of `packaging` work: services, the Debian package, the container, the manifests and the cron job.
//!
//! Ground rules: each file is checked by the program that reads it on a machine, as far as that program can be had,
//! and what it starts is started with the real command. Nothing is installed into this machine.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod container;
mod cron;
mod debian;
mod kubernetes;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the folder of the repository that has what is tested here.
fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("packaging")
}

/// Returns a program of the workspace, which is built beside the tests.
fn built(name: &str, package: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join(name);
    assert!(program.exists(), "{} is not built: cargo build -p {package}", program.display());
    program
}

fn leasehold() -> PathBuf {
    built("leasehold", "leasehold-cli")
}

/// Runs a program to its end. Returns whether it succeeded, and all that it printed.
fn run(command: &mut Command) -> (bool, String) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

/// Runs a program that has to succeed, and returns what it printed.
fn succeed(command: &mut Command) -> String {
    let (is_success, printed) = run(command);
    assert!(is_success, "{command:?}\n{printed}");
    printed
}

/// Returns the options of `serve` in a text that the command does not have.
fn unknown_options(text: &str) -> Vec<&str> {
    let help = succeed(Command::new(leasehold()).args(["serve", "--help"]));
    let is_option = |word: &&str| word.starts_with("--") && word.len() > 2;
    let name = |word: &str| word.split('=').next().map(str::to_owned).unwrap_or_default();
    text.split_whitespace()
        .filter(is_option)
        .filter(|word| !help.contains(&format!("{} ", name(word))))
        .collect()
}
