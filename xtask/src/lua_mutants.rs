//! `cargo xtask lua-mutants`: whether the tests see a change of the scripts of the Redis backend.
//!
//! Each mutant is one small change of one script: a comparison, a condition, a number, a key, a statement that is
//! left out. The test programs are built once, with a feature by which they send the changed script, and run
//! against a real server until one of them fails: then the mutant is killed. A mutant that survives is a
//! change that no test sees. It fails the chore, unless the committed list explains it.

mod derive;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::suites::{self, Program};
use derive::{Mutant, mutants};

/// The arguments of the chore.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The beginning of the names of files, for a part of them.
    file: Option<String>,
    /// The number of mutants that are tried, spread over all; all without it.
    limit: Option<usize>,
    list: bool,
}

impl Request {
    /// Parses the words after `lua-mutants`.
    pub(crate) fn parse(words: &[&str]) -> Result<Request, String> {
        let mut request = Request { file: None, limit: None, list: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--list" => request.list = true,
                "--quick" => request.limit = Some(QUICK),
                "--limit" => {
                    let count = words.next().and_then(|count| count.parse().ok());
                    request.limit = Some(count.ok_or("--limit wants a number.")?);
                }
                "--file" => {
                    request.file = Some((*words.next().ok_or("--file wants the name of a script.")?).into());
                }
                other => return Err(format!("`{other}` is not an option of this chore.")),
            }
        }
        Ok(request)
    }
}

/// Derives the mutants and tries them.
pub(crate) fn run(root: &Path, request: &Request) -> Result<(), String> {
    let all = of_files(root, request.file.as_deref())?;
    let chosen = spread(&all, request.limit.unwrap_or(all.len()));
    if request.list {
        chosen.iter().for_each(|mutant| println!("{}", mutant.name()));
        println!("{} of {} mutants", chosen.len(), all.len());
        return Ok(());
    }
    let programs = programs(root)?;
    let explained = explained(root)?;
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let file = folder.path().join("mutant.lua");
    let whole = Mutant::unchanged();
    whole.write(&file)?;
    if let Some(failed) = first_failure(&programs, &file)? {
        return Err(format!("{failed} fails without any change: mend that first."));
    }
    let (mut killed, mut known, mut survivors) = (0_usize, 0_usize, Vec::new());
    for (number, mutant) in chosen.iter().enumerate() {
        mutant.write(&file)?;
        let begin = Instant::now();
        let by = first_failure(&programs, &file)?;
        let outcome = by.as_deref().map_or("SURVIVED".to_owned(), |by| format!("killed by {by}"));
        println!(
            "{}/{} {}: {outcome} after {:.0} s",
            number + 1,
            chosen.len(),
            mutant.name(),
            begin.elapsed().as_secs_f64()
        );
        match by {
            Some(_) => killed += 1,
            None if explained.iter().any(|name| *name == mutant.name()) => known += 1,
            None => survivors.push(mutant.name()),
        }
    }
    println!("{killed} killed, {known} survived and are explained, {} survived", survivors.len());
    if survivors.is_empty() {
        return Ok(());
    }
    Err(format!(
        "No test sees these changes. Write one, or explain them in {EXPLAINED}:\n{}",
        survivors.join("\n")
    ))
}

fn of_files(root: &Path, only: Option<&str>) -> Result<Vec<Mutant>, String> {
    let mut paths = Vec::new();
    scripts(&root.join(SCRIPTS), &mut paths)?;
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if only.is_some_and(|only| !name.starts_with(only)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let below = path.strip_prefix(root.join(SCRIPTS)).unwrap_or(&path).display().to_string();
        all.extend(mutants(&below, &text));
    }
    if all.is_empty() { Err("no script has this name.".to_owned()) } else { Ok(all) }
}

fn scripts(folder: &Path, into: &mut Vec<PathBuf>) -> Result<(), String> {
    for entry in std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            scripts(&path, into)?;
        } else if path.extension().is_some_and(|end| end == "lua") {
            into.push(path);
        }
    }
    Ok(())
}

/// Returns so many of them, at equal distances.
fn spread(all: &[Mutant], count: usize) -> Vec<&Mutant> {
    let count = count.min(all.len());
    (0..count).map(|number| &all[number * all.len() / count]).collect()
}

/// Builds the test programs with the feature, and returns those that judge, the quickest first.
fn programs(root: &Path) -> Result<Vec<(Program, &'static [&'static str])>, String> {
    let mut built =
        suites::programs_with(root, &["leasehold-redis".to_owned()], &["--features=lua-mutants"])?;
    let mut chosen = Vec::new();
    for (name, arguments) in JUDGES {
        let at = built.iter().position(|program| program.name == *name);
        let at = at.ok_or_else(|| format!("leasehold-redis has no test program {name}"))?;
        chosen.push((built.swap_remove(at), *arguments));
    }
    Ok(chosen)
}

/// Returns the first program that fails with the script in this file.
fn first_failure(
    programs: &[(Program, &'static [&'static str])],
    file: &Path,
) -> Result<Option<String>, String> {
    for (program, arguments) in programs {
        let mut command = Command::new("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg(&program.path).args(*arguments);
        command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
        command.env("LEASEHOLD_LUA_MUTANT", file).env("RUST_TEST_THREADS", WIDTH);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().map_err(|error| format!("{}: {error}", program.path.display()))?;
        if !status.success() {
            return Ok(Some(program.name.clone()));
        }
    }
    Ok(None)
}

/// Returns the mutants that the committed list explains: a line for each, its reason in the lines before it.
fn explained(root: &Path) -> Result<Vec<String>, String> {
    let text =
        std::fs::read_to_string(root.join(EXPLAINED)).map_err(|error| format!("{EXPLAINED}: {error}"))?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

/// The folder with all scripts.
const SCRIPTS: &str = "backends/redis/src";
/// The list of survivors with their reasons.
const EXPLAINED: &str = "backends/redis/lua-mutants.txt";
/// The test programs that judge, with their filters. The first two see most changes, within seconds.
const JUDGES: &[(&str, &[&str])] = &[
    ("free_lock", &[]),
    ("hold", &[]),
    ("sweep", &[]),
    ("single_value", &[]),
    ("histories", &[]),
    ("conformance", &["pubsub_fifo", "redisson", "plain"]),
    ("wait", &[]),
    ("faults", &[]),
];
const QUICK: usize = 8;
/// A mutant may make a test wait for ever.
const LIMIT: Duration = Duration::from_secs(300);
const WIDTH: &str = "4";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        assert_eq!(Request::parse(&[]), Ok(Request { file: None, limit: None, list: false }));
        let request = Request::parse(&["--file", "renew", "--limit", "3", "--list"]).unwrap();
        assert_eq!((request.file.as_deref(), request.limit, request.list), (Some("renew"), Some(3), true));
        assert!(Request::parse(&["--limit", "x"]).is_err() && Request::parse(&["--all"]).is_err());
    }

    #[test]
    fn a_limit_spreads_over_all() {
        let all = of_files(&crate::root(), None).unwrap();
        assert!(all.len() > 300, "{}", all.len());
        let some = spread(&all, 10);
        assert_eq!(some.len(), 10);
        let files: std::collections::BTreeSet<_> = some.iter().map(|mutant| &mutant.file).collect();
        assert!(files.len() > 4, "{files:?}");
        assert_eq!(spread(&all, 100_000).len(), all.len());
    }

    #[test]
    fn every_explained_mutant_exists() {
        let all: Vec<String> = of_files(&crate::root(), None).unwrap().iter().map(Mutant::name).collect();
        for name in explained(&crate::root()).unwrap() {
            assert!(all.contains(&name), "{EXPLAINED}: {name}: no such mutant any more");
        }
    }
}
