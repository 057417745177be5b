//! `cargo xtask test`: one list of steps, run in order, each announced and timed; the first failure
//! ends the run.
//!
//! A step is a cargo command or another chore of this crate. The commands are what a person would type,
//! so that a failed step can be repeated by hand; their output is passed through unchanged, because a
//! CI reads the summary lines of `cargo test` from it.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{api, cargo, docs, fuzz, semver, servers, suites, tidy};

/// One step of the run.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// A chore of this crate: what a person would type or want, and what does it below the root.
    Chore(&'static str, fn(&Path) -> Result<(), String>),
    /// Arguments of cargo, and variables set for it.
    Cargo(&'static [&'static str], &'static [(&'static str, &'static str)]),
    /// All tests, several programs at a time.
    Suites,
    /// Work that needs a subcommand of cargo, left out with a line of explanation where that is not installed.
    Optional(&'static str, &'static Work),
}

/// All steps, in the order in which they run: what is cheap and fails often comes first.
///
/// `build` selects exactly the targets that `cargo test` builds, all at once. So `test` finds
/// everything compiled, and the tests that run the `leasehold` binary find it beside them and up to
/// date, also those of another package.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "servers",
        work: Work::Chore("install the servers that are missing", |_| servers::ensure()),
    },
    Step { name: "fmt", work: Work::Cargo(&["fmt", "--all", "--check"], &[]) },
    Step { name: "tidy", work: Work::Chore("cargo xtask tidy", tidy::run) },
    Step {
        name: "clippy",
        work: Work::Cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]),
    },
    // With its default features, which no other step has: the others of the workspace enable more.
    Step {
        name: "clippy-default",
        work: Work::Cargo(&["clippy", "--package", "leasehold", "--lib", "--", "-D", "warnings"], &[]),
    },
    Step {
        name: "build",
        work: Work::Cargo(&["build", "--workspace", "--lib", "--bins", "--tests", "--examples"], &[]),
    },
    // After `build`, because the command's own help is one of the pages.
    Step { name: "docs", work: Work::Chore("cargo xtask docs --check", docs::check_built) },
    Step { name: "test", work: Work::Suites },
    // More inputs than those of the tests.
    Step { name: "fuzz", work: Work::Chore("search each fuzz target for three seconds", fuzz::briefly) },
    Step {
        name: "doc",
        work: Work::Cargo(&["doc", "--no-deps", "--workspace"], &[("RUSTDOCFLAGS", "-D warnings")]),
    },
    // The contents that each crate would be published with: metadata, readme, licences, and
    // dependencies that can be had by then. Nothing is compiled, so it takes seconds. Needs cargo 1.90
    // or later.
    Step { name: "package", work: Work::Cargo(PACKAGE, &[]) },
    Step { name: "deny", work: Work::Optional("cargo-deny", &Work::Cargo(&["deny", "check"], &[])) },
    Step { name: "api", work: Work::Optional("cargo-public-api", &API) },
    Step { name: "semver", work: Work::Optional("cargo-semver-checks", &SEMVER) },
];

const API: Work = Work::Chore("cargo xtask api", |root| api::run(root, api::Mode::Check));

const SEMVER: Work = Work::Chore("compare the API with that of the last release", semver::run);

/// Packs every crate that is published, in the order in which they depend on each other.
const PACKAGE: &[&str] = &[
    "package",
    "--workspace",
    "--exclude=leasehold-bench",
    "--exclude=leasehold-engine-sim",
    "--exclude=leasehold-fuzz",
    "--exclude=leasehold-sim",
    "--exclude=leasehold-tests",
    "--exclude=xtask",
    "--no-verify",
    "--allow-dirty",
    "--offline",
    "--quiet",
];

/// Returns the steps that `--only` names, in the order of `STEPS`. `test` and `docs` bring `build` along,
/// because both run the binary.
pub(crate) fn only(list: &str) -> Result<Vec<&'static Step>, String> {
    let wanted: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if let Some(unknown) = wanted.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        return Err(format!("`{unknown}` is not the name of a step; the steps are {}.", names()));
    }
    if wanted.is_empty() {
        return Err(format!("--only wants step names: {}.", names()));
    }
    let is_run = wanted.contains(&"test") || wanted.contains(&"docs");
    let picked = |name: &str| wanted.contains(&name) || (name == "build" && is_run);
    Ok(STEPS.iter().filter(|step| picked(step.name)).collect())
}

/// Returns the names of all steps, for messages.
pub(crate) fn names() -> String {
    STEPS.iter().map(|step| step.name).collect::<Vec<_>>().join(", ")
}

/// Runs the steps. The table of times and the list of skipped tests are printed also when a step failed.
pub(crate) fn run(root: &Path, steps: &[&Step]) -> Result<(), String> {
    refuse_ignored_interrupt()?;
    let log = SkipLog::create()?;
    let begin = Instant::now();
    let mut rows = Vec::new();
    let mut failure = None;
    for step in steps {
        println!("\n==> {}: {}", step.name, step.work.command());
        let step_begin = Instant::now();
        let end = step.work.run(root, &log);
        let row = Row { name: step.name, took: step_begin.elapsed(), end: End::of(&end) };
        println!("==> {}: {} after {:.1} s", row.name, row.end.word(), row.took.as_secs_f64());
        rows.push(row);
        if let Err(why) = end {
            failure = Some(format!(
                "\nThe step `{name}` failed: {why}\nRepeat just this step with: cargo xtask test --only {name}",
                name = step.name
            ));
            break;
        }
    }
    let left = &steps[rows.len()..];
    rows.extend(left.iter().map(|step| Row { name: step.name, took: Duration::ZERO, end: End::NotRun }));
    print!("\n{}", table(&rows, begin.elapsed()));
    if rows.iter().any(|row| row.name == "test" && row.end != End::NotRun) {
        print!("\n{}", log.report()?);
    }
    failure.map_or(Ok(()), Err)
}

/// Fails where SIGINT is ignored: a program inherits that, so tests that interrupt one would wait for ever.
fn refuse_ignored_interrupt() -> Result<(), String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !ignores_interrupt(&status) {
        return Ok(());
    }
    Err("SIGINT is ignored here, so tests of interrupted programs would fail. A shell sets that for what a script \
         starts with `&`, and so does nohup: start this in the foreground."
        .to_owned())
}

/// Returns `true` if the text of `/proc/self/status` says that SIGINT is ignored.
fn ignores_interrupt(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << (SIGINT - 1)) != 0
}

const SIGINT: u32 = 2;

/// Runs the tests of some crates alone, named by their folders.
pub(crate) fn run_crates(root: &Path, folders: &[String]) -> Result<(), String> {
    refuse_ignored_interrupt()?;
    let packages = folders.iter().map(|folder| package(root, folder)).collect::<Result<Vec<_>, _>>()?;
    servers::ensure()?;
    let log = SkipLog::create()?;
    let end = suites::run(root, &packages, |command| prepare(command, &log));
    print!("\n{}", log.report()?);
    end
}

/// Returns the name of the package in a folder of `backends`, of `crates`, or of the root.
fn package(root: &Path, folder: &str) -> Result<String, String> {
    let homes = ["backends", "crates", ""];
    let manifests = homes.map(|home| root.join(home).join(folder).join("Cargo.toml"));
    let text = manifests.iter().find_map(|manifest| fs::read_to_string(manifest).ok()).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.map(str::to_owned)
        .ok_or_else(|| format!("`{folder}` is not a crate: name a folder of `backends` or `crates`."))
}

/// The end of a step when nothing was wrong with it.
#[derive(Debug, PartialEq, Eq)]
enum Done {
    Ran,
    Skipped,
}

impl Work {
    /// Returns the command that a person would type to do the same.
    fn command(&self) -> String {
        match self {
            Self::Chore(command, _) => (*command).to_owned(),
            Self::Cargo(arguments, variables) => {
                let variables = variables.iter().map(|(name, value)| format!("{name}='{value}' "));
                format!("{}cargo {}", variables.collect::<String>(), arguments.join(" "))
            }
            Self::Suites => "cargo test --workspace --no-fail-fast, several programs at a time".to_owned(),
            Self::Optional(_, work) => work.command(),
        }
    }

    fn run(&self, root: &Path, log: &SkipLog) -> Result<Done, String> {
        match self {
            Self::Chore(_, chore) => chore(root).map(|()| Done::Ran),
            Self::Cargo(arguments, variables) => cargo(root, arguments, variables, log).map(|()| Done::Ran),
            Self::Suites => suites::run(root, &[], |command| prepare(command, log)).map(|()| Done::Ran),
            Self::Optional(program, work) => {
                if servers::find(program).is_none() {
                    println!(
                        "{program} is not installed: skipped (`cargo install --locked {program}` brings it)."
                    );
                    return Ok(Done::Skipped);
                }
                work.run(root, log)
            }
        }
    }
}

fn cargo(root: &Path, arguments: &[&str], variables: &[(&str, &str)], log: &SkipLog) -> Result<(), String> {
    let mut command = cargo::command();
    command.current_dir(root).args(arguments).envs(variables.iter().copied());
    prepare(&mut command, log);
    let status = command.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} ended with {status}", arguments[0])) }
}

/// Sets what every command gets.
fn prepare(command: &mut Command, log: &SkipLog) {
    command.env(SKIP_LOG, &log.path);
    cargo::without_description(command);
}

/// One line of the table at the end.
struct Row {
    name: &'static str,
    took: Duration,
    end: End,
}

#[derive(PartialEq, Eq)]
enum End {
    Ok,
    Skipped,
    Failed,
    NotRun,
}

impl End {
    fn of(result: &Result<Done, String>) -> Self {
        match result {
            Ok(Done::Ran) => Self::Ok,
            Ok(Done::Skipped) => Self::Skipped,
            Err(_) => Self::Failed,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Failed => "FAILED",
            Self::NotRun => "not run",
        }
    }
}

fn table(rows: &[Row], total: Duration) -> String {
    let line =
        |name: &str, took: Duration, word: &str| format!("{name:<8} {:>8.1}  {word}\n", took.as_secs_f64());
    let mut text = format!("{:<8} {:>8}  result\n", "step", "seconds");
    for row in rows {
        text += &line(row.name, row.took, row.end.word());
    }
    text + line("total", total, "").trim_end() + "\n"
}

/// Tests append a line `LEASEHOLD-SKIPPED <test> <reason>` to the file that this variable names.
const SKIP_LOG: &str = "LEASEHOLD_SKIP_LOG";

/// The file in which tests say that they did not run; it is removed at the end.
struct SkipLog {
    path: PathBuf,
}

impl SkipLog {
    fn create() -> Result<Self, String> {
        // A run that was killed leaves its file behind, and another process may get its id: so a few
        // names are tried.
        for attempt in 0..100 {
            let name = format!("leasehold-skipped-{}-{attempt}.log", std::process::id());
            let path = std::env::temp_dir().join(name);
            // `create_new` refuses a file or link that someone else laid there in a shared temporary folder.
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => return Ok(Self { path }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let path = path.display();
                    return Err(format!(
                        "{path}: cannot be created ({error}); set TMPDIR to a writable folder."
                    ));
                }
            }
        }
        let folder = std::env::temp_dir();
        Err(format!("{}: is full of leasehold-skipped-*.log files; remove them.", folder.display()))
    }

    fn report(&self) -> Result<String, String> {
        let text = fs::read_to_string(&self.path).map_err(|error| {
            format!("{}: the list of skipped tests cannot be read: {error}", self.path.display())
        })?;
        // A test that is run by several processes may say so several times.
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines.sort_unstable();
        lines.dedup();
        if lines.is_empty() {
            return Ok("No test was skipped.\n".to_owned());
        }
        Ok(format!("Skipped tests: {}\n{}\n", lines.len(), lines.join("\n")))
    }
}

impl Drop for SkipLog {
    fn drop(&mut self) {
        // The report has been printed; a file that cannot be removed from the temporary folder does no
        // harm.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn only_keeps_the_order_and_builds_before_it_tests() {
        let picked = |list| only(list).map(|steps| steps.iter().map(|step| step.name).collect::<Vec<_>>());
        assert_eq!(picked("doc, fmt"), Ok(vec!["fmt", "doc"]));
        assert_eq!(picked("test"), Ok(vec!["build", "test"]));
        assert_eq!(picked("docs"), Ok(vec!["build", "docs"]));
        assert_eq!(picked("fmt,fmt"), Ok(vec!["fmt"]));
        assert!(
            picked("fmt,nothing").is_err_and(|text| text.contains("`nothing`") && text.contains("clippy"))
        );
        assert!(picked(",").is_err());
    }

    #[test]
    fn ignored_interrupt_is_read_from_the_mask() {
        assert!(ignores_interrupt("Name:\tx\nSigIgn:\t0000000000000002\n"));
        assert!(ignores_interrupt("SigIgn:\t0000000000001006\n"));
        assert!(!ignores_interrupt("SigIgn:\t0000000000001005\nSigCgt:\t02\n"));
        assert!(!ignores_interrupt(""));
    }

    #[test]
    fn crates_are_found_by_their_folders() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let name = |folder| package(root, folder);
        assert_eq!(name("redis").as_deref(), Ok("leasehold-redis"));
        assert_eq!(name("leasehold").as_deref(), Ok("leasehold"));
        assert_eq!(name("sim/engine").as_deref(), Ok("leasehold-engine-sim"));
        assert!(name("reddis").is_err_and(|text| text.contains("`reddis`")));
        assert!(name("").is_err(), "the root is not a crate");
    }

    #[test]
    fn a_command_is_shown_as_a_person_would_type_it() {
        let doc = STEPS.iter().find(|step| step.name == "doc").unwrap();
        assert_eq!(doc.work.command(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --workspace");
    }

    #[test]
    fn the_table_has_a_row_a_step_and_the_total() {
        let rows = [
            Row { name: "fmt", took: Duration::from_millis(1250), end: End::Ok },
            Row { name: "test", took: Duration::from_secs(100), end: End::Failed },
            Row { name: "doc", took: Duration::ZERO, end: End::NotRun },
        ];
        let expected = "step      seconds  result\n\
                        fmt           1.2  ok\n\
                        test        100.0  FAILED\n\
                        doc           0.0  not run\n\
                        total       101.2\n";
        assert_eq!(table(&rows, Duration::from_millis(101_240)), expected);
    }

    #[test]
    fn failed_step_ends_the_run_and_names_the_command_to_repeat_it() {
        const BAD: Step = Step { name: "clippy", work: Work::Chore("fail", |_| Err("as wanted".to_owned())) };
        const NEVER: Step =
            Step { name: "doc", work: Work::Chore("panic", |_| panic!("ran after a failure")) };
        let complaint = run(&crate::root(), &[&BAD, &NEVER]).unwrap_err();
        assert!(complaint.contains("as wanted"), "{complaint}");
        assert!(complaint.contains("cargo xtask test --only clippy"), "{complaint}");
    }

    #[test]
    fn cargo_is_judged_by_its_exit_code() {
        let log = SkipLog::create().unwrap();
        let ends = |arguments: &'static [&'static str]| Work::Cargo(arguments, &[]).run(&crate::root(), &log);
        assert_eq!(ends(&["--version"]), Ok(Done::Ran));
        let complaint = ends(&["a-step-that-a-test-wants-to-fail"]).unwrap_err();
        assert!(complaint.contains("a-step-that-a-test-wants-to-fail"), "{complaint}");
    }

    #[test]
    fn a_missing_optional_tool_is_skipped_and_not_failed() {
        let log = SkipLog::create().unwrap();
        let ends =
            |program| Work::Optional(program, &Work::Cargo(&["--version"], &[])).run(&crate::root(), &log);
        assert_eq!(ends("leasehold-no-such-tool"), Ok(Done::Skipped));
        assert_eq!(ends("sh"), Ok(Done::Ran));
    }

    #[test]
    fn skipped_tests_are_listed_once_each_and_the_file_is_removed() {
        let log = SkipLog::create().unwrap();
        let mut file = OpenOptions::new().append(true).open(&log.path).unwrap();
        assert_eq!(log.report().unwrap(), "No test was skipped.\n");
        writeln!(
            file,
            "LEASEHOLD-SKIPPED b no server\nLEASEHOLD-SKIPPED a no server\n\nLEASEHOLD-SKIPPED b no server"
        )
        .unwrap();
        let report = log.report().unwrap();
        assert_eq!(
            report,
            "Skipped tests: 2\nLEASEHOLD-SKIPPED a no server\nLEASEHOLD-SKIPPED b no server\n"
        );
        let path = log.path.clone();
        drop(log);
        assert!(!path.exists());
    }
}
