//! A library before a server or a worker that moves its wall clock at run time, and nothing else.
//!
//! It is built by the machine's C compiler when it is needed; without one, the cells of clocks are not run.

use std::ffi::OsString;
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

    /// Returns the variables that put a program behind the library.
    pub fn variables(&self) -> [(OsString, OsString); 2] {
        [
            (OsString::from("LEASEHOLD_CLOCK"), self.path("offset").into_os_string()),
            (OsString::from("LD_PRELOAD"), self.path(LIBRARY).into_os_string()),
        ]
    }

    /// Returns `true` if a process has loaded the library.
    pub fn is_in(&self, process: u32) -> bool {
        let library = self.path(LIBRARY);
        let mapped = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        mapped.lines().any(|line| line.ends_with(&*library.to_string_lossy()))
    }

    /// Sets how far the clock of the programs is ahead, in seconds, from now on.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set(&self, seconds: i64) -> Outcome {
        // The library maps the file, so it must stay the same file.
        let file =
            std::fs::File::options().create(true).truncate(false).write(true).open(self.path("offset"))?;
        std::os::unix::fs::FileExt::write_all_at(&file, &seconds.to_ne_bytes(), 0)?;
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

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
        assert!(!shim.is_in(std::process::id()));
        let mut behind = Command::new("sleep").arg("60").envs(shim.variables()).spawn().unwrap();
        let begun = std::time::Instant::now();
        while !shim.is_in(behind.id()) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(30), "it is never loaded");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        behind.kill().unwrap();
        behind.wait().unwrap();
    }
}
