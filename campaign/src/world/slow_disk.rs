//! A launcher before a server or a worker whose disk becomes slow at run time, and nothing else.
//!
//! It is built by the machine's C compiler when it is needed; without one, the cells of slow disks are not run.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_testkit::Directory;

use super::c_program::{compile, quoted};
use crate::Outcome;

/// The launcher, and the file that says how slow the disk is.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    directory: Directory,
    control: File,
}

const SOURCE: &str = include_str!("slow_disk/launcher.c");
const PROGRAM: &str = "launcher";
const CONTROL: &str = "control";

impl SlowDisk {
    /// Builds the launcher in a directory of its own, with a disk that is as fast as it is.
    ///
    /// # Errors
    /// [`leasehold_testkit::Error::is_missing`] without a compiler; else what the compiler says.
    pub(crate) fn build() -> Outcome<SlowDisk> {
        let directory = Directory::create("disk")?;
        let path = |name: &str| directory.path().join(name);
        compile(SOURCE, &path(PROGRAM), &[])?;
        // The launcher maps the file, so it stays the same file.
        let control = File::options().create_new(true).read(true).write(true).open(path(CONTROL))?;
        control.write_all_at(&[0; 16], 0)?;
        let script =
            format!("#!/bin/sh\nexec {} {} \"$@\"\n", quoted(&path(PROGRAM)), quoted(&path(CONTROL)));
        leasehold_testkit::write_executable(&path(LAUNCHER), script)?;
        Ok(SlowDisk { directory, control })
    }

    /// Returns the program that starts another one, whose command line follows.
    pub(crate) fn launcher(&self) -> PathBuf {
        self.directory.path().join(LAUNCHER)
    }

    /// Writes a program that starts this one by the launcher, and returns its path.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn wrapper(&self, program: &Path) -> Outcome<PathBuf> {
        let path = self.directory.path().join("wrapper");
        let script = format!("#!/bin/sh\nexec {} {} \"$@\"\n", quoted(&self.launcher()), quoted(program));
        leasehold_testkit::write_executable(&path, script)?;
        Ok(path)
    }

    /// Sets the time that each call takes which waits for the disk, from now on, also for those under way.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn set(&self, delay: Duration) -> Outcome {
        let millis = i64::try_from(delay.as_millis())?;
        Ok(self.control.write_all_at(&millis.to_ne_bytes(), 0)?)
    }

    /// Returns how many calls were held up so far.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn held_up(&self) -> Outcome<u64> {
        let mut count = [0; 8];
        self.control.read_exact_at(&mut count, 8)?;
        Ok(u64::from_ne_bytes(count))
    }
}

const LAUNCHER: &str = "slow-disk";

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use leasehold_testkit::require;

    use super::*;

    /// Writes a line after each write that was synced, and ends with its input.
    const SYNCS: &str = "while read -r line; do \
        dd if=/dev/zero of=\"$0\" bs=1 count=1 conv=fsync 2>&1 >/dev/null | tail -n 0; echo synced; done";

    #[test]
    fn syncs_of_a_program_are_held_up_until_the_disk_is_fast_again() {
        let disk = match SlowDisk::build() {
            Ok(disk) => disk,
            Err(cause) => return require::skip("cc", &cause.to_string()),
        };
        let file = disk.directory.path().join("file");
        let mut program = Command::new(disk.launcher())
            .args(["sh", "-c", SYNCS])
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = program.stdin.take().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let mut ask = || std::io::Write::write_all(&mut input, b"\n").unwrap();
        ask();
        assert_eq!((lines.next().unwrap().unwrap().as_str(), disk.held_up().unwrap()), ("synced", 0));

        disk.set(Duration::from_millis(200)).unwrap();
        let begun = Instant::now();
        ask();
        assert_eq!(lines.next().unwrap().unwrap(), "synced");
        assert!(begun.elapsed() >= Duration::from_millis(195), "{:?}", begun.elapsed());
        assert_eq!(disk.held_up().unwrap(), 1);

        // One that is under way ends with the delay.
        disk.set(Duration::from_secs(3_600)).unwrap();
        ask();
        while disk.held_up().unwrap() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never held up");
            std::thread::sleep(Duration::from_millis(5));
        }
        disk.set(Duration::ZERO).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "synced");
        drop(input);
        assert!(program.wait().unwrap().success());
        assert!(lines.next().is_none(), "nothing else has the pipe");
    }

    #[test]
    fn a_program_that_is_killed_while_it_syncs_ends() {
        let disk = match SlowDisk::build() {
            Ok(disk) => disk,
            Err(cause) => return require::skip("cc", &cause.to_string()),
        };
        disk.set(Duration::from_secs(3_600)).unwrap();
        let file = disk.directory.path().join("file");
        let mut of = std::ffi::OsString::from("of=");
        of.push(&file);
        let mut program = Command::new(disk.launcher())
            .args(["dd", "if=/dev/zero", "bs=1", "count=1", "conv=fsync"])
            .arg(of)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while disk.held_up().unwrap() < 1 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never held up");
            std::thread::sleep(Duration::from_millis(5));
        }
        program.kill().unwrap();
        program.wait().unwrap();
        // The pipe ends: the process that holds calls up has ended, or does not have it.
        let read = std::io::read_to_string(program.stderr.take().unwrap()).unwrap();
        assert_eq!(read, "");
    }
}
