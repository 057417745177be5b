//! `cargo xtask fuzz`: searches for inputs that parsers do not survive, for as long as one likes.
//!
//! The targets are tests in the modules `fuzz` of the crates that have parsers, which `crates/fuzz` drives. Such a
//! module is beside the parsers, wherever they are. Each target runs in a process of its own, one on each core at a
//! time. An input that fails is kept in the folder `fuzz` of its crate: commit it, and mend the parser.

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::suites::{self, Program};

/// The arguments of the chore.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    seconds: u64,
    words: Vec<String>,
    list: bool,
    /// Of the clock where it is `None`.
    seed: Option<u64>,
}

impl Request {
    /// Parses the words after `fuzz`.
    pub(crate) fn parse(words: &[&str]) -> Result<Request, String> {
        let mut request = Request { seconds: 60, words: Vec::new(), list: false, seed: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--list" => request.list = true,
                "--minutes" => {
                    let minutes = words.next().and_then(|text| text.parse::<f64>().ok());
                    let minutes = minutes.filter(|it| *it > 0.0).ok_or("--minutes wants a number.")?;
                    // Of a part of a second, the next whole one.
                    request.seconds = (minutes * 60.0).ceil() as u64;
                }
                option if option.starts_with('-') => {
                    return Err(format!("`{option}` is not an option of this chore."));
                }
                target => request.words.push(target.to_owned()),
            }
        }
        Ok(request)
    }

    fn wants(&self, target: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| target.contains(word.as_str()))
    }
}

/// Searches each target for a few seconds: a step of `cargo xtask test`. The seed is always the same, so that a change
/// that passes on one machine passes on another.
pub(crate) fn briefly(root: &Path) -> Result<(), String> {
    run(root, &Request { seconds: BRIEFLY, words: Vec::new(), list: false, seed: Some(SEED) })
}

/// Runs the targets, one on each core. All are tried; the error names those that failed.
pub(crate) fn run(root: &Path, request: &Request) -> Result<(), String> {
    let mut targets = VecDeque::new();
    // Those of the whole workspace, which `cargo xtask test` has built with the same features.
    for program in suites::programs(root, &[])?.into_iter().filter(|program| program.name.is_empty()) {
        let home = program.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !PACKAGES.contains(&home.as_str()) {
            continue;
        }
        for test in tests_of(&program)? {
            let target = format!("{home}/{}", name_of(&test).unwrap_or_default());
            if request.wants(&target) {
                targets.push_back((target, program.clone(), test));
            }
        }
    }
    if targets.is_empty() {
        return Err("no target has such a name: see `cargo xtask fuzz --list`.".to_owned());
    }
    if request.list {
        targets.iter().for_each(|(target, ..)| println!("{target}"));
        return Ok(());
    }
    let (targets, failed) = (Mutex::new(targets), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..suites::cores() {
            scope.spawn(|| {
                loop {
                    let next = targets.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((target, program, test)) = next else { return };
                    if !search(&target, &program, &test, request) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(target);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() { Ok(()) } else { Err(format!("these targets failed: {}", failed.join(", "))) }
}

/// Returns the targets of a test program.
fn tests_of(program: &Program) -> Result<Vec<String>, String> {
    let output = Command::new(&program.path).args(["fuzz::", "--list"]).output();
    let output = output.map_err(|error| format!("{}: {error}", program.path.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.filter(|test| name_of(test).is_some()).map(str::to_owned).collect())
}

/// Returns the name of the target that a test is: what follows its module `fuzz`; `None` if it is another test.
fn name_of(test: &str) -> Option<&str> {
    match test.strip_prefix("fuzz::") {
        Some(name) => Some(name),
        None => test.split_once("::fuzz::").map(|(_, name)| name),
    }
}

/// Searches one target, and prints in one piece what it said. Returns `false` if an input failed.
fn search(target: &str, program: &Program, test: &str, request: &Request) -> bool {
    let mut command = Command::new(&program.path);
    command.args(["--exact", test, "--nocapture"]).current_dir(&program.folder);
    command.env("LEASEHOLD_FUZZ_SECONDS", request.seconds.to_string());
    if let Some(seed) = request.seed {
        command.env("LEASEHOLD_FUZZ_SEED", seed.to_string());
    }
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => {
            println!("{target}: {}: {error}", program.path.display());
            return false;
        }
    };
    let has_passed = output.status.success();
    let said = String::from_utf8_lossy(&output.stdout);
    // Where nothing failed, the one line about the search is enough.
    let lines = said.lines().filter(|line| !has_passed || line.contains(" from seed "));
    let mut text: String = lines.map(|line| format!("{target}: {line}\n")).collect();
    if !has_passed {
        text.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    // A stream that is closed takes nothing more, and the result is reported all the same.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    has_passed
}

/// The seconds for each target in `cargo xtask test`.
const BRIEFLY: u64 = 3;
/// The seed of these searches, which has no meaning.
const SEED: u64 = 151_373_582_233_703;

/// The crates with targets, by their folders.
const PACKAGES: &[&str] = &[
    "backend",
    "cli",
    "core",
    "etcd",
    "history",
    "leasehold",
    "memcached",
    "mysql",
    "postgres",
    "redis",
    "serve",
    "sqlite",
    "zookeeper",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_chosen_by_words() {
        let request = Request::parse(&["redis", "--minutes", "0.5", "core/fence"]).unwrap();
        assert!(request.wants("redis/url") && request.wants("core/fence") && !request.wants("core/names"));
        assert!(Request::parse(&[]).unwrap().wants("core/names"));
        assert!(Request::parse(&["--minutes", "0"]).is_err() && Request::parse(&["--fast"]).is_err());
    }

    #[test]
    fn every_crate_with_targets_is_searched() {
        let root = crate::root();
        for home in ["backends", "crates"] {
            for entry in std::fs::read_dir(root.join(home)).unwrap() {
                let folder = entry.unwrap().path();
                let name = folder.file_name().unwrap().to_string_lossy().into_owned();
                let is_searched = PACKAGES.contains(&name.as_str());
                assert_eq!(has_targets(&folder.join("src")), is_searched, "{home}/{name}");
            }
        }
    }

    fn has_targets(folder: &Path) -> bool {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut entries = entries.filter(|path| path.is_dir() || path.ends_with("fuzz.rs"));
        entries.any(|path| !path.is_dir() || has_targets(&path))
    }

    #[test]
    fn targets_are_named_by_what_follows_their_module() {
        assert_eq!(name_of("fuzz::url"), Some("url"));
        assert_eq!(name_of("local::file::fuzz::ledger"), Some("ledger"));
        assert_eq!((name_of("request::config::tests::fuzz"), name_of("refuzz::x")), (None, None));
    }
}
