//! The store in files: locks between all processes of one machine, without a server.
//!
//! # How it works
//! Each resource has a directory of its own. It contains
//!
//! | file | content |
//! |---|---|
//! | `ledger` | the queue of claims ([`Ledger`](leasehold_core::Ledger)), in two slots written in turn |
//! | `lock` | `flock`ed for the microseconds in which the ledger is changed; never for a wait |
//! | `claim-…` | one FIFO for each claim, open and `flock`ed by the process of the claim: its sign of life. One that is not locked is left by an earlier claim |
//! | `fence` | the number up to which fences are reserved, synced to the disk |
//! | `name` | the full name of the resource, if the directory's name is a hash of it |
//! | `value` | the register of the same name, once written; replaced as a whole, and synced to the disk |
//!
//! **A claim lives exactly as long as its process keeps its FIFO locked.** When the process ends, in
//! any way, the kernel first drops the lock and then closes the FIFO; the hang-up wakes the next claim
//! in the queue, which finds the lock free, removes the dead claim from the ledger and holds. The ttl
//! ends nothing, and only says how often a holder checks its files: a process that is stopped (SIGSTOP, a
//! debugger, a suspended machine) keeps its locks, and its place in the queue.
//!
//! **A waiter sleeps in the kernel** on the FIFO of its predecessor only: no polling, no thread, no
//! herd. A waiter for part of a resource, when all claims ahead of it hold, watches all of them (64 at
//! most; beyond that it also reads the queue four times a second). A claim that is granted writes a byte
//! into its own FIFO if its successor may hold beside it, or has to watch others from then on; the byte
//! means "read the queue again", and is never read.
//!
//! **The ledger decides, the FIFOs correct it.** A ledger that is lost, damaged, or of an earlier boot
//! of the machine is rebuilt from the FIFOs that are locked: their names carry place and share, and
//! admission needs nothing else. Fences continue above the reserve.
//!
//! # Breaking a lock
//! `release` with the id of a claim of another process renames its FIFO and wakes that process, which fires
//! its [`LossSignal`](leasehold_core::LossSignal) and ends the claim by itself. A process that does not do
//! so within two seconds, because it is stopped, is removed by force. Only then can two processes believe
//! that they hold: the stopped one, until it continues and is notified. Its fence is the lower one.
//!
//! # Uncontended locks
//! A process that uses a name again keeps the files of its directory open, and the FIFO of its last claim, whose
//! lock it gives up with the claim. The next claim takes the short lock by the open descriptor, compares the
//! names with what is open, locks the FIFO and writes the ledger: no file is opened, made or renamed, and the
//! thread of the caller does it all. The ledger says by which FIFO the claim lives, because its name is that of an earlier
//! one. If anything is out of the ordinary, the claim takes the slow path. What is kept is
//! given up after a fork, whose copies of the descriptors would keep later claims alive.
//!
//! # Costs
//! (Measured on ext4, in microseconds: 1 for open, `flock` and close; 20 for an acquisition and its release
//! under a name that this process used before, where it took 69 before files stayed open; 2 for a change of the
//! ledger in place, where a new file and a rename took 980, because ext4 writes a renamed file out.)
//!
//! A distinct resource costs a directory with three files, about 16 KiB, that stay: they carry the
//! fence. The first grant of a resource is synced to the disk, and so is one grant in a million; all
//! others change the page cache only. An open store costs one descriptor, a claim that holds another one, and a
//! waiting claim three. The open files of a name that is used again are three more, or four while nothing holds
//! it. Each open store keeps them for at most 256 names, and a quarter of the descriptors that the process may
//! have.
//!
//! Work that may wait runs on the blocking threads of the runtime: waits for the short lock, new files, syncs to the
//! disk, and everything on a network file system. The thread of the caller makes only calls that change the
//! page cache. A local disk that fails can stall even these, and then a thread of the runtime with them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::changes::until_changed;
use leasehold_core::{
    AtOnce, Backend, BreakOutcome, Claim, DirectReply, Durability, Effect, Failure, FenceGrade, Finding,
    Grant, Hint, Liveness, LockSupport, Moment, Patience, Profile, Proof, QueueOrder, RegisterPromise,
    Registers, Release, Renew, Renewal, Resource, ResourceSummary, Severity, Snapshot, SnapshotVersion, Step,
    WaitMode,
};

mod config;
mod directory;
mod failure;
#[cfg(test)]
mod fuzz;
mod identity;
mod inspect;
mod kept_dir;
mod ledger_file;
mod liveness_fifo;
mod liveness_handle;
mod local_claims;
mod places;
mod registers;
mod reserve;
mod resource_dir;
mod spares;
mod store_dir;
mod transaction;
mod uncontended;
mod watch;

pub(crate) use config::FILE_URLS;
pub use config::{FileConfig, Network, default_root};
pub use liveness_handle::LivenessHandle;

use local_claims::LocalClaims;
use spares::Spares;
use store_dir::{Medium, Root};
use transaction::{Attempt, Break, Force};

/// Locks between all processes of one machine, kept in a directory: `file:`.
///
/// # Promises
/// Any shares, granted in the order of arrival. A claim ends with its process at once, `kill -9`
/// included, and otherwise only by its release: not with a ttl, not while the process is stopped.
/// Fences rise strictly, also over a restart of the machine and the loss of the ledger; the fence that
/// an observer sees of a holder from before such a loss is higher than the one that the holder has.
///
/// # Does not promise
/// Locks do not reach other machines: network file systems are refused. Users that may write to the
/// directory are not stopped: removing a file of a held claim frees it, and its holder learns of that
/// only with its next renewal. Fences may not rise over the removal of a resource's directory, and are
/// repeated if an older copy of its files is put in their place. In a store on tmpfs they do not outlive a
/// restart of the machine, nor in a container's own layer (overlayfs) the container, and the profile says
/// so; those of a new store begin at the wall clock, above those of the last one unless that was set back.
/// A process which was forked without exec does not release its locks: a child has a copy of its parent's
/// descriptors, and the claim lives until both have ended. A waiter that is stopped keeps its place, and
/// the waiters behind it wait until it continues or ends. After a fork by a bare system call, which
/// nothing counts, this also applies to locks that are acquired later under a name that was used before.
///
/// # A directory that is removed or replaced
/// All locks in it are lost, which their holders see as soon as they can look, and the next acquisition makes it
/// again. One that another user made again, or that is
/// mounted over the first, is judged as at the opening. Calls fail with `Denied` as long as the directory cannot
/// be trusted, and with `Unsupported` as long as it lies on another medium (disk, memory or network), because
/// the profile does not change.
///
/// # Cancel safety
/// The futures may be dropped, but a claim whose `contend` was dropped keeps its place until it is
/// released, or until the backend is dropped.
#[derive(Debug)]
pub struct FileBackend {
    inner: Arc<Inner>,
    profile: Profile,
    registers: RegisterPromise,
}

/// The state that calls on blocking threads share.
#[derive(Debug)]
struct Inner {
    root: Root,
    claims: LocalClaims,
    spares: Spares,
}

impl FileBackend {
    /// Opens the store in a directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// `Denied` if the directory cannot be written to, or could have been put there by another user;
    /// `Unsupported` on a network file system that is not forced.
    pub fn open(config: FileConfig) -> Result<FileBackend, Failure> {
        let root = Root::open(config)?;
        let (profile, registers) = (profile(root.medium()), registers::promise(root.medium()));
        Ok(FileBackend {
            inner: Arc::new(Inner {
                spares: Spares::new(spares_for(&root)),
                root,
                claims: LocalClaims::default(),
            }),
            profile,
            registers,
        })
    }

    /// Returns the directory of the store.
    pub fn path(&self) -> &Path {
        self.inner.root.path()
    }

    /// Returns the directory of one resource, which need not exist.
    pub fn path_of(&self, resource: &Resource) -> PathBuf {
        self.inner.root.path_of(resource)
    }

    /// Returns the grant of a claim that this backend holds, with a task that watches over it.
    fn grant(&self, claim: &Claim, asked_at: Moment) -> Option<Grant> {
        let watch =
            |fifo| leasehold_machine::spawn(watch::over(fifo, Arc::downgrade(&self.inner))).abort_handle();
        let (fence, signal, sign) = self.inner.claims.grant_of(claim, watch)?;
        Some(
            Grant::new(asked_at).fence(Some(fence)).lost(Some(signal)).proof(Proof::of(LivenessHandle(sign))),
        )
    }

    /// Returns `true` if a granted claim of this backend is still in place; otherwise it is lost.
    fn still_holds(&self, claim: &Claim) -> Result<bool, Failure> {
        let claims = &self.inner.claims;
        let Some(fifo) = claims.fifo(claim).filter(|_| claims.is_held(claim)) else { return Ok(false) };
        let holds = fifo.is_in_place()?;
        if !holds {
            claims.lose(claim, &fifo);
        }
        Ok(holds)
    }

    /// Runs one change of the store on a blocking thread.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let inner = self.inner.clone();
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(done) => done,
            Err(cause) => {
                Err(Failure::unanswered("the runtime shut down in the middle of a call").because(cause))
            }
        }
    }

    async fn release_one(&self, claim: &Claim) -> Result<Release, Failure> {
        let owned = claim.clone();
        if let Some(own) = self.inner.claims.forget(claim) {
            let Some(own) = uncontended::release(&self.inner, claim, own) else {
                return Ok(Release::Freed);
            };
            let was_there = self.run(move |inner| transaction::release(inner, &owned, own)).await?;
            return Ok(if was_there { Release::Freed } else { Release::Gone });
        }
        match self.run(move |inner| transaction::break_claim(inner, &owned, Force::No)).await? {
            Break::Gone => return Ok(Release::Gone),
            Break::Done => return Ok(Release::Freed),
            Break::Notified(watch) => watch::end_of(watch, BREAK_WAIT).await?,
        }
        let owned = claim.clone();
        self.run(move |inner| transaction::break_claim(inner, &owned, Force::Yes)).await?;
        Ok(Release::Freed)
    }
}

#[async_trait]
impl Backend for FileBackend {
    /// Reports the location: of two processes with default settings, one may have another home
    /// than the other.
    async fn diagnose(&self, _ttl: Duration) -> Vec<Finding> {
        let path = self.path();
        let found = format!("locks lie in {}", path.display());
        let meaning = "they exclude the processes of this machine that use this directory";
        let finding = if path.starts_with(std::env::temp_dir()) {
            Finding::new("directory", Severity::Notice, found).meaning(meaning).advice(
                "temporary files may be cleaned away, and a service may have a temporary directory of its own: \
                 name another directory by file:///a/path",
            )
        } else {
            Finding::new("directory", Severity::Good, found).meaning(meaning)
        };
        vec![finding]
    }

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        // On a network file system a call may take any time.
        (self.inner.root.medium() != Medium::Network).then_some(self)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let uncertain = |failure: Failure| failure.with_effect(Effect::Unknown);
        // Ends with this future: a step that begins later must not take a place that nobody releases.
        let asker = Arc::new(());
        // A layer around this store may not have asked at once.
        if self.inner.claims.fifo(claim).is_none() {
            let asked_at = patience.now();
            if uncontended::acquire(&self.inner, claim)
                && let Some(grant) = self.grant(claim, asked_at)
            {
                return Ok(Step::Granted(grant));
            }
        }
        loop {
            let asked_at = patience.now();
            if self.still_holds(claim).map_err(uncertain)?
                && let Some(grant) = self.grant(claim, asked_at)
            {
                return Ok(Step::Granted(grant));
            }
            let last = patience.is_ended();
            let (owned, limit, asker) = (claim.clone(), patience.clone(), Arc::downgrade(&asker));
            match self.run(move |inner| transaction::contend(inner, &owned, &limit, last, &asker)).await? {
                // The next round returns it, or finds it broken already.
                Attempt::Granted => {}
                Attempt::Busy { ahead, .. } if last => {
                    return Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(ahead) }));
                }
                Attempt::Busy { watches, is_partial, .. } => {
                    let again = is_partial.then_some(RECHECK_INTERVAL);
                    // It has its place already.
                    watch::any(watches, patience, again).await.map_err(uncertain)?;
                }
            }
        }
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let renew = |Renew { claim, .. }: &Renew<'_>| match self.still_holds(claim) {
            Ok(true) => Renewal::Alive,
            Ok(false) => Renewal::Lost,
            Err(failure) => Renewal::Unknown(failure),
        };
        batch.iter().map(renew).collect()
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let mut answers = Vec::with_capacity(batch.len());
        for claim in batch {
            answers.push(self.release_one(claim).await.unwrap_or_else(Release::Unknown));
        }
        answers
    }

    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        let owned = claim.clone();
        let end = move |inner: &Inner| {
            // Taken from the table only here: a call that waits for it would meet a living claim that it does not know.
            let Some(own) = inner.claims.forget(&owned) else { return Ok(false) };
            // Its holder has not asked for this: it is notified like a holder in another process.
            own.notify();
            // A holder that was notified may release it meanwhile, so whether it was still there says nothing.
            transaction::release(inner, &owned, own).map(|_| true)
        };
        if self.inner.claims.fifo(claim).is_none() || !self.run(end).await? {
            return BreakOutcome::of_release(self.release(&[claim]).await);
        }
        Ok(BreakOutcome::Ended { also_released: Vec::new() })
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        let look = || async {
            let owned = resource.clone();
            let (snapshot, watches) = self.run(move |inner| inspect::snapshot(&inner.root, &owned)).await?;
            // A newcomer at the end of the queue wakes no claim. Observers are people and their
            // screens: they poll.
            Ok((snapshot, watch::any(watches, patience, Some(RECHECK_INTERVAL))))
        };
        until_changed(patience, |snapshot| seen.is_none_or(|seen| *seen != snapshot.version), look).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.run(move |inner| inspect::list(&inner.root, &prefix, after.as_ref(), limit)).await
    }
}

impl AtOnce for FileBackend {
    fn grant_now(&self, claim: &Claim, asked_at: Moment) -> DirectReply {
        if !uncontended::acquire(&self.inner, claim) {
            return DirectReply::Declined;
        }
        // None if another process has broken it meanwhile, which ends it.
        self.grant(claim, asked_at).map_or(DirectReply::Declined, DirectReply::Granted)
    }

    fn release_now(&self, claim: &Claim) -> Option<Release> {
        let own = self.inner.claims.forget(claim)?;
        match uncontended::release(&self.inner, claim, own) {
            None => Some(Release::Freed),
            Some(own) => {
                self.inner.claims.put_back(claim, own);
                None
            }
        }
    }
}

/// Returns of how many resources files stay open. On a network file system a call may take any time, so none
/// is made on the thread of a caller.
fn spares_for(root: &Root) -> usize {
    if root.medium() == Medium::Network {
        return 0;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    // Each has four descriptors open, so at most a quarter of what the process may have.
    (limit / 16).min(SPARES_MAX)
}

fn profile(medium: Medium) -> Profile {
    let (fencing, durability) = match medium {
        Medium::Disk => (FenceGrade::Strict, Durability::Strict),
        // A restart of the machine ends every claim, and removes the fences with it. New ones begin at
        // the wall clock, which may have been set back.
        Medium::Memory => (FenceGrade::BestEffort, Durability::Strict),
        // Data that a file server acknowledges is not always on its disk, and data that it serves is
        // not always the newest.
        Medium::Network => (FenceGrade::BestEffort, Durability::LostOnFailover),
    };
    Profile::new("file", Liveness::Session)
        .admission(LockSupport::Counted)
        .order(QueueOrder::Fifo)
        .waiting(WaitMode::Blocks)
        .fencing(fencing)
        .durability(durability)
        .renew_batch_max(RENEW_BATCH_MAX)
        .note_max(leasehold_core::Note::MAX_BYTES)
}

const RENEW_BATCH_MAX: usize = 1000;
/// The most resources of which files stay open.
const SPARES_MAX: usize = 256;
/// The pause between checks of a waiter that cannot be woken by everything that matters to it.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The time for which a broken claim may end by itself.
const BREAK_WAIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_store_profile_depends_on_the_medium() {
        assert!(profile(Medium::Disk).fences(FenceGrade::Strict).is_ok());
        assert!(profile(Medium::Disk).keeps(Durability::Strict).is_ok());
        assert!(profile(Medium::Memory).fences(FenceGrade::AcrossFailover).is_err());
        assert!(profile(Medium::Memory).keeps(Durability::Strict).is_ok());
        assert!(profile(Medium::Network).fences(FenceGrade::AcrossFailover).is_err());
        assert!(profile(Medium::Network).keeps(Durability::Strict).is_err());
    }
}
