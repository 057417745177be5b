//! A test in surroundings of its own: a mount namespace, fewer rights, lower limits.
//!
//! A test in surroundings of its own: its program starts itself again, inside a wrapper such as `unshare
//! --mount`, with this one test. Where this machine does not allow the surroundings, the test is skipped,
//! and says so.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::require::skip;

/// Returns the directory to test in, when this program runs in the surroundings of the test. Otherwise it
/// is started there, and `None` says that the test is over: passed, or skipped where the surroundings
/// cannot be had.
///
/// `test` is the full name of the test. `script` is run by a shell inside `wrapper`, with `$DIR` as the
/// directory, which is also where servers of the test have theirs.
///
/// # Panics
/// If the test failed in its surroundings.
pub fn inside(test: &str, wrapper: &[String], script: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        return Some(dir.into());
    }
    match run(test, wrapper, script) {
        Ok(()) => {}
        Err(Outcome::Skipped(why)) => skip(&wrapper[0], &why),
        Err(Outcome::Failed(why)) => panic!("{why}"),
    }
    None
}

/// The script of a test that needs many open files: it raises their limit as far as this process may.
pub const MANY_FILES: &str = "ulimit -n \"$(ulimit -Hn)\" || true";

/// Returns a wrapper that gives a mount namespace, also to users other than root where the kernel allows
/// it.
pub fn private_mounts() -> Vec<String> {
    private("--mount")
}

/// Returns a wrapper that gives a network namespace, whose loopback interface is down at first.
pub fn private_network() -> Vec<String> {
    private("--net")
}

fn private(namespace: &str) -> Vec<String> {
    let mut wrapper = vec!["unshare".to_owned(), namespace.to_owned()];
    if !rustix::process::geteuid().is_root() {
        wrapper.extend(["--user".to_owned(), "--map-root-user".to_owned()]);
    }
    wrapper
}

/// Writes a file until the disk has no room.
///
/// # Panics
/// If the file cannot be made.
pub fn fill(path: &Path) {
    let mut file = match File::create(path) {
        Ok(file) => file,
        Err(error) => panic!("{} cannot be made: {error}", path.display()),
    };
    let block = vec![0; 64 * 1024];
    for size in [block.len(), 4096] {
        // Ended by the disk.
        while file.write_all(&block[..size]).is_ok() {}
    }
}

enum Outcome {
    Skipped(String),
    Failed(String),
}

fn run(test: &str, wrapper: &[String], script: &str) -> Result<(), Outcome> {
    let failed = |error: std::io::Error| Outcome::Failed(format!("{test} cannot be started again: {error}"));
    // Other users may pass through: some servers run as one.
    let passable = Permissions::from_mode(0o711);
    let place = tempfile::Builder::new().permissions(passable).tempdir().map_err(failed)?;
    let wrapped = |script: &str| {
        let mut command = Command::new(&wrapper[0]);
        command.args(&wrapper[1..]).args(["sh", "-ec", script]).env("DIR", place.path());
        command
    };
    let tried = wrapped(script)
        .output()
        .map_err(|error| Outcome::Skipped(format!("{} cannot be started: {error}", wrapper[0])))?;
    if !tried.status.success() {
        let why = String::from_utf8_lossy(&tried.stderr);
        return Err(Outcome::Skipped(format!("{wrapper:?} is not allowed: {why}")));
    }
    let ran = wrapped(&format!("{script}; exec \"$PROGRAM\" --exact {test} --nocapture"))
        .env("PROGRAM", std::env::current_exe().map_err(failed)?)
        .env("TMPDIR", place.path())
        .env(DIRECTORY, place.path())
        .output()
        .map_err(failed)?;
    let (said, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    match ran.status.success() && said.contains("1 passed") {
        true => Ok(()),
        false => Err(Outcome::Failed(format!("in its surroundings: {said}\n{errors}"))),
    }
}

/// The variable that names the directory to a program that runs inside.
pub const DIRECTORY: &str = "LEASEHOLD_TEST_DIRECTORY";
