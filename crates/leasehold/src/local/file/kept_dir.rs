//! Descriptors of a resource that stay open between the short steps of a claim: its directory, its lock file
//! and its ledger.
//!
//! Ground rules: a descriptor proves nothing about a name. After the short lock was taken by one, the paths of
//! the lock and of the ledger are compared with what is open, as a step that opens them anew does. A fork has
//! copies of everything that is open, and a copy keeps a lock: after a fork nothing that was kept is used.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, fstat, statat};
use tokio::sync::OwnedSemaphorePermit;

use super::ledger_file::{self, LedgerFile, OpenLedger};
use super::resource_dir::{DirLock, Identity, LOCK, ResourceDir};
use super::store_dir::Root;

/// The kept descriptors of one resource. They are used by one step at a time.
#[derive(Debug)]
pub(super) struct KeptDir {
    dir: Arc<ResourceDir>,
    lock: Kept<Arc<OwnedFd>>,
    ledger: Kept<OpenLedger>,
    forks: u64,
    _permit: OwnedSemaphorePermit,
}

/// A descriptor, and the path that has to lead to it.
#[derive(Debug)]
struct Kept<T> {
    file: T,
    path: PathBuf,
    identity: Identity,
}

/// The result of taking the short lock by a kept descriptor.
pub(super) enum Retaken {
    /// The lock is taken, and this is the queue.
    Ready(DirLock, Box<LedgerFile>),
    /// Another step has the lock at this moment.
    Busy,
    /// The descriptors are of no more use: open them anew.
    Stale,
}

impl KeptDir {
    /// Keeps what a step under the short lock has open; `None` if it cannot be kept. `forks` was counted before
    /// the step opened anything.
    pub(super) fn of(
        dir: &Arc<ResourceDir>,
        lock: &DirLock,
        ledger: &LedgerFile,
        forks: Option<u64>,
        permit: OwnedSemaphorePermit,
    ) -> Option<KeptDir> {
        let forks = forks?;
        let lock_file = lock.file().clone();
        let identity = Identity::of(&fstat(&*lock_file).ok()?);
        let lock = Kept { path: dir.path_to(LOCK), identity, file: lock_file };
        let file = ledger.file()?;
        let ledger = Kept { path: dir.path_to(ledger_file::NAME), identity: file.identity, file };
        Some(KeptDir { dir: dir.clone(), lock, ledger, forks, _permit: permit })
    }

    pub(super) fn dir(&self) -> &ResourceDir {
        &self.dir
    }

    /// Takes the short lock, if it is free, and reads the ledger. Waits for nothing.
    pub(super) fn retake(&self, root: &Root) -> Retaken {
        if leasehold_machine::forks() != Some(self.forks) {
            return Retaken::Stale;
        }
        let Some(lock) = DirLock::retake(&self.lock.file) else { return Retaken::Busy };
        if !leads_to(&self.lock.path, self.lock.identity)
            || !leads_to(&self.ledger.path, self.ledger.identity)
        {
            return Retaken::Stale;
        }
        match LedgerFile::reopen(root, &self.ledger.file) {
            Some(ledger) => Retaken::Ready(lock, Box::new(ledger)),
            None => Retaken::Stale,
        }
    }
}

fn leads_to(path: &Path, identity: Identity) -> bool {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| Identity::of(&found) == identity)
}
