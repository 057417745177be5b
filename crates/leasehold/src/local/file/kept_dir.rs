//! Descriptors of a resource that stay open between the short steps of a claim: its directory, its lock file
//! and its ledger.
//!
//! Ground rules: a descriptor proves nothing about a name. After the short lock was taken by one, the path of
//! the lock, and then the names in its directory, are compared with what is open. The content of the ledger is read
//! each time; only what it says is not parsed again if it is the same. A fork has copies of everything that is open,
//! and a copy keeps a lock: after a fork nothing that was kept is used.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, fstat, statat};
use tokio::sync::OwnedSemaphorePermit;

use super::identity::Identity;
use super::ledger_file::LedgerFile;
use super::resource_dir::{DirLock, LOCK, ResourceDir};
use super::store_dir::Root;

/// The kept descriptors of one resource. They are used by one step at a time.
#[derive(Debug)]
pub(super) struct KeptDir {
    open: Open,
    /// As it was at the end of the last step.
    ledger: LedgerFile,
}

/// The open files beside the ledger.
#[derive(Debug)]
struct Open {
    dir: ResourceDir,
    lock: Arc<OwnedFd>,
    lock_path: PathBuf,
    lock_identity: Identity,
    /// The number of forks before anything was opened.
    forks: u64,
    _permit: OwnedSemaphorePermit,
}

/// The result of taking the short lock by a kept descriptor.
pub(super) enum Retaken {
    /// The lock is taken, and the ledger was read under it.
    Ready(Step),
    /// Another step has the lock at this moment.
    Busy(KeptDir),
    /// The descriptors are of no more use: open them anew.
    Stale,
}

/// A step by kept descriptors, under the short lock. Dropping it releases the lock.
pub(super) struct Step {
    pub(super) ledger: LedgerFile,
    open: Open,
    // The last field, so that it is released last.
    lock: DirLock,
}

impl KeptDir {
    /// Keeps what a step under the short lock has open; `None` if it cannot be kept. `forks` was counted before
    /// the step opened anything.
    pub(super) fn of(
        dir: ResourceDir,
        lock: &DirLock,
        ledger: LedgerFile,
        forks: Option<u64>,
        permit: OwnedSemaphorePermit,
    ) -> Option<KeptDir> {
        let (forks, lock) = (forks?, lock.file().clone());
        let (lock_path, lock_identity) = (dir.path_to(LOCK), Identity::of(&fstat(&*lock).ok()?));
        let open = Open { dir, lock, lock_path, lock_identity, forks, _permit: permit };
        ledger.without_access_times();
        ledger.is_small().then_some(KeptDir { open, ledger })
    }

    /// Takes the short lock, if it is free, and reads the ledger. Waits for nothing.
    pub(super) fn retake(self, root: &Root) -> Retaken {
        let KeptDir { open, ledger } = self;
        if leasehold_machine::forks() != Some(open.forks) {
            return Retaken::Stale;
        }
        let Some(lock) = DirLock::retake(&open.lock) else { return Retaken::Busy(KeptDir { open, ledger }) };
        // The path of the lock leads to the directory as well.
        let is_in_place = statat(CWD, &open.lock_path, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| Identity::of(&found) == open.lock_identity)
            && ledger.is_in(&open.dir);
        if !is_in_place {
            return Retaken::Stale;
        }
        match ledger.refreshed(root) {
            Some(ledger) => Retaken::Ready(Step { ledger, open, lock }),
            None => Retaken::Stale,
        }
    }
}

impl Step {
    pub(super) fn dir(&self) -> &ResourceDir {
        &self.open.dir
    }

    /// Writes the ledger. Returns `false` if that failed; then nothing may be kept.
    pub(super) fn save(&mut self, root: &Root) -> bool {
        self.ledger.save(root, &self.open.dir).is_ok()
    }

    /// Ends the step, and keeps its descriptors if the ledger was not replaced.
    pub(super) fn end(self) -> Option<KeptDir> {
        let Step { ledger, open, lock } = self;
        drop(lock);
        ledger.is_small().then_some(KeptDir { open, ledger })
    }
}
