//! `cargo xtask bench`: builds what is measured, in release, and starts it.
//!
//! The measures, and how they are taken, are described by the program that this starts: `bench/ours`.

use std::path::Path;

use crate::cargo;

/// Builds the command and, where asked for, the rivals; then runs the benchmark with the other options.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let (own, passed): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| *argument == "--rivals");
    let mut passed: Vec<&str> = passed.into_iter().map(String::as_str).collect();
    // The page alone can be written again without them.
    let measures = !passed.iter().any(|argument| matches!(*argument, "-h" | "--help" | "--page"));
    if measures {
        cargo(root, &["build", "--release", "--package", "leasehold-cli"], &[])?;
    }
    if !own.is_empty() {
        passed.insert(0, "rivals");
        if measures {
            build_rivals(root);
        }
    }
    cargo(root, &["run", "--release", "--package", "leasehold-bench", "--"], &passed)
}

/// Builds those that are crates. Those that cannot be built are rows with a reason.
fn build_rivals(root: &Path) {
    // A workspace of its own, whose programs have to lie beside the others.
    let target = crate::target(root).to_string_lossy().into_owned();
    let manifest = ["--manifest-path", "bench/rivals/Cargo.toml", "--target-dir", &target];
    for program in ["leasehold-bench-rivals", "leasehold-bench-rivals-sql"] {
        let features: &[&str] = if program.ends_with("sql") { &["--features", "sql"] } else { &[] };
        let build = [&["build", "--release", "--bin", program], features].concat();
        if let Err(why) = cargo(root, &build, &manifest) {
            eprintln!("{program} is left out: {why}");
            // An earlier build would be measured under the versions of this one.
            let _ = std::fs::remove_file(Path::new(&target).join("release").join(program));
        }
    }
}

fn cargo(root: &Path, arguments: &[&str], more: &[&str]) -> Result<(), String> {
    let mut command = cargo::command();
    // The output is for the benchmark's own table, so that it can be read by a program.
    command.current_dir(root).arg("--quiet").args(arguments).args(more);
    let status = command.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} failed: {status}", arguments.join(" "))) }
}
