//! The test programs that judge a changed script, and one run of them.
//!
//! A test that passes while a script is replaced by an error mostly does not run it, and so is asked about changes last.
//! The programs of a group run side by side: most tests wait for a lease most of the time. A run ends with the first
//! test that fails. The servers of the tests end with their process, however it ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::suites::{self, Program};

/// The test programs for the scripts of one folder.
struct Panel {
    /// The folder, below that of all scripts.
    folder: &'static str,
    /// Groups of programs, each program with its filters. The first group sees most changes within seconds.
    groups: [&'static [(&'static str, &'static [&'static str])]; 2],
}

const PANELS: &[Panel] = &[
    Panel {
        folder: "protocol/",
        groups: [
            &[("hold", &[]), ("single_value", &[]), ("free_lock", &[]), ("histories", &[]), ("sweep", &[])],
            &[
                ("acl", &[]),
                ("faults", &[]),
                ("outages", &["deposed"]),
                ("replicas", &[]),
                ("sentinel", &[]),
                ("wait", &[]),
                ("conformance", &["pubsub_fifo", "pubsub_unordered"]),
            ],
        ],
    },
    Panel {
        folder: "compat/",
        groups: [
            &[("dialects", &[])],
            &[
                ("acl", &["redisson"]),
                ("cluster", &["dialects"]),
                ("outages", &["deposed"]),
                ("conformance", &["plain", "python_redis_lock", "redisson"]),
            ],
        ],
    },
    Panel { folder: "redlock/", groups: [&[("member", &[])], &[("member_restart", &[])]] },
];

const PACKAGE: &str = "leasehold-redis";

/// The programs that judge the scripts of some folders.
pub(super) struct Judges {
    panels: Vec<(&'static str, [Vec<Judge>; 2])>,
    /// For what the tests leave behind when they are ended.
    temporary: PathBuf,
}

#[derive(Clone)]
struct Judge {
    program: Program,
    tests: Vec<String>,
    limit: Duration,
}

/// The tests for one script, in groups.
pub(super) struct Court<'a> {
    groups: Vec<Vec<Judge>>,
    temporary: &'a Path,
}

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Killer {
    pub(super) program: String,
    /// The test, or nothing if the whole program ended or hung.
    test: Option<String>,
}

impl Killer {
    /// Returns its name for a person.
    pub(super) fn name(&self) -> String {
        let test = self.test.as_deref().unwrap_or("it ended or hung as a whole");
        format!("{}, {test}", self.program)
    }
}

/// The verdict of the tests on a change.
#[derive(Debug)]
pub(super) enum Outcome {
    /// This test fails, twice.
    Killed(Killer),
    /// No test fails twice. These failed once.
    Survived(Vec<Killer>),
}

impl Judges {
    /// Builds the programs for these scripts, and runs each of them without a change.
    pub(super) fn build(
        root: &Path,
        temporary: &Path,
        scripts: &[&str],
        unchanged: &Path,
    ) -> Result<Judges, String> {
        let mut panels = Vec::new();
        for panel in PANELS.iter().filter(|panel| scripts.iter().any(|file| file.starts_with(panel.folder))) {
            let options = ["--features=lua-mutants", "--test=it"];
            let built = suites::programs_with(root, &[PACKAGE.to_owned()], &options)?;
            let judge = |(name, filters): &(&str, &[&str])| {
                let program = built.iter().find(|program| program.name == *name).cloned();
                let program = program.ok_or_else(|| format!("{PACKAGE} has no test program {name}"))?;
                let is_wanted =
                    |test: &&String| filters.is_empty() || filters.iter().any(|filter| test.contains(filter));
                let tests: Vec<String> = program.tests.iter().filter(is_wanted).cloned().collect();
                if tests.is_empty() {
                    return Err(format!("{PACKAGE}, {name}: none of its tests is chosen"));
                }
                Ok(Judge { program, tests, limit: LONGEST })
            };
            let group = |group: &[(&str, &[&str])]| group.iter().map(judge).collect::<Result<Vec<_>, _>>();
            let [quick, slow] = panel.groups;
            panels.push((panel.folder, [group(quick)?, group(slow)?]));
        }
        let mut judges = Judges { panels, temporary: temporary.to_owned() };
        judges.measure(unchanged)?;
        Ok(judges)
    }

    /// Runs each program without a change. What takes several times as long with one, hangs.
    fn measure(&mut self, unchanged: &Path) -> Result<(), String> {
        for judge in self.panels.iter_mut().flat_map(|(_, groups)| groups).flatten() {
            let begin = Instant::now();
            let tests = judge.tests.clone();
            if let Some(killer) = judge.failures(&tests, unchanged, &self.temporary, None)?.pop() {
                return Err(format!("{} fails without any change: mend that first.", killer.name()));
            }
            let took = begin.elapsed();
            println!("{} without any change: {:.1} s", judge.program.name, took.as_secs_f64());
            judge.limit = (4 * took).max(SHORTEST);
        }
        Ok(())
    }

    /// Returns the tests for this script, first those that do not pass if it is replaced by an error.
    pub(super) fn of_script(&self, script: &str, broken: &Path) -> Result<Court<'_>, String> {
        let panel = self.panels.iter().find(|(folder, _)| script.starts_with(folder));
        let (_, groups) = panel.ok_or_else(|| format!("{script}: no tests are known for its folder"))?;
        let mut court = Court { groups: Vec::new(), temporary: &self.temporary };
        let mut others = Vec::new();
        for group in groups {
            let passed = at_once(group, |judge| judge.passed(broken, &self.temporary))?;
            let mut reaching = Vec::new();
            for (judge, passed) in group.iter().zip(passed) {
                let (others_of_it, tests): (Vec<_>, Vec<_>) =
                    judge.tests.iter().cloned().partition(|test| passed.contains(test));
                reaching.extend((!tests.is_empty()).then(|| Judge { tests, ..judge.clone() }));
                others.extend(
                    (!others_of_it.is_empty()).then(|| Judge { tests: others_of_it, ..judge.clone() }),
                );
            }
            court.groups.push(reaching);
        }
        let count: usize = court.groups.iter().flatten().map(|judge| judge.tests.len()).sum();
        if count == 0 {
            return Err(format!(
                "{script} was replaced by an error, and no test failed: none of them runs it."
            ));
        }
        println!("{script}: {count} tests run it");
        // Some tests expect a failure, so they pass as well. They are asked last.
        court.groups.push(others);
        Ok(court)
    }
}

impl Court<'_> {
    /// Returns whether a test sees the change. One that fails has to fail once more by itself: a machine that is busy
    /// fails a test, too.
    pub(super) fn judge(&self, change: &Path) -> Result<Outcome, String> {
        let mut once = Vec::new();
        for group in &self.groups {
            let stop = AtomicBool::new(false);
            let first = self.failures(group, change, Some(&stop))?;
            if first.is_empty() {
                continue;
            }
            if let Some(killer) = self.repeated(group, &first, change)? {
                return Ok(Outcome::Killed(killer));
            }
            // The other tests had not ended.
            let all = self.failures(group, change, None)?;
            if let Some(killer) = self.repeated(group, &all, change)? {
                return Ok(Outcome::Killed(killer));
            }
            once.extend(first.into_iter().chain(all));
        }
        Ok(Outcome::Survived(once))
    }

    fn failures(
        &self,
        group: &[Judge],
        change: &Path,
        stop: Option<&AtomicBool>,
    ) -> Result<Vec<Killer>, String> {
        let failures = at_once(group, |judge| judge.failures(&judge.tests, change, self.temporary, stop))?;
        Ok(failures.into_iter().flatten().collect())
    }

    /// Returns the first of these that fails by itself as well.
    fn repeated(&self, group: &[Judge], failed: &[Killer], change: &Path) -> Result<Option<Killer>, String> {
        for killer in failed {
            let Some(judge) = group.iter().find(|judge| judge.program.name == killer.program) else {
                continue;
            };
            let tests = killer.test.clone().map_or_else(|| judge.tests.clone(), |test| vec![test]);
            if !judge.failures(&tests, change, self.temporary, None)?.is_empty() {
                return Ok(Some(killer.clone()));
            }
        }
        Ok(None)
    }
}

/// Asks all of these programs side by side.
fn at_once<T: Send>(
    group: &[Judge],
    ask: impl Fn(&Judge) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let asked: Vec<_> = group.iter().map(|judge| scope.spawn(move || ask(judge))).collect();
        let answer = |asked: std::thread::ScopedJoinHandle<'_, Result<T, String>>| {
            asked.join().unwrap_or_else(|_| Err("a thread has panicked".to_owned()))
        };
        asked.into_iter().map(answer).collect()
    })
}

impl Judge {
    /// Returns those of these tests that fail; the first one alone if all are to stop then.
    fn failures(
        &self,
        tests: &[String],
        change: &Path,
        temporary: &Path,
        stop: Option<&AtomicBool>,
    ) -> Result<Vec<Killer>, String> {
        let end = self.run(tests, change, temporary, stop)?;
        let killer = |test| Killer { program: self.program.name.clone(), test };
        let whole = end.has_failed && end.failed.is_empty();
        Ok(end.failed.into_iter().map(Some).chain(whole.then_some(None)).map(killer).collect())
    }

    /// Returns those of its tests that pass.
    fn passed(&self, change: &Path, temporary: &Path) -> Result<BTreeSet<String>, String> {
        Ok(self.run(&self.tests, change, temporary, None)?.passed)
    }

    fn run(
        &self,
        tests: &[String],
        change: &Path,
        temporary: &Path,
        stop: Option<&AtomicBool>,
    ) -> Result<End, String> {
        let mut command = Command::new(&self.program.path);
        command.arg("--exact").args(tests);
        command.current_dir(&self.program.folder).env("CARGO_MANIFEST_DIR", &self.program.folder);
        command.env("LEASEHOLD_LUA_MUTANT", change).env("TMPDIR", temporary);
        // Without a server all tests would pass.
        command.env("LEASEHOLD_REQUIRE", "redis").env("RUST_TEST_THREADS", WIDTH);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let broken = |error: std::io::Error| format!("{}: {error}", self.program.path.display());
        let mut child = command.spawn().map_err(broken)?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let end = watch(&mut child, &lines, self.limit, stop);
        // It may have ended already.
        let _ = child.kill();
        child.wait().map_err(broken)?;
        end.map_err(broken)
    }
}

/// The outcome of one run of a program.
#[derive(Debug, Default, PartialEq, Eq)]
struct End {
    passed: BTreeSet<String>,
    failed: Vec<String>,
    /// `true` also if it ended with an error or did not end in time, and no test said so.
    has_failed: bool,
}

/// Watches the tests until they end, until the limit, or until a program of the same group has a failure.
fn watch(
    child: &mut Child,
    lines: &Receiver<String>,
    limit: Duration,
    stop: Option<&AtomicBool>,
) -> std::io::Result<End> {
    let begin = Instant::now();
    let (mut end, mut ended_at) = (End::default(), None);
    loop {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => {
                let Some(test) = line.strip_prefix("test ") else { continue };
                if let Some(test) = test.strip_suffix(" ... FAILED") {
                    end.failed.push(test.to_owned());
                    end.has_failed = true;
                } else if let Some(test) = test.strip_suffix(" ... ok") {
                    end.passed.insert(test.to_owned());
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                end.has_failed |= !child.wait()?.success();
                return Ok(end);
            }
            // A process that it has left may keep the output open; what it wrote itself is there within a moment.
            Err(RecvTimeoutError::Timeout) => match (child.try_wait()?, ended_at) {
                (None, _) => {}
                (Some(_), None) => ended_at = Some(Instant::now()),
                (Some(status), Some(at)) if at.elapsed() > LAST_LINES => {
                    end.has_failed |= !status.success();
                    return Ok(end);
                }
                (Some(_), Some(_)) => {}
            },
        }
        if let Some(stop) = stop {
            if end.has_failed {
                stop.store(true, Ordering::Relaxed);
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(end);
            }
        }
        if begin.elapsed() > limit {
            end.has_failed = true;
            return Ok(end);
        }
    }
}

/// The longest that a program may take without a change.
const LONGEST: Duration = Duration::from_secs(300);
/// The shortest time after which a program counts as hanging.
const SHORTEST: Duration = Duration::from_secs(60);
/// The time in which the last lines of a program that has ended arrive.
const LAST_LINES: Duration = Duration::from_secs(1);
const WIDTH: &str = "4";

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(script: &str, limit: Duration) -> Judge {
        let folder = std::env::temp_dir();
        let (name, repeat) = ("sh".to_owned(), String::new());
        let path =
            tempfile::Builder::new().suffix(".sh").tempfile().unwrap().into_temp_path().keep().unwrap();
        // By a process of its own: this one may fork with the file open, and what is open for writing cannot be run.
        let write = "printf '#!/bin/sh\n%s\n' \"$0\" > \"$1\" && chmod +x \"$1\"";
        assert!(Command::new("sh").args(["-c", write, script]).arg(&path).status().unwrap().success());
        let tests = vec!["a".to_owned(), "b::c".to_owned()];
        let program = Program { name, path, folder, repeat, width: None, tests: Vec::new() };
        Judge { program, tests, limit }
    }

    fn failures(script: &str, limit: Duration, stop: Option<&AtomicBool>) -> Vec<Option<String>> {
        let judge = judge(script, limit);
        let failures =
            judge.failures(&judge.tests, Path::new("/nowhere"), &std::env::temp_dir(), stop).unwrap();
        std::fs::remove_file(&judge.program.path).unwrap();
        failures.into_iter().map(|killer| killer.test).collect()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_run_ends_with_the_first_test_that_fails_if_it_may() {
        assert_eq!(failures("echo 'test a ... ok'", LONG, None), []);
        let begin = Instant::now();
        let script = "echo 'test a ... ok'; echo 'test b::c ... FAILED'; exec sleep 60";
        let stop = AtomicBool::new(false);
        assert_eq!(failures(script, LONG, Some(&stop)), [Some("b::c".to_owned())]);
        assert!(begin.elapsed() < Duration::from_secs(50));
        // And the others of the group end with it.
        assert!(stop.load(Ordering::Relaxed));
        assert_eq!(failures("exec sleep 60", LONG, Some(&stop)), []);
        assert!(begin.elapsed() < Duration::from_secs(50));
        let script = "echo 'test a ... FAILED'; echo 'test b::c ... FAILED'; exit 101";
        assert_eq!(failures(script, LONG, None), [Some("a".to_owned()), Some("b::c".to_owned())]);
    }

    #[test]
    fn a_program_that_ends_or_hangs_has_failed() {
        assert_eq!(failures("exit 3", LONG, None), [None]);
        assert_eq!(failures("exec sleep 60", Duration::from_millis(200), None), [None]);
    }

    #[test]
    fn a_failure_counts_if_the_test_fails_by_itself_as_well() {
        let mark = tempfile::tempdir().unwrap();
        let mark = mark.path().join("ran").display().to_string();
        let outcome = |script: &str| {
            let court = Court { groups: vec![vec![judge(script, LONG)]], temporary: &std::env::temp_dir() };
            let outcome = court.judge(Path::new("/nowhere")).unwrap();
            std::fs::remove_file(&court.groups[0][0].program.path).unwrap();
            outcome
        };
        // Every run but the first passes.
        let once = format!("[ -e {mark} ] || {{ touch {mark}; echo 'test a ... FAILED'; exit 101; }}");
        assert!(matches!(outcome(&once), Outcome::Survived(once) if once.len() == 1));
        // One test fails in the first run only, and hides another one that always does.
        std::fs::remove_file(&mark).unwrap();
        let hidden = format!(
            "[ -e {mark} ] || {{ touch {mark}; echo 'test a ... FAILED'; exec sleep 60; }}\n\
             case \"$*\" in *b::c*) echo 'test b::c ... FAILED'; exit 101;; esac"
        );
        let Outcome::Killed(killer) = outcome(&hidden) else { panic!("the other test was not asked") };
        assert_eq!(killer.test.as_deref(), Some("b::c"));
    }

    #[test]
    fn tests_that_pass_with_an_error_in_its_place_are_asked_last() {
        let running = judge("echo 'test a ... ok'; echo 'test b::c ... FAILED'; exit 101", LONG);
        let other = judge("echo 'test a ... ok'; echo 'test b::c ... ok'", LONG);
        let judges = Judges {
            panels: vec![("protocol/", [vec![other.clone()], vec![other.clone(), running.clone()]])],
            temporary: std::env::temp_dir(),
        };
        let court = judges.of_script("protocol/a.lua", Path::new("/nowhere")).unwrap();
        let tests: Vec<String> = court.groups.iter().flatten().map(|judge| judge.tests.join(" ")).collect();
        // Behind it is what passed: it may expect a failure.
        assert_eq!(tests, ["b::c", "a b::c", "a b::c", "a"]);
        let none = Judges { panels: vec![("protocol/", [vec![other.clone()], vec![]])], ..judges };
        assert!(none.of_script("protocol/a.lua", Path::new("/nowhere")).is_err());
        for judge in [running, other] {
            std::fs::remove_file(&judge.program.path).unwrap();
        }
    }

    #[test]
    fn every_script_has_tests() {
        for mutant in super::super::of_files(&crate::root(), None).unwrap() {
            assert!(PANELS.iter().any(|panel| mutant.file.starts_with(panel.folder)), "{}", mutant.file);
        }
    }
}
