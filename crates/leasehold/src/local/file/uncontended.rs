//! Uncontended locks: acquired and released by the thread of the caller, with what earlier claims left open.
//!
//! Ground rules: nothing here waits, and nothing is decided that [`super::transaction`] would decide
//! otherwise. Whatever is out of the ordinary is left to it: a short lock that is taken, a queue that is not
//! empty, a ledger that is not in order, a file that was replaced. The order of the steps is the same: the FIFO
//! is locked before the claim is in the ledger.

use leasehold_core::{Claim, Verdict};

use super::Inner;
use super::kept_dir::Retaken;
use super::ledger_file::ask;
use super::local_claims::LocalClaim;
use super::spares::Spare;

/// Acquires a resource that no claim holds or waits for. Returns `false` if it is not known to be free.
pub(super) fn acquire(inner: &Inner, claim: &Claim) -> bool {
    let Some(spare) = inner.spares.take(&claim.resource) else { return false };
    // A spare that is not put back is removed as it goes out of scope.
    let (lock, mut ledger) = match spare.kept.retake(&inner.root) {
        Retaken::Ready(lock, ledger) => (lock, ledger),
        Retaken::Busy => return keep(inner, claim, spare),
        Retaken::Stale => return false,
    };
    if !ledger.entries().is_empty() || !ledger.has_reserve() {
        drop(lock);
        return keep(inner, claim, spare);
    }
    let asked = ask(claim.id, claim.share, claim.note.clone(), false);
    let Verdict::Granted(fence) = ledger.contend(&asked) else { return false };
    let Spare { life, kept } = spare;
    let name = ledger.name_of(&ledger.entries()[0]);
    // If one of these fails, the FIFO ends with `life`, and a claim without a sign of life is dead.
    if !life.fifo.reuse(kept.dir(), &name) || ledger.save(&inner.root, kept.dir()).is_err() {
        return false;
    }
    // Under the short lock: another process may break the claim as soon as it is free.
    inner.claims.holds_with(claim, life, fence);
    drop(lock);
    // Not before: a release that retakes the lock by this descriptor would take it while it is held here.
    inner.claims.keep(claim, kept);
    true
}

fn keep(inner: &Inner, claim: &Claim, spare: Spare) -> bool {
    inner.spares.put(&claim.resource, spare);
    false
}

/// Releases a claim that nobody waits for. Returns the claim if it has to be released in another way.
pub(super) fn release(inner: &Inner, claim: &Claim, mut own: LocalClaim) -> Option<LocalClaim> {
    let Some(kept) = own.kept.take() else { return Some(own) };
    let Retaken::Ready(lock, mut ledger) = kept.retake(&inner.root) else { return Some(own) };
    // A process that breaks the claim renames the FIFO, under the short lock.
    let is_alone = matches!(ledger.entries(), [entry] if entry.id == claim.id);
    if !is_alone || !own.life.fifo.is_in_place().unwrap_or(false) || !own.is_private() {
        return Some(own);
    }
    ledger.remove(claim.id);
    if ledger.save(&inner.root, kept.dir()).is_err() {
        return Some(own);
    }
    own.life.fifo.rest();
    drop(lock);
    inner.spares.put(&claim.resource, Spare { life: own.life, kept });
    None
}
