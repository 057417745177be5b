//! `cargo xtask fuzz`: searches for inputs that parsers do not survive, for as long as one likes.
//!
//! The targets are tests in the modules `fuzz` of the crates that have parsers, which `crates/fuzz` drives. Such a
//! module is beside the parsers, wherever they are. Each target runs by itself. What fails is kept in the folder
//! `fuzz` of its crate: commit it, and mend the parser.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::suites::{self, Program};

/// The arguments of the chore.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    seconds: u64,
    words: Vec<String>,
    list: bool,
}

impl Request {
    /// Parses the words after `fuzz`.
    pub(crate) fn parse(words: &[&str]) -> Result<Request, String> {
        let mut request = Request { seconds: 60, words: Vec::new(), list: false };
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

/// Runs the targets one after the other. All are tried; the error names those that failed.
pub(crate) fn run(root: &Path, request: &Request) -> Result<(), String> {
    let (mut failed, mut count) = (Vec::new(), 0);
    // Those of the whole workspace, which `cargo xtask test` has built with the same features.
    for program in suites::programs(root, &[])?.iter().filter(|program| program.name.is_empty()) {
        let home = program.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !PACKAGES.contains(&home.as_str()) {
            continue;
        }
        for test in tests_of(program)? {
            let target = format!("{home}/{}", name_of(&test).unwrap_or_default());
            if !request.wants(&target) {
                continue;
            }
            count += 1;
            println!("{target}");
            if !request.list && !search(program, &test, request.seconds)? {
                failed.push(target);
            }
        }
    }
    if count == 0 {
        return Err("no target has such a name: see `cargo xtask fuzz --list`.".to_owned());
    }
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

fn search(program: &Program, test: &str, seconds: u64) -> Result<bool, String> {
    let mut command = Command::new(&program.path);
    command.args(["--exact", test, "--nocapture"]).current_dir(&program.folder);
    command.env("LEASEHOLD_FUZZ_SECONDS", seconds.to_string());
    let status = command.stdin(Stdio::null()).status();
    Ok(status.map_err(|error| format!("{}: {error}", program.path.display()))?.success())
}

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
