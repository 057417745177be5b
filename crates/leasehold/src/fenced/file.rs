//! A file that the processes of one machine share, protected by a fence.
//!
//! Beside `data` is `data.fence`: the newest fence as text, locked while it is compared and while the
//! data is read or replaced. The data is replaced as a whole, by renaming `data.fence.new` over it, which a process
//! that died in the middle leaves to the next writer.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind::{InvalidInput, NotFound, PermissionDenied, ReadOnlyFilesystem};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::{Backoff, Fence};

use super::{NoFence, Stale, compare, required};
use crate::random;

/// A file that only the newest holder may read or replace.
///
/// # Promises
/// After it was opened with a fence, no process with an older one reads or writes it through this type.
/// If the fence is gone, only holders that open the file anew are accepted. Written data is on the disk
/// when [`FencedFile::write`] returns; a crash leaves the old content or the new, never a mixture.
///
/// # Does not promise
/// Processes that do not use this type are not stopped. Network file systems, whose locks can be held
/// twice, are not detected here.
///
/// Calls block for the length of a few system calls and a sync to disk. While another call on the same file is under
/// way, they wait for its end, but no longer than 5 s: then they fail with [`FencedFileError::Busy`]. Those that wait
/// have no order, and a large file or a slow disk can take as long, so the call may be repeated. A process that is
/// stopped in the middle of a call, by SIGSTOP or in a frozen container, excludes all others: it has to continue, or
/// to be ended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, fenced::FencedFile};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("stock");
/// let locks = Client::open("mem:").await?;
/// let guard = locks.mutex("stock").lock().await?;
/// let file = FencedFile::open(&path, guard.fence())?; // before the first read
/// file.write(b"41 left")?;
/// guard.release().await?;
///
/// let next = locks.mutex("stock").lock().await?;
/// assert_eq!(FencedFile::open(&path, next.fence())?.read()?, b"41 left");
/// assert!(file.write(b"40 left").is_err()); // the previous holder
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FencedFile {
    data: PathBuf,
    guard: PathBuf,
    fence: Fence,
    /// The longest wait for the end of another call.
    limit: Duration,
}

/// The locked file of a fence. Dropping it ends the lock.
#[derive(Debug)]
struct FenceLock(File);

impl FenceLock {
    /// Locks the file; `None` if it stays locked for as long as the limit. A wait in the kernel would have no limit.
    fn take(file: File, limit: Duration, sleep: impl Fn(Duration)) -> io::Result<Option<FenceLock>> {
        let (mut backoff, mut waited) = (Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), Duration::ZERO);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(FenceLock(file))),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if waited >= limit => return Ok(None),
                Err(TryLockError::WouldBlock) => {
                    let pause = backoff.failed(random::chance());
                    sleep(pause);
                    waited += pause;
                }
            }
        }
    }
}

impl Drop for FenceLock {
    fn drop(&mut self) {
        // Explicit: a child that was forked meanwhile has a copy of the descriptor, and closing ours would not
        // free the lock as long as that child lives.
        let _ = self.0.unlock();
    }
}

/// The reason why a fenced file was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FencedFileError {
    /// A newer holder was here; nothing was read or written.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The lock has no fence to compare; nothing was read or written.
    #[error(transparent)]
    NoFence(#[from] NoFence),
    /// The file was not free within 5 s: a process that uses it is at work, stopped or hangs. Nothing was read or written.
    #[error(
        "{path} stays locked: a process that uses it is at work, stopped or hangs; wait for it, let it continue, or end \
         it (`fuser -v {path}` shows which), and try again"
    )]
    Busy {
        /// The path of the fence.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The path of the failed operation.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The fence with which it was opened is no longer there. The content may be another as well.
    #[error("{path} no longer holds the fence {yours}: open it again, and check its content")]
    Forgotten {
        /// The path of the fence.
        path: PathBuf,
        /// The fence that was presented.
        yours: Fence,
    },
    /// The stored fence cannot be read. It is left as it is: starting again at nothing would
    /// let old holders in.
    #[error("{path} does not hold a fence; restore it, or remove it once no process uses the file")]
    Damaged {
        /// The path of the fence.
        path: PathBuf,
    },
}

impl FencedFile {
    /// Opens the file at `path` on behalf of `fence`, and excludes every older one.
    ///
    /// The file need not exist yet; its directory must exist. A symbolic link is followed.
    ///
    /// # Errors
    /// `Stale` if a newer fence was here; `NoFence`; `Busy`; `Io`; `Damaged`.
    pub fn open(
        path: impl AsRef<Path>,
        fence: impl Into<Option<Fence>>,
    ) -> Result<FencedFile, FencedFileError> {
        FencedFile::open_within(path.as_ref(), required(fence)?, LIMIT)
    }

    fn open_within(path: &Path, fence: Fence, limit: Duration) -> Result<FencedFile, FencedFileError> {
        let data = followed(path).map_err(|source| FencedFileError::Io { path: path.to_owned(), source })?;
        let mut guard = data.clone().into_os_string();
        guard.push(".fence");
        let file = FencedFile { data, guard: guard.into(), fence, limit };
        let (mut guard, _) = file.admit()?;
        file.raise(&mut guard.0)?;
        Ok(file)
    }

    /// Returns the content; empty if nothing was written yet.
    ///
    /// # Errors
    /// `Stale` if a newer fence was here since; `Forgotten`; `Busy`; `Io`; `Damaged`.
    pub fn read(&self) -> Result<Vec<u8>, FencedFileError> {
        let _guard = self.admit_opened()?;
        match std::fs::read(&self.data) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.map_err(|source| self.failed(&self.data, source)),
        }
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// `Stale` if a newer fence was here since, `Forgotten` and `Busy`: nothing was written; `Io`; `Damaged`.
    pub fn write(&self, content: &[u8]) -> Result<(), FencedFileError> {
        let _guard = self.admit_opened()?;
        self.replace(content).map_err(|source| self.failed(&self.data, source))
    }

    /// Locks the fence as [`FencedFile::admit`], and requires that it is the one with which it was opened.
    fn admit_opened(&self) -> Result<FenceLock, FencedFileError> {
        match self.admit()? {
            (guard, seen) if seen == self.fence => Ok(guard),
            _ => Err(FencedFileError::Forgotten { path: self.guard.clone(), yours: self.fence }),
        }
    }

    /// Locks the fence and compares it.
    fn admit(&self) -> Result<(FenceLock, Fence), FencedFileError> {
        let open = || {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.guard)?;
            let Some(guard) = FenceLock::take(file, self.limit, std::thread::sleep)? else { return Ok(None) };
            let mut text = Vec::new();
            Read::take(&guard.0, 256).read_to_end(&mut text)?;
            Ok(Some((guard, text)))
        };
        let opened = open().map_err(|source| self.failed(&self.guard, source))?;
        let (guard, text) = opened.ok_or_else(|| FencedFileError::Busy { path: self.guard.clone() })?;
        let seen = match text.trim_ascii_end() {
            b"" => Some(Fence::default()),
            text => str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
        };
        let seen = seen.ok_or_else(|| FencedFileError::Damaged { path: self.guard.clone() })?;
        compare(self.fence, seen)?;
        Ok((guard, seen))
    }

    /// Writes the fence in place: a text of one sector, so a crash leaves the old one or the new.
    fn raise(&self, guard: &mut File) -> Result<(), FencedFileError> {
        let mut write = || {
            guard.seek(SeekFrom::Start(0))?;
            guard.write_all(format!("{:<63}\n", self.fence.to_string()).as_bytes())?;
            guard.sync_all()?;
            // The file may be new.
            self.sync_directory()
        };
        write().map_err(|source| self.failed(&self.guard, source))
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        let mut fresh = self.data.clone().into_os_string();
        fresh.push(".fence.new");
        let fresh = PathBuf::from(fresh);
        // A writer that failed may have left it, with permissions that forbid to write it.
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(&fresh)?;
        if let Ok(old) = std::fs::metadata(&self.data) {
            // A private file stays private. Before anything is written.
            file.set_permissions(old.permissions())?;
        }
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&fresh, &self.data)?;
        self.sync_directory()
    }

    fn sync_directory(&self) -> io::Result<()> {
        match File::open(folder_of(&self.data)).and_then(|folder| folder.sync_all()) {
            // A folder that may not be read, or of a file system that syncs it in its own time.
            Err(error) if matches!(error.kind(), PermissionDenied | InvalidInput | ReadOnlyFilesystem) => {
                Ok(())
            }
            synced => synced,
        }
    }

    fn failed(&self, path: &Path, source: io::Error) -> FencedFileError {
        FencedFileError::Io { path: path.to_owned(), source }
    }
}

/// Returns the path of the file to which a path leads, which need not exist. A symbolic link must not have a fence of its
/// own, or be replaced by a file, even if nothing is at its target.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match std::fs::canonicalize(&path) {
            Err(error) if error.kind() == NotFound => {}
            found => return found,
        }
        let Ok(target) = std::fs::read_link(&path) else {
            let name = path.file_name().ok_or(NotFound)?;
            return Ok(std::fs::canonicalize(folder_of(&path))?.join(name));
        };
        path = folder_of(&path).join(target);
    }
    Err(io::Error::other("too many symbolic links"))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The longest wait for the end of other calls. Most syncs to disk take far less; a caller that blocks the only thread
/// of a runtime for longer could lose its lock.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause before the fence is tried again, which doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// The most symbolic links that are followed to a file that does not exist.
const MAX_LINKS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_file_refuses_reads_and_writes_of_stale_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counter");
        let old = FencedFile::open(&path, Fence::new(0, 33, 0)).unwrap();
        assert_eq!(old.read().unwrap(), b"");
        let new = FencedFile::open(&path, Fence::new(0, 34, 0)).unwrap();
        assert!(matches!(old.read(), Err(FencedFileError::Stale(_))));
        assert!(matches!(old.write(b"33"), Err(FencedFileError::Stale(_))));
        new.write(b"34").unwrap();
        assert_eq!(new.read().unwrap(), b"34");
        assert!(FencedFile::open(&path, Fence::new(0, 33, 9)).is_err());
    }

    #[test]
    fn fenced_file_replaces_what_a_writer_that_failed_has_left() {
        let dir = tempfile::tempdir().unwrap();
        let (path, left, other) =
            (dir.path().join("x"), dir.path().join("x.fence.new"), dir.path().join("other"));
        let file = FencedFile::open(&path, Fence::new(0, 1, 0)).unwrap();
        std::fs::write(&left, "a longer text than the next").unwrap();
        let mut permissions = std::fs::metadata(&left).unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&left, permissions).unwrap();
        file.write(b"one").unwrap();
        assert_eq!(file.read().unwrap(), b"one");
        assert!(!std::fs::metadata(&path).unwrap().permissions().readonly());
        // Not by way of a link that leads elsewhere, and not by way of a file of the user.
        for name in ["other", "x.new"] {
            std::fs::write(dir.path().join(name), "of the user").unwrap();
        }
        std::os::unix::fs::symlink(&other, &left).unwrap();
        file.write(b"two").unwrap();
        assert_eq!(file.read().unwrap(), b"two");
        assert!(!std::fs::symlink_metadata(&path).unwrap().is_symlink());
        for name in ["other", "x.new"] {
            assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), b"of the user");
        }
    }

    #[test]
    fn fenced_file_replaces_a_longer_fence_text_completely() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        FencedFile::open(&path, Fence::new(1, 5, 7)).unwrap();
        FencedFile::open(&path, Fence::new(1, 6, 0)).unwrap();
        assert!(FencedFile::open(&path, Fence::new(1, 6, 0)).is_ok());
        assert!(FencedFile::open(&path, Fence::new(1, 5, 9)).is_err());
    }

    #[test]
    fn fenced_file_with_damaged_fence_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for damaged in [&b"12 apples"[..], &[0xff; 64]] {
            std::fs::write(dir.path().join("x.fence"), damaged).unwrap();
            let opened = FencedFile::open(&path, Fence::new(0, 1, 0));
            assert!(matches!(opened, Err(FencedFileError::Damaged { .. })), "{opened:?}");
        }
    }

    /// A child that is forked during a call has copies of the descriptors, for as long as it lives.
    #[test]
    fn fence_is_free_after_a_call_although_a_child_has_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let file = FencedFile::open(&path, Fence::new(0, 1, 0)).unwrap();
        let (admitted, _) = file.admit().unwrap();
        let _copy = admitted.0.try_clone().unwrap();
        drop(admitted);
        let guard = File::open(dir.path().join("x.fence")).unwrap();
        guard.try_lock().unwrap();
    }

    /// A process that is stopped inside a call keeps the fence locked for as long.
    #[test]
    fn fence_that_stays_locked_is_reported_as_busy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let opened = FencedFile::open(&path, Fence::new(0, 1, 0)).unwrap();
        let file = FencedFile { limit: Duration::from_millis(20), ..opened };
        let stopped = File::open(dir.path().join("x.fence")).unwrap();
        stopped.lock().unwrap();
        let newer = FencedFile::open_within(&path, Fence::new(0, 2, 0), file.limit).map(drop);
        for refused in [newer, file.read().map(drop), file.write(b"late")] {
            assert!(matches!(refused, Err(FencedFileError::Busy { .. })), "{refused:?}");
        }
        stopped.unlock().unwrap();
        assert_eq!(file.read().unwrap(), b"");
        // A call that ends in time is waited for.
        stopped.lock().unwrap();
        let waiter = File::open(dir.path().join("x.fence")).unwrap();
        let taken = FenceLock::take(waiter, Duration::MAX, |_| stopped.unlock().unwrap());
        assert!(taken.unwrap().is_some());
    }

    #[test]
    fn fenced_file_whose_fence_was_forgotten_is_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (path, fence) = (dir.path().join("x"), dir.path().join("x.fence"));
        let old = FencedFile::open(&path, Fence::new(0, 1, 0)).unwrap();
        let new = FencedFile::open(&path, Fence::new(0, 2, 0)).unwrap();
        new.write(b"new").unwrap();
        let is_forgotten = |error| matches!(error, FencedFileError::Forgotten { .. });
        for forget in [|path: &Path| std::fs::remove_file(path), |path: &Path| std::fs::write(path, "")] {
            forget(&fence).unwrap();
            assert!(is_forgotten(old.write(b"old").unwrap_err()) && is_forgotten(old.read().unwrap_err()));
            assert!(is_forgotten(new.read().unwrap_err()));
            let new = FencedFile::open(&path, Fence::new(0, 2, 0)).unwrap();
            assert_eq!(new.read().unwrap(), b"new");
        }
    }

    #[cfg(unix)]
    #[test]
    fn fenced_file_behind_a_symbolic_link_is_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("x"), dir.path().join("link"));
        std::fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let file = FencedFile::open(&path, Fence::new(0, 2, 0)).unwrap();
        assert!(matches!(FencedFile::open(&link, Fence::new(0, 1, 0)), Err(FencedFileError::Stale(_))));
        FencedFile::open(&link, Fence::new(0, 2, 0)).unwrap().write(b"new").unwrap();
        assert_eq!(file.read().unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }

    #[cfg(unix)]
    #[test]
    fn fence_behind_a_symbolic_link_counts_although_the_file_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link, far) = (dir.path().join("x"), dir.path().join("link"), dir.path().join("far"));
        std::os::unix::fs::symlink("x", &link).unwrap();
        std::os::unix::fs::symlink(&link, &far).unwrap();
        FencedFile::open(&far, Fence::new(0, 2, 0)).unwrap();
        assert!(matches!(FencedFile::open(&path, Fence::new(0, 1, 0)), Err(FencedFileError::Stale(_))));
        FencedFile::open(&far, Fence::new(0, 3, 0)).unwrap().write(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert!(
            link.symlink_metadata().unwrap().is_symlink() && far.symlink_metadata().unwrap().is_symlink()
        );
        std::os::unix::fs::symlink("circle", dir.path().join("circle")).unwrap();
        assert!(FencedFile::open(dir.path().join("circle"), Fence::new(0, 1, 0)).is_err());
    }
}
