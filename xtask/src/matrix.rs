//! `cargo xtask matrix`: the tests of each backend on several versions of its server.
//!
//! One version after the other is fetched, unless it is the installed one, and the test programs of its backend
//! run on it: laws, faults and all else. What each run found goes into a committed file, from which the book's
//! page and the README's requirements are printed. A failure is a failure of the chore, except where the table
//! of known differences has it with its reason.

pub(crate) mod pages;
mod results;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::suites::{self, Program};
use crate::versions::{self, SERVERS, Server, VERSIONS, Version};
use results::{Outcome, Results};

/// The arguments of the chore.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    subjects: Vec<Subject>,
    extent: Extent,
}

/// One run: an installed or a fetched version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Subject {
    server: &'static Server,
    /// `None` for the installed one.
    version: Option<&'static Version>,
}

/// The tests that are run on each version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The laws of safety and of other processes.
    Quick,
    /// All tests of the backend, except those against other libraries.
    Whole,
}

impl Request {
    /// Parses the words after `matrix`.
    pub(crate) fn parse(words: &[&str]) -> Result<Request, String> {
        let mut request = Request { subjects: subjects(), extent: Extent::Whole };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let only = word.strip_prefix("--only=");
            match *word {
                "--quick" => request.extent = Extent::Quick,
                "--pages" => request.subjects.clear(),
                "--only" => request.subjects = only_these(words.next().copied().unwrap_or_default())?,
                _ if only.is_some() => request.subjects = only_these(only.unwrap_or_default())?,
                other => return Err(format!("`{other}` is not an option of this chore.")),
            }
        }
        Ok(request)
    }
}

/// Returns all there are: for each server the installed version, then the others.
fn subjects() -> Vec<Subject> {
    let of = |server: &&'static Server| {
        let server = *server;
        let fetched = VERSIONS.iter().filter(move |version| version.server == server);
        let fetched = fetched.map(move |version| Subject { server, version: Some(version) });
        std::iter::once(Subject { server, version: None }).chain(fetched)
    };
    SERVERS.iter().flat_map(of).collect()
}

fn only_these(list: &str) -> Result<Vec<Subject>, String> {
    let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let is_named = |subject: &Subject, name: &str| subject.name() == name || subject.server.name == name;
    let all = subjects();
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|subject| is_named(subject, name))) {
        let known: Vec<String> = all.iter().map(Subject::name).collect();
        return Err(format!("`{unknown}` is not a version; there are {}.", known.join(", ")));
    }
    if names.is_empty() {
        return Err("--only wants names of versions or servers.".to_owned());
    }
    Ok(all.into_iter().filter(|subject| names.iter().any(|name| is_named(subject, name))).collect())
}

/// Runs the tests, prints a table, and writes down what a whole run found. The programs of one version that
/// cannot be had do not stop the others.
pub(crate) fn run(root: &Path, request: &Request) -> Result<(), String> {
    let target = crate::target(root);
    let mut results = Results::read(root)?;
    let mut failed = Vec::new();
    // Those of the whole workspace, which `cargo xtask test` has built with the same features.
    let programs = match request.subjects.is_empty() {
        true => Vec::new(),
        false => suites::programs(root, &[])?,
    };
    for subject in &request.subjects {
        let name = subject.name();
        println!("\n==> {name}");
        let begin = Instant::now();
        match subject.outcome(&programs, &target, request.extent) {
            Ok(outcome) => {
                println!("==> {name}: {} after {:.0} s", outcome.words(), begin.elapsed().as_secs_f64());
                if !outcome.failed.is_empty() {
                    failed.push(format!("{name}: {}", outcome.failed.join(", ")));
                }
                results.put(&name, outcome);
                // At once, so that a run that is stopped keeps what it has.
                results.write(root)?;
            }
            Err(why) => {
                println!("==> {name}: {why}");
                failed.push(format!("{name}: {why}"));
            }
        }
    }
    println!("\n{}", results.table(request.subjects.iter().map(Subject::name)));
    pages::write(root)?;
    println!("The results are in {}, and the pages are printed from it.", results::FILE);
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

impl Subject {
    fn name(&self) -> String {
        self.version.map_or_else(|| format!("{}-installed", self.server.name), |it| it.name.to_owned())
    }

    fn outcome(&self, programs: &[Program], target: &Path, extent: Extent) -> Result<Outcome, String> {
        let place = match self.version {
            None => None,
            Some(version) => {
                versions::fetch(target, version)?;
                let place = versions::programs(target, version);
                Some(place.canonicalize().map_err(|error| format!("{}: {error}", place.display()))?)
            }
        };
        let whole = extent == Extent::Whole;
        let mut outcome = Outcome { says: self.says(place.as_deref()), whole, ..Outcome::new() };
        let own = programs.iter().filter(|program| program.folder.ends_with(self.server.folder));
        for program in own {
            let Some(words) = extent.words(program) else { continue };
            let text = self.test(program, &program.arguments(&words), place.as_deref())?;
            outcome.add(&text);
        }
        // The older outcome stays then.
        if outcome.says.is_empty() {
            return Err("its program does not say its version: is it installed?".to_owned());
        }
        if outcome.ran() == 0 && outcome.failed.is_empty() {
            return Err(format!("no test ran, and {} were skipped", outcome.skipped));
        }
        outcome.set_apart(|test| known(&self.name(), test));
        Ok(outcome)
    }

    /// Runs one test program, and returns what it printed.
    fn test(&self, program: &Program, arguments: &[String], place: Option<&Path>) -> Result<String, String> {
        println!("    {}", program.repeat);
        let begin = Instant::now();
        let mut command = Command::new("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg(&program.path).args(arguments);
        command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
        if let Some(place) = place {
            command.env(self.server.variable, place);
        }
        if let Some(width) = program.width {
            command.env("RUST_TEST_THREADS", width.to_string());
        }
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{}: {error}", program.path.display()))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        let summary = text.lines().find(|line| line.starts_with("test result:"));
        println!(
            "      {:.0} s  {}",
            begin.elapsed().as_secs_f64(),
            summary.unwrap_or("ended without a result")
        );
        let is_success = output.status.success();
        if let Some(line) = Outcome::failed_as_a_whole(&program.name, is_success, &text) {
            text.push_str(&line);
        }
        if !is_success {
            keep(&text, &self.name(), &program.name)?;
        }
        Ok(text)
    }

    /// Returns what the server's program says of itself.
    fn says(&self, place: Option<&Path>) -> String {
        let (program, argument) = self.server.ask;
        let program = match (program, place) {
            ("zookeeper.jar", _) => {
                let jar = place.unwrap_or(Path::new("/usr/share/java")).join(program).canonicalize();
                return named_jar(jar.unwrap_or_default().parent().unwrap_or(Path::new("")));
            }
            ("mariadbd", Some(place)) if place.join("mysqld").is_file() => place.join("mysqld"),
            (_, Some(place)) => place.join(program),
            ("postgres", None) => PathBuf::from("psql"),
            (_, None) => PathBuf::from(program),
        };
        let output = Command::new(program).arg(argument).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let text = text.unwrap_or_default();
        let first = text.lines().next().unwrap_or_default();
        // The rest of the line is how it was built, and where.
        let words: Vec<&str> = first.split_whitespace().map(|word| word.trim_start_matches("v=")).collect();
        let end = words.iter().position(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        let words = &words[..end.map_or(words.len(), |end| end + 1)];
        words.iter().map(|word| word.rsplit('/').next().unwrap_or(word)).collect::<Vec<_>>().join(" ")
    }
}

impl Extent {
    /// Returns words for the tests of a program, none for all of them; `None` where it is not run.
    fn words(self, program: &Program) -> Option<Vec<&'static str>> {
        let is_test = !program.name.is_empty() && !program.name.starts_with("interop");
        match self {
            // Costs are counted for one version; see `cost.rs` of each backend.
            Extent::Whole => (is_test && program.name != "cost").then(Vec::new),
            Extent::Quick => (program.name == "conformance").then(|| vec!["safety", "processes"]),
        }
    }
}

/// Writes the output of tests that failed where a person can read it.
fn keep(text: &str, version: &str, program: &str) -> Result<(), String> {
    let folder = std::env::temp_dir().join("leasehold-matrix");
    let path = folder.join(format!("{version}-{program}.log"));
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, text));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    println!("      the output is in {}", path.display());
    Ok(())
}

/// Tests that cannot pass on a version, for a reason that is no defect of ours.
struct Known {
    /// The name of the version, or what the names of several begin with, up to its hyphen.
    version: &'static str,
    /// Parts of the tests' names: modules, or tests.
    parts: &'static [&'static str],
    why: &'static str,
}

/// Returns why a test is known to fail on a version.
fn known(version: &str, test: &str) -> Option<&'static str> {
    let is_known = |known: &&Known| {
        let is_of_version = match known.version.ends_with('-') {
            true => version.starts_with(known.version),
            // etcd-3.5.1 is not the beginning of etcd-3.5.16.
            false => version == known.version,
        };
        is_of_version && test.split("::").any(|part| known.parts.contains(&part))
    };
    KNOWN.iter().find(is_known).map(|known| known.why)
}

const KNOWN: &[Known] = &[
    Known {
        version: "postgres-12",
        parts: &[
            "advisory",
            "for_update",
            "sessions",
            "fences",
            "search_path",
            "a_socket_of_this_machine_is_enough",
            "fences_rise_over_a_restore_in_the_same_cluster",
            "operators_of_others_in_the_search_path_are_not_called",
        ],
        why: "`method=advisory` and `method=for-update` need PostgreSQL 14, and say so",
    },
    Known {
        version: "etcd-3.5.1",
        parts: &["what_a_full_server_refuses_is_not_reported_as_without_effect"],
        why: "a full server of this version refuses transactions that only read, too",
    },
    Known {
        version: "etcd-3.5.1",
        parts: &["a_server_with_small_transactions_is_served_in_small_ones"],
        why: "below 3.5.5 a server can end when a transaction that only reads is cancelled",
    },
    Known { version: "mysql-", parts: &["galera"], why: "Galera is a part of MariaDB" },
    Known {
        version: "mysql-",
        parts: &[
            "replica_is_refused_until_failover_and_fences_continue_above",
            "replicas_that_are_not_all_waited_for_are_not_strict",
        ],
        why: "the test kit starts replicas of MariaDB only",
    },
    Known {
        version: "mysql-",
        parts: &[
            "a_connection_that_fell_silent_in_an_answer_is_closed",
            "lost_races_and_deadlocks_are_retried",
            "killed_connection_ends_its_own_lock_and_no_other",
            "the_grade_of_fences_follows_what_the_server_keeps",
            "tls_is_verified_and_a_password_is_asked_for",
            "a_database_is_one_however_its_name_is_written",
            "break_without_rights_ends_nothing_and_names_the_right",
            "old_and_new_names_of_a_lock_exclude_each_other",
            "server_that_gives_up_silent_clients_early_is_refused",
        ],
        why: "the test uses statements or settings that only MariaDB has",
    },
];

/// The longest that one program may run: what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Returns the name and the version of the ZooKeeper in a folder; empty if there is none. A jar has its version in its
/// name, beside a link without it, or the other way round.
fn named_jar(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let versions = names.filter_map(|name| {
        let version = name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
        version.starts_with(|c: char| c.is_ascii_digit()).then(|| format!("zookeeper {version}"))
    });
    versions.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_a_jar_is_in_its_name() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(named_jar(folder.path()), "");
        for name in ["zookeeper.jar", "zookeeper-jute-3.8.0.jar", "zookeeper-3.8.0.jar"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(named_jar(folder.path()), "zookeeper 3.8.0");
    }

    #[test]
    fn versions_and_servers_are_chosen_by_name() {
        let names = |list| only_these(list).unwrap().iter().map(Subject::name).collect::<Vec<_>>();
        assert_eq!(names("memcached"), ["memcached-installed", "memcached-1.6.38", "memcached-1.6.45"]);
        assert_eq!(names("valkey-9.1, redis-installed"), ["redis-installed", "valkey-9.1"]);
        assert!(only_these("redis-1").unwrap_err().contains("redis-8.2"));
        assert!(only_these(",").is_err());
    }

    #[test]
    fn options_are_read_in_any_order() {
        let request = Request::parse(&["--only", "redis-6.2", "--quick"]).unwrap();
        assert_eq!((request.subjects.len(), request.extent), (1, Extent::Quick));
        assert_eq!(Request::parse(&["--only=redis-6.2"]).unwrap().subjects.len(), 1);
        assert_eq!(Request::parse(&[]).unwrap().subjects.len(), SERVERS.len() + VERSIONS.len());
        assert!(Request::parse(&["--fast"]).unwrap_err().contains("--fast"));
    }

    #[test]
    fn every_known_difference_names_a_version_and_a_reason() {
        for known in KNOWN {
            assert!(VERSIONS.iter().any(|it| it.name.starts_with(known.version)), "{}", known.version);
            assert!(!known.parts.is_empty() && known.why.len() > 10);
        }
    }
}
