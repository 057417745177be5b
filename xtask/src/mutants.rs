//! `cargo xtask mutants`: whether the tests see a change of the code that decides about grants.
//!
//! cargo-mutants changes one function or operator at a time in a copy of the sources, and runs the tests of its area.
//! A mutant that survives is a change that no test sees. It fails the chore, unless the committed list explains it.
//! This takes hours; `--part`, `--file` and `--minutes` bound it, and `--continue` leaves out what was killed before.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo;
use crate::survivors::{self, Bounds};

/// Code that is changed, and the tests that judge it.
#[derive(Debug)]
struct Area {
    name: &'static str,
    package: &'static str,
    /// Patterns of its files.
    files: &'static [&'static str],
    /// The packages whose tests judge.
    judges: &'static [&'static str],
    /// Arguments of `cargo test`, which choose the test programs.
    programs: &'static [&'static str],
    /// Arguments of these programs, which choose the tests.
    tests: &'static [&'static str],
    /// Seconds after which the tests of one mutant hang.
    limit: u32,
}

const AREAS: &[Area] = &[
    Area {
        name: "core",
        package: "leasehold-core",
        files: &["crates/core/src/**/*.rs"],
        judges: &["leasehold-core"],
        programs: &["--lib"],
        // They take longer than all others together.
        tests: &["--skip=fuzz::", "--skip=dead_waiter_costs", "--skip=full_queue_is_reported"],
        limit: 60,
    },
    Area {
        name: "engine",
        package: "leasehold",
        files: &["crates/leasehold/src/engine/**/*.rs"],
        judges: &["leasehold"],
        programs: &["--lib", "--test=it", "--test=engine_*"],
        // Other layers, and the laws of a store.
        tests: &["--skip=conformance_memory::", "--skip=coord_faults::", "--skip=quorum_late_answers::"],
        limit: 120,
    },
    Area {
        name: "cell",
        package: "leasehold-backend",
        files: &[
            "crates/backend/src/cell/**/*.rs",
            "crates/backend/src/connection/*.rs",
            "crates/backend/src/session/**/*.rs",
        ],
        judges: &["leasehold-backend"],
        programs: &[
            "--features=connection,laws,session",
            "--lib",
            "--test=cell",
            "--test=connection",
            "--test=session",
        ],
        tests: &[],
        limit: 240,
    },
    Area {
        name: "quorum",
        package: "leasehold",
        files: &["crates/leasehold/src/layer/quorum.rs", "crates/leasehold/src/layer/quorum/*.rs"],
        judges: &["leasehold", "leasehold-tests"],
        programs: &["--lib", "--test=it"],
        tests: &["quorum", "redlock_faults::", "conformance_redlock::"],
        limit: 300,
    },
];

/// The arguments of the chore.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    /// The names of areas; all without one.
    areas: Vec<String>,
    /// Patterns of files, for a part of an area.
    files: Vec<String>,
    /// The part of each area that is tried, and the time for each.
    bounds: Bounds,
    keeps_killed: bool,
    list: bool,
}

impl Request {
    /// Parses the words after `mutants`.
    pub(crate) fn parse(words: &[&str]) -> Result<Request, String> {
        let mut request = Request::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--list" => request.list = true,
                "--continue" => request.keeps_killed = true,
                bound if request.bounds.read(bound, &mut words)? => {}
                "--file" => {
                    request.files.push((*words.next().ok_or("--file wants a pattern of files.")?).into());
                }
                option if option.starts_with('-') => {
                    return Err(format!("`{option}` is not an option of this chore."));
                }
                area if AREAS.iter().any(|known| known.name == area) => request.areas.push(area.to_owned()),
                other => return Err(format!("`{other}` is not an area: {}.", names())),
            }
        }
        if !request.files.is_empty() && request.areas.len() != 1 {
            return Err(format!("--file wants the area of the files: one of {}.", names()));
        }
        Ok(request)
    }
}

fn names() -> String {
    AREAS.iter().map(|area| area.name).collect::<Vec<_>>().join(", ")
}

/// Tries the mutants of the areas, one area after the other.
pub(crate) fn run(root: &Path, request: &Request) -> Result<(), String> {
    if !cargo::command().args(["mutants", "--version"]).output().is_ok_and(|it| it.status.success()) {
        return Err("cargo-mutants is missing: `cargo install --locked cargo-mutants`.".to_owned());
    }
    let explained = survivors::explained(root, EXPLAINED)?;
    let mut open = Vec::new();
    for area in
        AREAS.iter().filter(|area| request.areas.is_empty() || request.areas.iter().any(|it| it == area.name))
    {
        let stable = stable_names(&list(root, area, request)?);
        if request.list {
            stable.iter().for_each(|(_, name)| println!("{name}"));
            println!("{} mutants of {}", stable.len(), area.name);
            continue;
        }
        try_all(root, area, request)?;
        let results = Results::read(&output(root, area).join("mutants.out"), &stable.into_iter().collect());
        if results.tried() == 0 {
            return Err(format!("no mutant of {} was tried: the time was over before.", area.name));
        }
        open.extend(results.report(area.name, &explained));
    }
    survivors::judge(&open, EXPLAINED)
}

/// Starts `cargo mutants` for an area.
fn command(root: &Path, area: &Area, request: &Request) -> Command {
    let mut command = cargo::command();
    command.arg("mutants").current_dir(root).stdin(Stdio::null());
    command.args(["--package", area.package]);
    let own: Vec<&str> = request.files.iter().map(String::as_str).collect();
    // What `Debug` writes is for people who develop.
    command.arg("--exclude-re=Debug for");
    for pattern in if own.is_empty() { area.files } else { &own } {
        command.args(["--file", pattern]);
    }
    command
}

/// Returns the mutants of an area, as cargo-mutants names them.
fn list(root: &Path, area: &Area, request: &Request) -> Result<Vec<String>, String> {
    let output = command(root, area, request).arg("--list").stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the mutants of {} could not be listed", area.name));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Runs cargo-mutants until it ends or its time is over. Its files have the results.
fn try_all(root: &Path, area: &Area, request: &Request) -> Result<(), String> {
    let output = output(root, area);
    std::fs::create_dir_all(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let mut command = command(root, area, request);
    if let Some(minutes) = request.bounds.minutes {
        let plain = command;
        command = Command::new("timeout");
        command
            .args(["--signal=INT", &format!("{minutes}m")])
            .arg(plain.get_program())
            .args(plain.get_args());
        command.current_dir(root).stdin(Stdio::null());
        cargo::without_description(&mut command);
    }
    command.arg("--output").arg(&output).args(["--jobs=1", "--no-shuffle", "--colors=never"]);
    command.arg(format!("--timeout={}", area.limit));
    for package in area.judges {
        command.args(["--test-package", package]);
    }
    if let Some((number, count)) = request.bounds.part {
        command.args(["--sharding=round-robin".to_owned(), format!("--shard={}/{count}", number - 1)]);
    }
    if request.keeps_killed {
        command.arg("--iterate");
    }
    // To build and to run.
    command.args(area.programs.iter().map(|argument| format!("--cargo-arg={argument}")));
    if !area.tests.is_empty() {
        command.args(["--", "--"]).args(area.tests);
    }
    // A folder of its own: the copy of the sources would be built in turns with the sources.
    command.env("CARGO_TARGET_DIR", crate::target(root).join("mutants/build"));
    // Without its servers a test would see nothing.
    command.env("LEASEHOLD_REQUIRE", "redis");
    let status = command.status().map_err(|error| format!("cargo mutants: {error}"))?;
    match status.code() {
        Some(0 | SOME_SURVIVED | SOME_HUNG | TIME_IS_OVER) => Ok(()),
        Some(BROKEN) => Err("the tests fail without any change: mend that first.".to_owned()),
        _ => Err(format!("cargo mutants ended with {status}")),
    }
}

fn output(root: &Path, area: &Area) -> PathBuf {
    crate::target(root).join("mutants").join(area.name)
}

/// Returns for each mutant a name that stays the same while its function does: without line and column, with a number
/// if several of a file have that name.
fn stable_names(listed: &[String]) -> Vec<(String, String)> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let name = |line: &String| {
        let (place, change) = line.split_once(": ").unwrap_or((line, ""));
        let name = format!("{}: {change}", place.split(':').next().unwrap_or(place));
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        let name = if *count > 1 { format!("{name} #{count}") } else { name };
        (line.clone(), name)
    };
    listed.iter().map(name).collect()
}

/// The outcomes, by stable names.
#[derive(Debug, Default)]
struct Results {
    killed: usize,
    /// The tests hung, which counts as killed.
    hung: usize,
    /// The compiler refused the change.
    refused: usize,
    survivors: Vec<String>,
    listed: Vec<String>,
}

impl Results {
    fn read(folder: &Path, stable: &HashMap<String, String>) -> Results {
        let lines = |file: &str| -> Vec<String> {
            let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
            text.lines().filter_map(|line| stable.get(line).cloned()).collect()
        };
        let killed = lines("caught.txt").into_iter().chain(lines("previously_caught.txt"));
        Results {
            killed: killed.collect::<std::collections::BTreeSet<_>>().len(),
            hung: lines("timeout.txt").len(),
            refused: lines("unviable.txt").len(),
            survivors: lines("missed.txt"),
            listed: stable.values().cloned().collect(),
        }
    }

    /// Returns the number of mutants with an outcome.
    fn tried(&self) -> usize {
        self.killed + self.hung + self.refused + self.survivors.len()
    }

    /// Prints the numbers, and returns the survivors that nobody has explained.
    fn report(self, area: &str, explained: &BTreeMap<String, String>) -> Vec<String> {
        let (known, open): (Vec<_>, Vec<_>) =
            self.survivors.into_iter().partition(|name| explained.contains_key(name));
        println!(
            "{area}: {} mutants, {} killed, {} hung, {} refused by the compiler, {} survived and are explained, \
             {} survived",
            self.listed.len(),
            self.killed,
            self.hung,
            self.refused,
            known.len(),
            open.len()
        );
        open
    }
}

/// The list of survivors with their reasons.
const EXPLAINED: &str = "docs/mutants.txt";
/// Exit codes of cargo-mutants.
const SOME_SURVIVED: i32 = 2;
const SOME_HUNG: i32 = 3;
const BROKEN: i32 = 4;
/// The exit code of `timeout`.
const TIME_IS_OVER: i32 = 124;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        assert_eq!(Request::parse(&[]), Ok(Request::default()));
        let words =
            ["core", "--part", "2/5", "--minutes", "7", "--file", "ledger.rs", "--continue", "--list"];
        let request = Request::parse(&words).unwrap();
        assert_eq!(request.bounds, Bounds { part: Some((2, 5)), minutes: Some(7) });
        assert!(request.keeps_killed && request.list);
        assert_eq!(
            (&request.areas[..], &request.files[..]),
            (&["core".into()][..], &["ledger.rs".into()][..])
        );
        for wrong in [&["all"][..], &["--all"], &["--part", "0/3"], &["--part", "4/3"], &["--file", "x"]] {
            assert!(Request::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_name_survives_a_move_of_its_lines() {
        let listed =
            ["a.rs:1:2: replace < with <= in f", "a.rs:9:2: replace < with <= in f", "a.rs:9:4: replace f"];
        let names = stable_names(&listed.map(str::to_owned));
        let names: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(
            names,
            ["a.rs: replace < with <= in f", "a.rs: replace < with <= in f #2", "a.rs: replace f"]
        );
    }

    #[test]
    fn tests_of_every_area_exist() {
        for area in AREAS {
            let folders = area.judges.iter().map(|judge| match *judge {
                "leasehold-tests" => crate::root(),
                judge => crate::root().join("crates").join(judge.strip_prefix("leasehold-").unwrap_or(judge)),
            });
            let folders: Vec<PathBuf> = folders.collect();
            for program in area.programs.iter().filter_map(|argument| argument.strip_prefix("--test=")) {
                let begin = program.trim_end_matches('*');
                let is_it = |path: &PathBuf| {
                    let is_program =
                        path.extension().is_some_and(|end| end == "rs") || path.join("main.rs").is_file();
                    let name = path.file_stem().unwrap_or_default().to_string_lossy();
                    is_program && name.starts_with(begin) && (begin != program || name == program)
                };
                let exists =
                    folders.iter().flat_map(|folder| entries(&folder.join("tests"))).any(|path| is_it(&path));
                assert!(exists, "{}: no test program is called {program}", area.name);
            }
            // A name that is nowhere chooses no test, or leaves none out.
            for test in area.tests {
                let name = test.trim_start_matches("--skip=").trim_end_matches("::");
                let exists = folders.iter().any(|folder| names(folder, name));
                assert!(exists, "{}: no test is called {name}", area.name);
            }
        }
    }

    fn entries(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns `true` if a file below a folder is called so, or has a function whose name begins so.
    fn names(folder: &Path, name: &str) -> bool {
        entries(folder).iter().any(|path| {
            let is_called_so = path.file_stem().is_some_and(|stem| stem == name);
            let declares =
                |text: String| text.contains(&format!("fn {name}")) || text.contains(&format!("mod {name} "));
            let is_source = path.extension().is_some_and(|end| end == "rs");
            let is_there = is_source && std::fs::read_to_string(path).is_ok_and(declares);
            is_called_so || is_there || (path.is_dir() && !path.ends_with("target") && names(path, name))
        })
    }

    #[test]
    fn the_file_of_every_explained_mutant_exists() {
        for name in survivors::explained(&crate::root(), EXPLAINED).unwrap().keys() {
            let file = name.split(':').next().unwrap_or_default();
            assert!(crate::root().join(file).is_file(), "{EXPLAINED}: {file} does not exist any more");
        }
    }

    #[test]
    fn results_are_those_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
        write("caught.txt", "a.rs:1:1: x\n");
        write("previously_caught.txt", "a.rs:1:1: x\na.rs:2:1: y\n");
        write("missed.txt", "a.rs:3:1: z\na.rs:4:1: w\n");
        let listed = ["a.rs:1:1: x", "a.rs:2:1: y", "a.rs:3:1: z", "a.rs:4:1: w"].map(str::to_owned);
        let stable = stable_names(&listed).into_iter().collect();
        let results = Results::read(folder.path(), &stable);
        assert_eq!((results.killed, results.hung, results.refused), (2, 0, 0));
        let explained = survivors::parse("# it is\na.rs: w\n").unwrap();
        assert_eq!(results.report("here", &explained), ["a.rs: z"]);
    }

    #[test]
    fn the_files_of_each_area_exist() {
        for area in AREAS {
            for pattern in area.files {
                let folder = pattern.split('*').next().unwrap_or_default();
                assert!(crate::root().join(folder).exists(), "{pattern}");
            }
        }
    }
}
