//! A library before a server or a worker that moves its wall clock at run time, and nothing else.
//!
//! It is built by the machine's C compiler when it is needed; without one, the cells of clocks are not run.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use leasehold_testkit::Directory;

use super::c_program::{compile, quoted};
use crate::Outcome;

/// The library, and the file whose number of seconds it adds to the clock.
#[derive(Debug)]
pub struct ClockShim {
    directory: Directory,
}

const LIBRARY: &str = "shim.so";
const SOURCE: &str = include_str!("clock/shim.c");

impl ClockShim {
    /// Builds the library in a directory of its own.
    ///
    /// # Errors
    /// [`leasehold_testkit::Error::is_missing`] without a compiler; else what the compiler says.
    pub fn build() -> Outcome<ClockShim> {
        let shim = ClockShim { directory: Directory::create("clock")? };
        // A server that root starts may run as another user.
        std::fs::set_permissions(shim.directory.path(), PermissionsExt::from_mode(0o755))?;
        compile(SOURCE, &shim.path(LIBRARY), &["-shared", "-fPIC"])?;
        shim.set(0)?;
        Ok(shim)
    }

    /// Writes a program that starts this one behind the library, and returns its path.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn wrapper(&self, program: &Path) -> Outcome<PathBuf> {
        let path = self.path("wrapper");
        let script = format!(
            "#!/bin/sh\nLEASEHOLD_CLOCK={} LD_PRELOAD={} exec {} \"$@\"\n",
            quoted(&self.path("offset")),
            quoted(&self.path(LIBRARY)),
            quoted(program)
        );
        leasehold_testkit::write_executable(&path, script)?;
        Ok(path)
    }

    /// Writes a program that starts another one behind the library, whose command line follows, and returns its path.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn launcher(&self) -> Outcome<PathBuf> {
        let path = self.path("launcher");
        let script = format!(
            "#!/bin/sh\nLEASEHOLD_CLOCK={} LD_PRELOAD={} exec \"$@\"\n",
            quoted(&self.path("offset")),
            quoted(&self.path(LIBRARY)),
        );
        leasehold_testkit::write_executable(&path, script)?;
        Ok(path)
    }

    /// Returns the variables that put a program behind the library.
    pub fn variables(&self) -> [(OsString, OsString); 2] {
        [
            (OsString::from("LEASEHOLD_CLOCK"), self.path("offset").into_os_string()),
            (OsString::from("LD_PRELOAD"), self.path(LIBRARY).into_os_string()),
        ]
    }

    /// Sets how far the clock of the programs is ahead, in seconds, from now on.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set(&self, seconds: i64) -> Outcome {
        Ok(write_offset(&self.path("offset"), seconds)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Writes how far the clock is ahead. The library maps the file, so it must stay the same file.
fn write_offset(path: &Path, seconds: i64) -> std::io::Result<()> {
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(path)?;
    std::os::unix::fs::FileExt::write_all_at(&file, &seconds.to_ne_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, SystemTime};

    use leasehold::{Clock, SystemClock};
    use leasehold_testkit::require;

    use super::*;

    fn shown(wrapper: &Path) -> i64 {
        let output = Command::new(wrapper).arg("+%s").output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn clock_of_a_program_is_moved_and_moved_back() {
        let shim = match ClockShim::build() {
            Ok(shim) => shim,
            Err(cause) => return require::skip("cc", &cause.to_string()),
        };
        let date = shim.wrapper(&require::program("date", "coreutils").unwrap()).unwrap();
        let before = shown(&date);
        shim.set(5_000).unwrap();
        assert!(shown(&date) >= before + 5_000);
        shim.set(0).unwrap();
        assert!(shown(&date) < before + 5_000);
    }

    const DAY: Duration = Duration::from_secs(86_400);
    const BOTH_READ: &str = "both clocks were read";

    /// Reads both clocks, moves the wall clock of this process by a day, and reads them again.
    fn step_own_wall_clock(offset: &Path) {
        let read = || (SystemTime::now(), SystemClock.now());
        let before = read();
        write_offset(offset, DAY.as_secs() as i64).unwrap();
        let ahead = read();
        let stepped = ahead.0.duration_since(before.0).unwrap();
        assert!(stepped >= DAY, "the step did not reach this process: {stepped:?}");
        let leases = ahead.1.since(before.1);
        assert!(leases < DAY / 2, "the wall clock moves the clock of leases: {leases:?}");
        write_offset(offset, -(DAY.as_secs() as i64)).unwrap();
        let back = read();
        assert!(back.0 < before.0, "the step back did not reach this process");
        assert!(back.1 >= before.1, "the clock of leases went back with the wall clock");
        println!("{BOTH_READ}");
    }

    /// The clock of leases is asked of the kernel, so a test of `leasehold-machine` says which one it is.
    #[test]
    fn step_of_the_wall_clock_reaches_a_program_and_not_its_leases() {
        if let Some(offset) = std::env::var_os("LEASEHOLD_CLOCK") {
            return step_own_wall_clock(Path::new(&offset));
        }
        let shim = match ClockShim::build() {
            Ok(shim) => shim,
            Err(cause) => return require::skip("cc", &cause.to_string()),
        };
        let test = "world::clock::tests::step_of_the_wall_clock_reaches_a_program_and_not_its_leases";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .envs(shim.variables())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(BOTH_READ), "{said}\n{errors}");
    }
}
