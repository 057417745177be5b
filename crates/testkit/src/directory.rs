//! The directory of one server: its configuration, its data and its log.
//!
//! Removed when the test is done with it, kept when the test panics, because the log of a server is the first
//! thing to read then. A directory lives longer than the process that writes into it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Error, cannot};

/// A private temporary directory that outlives a failed test.
///
/// Dropped while its thread panics, or with `LEASEHOLD_KEEP_DIRS` set in the environment, it stays, and its
/// path and the last 30 lines of its log are printed, the long ones cut. Otherwise it is removed.
#[derive(Debug)]
pub struct Directory {
    temp: Option<TempDir>,
    path: PathBuf,
}

impl Directory {
    /// Creates an empty directory, readable by this user only, whose name begins with `leasehold-<server>-`.
    pub fn create(server: &str) -> Result<Self, Error> {
        Self::create_in(&std::env::temp_dir(), server)
    }

    /// Creates a directory as [`Directory::create`] does, in memory if the machine has room there: for a
    /// store that syncs to the disk before each answer and has no setting against it. A busy disk
    /// takes seconds for that.
    pub fn create_in_memory(server: &str) -> Result<Self, Error> {
        let shared = Path::new("/dev/shm");
        let has_room = rustix::fs::statvfs(shared)
            .is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) >= MEMORY_NEEDED);
        let created = has_room.then(|| Self::create_in(shared, server));
        created.and_then(Result::ok).map_or_else(|| Self::create(server), Ok)
    }

    fn create_in(place: &Path, server: &str) -> Result<Self, Error> {
        let temp = tempfile::Builder::new()
            .prefix(&format!("leasehold-{server}-"))
            .tempdir_in(place)
            .map_err(cannot("create a directory in", place.display()))?;
        Ok(Self { path: temp.path().to_path_buf(), temp: Some(temp) })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file that the server's stdout and stderr go to.
    pub fn log_path(&self) -> PathBuf {
        self.path.join("server.log")
    }

    /// Returns the last 30 lines of the log, the long ones cut, or why it cannot be read.
    pub fn log_tail(&self) -> String {
        tail(&self.log_path()).unwrap_or_else(|cause| format!("(no log: {cause})"))
    }

    /// Writes a file that only this user may read.
    pub(crate) fn write(&self, name: &str, content: &str) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        fs::write(&path, content).map_err(cannot("write", path.display()))?;
        Ok(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let keep = std::thread::panicking() || std::env::var_os("LEASEHOLD_KEEP_DIRS").is_some();
        if !keep {
            return;
        }
        if let Some(temp) = self.temp.take() {
            let kept = temp.keep();
            eprintln!("server directory kept: {}", kept.display());
            eprintln!("last lines of {}:\n{}", self.log_path().display(), self.log_tail());
        }
    }
}

/// The number of lines of a log that are shown.
const TAIL_LINES: usize = 30;
/// The characters of a line that are shown: a server may log whole requests.
const TAIL_WIDTH: usize = 240;
/// The bytes of a log that are read for that; a log of unending lines must not fill the memory.
const TAIL_BYTES: u64 = 64 * 1024;

fn tail(log: &Path) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(TAIL_LINES)..].iter();
    Ok(last.map(|line| line.chars().take(TAIL_WIDTH).collect()).collect::<Vec<String>>().join("\n"))
}

/// The room in memory for dozens of etcd servers at a time, each of which reserves 128 MiB for its log.
const MEMORY_NEEDED: u64 = 8 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_thirty_lines() {
        let directory = Directory::create("tail").unwrap();
        let lines: Vec<String> = (1..=50).map(|n| format!("line {n}")).collect();
        directory.write("server.log", &lines.join("\n")).unwrap();
        assert_eq!(directory.log_tail(), lines[20..].join("\n"));
        directory.write("server.log", &format!("{}ü and more", "ü".repeat(239))).unwrap();
        assert_eq!(directory.log_tail(), "ü".repeat(240));
    }

    #[test]
    fn a_directory_is_removed_when_nothing_failed() {
        let directory = Directory::create("removed").unwrap();
        let path = directory.path().to_path_buf();
        assert!(path.is_dir());
        drop(directory);
        assert!(!path.exists());
    }
}
