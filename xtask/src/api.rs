//! `cargo xtask api`: the public API as a listing, in `docs/api`, one file a crate that users import.
//!
//! Changes of the API are seen as lines of a diff. The listing comes from rustdoc's JSON. That output is not
//! stable yet, so the variable `RUSTC_BOOTSTRAP` lets the installed toolchain write it, for this purpose
//! alone. Each version of the tool reads one form of that JSON, so `cargo xtask test` takes this step only where
//! the tool is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo;

/// The crates whose API is listed.
const CRATES: &[&str] = &["leasehold", "leasehold-core"];
/// The answer of a method that `async_trait` has rewritten, before and after the type that it returns.
const FUTURE: &str = " -> core::pin::Pin<alloc::boxed::Box<(dyn core::future::future::Future<Output = ";
const FUTURE_END: &str = "> + core::marker::Send + 'async_trait)>>";
/// The number of differences that are shown of each listing.
const SHOWN: usize = 20;

/// The use of a listing that was made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is compared with the one that is kept.
    Check,
    /// It is kept in place of the other.
    Update,
}

/// Lists the API of each crate, and compares or keeps the listing.
pub(crate) fn run(root: &Path, mode: Mode) -> Result<(), String> {
    present(root)?;
    let mut stale = Vec::new();
    for name in CRATES {
        let (listing, path) = (listed(root, name)?, path_of(root, name));
        match mode {
            Mode::Update => {
                fs::write(&path, listing).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            Mode::Check => {
                let kept = fs::read_to_string(&path).unwrap_or_default();
                let differences = differences(&kept, &listing);
                if !differences.is_empty() {
                    let (count, shown) = (differences.len(), differences.iter().take(SHOWN).cloned());
                    let shown: Vec<String> = shown.collect();
                    stale.push(format!("{name}: {count} lines differ\n{}", shown.join("\n")));
                }
            }
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    let advice = "Where the API was meant to change, renew the listings with `cargo xtask api --update`, and read their diff.";
    Err(format!("{}\n{advice}", stale.join("\n")))
}

fn path_of(root: &Path, name: &str) -> PathBuf {
    root.join("docs/api").join(format!("{name}.txt"))
}

/// Fails with what is missing and how to get it.
fn present(root: &Path) -> Result<(), String> {
    let mut command = cargo::command();
    command.current_dir(root).args(["public-api", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if command.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    Err("The API cannot be listed without the tool for it: `cargo install --locked cargo-public-api`"
        .to_owned())
}

/// Returns the listing: without what the compiler derives for every type alike.
fn listed(root: &Path, name: &str) -> Result<String, String> {
    let described = described(root, name)?;
    let mut command = cargo::command();
    command
        .current_dir(root)
        .args(["public-api", "-sss", "--color", "never", "--rustdoc-json"])
        .arg(described);
    let lines: Vec<String> = output(command, name)?.lines().map(readable).collect();
    Ok(lines.join("\n") + "\n")
}

/// Returns a line with `async fn` in place of what `async_trait` makes of it.
fn readable(line: &str) -> String {
    let parts = line.split_once(FUTURE).and_then(|(head, rest)| Some((head, rest.split_once(FUTURE_END)?.0)));
    let Some((head, output)) = parts else { return line.to_owned() };
    let mut head = head.replacen("pub fn ", "pub async fn ", 1);
    for number in 0..10 {
        head = head.replace(&format!("'life{number}, "), "").replace(&format!("'life{number} "), "");
    }
    format!("{} -> {output}", head.replace("'async_trait, ", "").replace("<'async_trait>", ""))
}

/// Has rustdoc describe the API of a crate with all its features, and returns the path of the JSON.
fn described(root: &Path, name: &str) -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    // A directory of its own: build scripts of crates run again when the variable changes, and with them
    // almost everything is compiled anew.
    let target = target.join("public-api");
    let mut command = cargo::command();
    command.current_dir(root).env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", &target);
    command.args(["rustdoc", "--quiet", "--package", name, "--lib", "--all-features", "--"]);
    command.args(["-Zunstable-options", "--output-format=json", "--cap-lints=allow"]);
    output(command, name)?;
    Ok(target.join("doc").join(format!("{}.json", name.replace('-', "_"))))
}

/// Returns what a command prints.
fn output(mut command: Command, name: &str) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("cargo could not be started: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the API of {name} could not be listed: {}\n{errors}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("the API of {name}: {error}"))
}

/// Lines that are in one listing alone, with a sign that says in which.
fn differences(kept: &str, listing: &str) -> Vec<String> {
    let gone = kept.lines().filter(|line| !listing.lines().any(|other| other == *line));
    let new = listing.lines().filter(|line| !kept.lines().any(|other| other == *line));
    gone.map(|line| format!("- {line}")).chain(new.map(|line| format!("+ {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_say_what_is_gone_and_what_is_new() {
        assert!(differences("a\nb\n", "b\na\n").is_empty());
        assert_eq!(differences("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
    }

    #[test]
    fn rewritten_method_is_listed_as_it_was_written() {
        let line = "pub fn a::B::c<'life0, 'life1, 'async_trait>(&'life0 self, &'life1 a::D) -> core::pin::Pin<\
                    alloc::boxed::Box<(dyn core::future::future::Future<Output = core::result::Result<u8, a::E>> + \
                    core::marker::Send + 'async_trait)>> where Self: 'async_trait, 'life0: 'async_trait";
        assert_eq!(readable(line), "pub async fn a::B::c(&self, &a::D) -> core::result::Result<u8, a::E>");
        let other = "pub fn a::F::g<'a>(&'a self) -> &'a str";
        assert_eq!(readable(other), other);
    }

    #[test]
    fn each_listed_crate_has_its_listing() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for name in CRATES {
            let listing = fs::read_to_string(path_of(root, name)).unwrap();
            let module = format!("pub mod {}", name.replace('-', "_"));
            assert!(listing.lines().any(|line| line == module), "{name}: the file is not a listing");
        }
    }
}
