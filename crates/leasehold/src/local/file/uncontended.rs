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
    let Some(Spare { life, kept }) = inner.spares.take(&claim.resource) else { return false };
    // A spare that is not put back is removed as it goes out of scope: under the short lock, if that is taken.
    let (mut step, life) = match kept.retake(&inner.root) {
        Retaken::Ready(step) => (step, life),
        Retaken::Busy(kept) => {
            inner.spares.put(&claim.resource, Spare { life, kept });
            return false;
        }
        Retaken::Stale => return false,
    };
    if !step.ledger.entries().is_empty() || !step.ledger.has_reserve() {
        if let Some(kept) = step.end() {
            inner.spares.put(&claim.resource, Spare { life, kept });
        }
        return false;
    }
    let asked = ask(claim.id, claim.share, claim.note.clone(), false);
    let Verdict::Granted(fence) = step.ledger.contend(&asked) else { return false };
    let wanted = step.ledger.name_of(&step.ledger.entries()[0]);
    // If this or the write fails, the FIFO ends with `life`, and a claim without a sign of life is dead.
    let Some(name) = life.fifo.reuse(step.dir(), &wanted) else { return false };
    step.ledger.lives_by(claim.id, &name);
    if !step.save(&inner.root) {
        return false;
    }
    // Under the short lock: another process may break the claim as soon as it is free.
    inner.claims.holds_with(claim, life, fence);
    // Kept afterwards: a release that retakes the lock by this descriptor would take it while it is held here.
    if let Some(kept) = step.end() {
        inner.claims.keep(claim, kept);
    }
    true
}

/// Releases a claim that nobody waits for. Returns the claim if it has to be released in another way.
pub(super) fn release(inner: &Inner, claim: &Claim, mut own: LocalClaim) -> Option<LocalClaim> {
    let Some(kept) = own.kept.take() else { return Some(own) };
    let Retaken::Ready(mut step) = kept.retake(&inner.root) else { return Some(own) };
    // A process that breaks the claim renames the FIFO, under the short lock.
    let is_alone = matches!(step.ledger.entries(), [entry] if entry.id == claim.id);
    if !is_alone || !own.life.fifo.is_in(step.dir()) || !own.is_private() {
        return Some(own);
    }
    step.ledger.remove(claim.id);
    if !step.save(&inner.root) {
        return Some(own);
    }
    own.life.fifo.rest();
    if let Some(kept) = step.end() {
        inner.spares.put(&claim.resource, Spare { life: own.life, kept });
    }
    None
}
