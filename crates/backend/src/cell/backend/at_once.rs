//! Uncontended locks at once: a cell that this client left empty is taken, and one in which its claim is alone is
//! emptied, on the thread of the caller. All else takes the slow path, and so do the changes of many tasks, which
//! cost less in one commit.

use leasehold_core::{AtOnce, Claim, DirectReply, Effect, Moment, Release};

use crate::cell::backend::CellBackend;
use crate::cell::backend::acquire::Attempt;
use crate::cell::cells::{CellStore, WriteOutcome, version_for};
use crate::cell::wait::timing;

impl<C: CellStore> AtOnce for CellBackend<C> {
    fn grant_now(&self, claim: &Claim, asked_at: Moment) -> DirectReply {
        // What is wrong with the claim is said by the slow path.
        if !self.commits.is_idle() || timing::check(self.cells.profile(), claim).is_err() {
            return DirectReply::Declined;
        }
        let Some(_guard) = self.per_resource.try_lock(&claim.resource) else { return DirectReply::Declined };
        let Some(left) = self.empty_cells.take(&claim.resource) else { return DirectReply::Declined };
        let attempt = Attempt { claim, asked_at, asked_here: self.clock.now() };
        let Ok(version) = version_for(&*self.cells) else { return DirectReply::Declined };
        let write = attempt.return_to(left, self.cells.clock_source(), version);
        match self.cells.write_now(&write) {
            Some(Ok(WriteOutcome::Written { version, fence })) => {
                if let Some(version) = version {
                    let alone = attempt.alone(version, fence, fence);
                    self.knowledge.owned_cells.remember(claim.id, alone, attempt.asked_here);
                }
                DirectReply::Granted(attempt.granted(fence))
            }
            Some(Err(failure)) if failure.effect != Effect::None => DirectReply::Unknown,
            Some(Ok(WriteOutcome::Refused(_)) | Err(_)) => DirectReply::Declined,
            None => {
                self.empty_cells.remember(&claim.resource, left);
                DirectReply::Declined
            }
        }
    }

    fn release_now(&self, claim: &Claim) -> Option<Release> {
        // The answer to a refused write shows the cell, and the slow path needs that.
        let alone = self.knowledge.owned_cells.recall(claim.id).filter(|alone| !alone.is_contested)?;
        if !self.commits.is_idle() || self.knowledge.owned_cells.are_many() {
            return None;
        }
        let (version, write) = self.emptying(claim, &alone)?;
        let outcome = self.cells.write_now(&write)?;
        match outcome {
            Ok(WriteOutcome::Written { .. }) => {
                self.knowledge.owned_cells.forget(claim.id);
                self.empty_cells.remember(&claim.resource, version);
                Some(Release::Freed)
            }
            Ok(WriteOutcome::Refused(_)) => {
                // Others are in the cell by now, so the slow path reads it.
                self.knowledge.owned_cells.forget(claim.id);
                None
            }
            Err(failure) if failure.effect == Effect::None => None,
            Err(failure) => Some(Release::Unknown(failure)),
        }
    }
}
