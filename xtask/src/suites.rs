//! The test programs of the workspace, several at a time.
//!
//! `cargo test` runs one program after the other. Most of ours wait for a server, a lease or a failover
//! most of the time, so that two cores are idle. Here a few run side by side, and those that took longest
//! the last time begin first, so that no core is idle at the end. A program that passed
//! prints its summary lines alone, in the form that `cargo test` gives them, because a CI reads them;
//! one that failed prints all that it wrote, and its panics once more at the end of the run, where logs of
//! servers do not hide them. Nothing runs twice: a test that fails now and then is a
//! defect, and a second run would hide it.

mod lanes;
mod processor;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cargo;
use lanes::Lanes;

/// One program that tests something, or `cargo` itself for the examples in the documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suite {
    /// The command that a person types to repeat it.
    repeat: String,
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    variables: Vec<(&'static str, String)>,
}

/// Builds and runs the tests of these packages, or all tests of the workspace if there are none; says at the
/// end which programs failed. `prepare` is applied to every command that is started.
pub(crate) fn run(
    root: &Path,
    packages: &[String],
    prepare: impl Fn(&mut Command) + Sync,
) -> Result<(), String> {
    let mut suites = found(root, packages, &prepare)?;
    if !packages.is_empty() {
        leave_out_foreign(&mut suites);
    }
    let file = times_file(&suites);
    let times = file.as_deref().map(Times::read).unwrap_or_default();
    times.order(&mut suites);
    let times = Mutex::new(times);
    write_to_disk();
    let end = run_all(&Mutex::new(Lanes::of(suites)), &times, &prepare);
    if let Some(file) = file {
        times.into_inner().unwrap_or_else(PoisonError::into_inner).write(&file);
    }
    end
}

/// A test program of one package, for chores that run it in their own way.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its name, empty for the tests inside the library.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) repeat: String,
    /// The number of its tests that run at a time, where that is not one a core.
    pub(crate) width: Option<usize>,
    /// The names of its tests, where it is a module of a larger program; empty where it is all of a program.
    pub(crate) tests: Vec<String>,
}

impl Program {
    /// Returns the arguments that run its tests whose names contain one of these words, or all without words.
    pub(crate) fn arguments(&self, words: &[&str]) -> Vec<String> {
        let is_wanted = |test: &&String| words.is_empty() || words.iter().any(|word| test.contains(word));
        match self.tests.iter().filter(is_wanted).cloned().collect::<Vec<_>>() {
            // Words that name no test of the module run nothing, as they do in a program of its own.
            tests if tests.is_empty() => words.iter().map(|word| (*word).to_owned()).collect(),
            tests => exactly(tests),
        }
    }
}

/// Returns the arguments of a test program that run these tests and no others. A word alone would also run the
/// tests of modules whose names end with it.
fn exactly(tests: Vec<String>) -> Vec<String> {
    std::iter::once("--exact".to_owned()).chain(tests).collect()
}

/// Builds the test programs of some packages, all at once, and returns them.
pub(crate) fn programs(root: &Path, packages: &[String]) -> Result<Vec<Program>, String> {
    programs_with(root, packages, &[])
}

/// Builds the test programs of some packages with more options of cargo.
pub(crate) fn programs_with(
    root: &Path,
    packages: &[String],
    options: &[&str],
) -> Result<Vec<Program>, String> {
    let suites = found_with(root, packages, options, &|_| {})?.into_iter();
    // Those in the documentation are run by cargo, which is not a test program.
    let suites = suites.filter(|suite| !suite.repeat.contains(" --doc"));
    let program = |suite: Suite| Program {
        name: suite.name().unwrap_or_default().to_owned(),
        width: suite.width(),
        tests: suite.arguments.into_iter().skip(1).collect(),
        path: suite.program,
        folder: suite.folder,
        repeat: suite.repeat,
    };
    Ok(suites.map(program).collect())
}

/// Leaves out the tests against other libraries, which build those first, and names the commands that run them:
/// the tests of single crates are for the pauses between two changes. A run of everything has them.
fn leave_out_foreign(suites: &mut Vec<Suite>) {
    suites.retain(|suite| {
        let is_foreign = suite.name().is_some_and(|name| name.starts_with("interop"));
        if is_foreign {
            println!("Left out here, as other libraries are built for it: {}", suite.repeat);
        }
        !is_foreign
    });
}

/// Writes what the build has left in memory to the disk, so that no test that syncs a file waits for gigabytes
/// of it. Without the program `sync` the system does that later.
fn write_to_disk() {
    let begin = Instant::now();
    if Command::new("sync").stdin(Stdio::null()).status().is_ok_and(|end| end.success()) {
        println!("The build was written to the disk in {:.1} s.", begin.elapsed().as_secs_f64());
    }
}

/// Runs each program once, several at a time.
fn run_all(
    suites: &Mutex<Lanes>,
    times: &Mutex<Times>,
    prepare: &(impl Fn(&mut Command) + Sync),
) -> Result<(), String> {
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for lane in Lanes::all() {
            let failed = &failed;
            scope.spawn(move || {
                loop {
                    let next = suites.lock().unwrap_or_else(PoisonError::into_inner).next(lane);
                    let Some(suite) = next else { return };
                    let begin = Instant::now();
                    let end = suite.run(prepare);
                    times.lock().unwrap_or_else(PoisonError::into_inner).note(&suite, begin.elapsed());
                    if let Err(why) = end {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push((suite, why));
                    }
                }
            });
        }
    });
    judge(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The milliseconds that each program took when it ran last, by its command.
#[derive(Debug, Default, PartialEq, Eq)]
struct Times(BTreeMap<String, u64>);

impl Times {
    /// Reads the times of the last run. A missing or damaged file only costs the order.
    fn read(file: &Path) -> Times {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        Times(serde_json::from_str(&text).unwrap_or_default())
    }

    fn write(&self, file: &Path) {
        if let Ok(text) = serde_json::to_string_pretty(&self.0) {
            // Without the file the next run begins in the order of `found`.
            let _ = std::fs::write(file, text);
        }
    }

    fn note(&mut self, suite: &Suite, took: Duration) {
        self.0.insert(suite.repeat.clone(), u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    }

    /// Puts the programs that took longest first. Those without a time keep their order, in front.
    fn order(&self, suites: &mut [Suite]) {
        suites.sort_by_key(|suite| std::cmp::Reverse(self.0.get(&suite.repeat).copied().unwrap_or(u64::MAX)));
    }
}

/// Returns the file of the times, beside the folder of the built programs.
fn times_file(suites: &[Suite]) -> Option<PathBuf> {
    let deps =
        suites.iter().find_map(|suite| suite.program.parent().filter(|folder| folder.ends_with("deps")))?;
    Some(deps.parent()?.join("suite-times.json"))
}

/// Names the programs that failed, each with the command that repeats it.
fn judge(failed: Vec<(Suite, String)>) -> Result<(), String> {
    if failed.is_empty() {
        return Ok(());
    }
    let commands: Vec<_> = failed.iter().map(|(suite, why)| format!("{}{why}", suite.repeat)).collect();
    Err(format!("{} test programs failed. Repeat each with:\n  {}", failed.len(), commands.join("\n  ")))
}

/// A number of stores, at least that of their kinds.
const STORES: usize = 16;

/// The longest that one program may run: what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Builds the test programs, and lists them: those that wait most and take longest first, then all
/// others with servers.
fn found(root: &Path, packages: &[String], prepare: &impl Fn(&mut Command)) -> Result<Vec<Suite>, String> {
    found_with(root, packages, &[], prepare)
}

/// Finds them as [`found`] does, built with more options of cargo.
fn found_with(
    root: &Path,
    packages: &[String],
    options: &[&str],
    prepare: &impl Fn(&mut Command),
) -> Result<Vec<Suite>, String> {
    let selected = selection(packages);
    let mut command = cargo::command();
    command
        .arg("test")
        .args(&selected)
        .args(options)
        .args(["--no-run", "--message-format=json-render-diagnostics"]);
    command.current_dir(root).stdout(Stdio::piped()).stderr(Stdio::inherit());
    prepare(&mut command);
    let output = command.output().map_err(|error| format!("cargo could not be started: {error}"))?;
    if !output.status.success() {
        return Err("the tests could not be built".to_owned());
    }
    let mut suites = Vec::new();
    for suite in parse(&String::from_utf8_lossy(&output.stdout)) {
        match suite.name() {
            Some(MODULES) => suites.extend(suite.modules(prepare)?),
            _ => suites.push(suite),
        }
    }
    suites.sort_by_key(|suite| {
        (suite.place_of_waiting(), suite.width().is_none(), !suite.repeat.contains(" --test "))
    });
    let mut cargo_args = vec!["test".to_owned()];
    cargo_args.extend(selected);
    if packages.is_empty() {
        // The simulation compiles the sources of `leasehold` again, whose examples are those of `leasehold`.
        cargo_args.extend(["--exclude", "leasehold-engine-sim"].map(str::to_owned));
    }
    cargo_args.extend(["--doc", "--no-fail-fast"].map(str::to_owned));
    // Cargo refuses `--doc` where no selected package has a library.
    let has_library = suites.iter().any(|suite| suite.repeat.ends_with(" --lib"));
    if !has_library {
        return Ok(suites);
    }
    suites.insert(
        0,
        Suite {
            repeat: format!("cargo {}", cargo_args.join(" ")),
            program: cargo::program().into(),
            arguments: cargo_args,
            folder: root.to_owned(),
            variables: Vec::new(),
        },
    );
    Ok(suites)
}

/// The name of the test programs whose modules run as processes of their own. They are one program because linking
/// each file of tests with all that it depends on costs minutes and gigabytes, and several processes because some
/// tests count what their process has open, and all share servers within a process.
const MODULES: &str = "it";

/// Returns the options of cargo that select these packages, or all.
fn selection(packages: &[String]) -> Vec<String> {
    if packages.is_empty() {
        return vec!["--workspace".to_owned()];
    }
    packages.iter().map(|package| format!("--package={package}")).collect()
}

/// Parses the programs among cargo's messages, which are one JSON object a line.
fn parse(messages: &str) -> Vec<Suite> {
    let objects = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.filter_map(|message| suite(&message)).collect()
}

fn suite(message: &Value) -> Option<Suite> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let program = PathBuf::from(message["executable"].as_str()?);
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    let target = &message["target"];
    let (name, kind) = (target["name"].as_str()?, target["kind"][0].as_str()?);
    let which = match kind {
        "test" | "bin" | "example" | "bench" => format!("--{kind} {name}"),
        _ => "--lib".to_owned(),
    };
    // As cargo passes it to programs that it runs.
    let variables = vec![("CARGO_MANIFEST_DIR", folder.display().to_string())];
    let repeat = format!("cargo test --manifest-path {} {which}", manifest.display());
    Some(Suite { repeat, program, arguments: Vec::new(), folder, variables })
}

impl Suite {
    /// Returns the name of its test program, or of the module of [`MODULES`]; nothing for a library's own tests.
    fn name(&self) -> Option<&str> {
        let (_, name) = self.repeat.split_once(" --test ")?;
        Some(name.split_once(' ').map_or(name, |(_, module)| module.trim_end_matches("::")))
    }

    /// Returns one suite for each module of its program.
    fn modules(&self, prepare: &impl Fn(&mut Command)) -> Result<Vec<Suite>, String> {
        let mut command = Command::new(&self.program);
        command.args(["--list", "--format=terse"]).current_dir(&self.folder);
        prepare(&mut command);
        let output = command.output().map_err(|error| format!("{}: {error}", self.program.display()))?;
        if !output.status.success() {
            return Err(format!("{} cannot list its tests: {}", self.program.display(), output.status));
        }
        let modules = by_module(&String::from_utf8_lossy(&output.stdout));
        let suite = |(module, tests)| Suite {
            repeat: format!("{} {module}::", self.repeat),
            program: self.program.clone(),
            arguments: exactly(tests),
            folder: self.folder.clone(),
            variables: self.variables.clone(),
        };
        Ok(modules.into_iter().map(suite).collect())
    }

    /// Returns how many of its tests run at a time, where that is not one a core. The laws of a store
    /// wait for the ends of leases two thirds of their time, and distinguish by themselves what is late
    /// from what is broken, and those of the command wait as long for their processes. What is built on
    /// locks runs on all stores at once: it has a bound of its own on the processes that it starts, and
    /// then waits for the dead ones.
    fn width(&self) -> Option<usize> {
        match self.name()? {
            "cell" | "session" | "cli" => Some(2 * cores()),
            name if name.starts_with("conformance") => Some(2 * cores()),
            "coordination" | "partitions" => Some(STORES),
            _ => None,
        }
    }

    /// Runs it, and shows what it printed: all of it after a failure, else the summary lines.
    fn run(&self, prepare: &impl Fn(&mut Command)) -> Result<(), String> {
        let broken = |error: std::io::Error| error.to_string();
        let begin = Instant::now();
        // A file takes any amount of output without a reader meanwhile, and shows both streams in their
        // order.
        let mut output = tempfile()?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.folder).envs(self.variables.iter().cloned());
        if let Some(width) = self.width() {
            command.env("RUST_TEST_THREADS", width.to_string());
        }
        prepare(&mut command);
        let (out, err) = (output.try_clone().map_err(broken)?, output.try_clone().map_err(broken)?);
        let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(broken)?;
        let mut used = Duration::ZERO;
        let outcome = loop {
            // The last answer comes from a program that has ended, and was not waited for yet.
            used = processor::time_of(child.id()).unwrap_or(used);
            match child.try_wait().map_err(broken)? {
                Some(status) if status.success() => break Ok(()),
                Some(status) => break Err(status.to_string()),
                None if begin.elapsed() > LIMIT => {
                    child.kill().and_then(|()| child.wait()).map_err(broken)?;
                    break Err(format!("ended by force after {} minutes", LIMIT.as_secs() / 60));
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut text = Vec::new();
        output.rewind().and_then(|()| output.read_to_end(&mut text)).map_err(broken)?;
        let mut shown = std::io::stdout().lock();
        let (took, used) = (begin.elapsed().as_secs_f64(), used.as_secs_f64());
        writeln!(shown, "\n     Running {} ({took:.1} s, {used:.1} s of processor time)", self.repeat)
            .map_err(broken)?;
        match &outcome {
            Ok(()) => shown.write_all(summary(&String::from_utf8_lossy(&text)).as_bytes()),
            Err(_) => shown.write_all(&text),
        }
        .map_err(broken)?;
        outcome.map_err(|why| format!("   ({why}){}", panics(&String::from_utf8_lossy(&text))))
    }
}

/// Returns the tests of each module in what a test program lists. A test outside of all modules
/// is one of its own.
fn by_module(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules = BTreeMap::<_, Vec<String>>::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or(test, |(module, _)| module);
        modules.entry(module.to_owned()).or_default().push(test.to_owned());
    }
    modules
}

/// Returns the panics in a test program's output, each with the first lines of its message, indented.
fn panics(text: &str) -> String {
    let mut found = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !(line.starts_with("thread '") && line.contains(" panicked at ")) {
            continue;
        }
        found += &format!("\n    {}", line.chars().take(LINE_MAX).collect::<String>());
        for _ in 0..MESSAGE_LINES {
            let Some(line) = lines.next_if(|line| !END.iter().any(|end| line.starts_with(end))) else {
                break;
            };
            found += &format!("\n      {}", line.chars().take(LINE_MAX).collect::<String>());
        }
    }
    found
}

/// The beginnings of the lines behind a panic's message.
const END: [&str; 2] = ["note: ", "stack backtrace:"];

/// The lines of a panic's message, and the characters of each, that the end of a run shows.
const MESSAGE_LINES: usize = 6;
const LINE_MAX: usize = 300;

/// Returns the lines of a test program's output that count its tests.
fn summary(text: &str) -> String {
    text.lines().filter(|line| line.starts_with("test result: ")).map(|line| format!("{line}\n")).collect()
}

/// Creates a file without a name.
fn tempfile() -> Result<File, String> {
    tempfile::tempfile()
        .map_err(|error| format!("no temporary file: {error}; set TMPDIR to a writable folder"))
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_cargo_messages() {
        let messages = r#"
{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"faults","kind":["test"]},"profile":{"test":true},"executable":"/t/faults-1"}
{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"a","kind":["lib"]},"profile":{"test":true},"executable":"/t/a-1"}
{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"a","kind":["lib"]},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}
not json"#;
        let suites = parse(messages);
        let repeats: Vec<&str> = suites.iter().map(|suite| suite.repeat.as_str()).collect();
        assert_eq!(
            repeats,
            [
                "cargo test --manifest-path /w/a/Cargo.toml --test faults",
                "cargo test --manifest-path /w/a/Cargo.toml --lib"
            ]
        );
        assert_eq!(
            (suites[0].program.as_path(), suites[0].folder.as_path()),
            (Path::new("/t/faults-1"), Path::new("/w/a"))
        );
    }

    fn suite(script: &str) -> Suite {
        Suite {
            repeat: "sh".to_owned(),
            program: "sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            folder: std::env::temp_dir(),
            variables: vec![("CARGO_MANIFEST_DIR", "/here".to_owned())],
        }
    }

    #[test]
    fn a_failed_program_is_named_and_runs_once() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        let failing = suite(&format!("echo run >>{}; exit 3", count.display()));
        let suites = Mutex::new(Lanes::of(vec![failing, suite("true")]));
        let times = Mutex::default();
        let why = run_all(&suites, &times, &|_| {}).unwrap_err();
        assert!(why.starts_with("1 test programs failed"), "{why}");
        assert_eq!(std::fs::read_to_string(count).unwrap(), "run\n");
        assert_eq!(times.into_inner().unwrap().0.keys().collect::<Vec<_>>(), ["sh"]);
    }

    #[test]
    fn the_longest_programs_begin_first() {
        let named = |name: &str| Suite { repeat: name.to_owned(), ..suite("") };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("times");
        let mut times = Times::read(&file);
        times.note(&named("short"), Duration::from_millis(3));
        times.note(&named("long"), Duration::from_secs(3));
        times.write(&file);
        let mut suites = ["short", "new", "long", "other"].map(named);
        Times::read(&file).order(&mut suites);
        let order: Vec<_> = suites.iter().map(|suite| suite.repeat.as_str()).collect();
        assert_eq!(order, ["new", "other", "long", "short"]);
        std::fs::write(&file, "damaged").unwrap();
        assert_eq!(Times::read(&file), Times::default());
    }

    #[test]
    fn each_module_of_a_program_is_a_suite_of_its_own() {
        let list = "printf '%s\\n' 'hold::a: test' 'min_hold::b: test' 'hold::deep::c: test' 'alone: test' '' '4 tests'";
        let repeat = "cargo test --manifest-path Cargo.toml --test it".to_owned();
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("it");
        // Another process writes it: what a child of another test has open for writing cannot be started.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        assert!(Command::new("sh").args(["-c", write]).arg(&program).arg(list).status().unwrap().success());
        let modules = Suite { repeat, program, ..suite("") }.modules(&|_| {}).unwrap();
        let found: Vec<_> = modules.iter().map(|it| (it.name().unwrap(), it.arguments.join(" "))).collect();
        let wanted = [("alone", "alone"), ("hold", "hold::a hold::deep::c"), ("min_hold", "min_hold::b")];
        assert_eq!(found, wanted.map(|(module, tests)| (module, format!("--exact {tests}"))));
        assert!(modules[1].repeat.ends_with(" --test it hold::"), "{}", modules[1].repeat);
    }

    #[test]
    fn words_choose_among_the_tests_of_a_module() {
        let tests = ["hold::short", "hold::long"].map(str::to_owned).to_vec();
        let of = |tests| Program {
            name: "hold".to_owned(),
            path: PathBuf::new(),
            folder: PathBuf::new(),
            repeat: String::new(),
            width: None,
            tests,
        };
        let module = of(tests);
        assert_eq!(module.arguments(&[]), ["--exact", "hold::short", "hold::long"]);
        assert_eq!(module.arguments(&["long"]), ["--exact", "hold::long"]);
        assert_eq!(module.arguments(&["none"]), ["none"]);
        assert_eq!(of(Vec::new()).arguments(&["long"]), ["long"]);
    }

    #[test]
    fn tests_of_single_crates_leave_out_other_libraries() {
        let named = |name: &str| Suite { repeat: format!("cargo test --test {name}"), ..suite("") };
        let mut suites = ["interop", "faults", "interop_python"].map(named).into();
        leave_out_foreign(&mut suites);
        let left: Vec<_> = suites.iter().map(|suite| suite.repeat.as_str()).collect();
        assert_eq!(left, ["cargo test --test faults"]);
    }

    #[test]
    fn a_program_that_passed_shows_its_summary_alone() {
        let text = "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(summary(text), "test result: ok. 1 passed; 0 failed\n");
    }

    #[test]
    fn the_panics_of_a_failed_program_are_shown_at_the_end() {
        let script = "printf '%s\\n' 'running 1 test' \"thread 'a::b' (7) panicked at a.rs:3:5:\" 'it is' 'late' \\
                      'note: run with' 'server log'; exit 3";
        let suites = Mutex::new(Lanes::of(vec![suite(script)]));
        let why = run_all(&suites, &Mutex::default(), &|_| {}).unwrap_err();
        let shown =
            "sh   (exit status: 3)\n    thread 'a::b' (7) panicked at a.rs:3:5:\n      it is\n      late";
        assert!(why.ends_with(shown), "{why}");
    }

    #[test]
    fn suites_that_mostly_wait_run_more_tests_at_a_time() {
        let wide = |name: &str| Suite { repeat: format!("cargo test --test {name}"), ..suite("") }.width();
        assert_eq!(wide("conformance_file"), Some(2 * cores()));
        assert_eq!(wide("coordination"), Some(STORES));
        assert_eq!(wide("faults"), None);
        let laws = "cargo test --test conformance".to_owned();
        let laws = Suite { repeat: laws, ..suite(&format!("test \"$RUST_TEST_THREADS\" = {}", 2 * cores())) };
        assert_eq!(laws.run(&|_| {}), Ok(()));
    }

    #[test]
    fn a_program_is_judged_by_its_exit_code() {
        assert_eq!(suite("test $CARGO_MANIFEST_DIR = /here").run(&|_| {}), Ok(()));
        assert!(suite("exit 3").run(&|_| {}).is_err_and(|why| why.contains('3')));
    }
}
