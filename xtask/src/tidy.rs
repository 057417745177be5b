//! `cargo xtask tidy`: the rules of this repository that no compiler knows.
//!
//! Each rule is a file below this one: it takes files already read, and returns findings; only this
//! file touches the disk and the screen. A rule has no exceptions by comment: what may break it is
//! listed, with the reason, in a constant beside the rule, and an entry that is not needed any longer
//! is a finding itself.

mod calls;
mod circles;
mod edges;
mod layers;
mod lengths;
mod modules;
mod opening;
mod source;
mod spelling;
mod terms;
mod twins;
mod unsafety;
mod words;
mod wrappers;

use std::fmt;
use std::path::Path;
use std::process::Command;

use crate::servers;
use edges::Member;
use source::Source;

/// A place that a person has to change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    weight: Weight,
    /// The advice, as a sentence.
    advice: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Error,
    Warning,
}

impl Finding {
    fn error(path: &str, line: usize, rule: &'static str, advice: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, weight: Weight::Error, advice: advice.into() }
    }

    fn warning(path: &str, line: usize, rule: &'static str, advice: impl Into<String>) -> Self {
        Self { weight: Weight::Warning, ..Self::error(path, line, rule, advice) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.weight == Weight::Warning { " (warning)" } else { "" };
        write!(f, "{}:{}: {}{mark}: {}", self.path, self.line, self.rule, self.advice)
    }
}

/// An exception from a rule: where, and why it is right there.
struct Exception {
    path: &'static str,
    rule: &'static str,
    why: &'static str,
}

impl Exception {
    /// Drops the findings that `allowed` covers, and adds one for each exception that covers nothing.
    fn apply(findings: Vec<Finding>, allowed: &[Self], list: &str) -> Vec<Finding> {
        let covers = |one: &Self, finding: &Finding| one.path == finding.path && one.rule == finding.rule;
        let mut left: Vec<Finding> = findings
            .iter()
            .filter(|finding| !allowed.iter().any(|one| covers(one, finding)))
            .cloned()
            .collect();
        for one in allowed.iter().filter(|one| !findings.iter().any(|finding| covers(one, finding))) {
            let advice =
                format!("{list} excepts this file ({}), which needs it no more: remove the entry.", one.why);
            left.push(Finding::error(one.path, 1, one.rule, advice));
        }
        left
    }
}

/// Checks everything below `root`, prints what it finds, and fails when anything but warnings is among it.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let members = edges::members(root)?;
    let files = read(root, &listed(root)?)?;
    let count = files.len();
    let mut findings = check(&members, files);
    findings.extend(spelling(root)?);
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.weight == Weight::Error).count();
    println!("tidy: {count} files, {errors} errors, {} warnings", findings.len() - errors);
    if errors == 0 { Ok(()) } else { Err(format!("tidy found {errors} errors, listed above.")) }
}

/// A text file of the repository, by its path from the root with `/` between.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

fn check(members: &[Member], files: Vec<File>) -> Vec<Finding> {
    let mut findings = edges::check(members, &files);
    findings.extend(words::check(&files));
    let terms = terms::listed(&files);
    let mut sources = Vec::new();
    for file in files.into_iter().filter(|file| file.path.ends_with(".rs")) {
        match Source::parse(file.path, file.text) {
            Ok(source) => sources.push(source),
            Err(finding) => findings.push(finding),
        }
    }
    source::mark_test_modules(&mut sources);
    findings.extend(opening::check(&sources));
    findings.extend(lengths::check(&sources));
    findings.extend(calls::check(&sources, members, calls::ALLOWED));
    findings.extend(unsafety::check(&sources, unsafety::ALLOWED));
    findings.extend(modules::check(&sources));
    findings.extend(circles::check(&sources));
    findings.extend(layers::check(&sources));
    findings.extend(terms::check(&terms, &sources));
    findings.extend(twins::check(&sources));
    findings.extend(wrappers::check(&sources));
    findings
}

/// Checks the spelling, if the program for that is installed: it has a large dictionary, so it is not built
/// with this one.
fn spelling(root: &Path) -> Result<Vec<Finding>, String> {
    let Some(program) = servers::find(spelling::PROGRAM) else {
        println!(
            "tidy: spelling is not checked: `cargo install --locked typos-cli` brings the program for it."
        );
        return Ok(Vec::new());
    };
    let output = Command::new(program).current_dir(root).args(spelling::ARGUMENTS).output();
    let output = output.map_err(|error| format!("{} could not be started: {error}", spelling::PROGRAM))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(0 | 2) => spelling::findings(&out),
        _ => Err(format!("{} failed: {}", spelling::PROGRAM, err.trim())),
    }
}

/// Returns the paths of all files that git knows or would add. New files count, so that a finding comes
/// before the commit, not after it.
pub(crate) fn listed(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|error| format!("git, which lists the files to check, could not be started: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git could not list the files to check: {}", why.trim()));
    }
    let mut paths = Vec::new();
    for path in output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        let path = String::from_utf8(path.to_vec()).map_err(|_| "a file's name is not UTF-8".to_owned())?;
        // A file that git still lists may be deleted already.
        if root.join(&path).symlink_metadata().is_ok_and(|found| !found.is_dir()) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Reads all text files among these.
pub(crate) fn read(root: &Path, paths: &[String]) -> Result<Vec<File>, String> {
    let mut files = Vec::new();
    for path in paths {
        let full = root.join(path);
        // A link is checked where it points to.
        if full.is_symlink() {
            continue;
        }
        let bytes = std::fs::read(&full).map_err(|error| format!("{path}: cannot be read: {error}"))?;
        // A file that is not UTF-8, or holds a NUL, is data and has no words.
        if let Ok(text) = String::from_utf8(bytes)
            && !text.contains('\0')
        {
            files.push(File { path: path.clone(), text });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_as_path_line_rule_and_advice() {
        let error = Finding::error("a/b.rs", 7, "call", "Do this.");
        assert_eq!(error.to_string(), "a/b.rs:7: call: Do this.");
        let warning = Finding::warning("a/b.rs", 7, "length", "Do that.");
        assert_eq!(warning.to_string(), "a/b.rs:7: length (warning): Do that.");
    }

    #[test]
    fn exception_covers_one_file_and_rule_and_must_be_needed() {
        let found = |path| Finding::error(path, 3, "call", "Do this.");
        let allowed = [Exception { path: "a.rs", rule: "call", why: "the clock itself" }];
        assert_eq!(Exception::apply(vec![found("a.rs")], &allowed, "LIST"), vec![]);
        assert_eq!(
            Exception::apply(vec![found("a.rs"), found("b.rs")], &allowed, "LIST"),
            vec![found("b.rs")]
        );
        let stale = Exception::apply(vec![], &allowed, "LIST");
        assert_eq!(stale.len(), 1);
        assert!(stale[0].advice.contains("LIST") && stale[0].advice.contains("the clock itself"));
    }

    #[test]
    fn all_rules_are_applied_to_the_files() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let long = format!("//! Long.\nfn long() {{\n{}}}\n", "    step();\n".repeat(90));
        let files = vec![
            file("README.md", concat!("Later: TO", "DO\n")),
            file("crates/core/src/bare.rs", "fn bare() {}\n"),
            file("crates/core/src/broken.rs", "//! Broken.\nfn broken( {}\n"),
            file("crates/core/src/clock.rs", "//! Clock.\nfn now() { Instant::now(); }\n"),
            file("crates/core/src/long.rs", &long),
            file("crates/core/src/raw.rs", "//! Raw.\nfn raw() { unsafe { go() } }\n"),
            file("crates/leasehold/src/engine.rs", "//! Engine.\nuse crate::client::Client;\n"),
        ];
        let mut rules: Vec<&str> = check(&[], files).iter().map(|finding| finding.rule).collect();
        rules.sort_unstable();
        // The exceptions of this repository name files that are not among these, and are found for that.
        rules.dedup();
        assert_eq!(rules, ["call", "length", "module-edge", "opening", "syntax", "unsafe", "word"]);
    }
}
