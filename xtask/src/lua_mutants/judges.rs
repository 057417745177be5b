//! The test programs that judge a changed script, and one run of them.
//!
//! A run ends with the first test that fails. The servers of the tests end with their process, however it ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::suites::{self, Program};

/// The test programs for the scripts of one folder, those first that see most changes within seconds.
struct Panel {
    /// The folder, below that of all scripts.
    folder: &'static str,
    /// The programs, each with its filters.
    programs: &'static [(&'static str, &'static [&'static str])],
}

const PANELS: &[Panel] = &[
    Panel {
        folder: "protocol/",
        programs: &[
            ("hold", &[]),
            ("single_value", &[]),
            ("free_lock", &[]),
            ("histories", &[]),
            ("sweep", &[]),
            ("acl", &[]),
            ("faults", &[]),
            ("replicas", &[]),
            ("sentinel", &[]),
            ("wait", &[]),
            ("conformance", &["pubsub_fifo", "pubsub_unordered"]),
        ],
    },
    Panel {
        folder: "compat/",
        programs: &[("dialects", &[]), ("conformance", &["plain", "python_redis_lock", "redisson"])],
    },
    Panel { folder: "redlock/", programs: &[("member", &[]), ("member_restart", &[])] },
];

const PACKAGE: &str = "leasehold-redis";

/// The programs that judge the scripts of some folders.
pub(super) struct Judges {
    panels: Vec<(&'static str, Vec<Judge>)>,
    /// For what the tests leave behind when they are ended.
    temporary: PathBuf,
}

struct Judge {
    program: Program,
    filters: &'static [&'static str],
    limit: Duration,
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
            let mut judges = Vec::new();
            for (name, filters) in panel.programs {
                let program = built.iter().find(|program| program.name == *name).cloned();
                let program = program.ok_or_else(|| format!("{PACKAGE} has no test program {name}"))?;
                judges.push(Judge { program, filters, limit: LONGEST });
            }
            panels.push((panel.folder, judges));
        }
        let mut judges = Judges { panels, temporary: temporary.to_owned() };
        judges.measure(unchanged)?;
        Ok(judges)
    }

    /// Runs each program without a change. What takes several times as long with one, hangs.
    fn measure(&mut self, unchanged: &Path) -> Result<(), String> {
        for (_, judges) in &mut self.panels {
            for judge in judges {
                let begin = Instant::now();
                if let Some(killer) = judge.fails(unchanged, &self.temporary)?.0 {
                    return Err(format!("{} fails without any change: mend that first.", killer.name()));
                }
                let took = begin.elapsed();
                println!("{} without any change: {:.1} s", judge.program.name, took.as_secs_f64());
                judge.limit = (4 * took).max(SHORTEST);
            }
        }
        Ok(())
    }

    /// Returns whether a test sees the change in this file. One that fails has to fail once more by itself: a
    /// machine that is busy fails a test, too.
    pub(super) fn judge(&self, script: &str, change: &Path) -> Result<Outcome, String> {
        let panel = self.panels.iter().find(|(folder, _)| script.starts_with(folder));
        let (_, judges) = panel.ok_or_else(|| format!("{script}: no tests are known for its folder"))?;
        let mut once = Vec::new();
        for judge in judges {
            match judge.fails(change, &self.temporary)? {
                (Some(killer), _) => return Ok(Outcome::Killed(killer)),
                (None, passed_again) => once.extend(passed_again),
            }
        }
        Ok(Outcome::Survived(once))
    }
}

impl Judge {
    /// Returns a test that fails, and fails once more by itself; or else one that failed and then passed.
    fn fails(&self, change: &Path, temporary: &Path) -> Result<(Option<Killer>, Option<Killer>), String> {
        let Some(killer) = self.run(change, temporary, None)? else { return Ok((None, None)) };
        let again = self.run(change, temporary, killer.test.as_deref())?;
        Ok(if again.is_some() { (Some(killer), None) } else { (None, Some(killer)) })
    }

    /// Runs its tests, or one of them, until one fails.
    fn run(&self, change: &Path, temporary: &Path, only: Option<&str>) -> Result<Option<Killer>, String> {
        let mut command = Command::new(&self.program.path);
        match only {
            Some(test) => command.args(["--exact", test]),
            None => command.args(self.program.arguments(self.filters)),
        };
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
        let end = watch(&mut child, &lines, self.limit);
        // It may have ended already.
        let _ = child.kill();
        child.wait().map_err(broken)?;
        let killer = |test| Killer { program: self.program.name.clone(), test };
        Ok(end.map_err(broken)?.map(killer))
    }
}

/// Waits for the first test that fails, or for the end. Returns the test; nothing in it if the program ended with an
/// error or did not end in time.
fn watch(
    child: &mut Child,
    lines: &Receiver<String>,
    limit: Duration,
) -> std::io::Result<Option<Option<String>>> {
    let begin = Instant::now();
    loop {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => {
                if let Some(test) = failed_test(&line) {
                    return Ok(Some(Some(test.to_owned())));
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return child.wait().map(|status| (!status.success()).then_some(None));
            }
            // A process that it has left may keep the output open.
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok((!status.success()).then_some(None));
                }
            }
        }
        if begin.elapsed() > limit {
            return Ok(Some(None));
        }
    }
}

/// Returns the test that this line reports as failed.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// The longest that a program may take without a change.
const LONGEST: Duration = Duration::from_secs(300);
/// The shortest time after which a program counts as hanging.
const SHORTEST: Duration = Duration::from_secs(60);
const WIDTH: &str = "4";

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(script: &str, limit: Duration) -> Judge {
        let folder = std::env::temp_dir();
        let file = tempfile::Builder::new().suffix(".sh").tempfile().unwrap();
        std::fs::write(&file, script).unwrap();
        // `sh` reads the script as its first filter.
        let filter: &'static str = Box::leak(file.path().display().to_string().into_boxed_str());
        let filters: &'static [&'static str] = Box::leak(vec![filter].into_boxed_slice());
        std::mem::forget(file);
        let (name, repeat) = ("sh".to_owned(), String::new());
        let tests = Vec::new();
        Judge {
            program: Program { name, path: "sh".into(), folder, repeat, width: None, tests },
            filters,
            limit,
        }
    }

    fn run(script: &str, limit: Duration) -> Option<Option<String>> {
        let change = Path::new("/nowhere");
        let killer = judge(script, limit).run(change, &std::env::temp_dir(), None).unwrap();
        killer.map(|killer| killer.test)
    }

    #[test]
    fn a_run_ends_with_the_first_test_that_fails() {
        let long = Duration::from_secs(60);
        assert_eq!(run("echo 'test a ... ok'", long), None);
        let begin = Instant::now();
        let script = "echo 'test a ... ok'; echo 'test b::c ... FAILED'; exec sleep 60";
        assert_eq!(run(script, long), Some(Some("b::c".to_owned())));
        assert!(begin.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn a_program_that_ends_or_hangs_has_failed() {
        assert_eq!(run("exit 3", Duration::from_secs(60)), Some(None));
        assert_eq!(run("exec sleep 60", Duration::from_millis(200)), Some(None));
    }

    #[test]
    fn every_script_has_tests() {
        for mutant in super::super::of_files(&crate::root(), None).unwrap() {
            assert!(PANELS.iter().any(|panel| mutant.file.starts_with(panel.folder)), "{}", mutant.file);
        }
    }
}
