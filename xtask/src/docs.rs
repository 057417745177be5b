//! `cargo xtask docs`: checks the links of all Markdown files, writes the generated pages, builds the book.
//!
//! The pages of the book are in `docs/book/src`. With `--check` nothing is written, and a generated page
//! that is out of date is an error; that form is a step of `cargo xtask test`. Only the book itself needs
//! a program that cargo does not bring, `mdbook`, and it is left out where that is missing.

mod book;
mod generated;
mod links;
mod markdown;

use std::path::{Path, PathBuf};

use crate::{cargo, tidy};

/// The folder of the pages, from the root.
const PAGES: &str = "docs/book/src";

/// The treatment of a generated page that is out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is reported.
    Check,
    /// It is written anew, and the man pages and the book are made.
    Write,
}

/// Builds the command, whose help is a page, and does all that the mode says.
pub(crate) fn run(root: &Path, mode: Mode) -> Result<(), String> {
    let mut build = cargo::command();
    build.current_dir(root).args(["build", "--quiet", "--package", "leasehold-cli"]);
    let status = build.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if !status.success() {
        return Err(format!("the command `leasehold` could not be built: {status}"));
    }
    let program = program()?;
    if mode == Mode::Check {
        return check(root, &program);
    }
    generated::write(root, &program)?;
    check(root, &program)?;
    let target = crate::target(root);
    generated::man_pages(&program, &target.join("man"))?;
    book::build(root, &target)
}

/// Checks with the command that `cargo xtask test` has built before.
pub(crate) fn check_built(root: &Path) -> Result<(), String> {
    check(root, &program()?)
}

fn check(root: &Path, program: &Path) -> Result<(), String> {
    let paths = tidy::listed(root)?;
    let files = tidy::read(root, &paths)?;
    let mut findings = links::check(&paths, &files);
    findings.extend(generated::check(root, program)?);
    for finding in &findings {
        println!("{finding}");
    }
    let pages = files.iter().filter(|file| file.path.ends_with(".md")).count();
    println!("docs: {pages} Markdown files, {} errors", findings.len());
    if findings.is_empty() {
        Ok(())
    } else {
        Err(format!("docs found {} errors, listed above.", findings.len()))
    }
}

/// Returns the path of the command, which cargo puts beside this program.
fn program() -> Result<PathBuf, String> {
    let own =
        std::env::current_exe().map_err(|error| format!("the folder of programs is unknown: {error}"))?;
    let program = own.with_file_name("leasehold");
    if program.is_file() {
        return Ok(program);
    }
    Err(format!("{}: is missing; `cargo xtask docs` builds it.", program.display()))
}
