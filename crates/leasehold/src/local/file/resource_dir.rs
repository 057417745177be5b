//! The directory of one resource, and the short lock under which it is changed.
//!
//! Ground rules: every file in a resource directory is named relative to its descriptor, so that no half
//! of a change is made in another directory of the same name. After the short lock was taken, the path
//! is compared with the locked directory, because a directory may have been removed, and made again by
//! another process, in between.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Clock, Effect, Failure, FailureKind, Moment, Patience, Resource, doubled};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::directory::{self, is_trusted_owner};
use super::failure::{cannot, denied, foreign};
use super::identity::Identity;
use super::store_dir::Root;
use crate::SystemClock;

/// The directory of one resource.
#[derive(Debug)]
pub(super) struct ResourceDir {
    path: PathBuf,
    directory: OwnedFd,
    /// The identity of the directory, even if its path leads elsewhere later.
    pub(super) identity: Identity,
}

impl ResourceDir {
    /// Finds the directory of a resource; `None` if there is none.
    pub(super) fn find(root: &Root, resource: &Resource) -> Result<Option<ResourceDir>, Failure> {
        ResourceDir::named(root, &Root::name_of(resource))
    }

    /// Finds the resource directory of this name; `None` if none exists.
    pub(super) fn named(root: &Root, name: &str) -> Result<Option<ResourceDir>, Failure> {
        let path = root.path().join(name);
        let Some(store) = root.now()? else { return Ok(None) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(store.at(), name, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            Err(cause) => return Err(cannot("open", &path, root.noted(&store, cause))),
        };
        let stat = fstat(&directory).map_err(|cause| cannot("look at", &path, cause))?;
        if store.is_open_to_all() && !root.is_shared() && !is_trusted_owner(stat.st_uid) {
            return Err(denied(
                &path,
                "belongs to another user, in a store that all users may write to: use a directory of your own",
            ));
        }
        Ok(Some(ResourceDir { path, directory, identity: Identity::of(&stat) }))
    }

    /// Returns the directory of a resource and its short lock; creates them if they do not exist.
    pub(super) fn lock_or_create(
        root: &Root,
        resource: &Resource,
        limit: &Limit,
    ) -> Result<(ResourceDir, DirLock), Failure> {
        for _ in 0..MAX_REOPEN {
            let dir = match ResourceDir::find(root, resource)? {
                Some(dir) => dir,
                None => {
                    ResourceDir::make(root, resource)?;
                    continue;
                }
            };
            if let Some(lock) = dir.lock(root, limit, OFlags::CREATE)? {
                dir.compare_name(root, resource)?;
                return Ok((dir, lock));
            }
        }
        Err(Failure::unavailable(format!(
            "{} is removed again and again while it is entered: another program cleans this directory up",
            root.path_of(resource).display()
        )))
    }

    /// Returns the directory of a resource and its short lock; `None` if the directory does not exist.
    pub(super) fn lock_existing(
        root: &Root,
        resource: &Resource,
        limit: &Limit,
    ) -> Result<Option<(ResourceDir, DirLock)>, Failure> {
        for _ in 0..MAX_REOPEN {
            let Some(dir) = ResourceDir::find(root, resource)? else { return Ok(None) };
            if let Some(lock) = dir.lock(root, limit, OFlags::empty())? {
                return Ok(Some((dir, lock)));
            }
        }
        Ok(None)
    }

    pub(super) fn at(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in it, for people.
    pub(super) fn path_to(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file in it that is, or becomes, a regular file.
    pub(super) fn open_file(&self, root: &Root, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        // NONBLOCK: another kind of file that was put there must not stop us.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = openat(&self.directory, name, flags, root.file_mode())?;
        if flags.contains(OFlags::CREATE) && root.is_shared() {
            // If it belongs to another user already, its mode is theirs to set.
            match fchmod(&opened, root.file_mode()) {
                Ok(()) | Err(Errno::PERM) => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(opened)
    }

    /// Replaces a file as a whole, so that after a crash it is either the old or the new one.
    pub(super) fn replace_file(
        &self,
        root: &Root,
        name: &str,
        content: &[u8],
        sync: Sync,
    ) -> Result<(), Failure> {
        let temporary = format!("{name}.new");
        let path = self.path_to(name);
        let written = self
            .write_new(root, &temporary, content, sync)
            .and_then(|()| renameat(&self.directory, &*temporary, &self.directory, name));
        if let Err(cause) = written {
            // The space is needed; the old file is untouched.
            let _ = unlinkat(&self.directory, &*temporary, AtFlags::empty());
            return Err(cannot("write", &path, cause));
        }
        if sync == Sync::Durable { directory::sync(&self.path) } else { Ok(()) }
    }

    fn write_new(&self, root: &Root, name: &str, content: &[u8], sync: Sync) -> Result<(), Errno> {
        // The rest of a writer that was killed; no other process writes it now, under the short lock.
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(cause) => return Err(cause),
        }
        let file = self.open_file(root, name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        write_all_at(file.as_fd(), content, 0)?;
        if sync == Sync::Durable { rustix::fs::fsync(&file) } else { Ok(()) }
    }

    fn make(root: &Root, resource: &Resource) -> Result<(), Failure> {
        // The whole store was removed under us.
        let Some(store) = root.now()? else { return root.make() };
        let name = Root::name_of(resource);
        match directory::make(store.at(), Path::new(&name), root.directory_mode(), root.is_shared()) {
            // If the store was removed since, the next round makes it.
            Ok(()) | Err(Errno::EXIST | Errno::NOENT) => Ok(()),
            Err(cause) => Err(cannot("create", &root.path_of(resource), root.noted(&store, cause))),
        }
    }

    /// Takes the short lock; `None` if the directory was removed meanwhile.
    fn lock(&self, root: &Root, limit: &Limit, create: OFlags) -> Result<Option<DirLock>, Failure> {
        let path = self.path_to(LOCK);
        for _ in 0..MAX_REOPEN {
            let file = match self.open_file(root, LOCK, OFlags::RDWR | create) {
                Ok(file) => file,
                Err(Errno::NOENT) => return Ok(None),
                // In a shared store another process may be between making it and setting its mode.
                Err(Errno::ACCESS) if root.is_shared() && limit.pause(0) => continue,
                Err(cause) => return Err(cannot("open", &path, cause)),
            };
            lock_in_time(&file, &path, limit)?;
            let lock = DirLock(Arc::new(file));
            let stat = fstat(&*lock.0).map_err(|cause| cannot("look at", &path, cause))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(foreign(&path, "is not an ordinary file: remove it"));
            }
            match statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(named) if Identity::of(&named) == Identity::of(&stat) => return Ok(Some(lock)),
                // The file, or the whole directory, was replaced during the wait: this lock is one that
                // no other process uses.
                Ok(_) if self.is_in_place() => {}
                Ok(_) | Err(Errno::NOENT) => return Ok(None),
                Err(cause) => return Err(cannot("look at", &path, cause)),
            }
        }
        Ok(None)
    }

    /// Returns `true` if the path still leads here.
    pub(super) fn is_in_place(&self) -> bool {
        statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| Identity::of(&stat) == self.identity)
    }

    /// Returns `true` if this name in it leads to that file.
    pub(super) fn leads_to(&self, name: &str, file: Identity) -> bool {
        statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| Identity::of(&stat) == file)
    }

    /// Compares the name: a hashed directory name does not carry it, so it is kept in a file.
    fn compare_name(&self, root: &Root, resource: &Resource) -> Result<(), Failure> {
        let hashed = self.path.file_name().and_then(|name| name.to_str()).is_some_and(Resource::is_hashed);
        if !hashed {
            return Ok(());
        }
        match self.read_name()? {
            Some(name) if name == resource.as_str() => Ok(()),
            // An empty file is left by a power failure if the name of the file reached the disk
            // before its content.
            None => self.replace_file(root, NAME, resource.as_str().as_bytes(), Sync::Durable),
            Some(name) if name.is_empty() => {
                self.replace_file(root, NAME, resource.as_str().as_bytes(), Sync::Durable)
            }
            Some(_) => Err(foreign(
                &self.path_to(NAME),
                "has the name of another resource, whose hash is the same, or is damaged: rename one of \
                 the two, or remove the directory when no process uses it",
            )),
        }
    }

    /// Returns the name kept in a file, if there is one.
    pub(super) fn read_name(&self) -> Result<Option<String>, Failure> {
        let path = self.path_to(NAME);
        match read_file(self.at(), NAME, Resource::MAX_BYTES) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(cannot("read", &path, cause)),
        }
    }
}

/// The short lock of a resource directory. Held for one change only, never over a wait.
#[derive(Debug)]
pub(super) struct DirLock(Arc<OwnedFd>);

impl DirLock {
    /// Takes the short lock by the descriptor of an earlier one, if it is free.
    pub(super) fn retake(file: &Arc<OwnedFd>) -> Option<DirLock> {
        flock(&**file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(DirLock(file.clone()))
    }

    /// Returns the descriptor, which is locked as long as this value lives.
    pub(super) fn file(&self) -> &Arc<OwnedFd> {
        &self.0
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Explicit: a child between fork and exec has a copy of the descriptor, and closing ours would
        // not free the lock before that child reaches its exec.
        let _ = flock(&*self.0, FlockOperation::Unlock);
    }
}

/// The choice whether a file must survive a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sync {
    Durable,
    Cached,
}

/// The time for which a short lock is waited for.
#[derive(Debug)]
pub(super) struct Limit {
    since: Moment,
    least: Duration,
    patience: Option<Patience>,
}

impl Limit {
    /// Waits until patience ends, but long enough for others to finish steps of microseconds.
    pub(super) fn of(patience: &Patience) -> Limit {
        Limit { since: SystemClock.now(), least: LEAST_WAIT, patience: Some(patience.clone()) }
    }

    /// Returns the limit for calls that have no patience of their own.
    pub(super) fn fixed(least: Duration) -> Limit {
        Limit { since: SystemClock.now(), least, patience: None }
    }

    fn is_over_at(&self, now: Moment) -> bool {
        let waited = now.since(self.since);
        waited >= MOST_WAIT
            || waited >= self.least && self.patience.as_ref().is_none_or(|patience| patience.is_ended())
    }

    /// Sleeps a little longer with each round. Returns `false` when the time is over.
    fn pause(&self, round: u32) -> bool {
        if self.is_over_at(SystemClock.now()) {
            return false;
        }
        // Another process that locks in a loop has the short lock nearly all the time, and leaves it for some
        // microseconds again and again. With few and long pauses this one would rarely meet such a gap.
        let longest = if round < SHORT_PAUSES { SHORT_PAUSE } else { LAST_PAUSE };
        pause(doubled(FIRST_PAUSE, longest, round));
        true
    }
}

/// Waits for the lock in short sleeps, not in the kernel: a blocked thread could not be notified that
/// patience has ended, and would keep the runtime from shutting down while a stopped process keeps the lock.
fn lock_in_time(file: &OwnedFd, path: &Path, limit: &Limit) -> Result<(), Failure> {
    for round in 0.. {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN | Errno::INTR) if limit.pause(round) => {}
            Err(Errno::AGAIN | Errno::INTR) => break,
            Err(cause) => return Err(cannot("lock", path, cause)),
        }
    }
    Err(Failure::new(
        FailureKind::Unavailable,
        Effect::None,
        format!(
            "{} stays locked, which should last microseconds: a process that uses it is stopped or hangs; \
             `fuser -v {}` shows which",
            path.display(),
            path.display()
        ),
    ))
}

/// Blocks a blocking thread of the runtime, which is the purpose of these threads, while another
/// process finishes a change.
pub(super) fn pause(length: Duration) {
    std::thread::sleep(length);
}

/// Reads a whole file in a resource directory; one byte more than `max` if it is longer.
pub(super) fn read_file(at: BorrowedFd<'_>, name: &str, max: usize) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(at, name, flags, Mode::empty())?;
    let mut bytes = vec![0; max + 1];
    let length = read_all_at(file.as_fd(), &mut bytes, 0)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Reads from `offset` until `buffer` is full or the file ends.
pub(super) fn read_all_at(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(done)
}

/// Writes all of `content` at `offset`.
pub(super) fn write_all_at(file: BorrowedFd<'_>, content: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < content.len() {
        match rustix::io::pwrite(file, &content[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

pub(super) const LOCK: &str = "lock";
const NAME: &str = "name";
/// The number of times that a path may change under us before we give up.
const MAX_REOPEN: u32 = 100;
/// The time for which a call whose patience has ended still waits for others in the middle of a change. The
/// first grant of a resource syncs to the disk three times, which takes more than a second on a busy one.
const LEAST_WAIT: Duration = Duration::from_secs(5);
/// The longest time for a change of a process that is not stopped.
const MOST_WAIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_micros(20);
/// The longest pause of the first rounds, and their number: some 40 ms, which is more than any change takes that
/// writes nothing to the disk.
const SHORT_PAUSE: Duration = Duration::from_micros(160);
const SHORT_PAUSES: u32 = 200;
const LAST_PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_the_short_lock_has_a_least_and_a_longest_time() {
        let (impatient, patient) =
            (Patience::none(Arc::new(SystemClock)), Patience::unlimited(Arc::new(SystemClock)));
        let is_over_after = |waited: u64, patience: &Patience| {
            let limit = Limit::of(patience);
            limit.is_over_at(limit.since.after(Duration::from_millis(waited)))
        };
        assert!(!is_over_after(4_999, &impatient), "another process may need it for some milliseconds");
        assert!(is_over_after(5_000, &impatient));
        assert!(!is_over_after(9_999, &patient));
        assert!(is_over_after(10_000, &patient), "the process that has it is stopped, or hangs");
    }
}
