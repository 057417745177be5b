//! One run of some tests of a program, with one mutant or none.
//!
//! A run ends with the first test that fails. The servers of the tests end with their process, however it ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::build::Program;

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    /// This test failed; nothing if the program ended as a whole.
    Failed(Option<String>),
    /// The tests took longer than they may.
    Hung,
}

/// Runs these tests, with the mutant of this number, for no longer than `limit`.
pub(crate) fn mutant(
    program: &Program,
    tests: &[&str],
    number: usize,
    limit: Duration,
    temporary: &Path,
) -> Result<End, String> {
    let mut command = command(program, tests, temporary);
    command.env("LEASEHOLD_MUTANT", number.to_string());
    run(command, limit)
}

/// Runs one test without a mutant, and has the numbers of those that it reaches written into a file.
pub(crate) fn unchanged(
    program: &Program,
    test: &str,
    reached: &Path,
    limit: Duration,
    temporary: &Path,
) -> Result<End, String> {
    let mut command = command(program, &[test], temporary);
    command.env("LEASEHOLD_MUTANTS_REACHED", reached);
    run(command, limit)
}

/// Returns the names of the tests of a program that judge.
pub(crate) fn tests(program: &Program) -> Result<Vec<String>, String> {
    let output = Command::new(&program.path).args(["--list", "--format=terse"]).output();
    let output = output.map_err(|error| format!("{}: {error}", program.path.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.filter(|test| program.judge.has(test)).map(str::to_owned).collect())
}

fn command(program: &Program, tests: &[&str], temporary: &Path) -> Command {
    // A change may allocate without an end.
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -d {MEMORY}; exec \"$0\" \"$@\"")).arg(&program.path);
    command.arg("--exact").args(tests);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command.env("TMPDIR", temporary).env("RUST_TEST_THREADS", WIDTH).env("RUST_BACKTRACE", "0");
    // Without its servers a test would see nothing.
    command.env("LEASEHOLD_REQUIRE", "redis");
    command
}

fn run(mut command: Command, limit: Duration) -> Result<End, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let broken = |error: std::io::Error| format!("a test program cannot be run: {error}");
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
    let end = watch(&mut child, &lines, limit);
    // It may have ended already.
    let _ = child.kill();
    child.wait().map_err(broken)?;
    end.map_err(broken)
}

/// Waits for the first test that fails, for the end, or for the limit.
fn watch(child: &mut Child, lines: &Receiver<String>, limit: Duration) -> std::io::Result<End> {
    let begin = Instant::now();
    let ended = |success: bool| if success { End::Passed } else { End::Failed(None) };
    loop {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => {
                if let Some(test) = failed_test(&line) {
                    return Ok(End::Failed(Some(test.to_owned())));
                }
            }
            Err(RecvTimeoutError::Disconnected) => return child.wait().map(|status| ended(status.success())),
            // A process that it has left may keep the output open.
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(ended(status.success()));
                }
            }
        }
        if begin.elapsed() > limit {
            return Ok(End::Hung);
        }
    }
}

/// Returns the test that this line reports as failed.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Kilobytes of data that a test program may have.
const MEMORY: usize = 4_000_000;
/// The number of tests of one program that run at a time. Many of them wait.
const WIDTH: &str = "4";

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str, limit: Duration) -> End {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        run(command, limit).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_run_ends_with_the_first_test_that_fails() {
        assert_eq!(script("echo 'test a ... ok'", LONG), End::Passed);
        let begin = Instant::now();
        let text = "echo 'test a ... ok'; echo 'test b::c ... FAILED'; exec sleep 60";
        assert_eq!(script(text, LONG), End::Failed(Some("b::c".to_owned())));
        assert!(begin.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn a_program_that_ends_has_failed_and_one_that_is_ended_hung() {
        assert_eq!(script("exit 3", LONG), End::Failed(None));
        assert_eq!(script("kill -ABRT $$", LONG), End::Failed(None));
        assert_eq!(script("exec sleep 60", Duration::from_millis(200)), End::Hung);
        // It says nothing of a test, and writes all the time.
        assert_eq!(script("while :; do echo x; done", Duration::from_millis(200)), End::Hung);
    }
}
