//! The sign of life of one claim: a FIFO that its process keeps open and locked.
//!
//! The kernel drops the lock, and then closes the FIFO, when the process ends in any way. A waiter for
//! the claim has the reading end open and is woken by the hang-up, and finds the lock free.
//!
//! Ground rules: a FIFO is locked before its claim is in the ledger, and removed before it leaves it,
//! so that a claim of the ledger without a locked FIFO is dead, whenever its process was killed. A byte
//! in a FIFO means only "read the queue again", and is never read: a reader would take it away from the
//! others.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{ClaimId, Failure, Share};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, mknodat, openat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::failure::{cannot, foreign, redacted, unsupported};
use super::identity::Identity;
use super::resource_dir::{ResourceDir, pause};
use super::store_dir::Root;

/// The highest place that a name or a ledger is believed. Claims that are counted from 1 never come near it.
pub(super) const LAST_PLACE: u64 = u64::MAX / 2;

/// The content of the name of a FIFO: enough to rebuild the queue without a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FifoName {
    /// The place: it rises with each claim of a resource, so that the order of names is the
    /// order of the queue.
    pub(super) place: u64,
    pub(super) share: Share,
    pub(super) id: ClaimId,
}

impl FifoName {
    pub(super) fn text(&self) -> String {
        let FifoName { place, share, id } = self;
        format!("{PREFIX}{place:020}-{}-{}-{}", share.weight(), share.capacity(), id.to_hex())
    }

    /// Returns the name under which a broken claim lives on, until its process ends it.
    pub(super) fn revoked(&self) -> String {
        self.text() + REVOKED
    }

    pub(super) fn parse(text: &str) -> Option<FifoName> {
        let text = text.strip_suffix(REVOKED).unwrap_or(text);
        let mut parts = text.strip_prefix(PREFIX)?.split('-');
        let place = parts.next()?.parse().ok().filter(|place| *place <= LAST_PLACE)?;
        let share = Share::permits(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?).ok()?;
        let id = ClaimId::from_hex(parts.next()?)?;
        parts.next().is_none().then_some(FifoName { place, share, id })
    }
}

/// The sign of life of a claim of this process.
pub(super) struct LivenessFifo {
    file: OwnedFd,
    named: Mutex<Named>,
    /// `true` once another process was given a copy of the descriptor.
    was_copied: AtomicBool,
    /// The number of forks before it was opened: the child of a later one has a copy of the descriptor.
    forks: Option<u64>,
    identity: Identity,
    /// The resource directory in which it was made.
    pub(super) dir: Identity,
}

/// The name of a FIFO. It changes when a claim uses the FIFO of which the name says something else.
#[derive(Debug)]
struct Named {
    path: PathBuf,
    name: FifoName,
    /// `true` if the id in the name is that of no claim. So what is found under the name of a claim belongs to it.
    is_of_no_claim: bool,
}

impl fmt::Debug for LivenessFifo {
    /// Shows the path without the claim's id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LivenessFifo").field(&redacted(&self.path())).finish()
    }
}

impl LivenessFifo {
    /// Makes and locks it. Called under the short lock of the resource directory.
    pub(super) fn make(root: &Root, dir: &ResourceDir, name: &FifoName) -> Result<LivenessFifo, Failure> {
        let text = name.text();
        let path = dir.path_to(&text);
        let forks = leasehold_machine::forks();
        make_fifo(root, dir, &text)?;
        match open_and_lock(root, dir, &text) {
            Ok((identity, file)) => {
                let named = Mutex::new(Named { path, name: *name, is_of_no_claim: false });
                let was_copied = AtomicBool::new(false);
                Ok(LivenessFifo { file, named, was_copied, forks, identity, dir: dir.identity })
            }
            Err(cause) => {
                let _ = unlinkat(dir.at(), &*text, AtFlags::empty());
                Err(cause)
            }
        }
    }

    /// Gives it to the next claim, which would live by a FIFO of the name `claim`, and returns the name under which
    /// it is found from now on. Called under the short lock of the resource directory, after
    /// [`LivenessFifo::rest`]. If the result is `None`, it cannot be used any more.
    pub(super) fn reuse(&self, dir: &ResourceDir, claim: &FifoName) -> Option<FifoName> {
        let name = {
            let mut named = self.named();
            // A rename takes longer than everything else that an uncontended lock costs. The claim is the first in the
            // queue, so a lower place in the name leaves the order as it is. A higher one is found if an older ledger
            // was restored.
            let fits =
                named.is_of_no_claim && named.name.share == claim.share && named.name.place < claim.place;
            if !fits {
                let name = FifoName { id: draw_id()?, ..*claim };
                let text = name.text();
                renameat(dir.at(), named.path.file_name()?, dir.at(), &*text).ok()?;
                *named = Named { path: dir.path_to(&text), name, is_of_no_claim: true };
            }
            named.name
        };
        // The name may lead to something else by now.
        let is_ours = self.is_in(dir) && flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok();
        is_ours.then_some(name)
    }

    /// Returns `true` if its name in `dir` leads to it. Cheaper than [`LivenessFifo::is_in_place`], for a directory
    /// that is known to be in place.
    pub(super) fn is_in(&self, dir: &ResourceDir) -> bool {
        let named = self.named();
        let name = named.path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| dir.leads_to(name, self.identity))
    }

    /// Ends the sign of life, for a claim that nobody watches, and keeps the FIFO for [`LivenessFifo::reuse`].
    pub(super) fn rest(&self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }

    /// Returns a copy of the descriptor for another process.
    pub(super) fn copy(&self) -> Option<OwnedFd> {
        // Set first: the copy keeps every claim alive that uses this FIFO.
        self.was_copied.store(true, Ordering::Release);
        self.file.try_clone().ok()
    }

    /// Returns `true` if another process may have a copy of the descriptor.
    pub(super) fn was_copied(&self) -> bool {
        let is_forked = self.forks.is_none() || self.forks != leasehold_machine::forks();
        is_forked || self.was_copied.load(Ordering::Acquire)
    }

    /// Returns `true` if its name still leads to it. If not, the claim was broken, or the store was removed.
    pub(super) fn is_in_place(&self) -> Result<bool, Failure> {
        let named = self.named();
        match statat(CWD, &named.path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Identity::of(&stat) == self.identity),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(cause) => Err(cannot("look at", &named.path, cause)),
        }
    }

    fn named(&self) -> MutexGuard<'_, Named> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self) -> PathBuf {
        self.named().path.clone()
    }

    /// Removes its name. Returns `false` if that no longer leads to it.
    pub(super) fn remove(&self) -> Result<bool, Failure> {
        let is_in_place = self.is_in_place()?;
        if is_in_place {
            // A FIFO that cannot be removed is found dead later, and removed then.
            let _ = rustix::fs::unlink(self.path());
        }
        Ok(is_in_place)
    }

    /// Ends the sign of life, and notifies its watchers.
    pub(super) fn end(&self) {
        // Both are explicit: a child between fork and exec has a copy of the descriptor, and closing
        // ours would neither free the lock nor hang up before that child reaches its exec.
        let _ = flock(&self.file, FlockOperation::Unlock);
        self.wake_watchers();
    }

    /// Wakes its watchers, so that they read the queue again.
    pub(super) fn wake_watchers(&self) {
        wake_watchers(self.file.as_fd());
    }
}

impl AsFd for LivenessFifo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for LivenessFifo {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// The result of looking for a living claim.
#[derive(Debug)]
pub(super) enum Probe {
    /// It lives; this is the reading end of its FIFO.
    Alive(OwnedFd),
    /// Its process ended, or it left.
    Gone,
}

/// Checks whether a claim lives. The reading end is open before the lock is tried, so that a later end
/// is noticed as a hang-up.
pub(super) fn probe(dir: &ResourceDir, name: &FifoName) -> Result<Probe, Failure> {
    let (text, revoked) = (name.text(), name.revoked());
    // A claim may be renamed between the two attempts, but only in this direction.
    for text in [text, revoked] {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = match openat(dir.at(), &*text, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => continue,
            Err(cause) => return Err(cannot("open", &dir.path_to(&text), cause)),
        };
        return match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Probe::Gone),
            Err(Errno::AGAIN) => Ok(Probe::Alive(file)),
            Err(cause) => Err(cannot("try the lock of", &dir.path_to(&text), cause)),
        };
    }
    Ok(Probe::Gone)
}

/// Returns `true` if the claim behind the reading end of a FIFO has ended.
pub(super) fn has_ended(file: BorrowedFd<'_>) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Notifies the process of a claim that it was broken: its FIFO loses its name, and the process is woken.
pub(super) fn revoke(dir: &ResourceDir, name: &FifoName) -> Result<(), Failure> {
    let (text, revoked) = (name.text(), name.revoked());
    match renameat(dir.at(), &*text, dir.at(), &*revoked) {
        // Another process has broken it before.
        Ok(()) | Err(Errno::NOENT) => {}
        Err(cause) => return Err(cannot("break", &dir.path_to(&text), cause)),
    }
    wake(dir, &revoked);
    Ok(())
}

/// Removes the FIFO of a claim, and wakes its process, if there is one.
pub(super) fn remove_and_wake(dir: &ResourceDir, name: &FifoName) -> Result<(), Failure> {
    for text in [name.text(), name.revoked()] {
        wake(dir, &text);
        match unlinkat(dir.at(), &*text, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(cause) => return Err(cannot("remove", &dir.path_to(&text), cause)),
        }
    }
    Ok(())
}

/// Returns all signs of life in a resource directory, in the order of the queue, dead or alive; at most
/// `MAX_FILES`.
pub(super) fn all(dir: &ResourceDir) -> Result<Vec<FifoName>, Failure> {
    let failed = |cause| cannot("list", dir.path(), cause);
    let mut found = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(dir.at(), ".", flags, Mode::empty()).map_err(failed)?;
    for entry in Dir::new(directory).map_err(failed)?.take(MAX_FILES) {
        let entry = entry.map_err(failed)?;
        found.extend(entry.file_name().to_str().ok().and_then(FifoName::parse));
    }
    // A process that was killed before it wrote the ledger leaves a FIFO, and the next claim gets the same
    // place: only two names of one claim may become one.
    found.sort_by_key(|name| (name.place, name.id));
    found.dedup();
    Ok(found)
}

fn make_fifo(root: &Root, dir: &ResourceDir, text: &str) -> Result<(), Failure> {
    let path = dir.path_to(text);
    for _ in 0..2 {
        match mknodat(dir.at(), text, FileType::Fifo, root.file_mode(), 0) {
            Ok(()) => return Ok(()),
            // Left by an earlier attempt of the same claim that could not clean up.
            Err(Errno::EXIST) => {
                let removed = unlinkat(dir.at(), text, AtFlags::empty());
                removed.map_err(|cause| cannot("remove", &path, cause))?;
            }
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                return Err(unsupported(
                    dir.path(),
                    "lies on a file system without FIFOs, which the file store needs to wake waiters: \
                     name a directory on an ordinary local file system",
                ));
            }
            Err(cause) => return Err(cannot("create", &path, cause)),
        }
    }
    Err(foreign(&path, "appears again and again: another program creates it"))
}

fn open_and_lock(root: &Root, dir: &ResourceDir, text: &str) -> Result<(Identity, OwnedFd), Failure> {
    let path = dir.path_to(text);
    let failed = |cause| cannot("open and lock", &path, cause);
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = openat(dir.at(), text, flags, Mode::empty()).map_err(failed)?;
    let found = fstat(&file).map_err(failed)?;
    // In a shared store another user may have put a link to some file in its place. Its mode is
    // not ours to set.
    if FileType::from_raw_mode(found.st_mode) != FileType::Fifo {
        return Err(foreign(&path, "is not a FIFO any more: another user of this store replaced it"));
    }
    if root.is_shared() {
        fchmod(&file, root.file_mode()).map_err(failed)?;
    }
    // An observer without the short lock may try the lock at this very moment, and releases it at once.
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => pause(LOCK_PAUSE),
            locked => return locked.map(|()| (Identity::of(&found), file)).map_err(failed),
        }
    }
    Err(failed(Errno::AGAIN))
}

fn wake(dir: &ResourceDir, text: &str) {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    // Without a reader no process needs to be woken: the process of the claim always has it open for
    // reading.
    if let Ok(file) = openat(dir.at(), text, flags, Mode::empty()) {
        wake_watchers(file.as_fd());
    }
}

fn wake_watchers(file: BorrowedFd<'_>) {
    // A full FIFO has woken every watcher already.
    let _ = rustix::io::write(file, b"!");
}

/// Draws an id that no claim has; `None` without random numbers.
fn draw_id() -> Option<ClaimId> {
    let mut bytes = [0; 16];
    crate::random::fill(&mut bytes).ok()?;
    Some(ClaimId::from_bytes(bytes))
}

const PREFIX: &str = "claim-";
const REVOKED: &str = ".revoked";
const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_micros(50);
/// Far more than a queue may have; a directory with more is not ours.
const MAX_FILES: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Another user of a shared store can put a link to any file in the place of a FIFO.
    #[test]
    fn mode_of_a_file_that_is_not_a_fifo_is_unchanged() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        let config = super::super::FileConfig::new(base.path().join("store")).mode(0o666).unwrap();
        let root = Root::open(config).unwrap();
        let limit = super::super::resource_dir::Limit::fixed(Duration::from_secs(60));
        let resource = leasehold_core::Resource::new("a").unwrap();
        let (dir, _lock) = ResourceDir::lock_or_create(&root, &resource, &limit).unwrap();
        let (file, sign) = (base.path().join("secret"), dir.path_to("claim-1"));
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::hard_link(&file, &sign).unwrap();
        let refused = open_and_lock(&root, &dir, "claim-1").unwrap_err();
        assert!(refused.detail().contains("not a FIFO"), "{refused}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn fifo_name_reads_back_and_sorts_in_queue_order() {
        let id = ClaimId::from_bytes([7; 16]);
        let name = FifoName { place: 9, share: Share::permits(2, 5).unwrap(), id };
        assert_eq!(FifoName::parse(&name.text()), Some(name));
        assert_eq!(FifoName::parse(&name.revoked()), Some(name));
        assert!(FifoName { place: 10, ..name }.text() > name.text());
        // Another place has to follow each of them.
        let [last, beyond] = [LAST_PLACE, u64::MAX].map(|place| FifoName { place, ..name });
        assert_eq!(FifoName::parse(&last.text()), Some(last));
        for bad in ["lock", "claim-", "claim-1-0-5-07", &(name.text() + "-x"), &beyond.text()] {
            assert_eq!(FifoName::parse(bad), None, "{bad}");
        }
    }

    /// A process that is killed before it writes the ledger leaves a FIFO, whose place the next claim gets.
    #[test]
    fn leftover_hides_no_living_claim_of_the_same_place() {
        let base = tempfile::tempdir().unwrap();
        let root = Root::open(super::super::FileConfig::new(base.path().join("store"))).unwrap();
        let limit = super::super::resource_dir::Limit::fixed(Duration::from_secs(60));
        let resource = leasehold_core::Resource::new("a").unwrap();
        let (dir, _lock) = ResourceDir::lock_or_create(&root, &resource, &limit).unwrap();
        let name = |id| FifoName { place: 1, share: Share::MUTEX, id: ClaimId::from_bytes([id; 16]) };
        let made = [1, 2].map(|id| LivenessFifo::make(&root, &dir, &name(id)).unwrap());
        revoke(&dir, &name(1)).unwrap();
        let found = all(&dir).unwrap();
        assert!(found.contains(&name(1)) && found.contains(&name(2)), "{found:?}");
        drop(made);
    }
}
