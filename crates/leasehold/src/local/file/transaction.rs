//! The steps under the short lock of a resource directory: one read of the queue, one change of it.
//!
//! Ground rules: nothing here waits for another claim. Every function opens the ledger, decides by its
//! rule, and writes it at most once. Before a claim gets the answer to wait, the claims that it will
//! watch are proven to live, with their FIFOs open; so a later death is noticed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::{Claim, Effect, Entry, Failure, FailureKind, MAX_QUEUE, Patience, Verdict};

use super::Inner;
use super::kept_dir::KeptDir;
use super::ledger_file::{LedgerFile, ask};
use super::liveness_fifo::{self, FifoName, LivenessFifo, Probe, probe};
use super::local_claims::LocalClaim;
use super::resource_dir::{DirLock, Limit, ResourceDir};
use super::watch::Watch;

/// The result of one attempt to get a claim granted.
#[derive(Debug)]
pub(super) enum Attempt {
    /// The claim holds; [`LocalClaims`](super::local_claims::LocalClaims) has its grant.
    Granted,
    /// The claim does not hold.
    Busy {
        ahead: u32,
        /// The claims whose end may change that.
        watches: Vec<Watch>,
        /// `true` if there are more than can be watched, so that it has to check again after a while.
        is_partial: bool,
    },
}

/// The result of ending a claim of another process.
#[derive(Debug)]
pub(super) enum Break {
    /// It did not exist, or was dead already.
    Gone,
    /// It was removed.
    Done,
    /// Its process was notified; this is its FIFO.
    Notified(Watch),
}

/// Contends once. With patience at its end, nothing but a grant is left behind. `last` says whether
/// patience has ended, as seen by the caller. Without an `asker`, whose future was dropped, nothing changes: the
/// claim may have been released since.
pub(super) fn contend(
    inner: &Inner,
    claim: &Claim,
    patience: &Patience,
    last: bool,
    asker: &Weak<()>,
) -> Result<Attempt, Failure> {
    let own = inner.claims.fifo(claim);
    let effect = if own.is_some() { Effect::Unknown } else { Effect::None };
    let transaction = Transaction::begin(inner, claim, &Limit::of(patience));
    let outcome = transaction.and_then(|mut transaction| {
        // Under the short lock: a release that comes later finds what this step leaves.
        if asker.strong_count() == 0 {
            return Err(Failure::unavailable("the call that asked for this claim has ended"));
        }
        let attempt = transaction.contend(own, last)?;
        let woken = transaction.woken.take();
        let kept = matches!(attempt, Attempt::Granted).then(|| transaction.keep()).flatten();
        Ok((attempt, woken, kept))
    });
    match outcome {
        // The short lock is free again: the woken claims need it, and what is kept can take it.
        Ok((attempt, woken, kept)) => {
            woken.inspect(|fifo| fifo.wake_watchers());
            if let Some(kept) = kept {
                inner.claims.keep(claim, kept);
            }
            Ok(attempt)
        }
        // A place whose FIFO is missing counts as dead.
        Err(failure) if last && !inner.claims.is_held(claim) => {
            abandon(inner, claim);
            Err(failure.with_effect(Effect::None))
        }
        Err(failure) => Err(failure.with_effect(effect)),
    }
}

/// Ends a claim of this process. Returns `true` if it existed until now.
///
/// # Errors
/// That of the look whether it did. The claim has ended all the same.
pub(super) fn release(inner: &Inner, claim: &Claim, own: LocalClaim) -> Result<bool, Failure> {
    let mut was_there = own.life.fifo.remove();
    // Even if the ledger fails, the claim ends here: without its sign of life the next one sees it dead.
    if let Ok(Some((dir, lock))) =
        ResourceDir::lock_existing(&inner.root, &claim.resource, &Limit::fixed(RELEASE_WAIT))
    {
        // A step that had the short lock before this one may have put the claim back, for a call that still waits:
        // it may have been granted since.
        let put_back = inner.claims.forget(claim);
        if let Some(back) = &put_back {
            back.notify();
            let removed = back.life.fifo.remove();
            if !matches!(was_there, Ok(true)) {
                was_there = removed;
            }
        }
        let written = LedgerFile::open(&inner.root, &dir).and_then(|mut ledger| {
            match ledger.position(claim.id).map(|index| ledger.entries()[index].clone()) {
                // Another process was about to break it, and renamed the FIFO that we did not find.
                Some(entry) if matches!(was_there, Ok(false)) => ledger.remove_with_fifo(&dir, &entry)?,
                _ => drop(ledger.remove(claim.id)),
            }
            ledger.save(&inner.root, &dir)
        });
        if let Err(failure) = written {
            tracing::debug!(resource = %claim.resource, %failure, "a released claim stays in the ledger as a dead one");
        }
        // Claims that are woken by the end of the sign of life need the short lock.
        drop(lock);
        drop(put_back);
    }
    drop(own);
    was_there.map_err(|failure| failure.with_effect(Effect::Unknown))
}

/// Ends a claim that belongs to another process, or notifies that process to end it. A claim that turns out to be
/// one of this process is released.
pub(super) fn break_claim(inner: &Inner, claim: &Claim, by_force: Force) -> Result<Break, Failure> {
    let limit = Limit::fixed(RELEASE_WAIT);
    let Some((dir, lock)) = ResourceDir::lock_existing(&inner.root, &claim.resource, &limit)? else {
        return Ok(Break::Gone);
    };
    // While this step waited for the short lock, a step of a call that was dropped may have entered the claim.
    if let Some(own) = inner.claims.forget(claim) {
        drop(lock);
        own.notify();
        let was_there = release(inner, claim, own)?;
        return Ok(if was_there { Break::Done } else { Break::Gone });
    }
    let mut ledger = LedgerFile::open(&inner.root, &dir)?;
    let Some(index) = ledger.position(claim.id) else {
        return Ok(Break::Gone);
    };
    let entry = ledger.entries()[index].clone();
    let outcome = match probe(&dir, &ledger.name_of(&entry))? {
        Probe::Alive(file) if entry.granted.is_some() && by_force == Force::No => {
            liveness_fifo::revoke(&dir, &ledger.name_of(&entry))?;
            return Ok(Break::Notified(Watch::new(file)));
        }
        // A waiting claim holds nothing, so it can be removed at once.
        Probe::Alive(_) => Break::Done,
        Probe::Gone => Break::Gone,
    };
    ledger.remove_with_fifo(&dir, &entry)?;
    ledger.save(&inner.root, &dir)?;
    drop(lock);
    Ok(outcome)
}

/// The choice to remove a claim although its process has not ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Force {
    No,
    Yes,
}

/// Gives up a place without the ledger.
fn abandon(inner: &Inner, claim: &Claim) {
    if let Some(own) = inner.claims.forget(claim) {
        drop(own.life.fifo.remove());
    }
}

/// One change or read of a resource directory, under its short lock.
struct Transaction<'a> {
    inner: &'a Inner,
    claim: &'a Claim,
    dir: ResourceDir,
    ledger: LedgerFile,
    /// The FIFO of the claim whose watchers have to check the queue again.
    woken: Option<Arc<LivenessFifo>>,
    /// The number of forks before anything was opened.
    forks: Option<u64>,
    // The last field, so that it is released last.
    lock: DirLock,
}

impl<'a> Transaction<'a> {
    fn begin(inner: &'a Inner, claim: &'a Claim, limit: &Limit) -> Result<Self, Failure> {
        let forks = leasehold_machine::forks();
        let (dir, lock) = ResourceDir::lock_or_create(&inner.root, &claim.resource, limit)?;
        let ledger = LedgerFile::open(&inner.root, &dir)?;
        Ok(Transaction { inner, claim, dir, ledger, woken: None, forks, lock })
    }

    /// Ends the step, and keeps the open files for the release of the claim that was granted.
    fn keep(self) -> Option<KeptDir> {
        let Transaction { inner, claim, dir, ledger, forks, lock, .. } = self;
        let permit = inner.spares.permit(&claim.resource)?;
        KeptDir::of(dir, &lock, ledger, forks, permit)
    }

    fn contend(&mut self, own: Option<Arc<LivenessFifo>>, last: bool) -> Result<Attempt, Failure> {
        // An earlier step of the same claim may have had the short lock since this one asked.
        let own = own.or_else(|| self.inner.claims.fifo(self.claim));
        let own = self.check_own(own)?;
        if own.is_none() {
            self.refuse_duplicate()?;
        }
        self.enter(own, last)
    }

    /// Contends once its earlier place, if it has one, is known to count.
    fn enter(&mut self, own: Option<Arc<LivenessFifo>>, last: bool) -> Result<Attempt, Failure> {
        let (verdict, watches, is_partial) = if last { self.try_once()? } else { self.join_queue()? };
        match verdict {
            Verdict::Granted(fence) => {
                let fifo = self.save_with_fifo(own)?;
                if self.successor_shares() {
                    self.woken = Some(fifo.clone());
                }
                self.inner.claims.holds(self.claim, fifo, fence);
                Ok(Attempt::Granted)
            }
            Verdict::Busy { ahead, .. } if last => {
                if let Some(fifo) = own {
                    drop(fifo.remove());
                }
                self.ledger.save(&self.inner.root, &self.dir)?;
                self.inner.claims.forget(self.claim);
                Ok(Attempt::Busy { ahead, watches: Vec::new(), is_partial })
            }
            Verdict::Busy { ahead, .. } => {
                let fifo = self.save_with_fifo(own)?;
                self.inner.claims.waits(self.claim, fifo.clone());
                let mut watches = watches;
                watches.push(Watch::own(fifo));
                Ok(Attempt::Busy { ahead, watches, is_partial })
            }
            Verdict::Full => {
                // Claims found dead on the way are removed; the next one need not find them again.
                self.ledger.save(&self.inner.root, &self.dir)?;
                Err(Failure::unavailable(format!(
                    "{MAX_QUEUE} claims are queued for {} already: try again later",
                    self.claim.resource
                )))
            }
        }
    }

    /// Checks an earlier place of this claim, and returns what still counts.
    fn check_own(&self, own: Option<Arc<LivenessFifo>>) -> Result<Option<Arc<LivenessFifo>>, Failure> {
        let Some(fifo) = own else { return Ok(None) };
        // Asked again under the short lock: after a release meanwhile, the FIFO may be that of a later claim.
        if self.inner.claims.fifo(self.claim).is_some_and(|now| Arc::ptr_eq(&now, &fifo)) {
            if fifo.is_in_place()? && self.ledger.position(self.claim.id).is_some() {
                return Ok(Some(fifo));
            }
            drop(fifo.remove());
            self.inner.claims.lose(self.claim, &fifo);
        }
        if fifo.dir != self.dir.identity {
            // The store was removed and made again. A holder has lost; a waiter is queued anew.
            return Ok(None);
        }
        Err(Failure::new(
            FailureKind::Denied,
            Effect::None,
            format!("this claim on {} was broken by another process", self.claim.resource),
        ))
    }

    /// Refuses the same claim, alive in another process or another handle: it is not ours to take over.
    fn refuse_duplicate(&mut self) -> Result<(), Failure> {
        let Some(index) = self.ledger.position(self.claim.id) else { return Ok(()) };
        let entry = self.ledger.entries()[index].clone();
        match probe(&self.dir, &self.ledger.name_of(&entry))? {
            Probe::Gone => self.ledger.remove_with_fifo(&self.dir, &entry),
            Probe::Alive(_) => Err(Failure::new(
                FailureKind::Invalid,
                Effect::None,
                format!(
                    "this claim on {} lives in another process already: draw a new id for each claim",
                    self.claim.resource
                ),
            )),
        }
    }

    /// Enters the queue, and finds the claims to watch. Claims found dead on the way are removed.
    fn join_queue(&mut self) -> Result<(Verdict, Vec<Watch>, bool), Failure> {
        let Claim { id, share, note, .. } = self.claim;
        for _ in 0..=MAX_QUEUE {
            let verdict = self.ledger.contend(&ask(*id, *share, note.clone(), true));
            let Verdict::Busy { .. } = verdict else { return Ok((verdict, Vec::new(), false)) };
            let index = self.ledger.position(*id).unwrap_or_default();
            let (from, is_partial) = watched(self.ledger.entries(), index);
            let (watches, found_dead) = self.probe_each(from, index)?;
            if !found_dead {
                return Ok((verdict, watches, is_partial));
            }
        }
        Err(Failure::unavailable(format!("the queue for {} changes all the time", self.claim.resource)))
    }

    /// Tries once, and leaves no place. Checks all claims ahead, since no second attempt follows.
    fn try_once(&mut self) -> Result<(Verdict, Vec<Watch>, bool), Failure> {
        let Claim { id, share, note, .. } = self.claim;
        let ahead = self.ledger.position(*id).unwrap_or(self.ledger.entries().len());
        self.probe_each(0, ahead)?;
        Ok((self.ledger.contend(&ask(*id, *share, note.clone(), false)), Vec::new(), false))
    }

    /// Opens the FIFOs of a part of the queue, and removes the dead claims.
    fn probe_each(&mut self, from: usize, to: usize) -> Result<(Vec<Watch>, bool), Failure> {
        let part: Vec<Entry> = self.ledger.entries()[from..to].to_vec();
        let mut watches = Vec::new();
        let mut found_dead = false;
        for entry in part {
            match probe(&self.dir, &self.ledger.name_of(&entry))? {
                // One descriptor at a time is enough for a claim that will not wait.
                Probe::Alive(file) if to - from <= WATCH_MAX => watches.push(Watch::new(file)),
                Probe::Alive(_) => {}
                Probe::Gone => {
                    self.ledger.remove_with_fifo(&self.dir, &entry)?;
                    found_dead = true;
                }
            }
        }
        Ok((watches, found_dead))
    }

    /// Makes the FIFO if there is none, and writes the ledger.
    fn save_with_fifo(&mut self, own: Option<Arc<LivenessFifo>>) -> Result<Arc<LivenessFifo>, Failure> {
        let Transaction { inner, dir, ledger, .. } = self;
        if let Some(fifo) = own {
            ledger.save(&inner.root, dir)?;
            return Ok(fifo);
        }
        let index = ledger.position(self.claim.id).unwrap_or_default();
        let name: FifoName = ledger.name_of(&ledger.entries()[index]);
        let fifo = LivenessFifo::make(&inner.root, dir, &name)?;
        if let Err(failure) = ledger.save(&inner.root, dir) {
            drop(fifo.remove());
            return Err(failure);
        }
        Ok(Arc::new(fifo))
    }

    /// Returns `true` if the next in the queue may hold at the same time, or has to watch others than
    /// this claim alone.
    fn successor_shares(&self) -> bool {
        let entries = self.ledger.entries();
        let next = self.ledger.position(self.claim.id).and_then(|index| entries.get(index + 1));
        next.is_some_and(|entry| entry.granted.is_none() && !entry.share.is_exclusive())
    }
}

/// Returns the index from which, up to its own place, a claim watches those ahead of it, and whether
/// that is not all of them.
///
/// A waiting claim is watched alone: it is woken first, and wakes us. Ahead of a claim for the whole resource
/// it is enough to watch the nearest, because all have to leave. Otherwise the first to leave may make room.
fn watched(entries: &[Entry], index: usize) -> (usize, bool) {
    let Some(nearest) = index.checked_sub(1) else { return (index, false) };
    if entries[nearest].granted.is_none() || entries[index].share.is_exclusive() {
        return (nearest, false);
    }
    (index.saturating_sub(WATCH_MAX), index > WATCH_MAX)
}

/// The most FIFOs that one waiter has open; beyond that it reads the queue again after a while.
pub(super) const WATCH_MAX: usize = 64;
/// The time for which a release waits for the short lock before it leaves the ledger to others.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
