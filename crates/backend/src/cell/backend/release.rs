//! Release: a claim that is known to be alone in its cell empties the cell at once, all others read first.

use std::collections::HashSet;

use leasehold_core::{Claim, Failure, Release};

use crate::cell::backend::CellBackend;
use crate::cell::backend::batch::Change;
use crate::cell::cells::{AmendKind, CellStore, CellUpdate, ClockSource, Origin, Put, Swap};
use crate::cell::wait::timing::BATCH_MAX;

impl<C: CellStore> CellBackend<C> {
    pub(crate) async fn end(&self, batch: &[&Claim]) -> Vec<Release> {
        let mut answers: Vec<Option<Release>> = batch.iter().map(|_| None).collect();
        for (answers, claims) in answers.chunks_mut(BATCH_MAX).zip(batch.chunks(BATCH_MAX)) {
            self.end_alone(answers, claims).await;
        }
        let rest: Vec<&Claim> = batch
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_none())
            .map(|(claim, _)| *claim)
            .collect();
        let release: Change = |ledger, claim, now| ledger.release(claim.id, now);
        let changed = self.change(&rest, batch.len() == 1, release).await;
        let mut changed = changed.into_iter().map(|changed| match changed {
            Ok(true) => Release::Freed,
            Ok(false) => Release::Gone,
            Err(failure) => Release::Unknown(failure),
        });
        let unanswered = || Release::Unknown(Failure::unanswered("the store did not answer a release"));
        answers
            .into_iter()
            .map(|answer| answer.or_else(|| changed.next()).unwrap_or_else(unanswered))
            .collect()
    }

    /// Empties the cells of those that are known to be alone. Those that are not alone any more get no
    /// answer here.
    async fn end_alone(&self, answers: &mut [Option<Release>], claims: &[&Claim]) {
        let now = self.clock.now();
        let keeps_time = self.cells.clock_source() == ClockSource::Store;
        let mut places = Vec::new();
        let mut cells = HashSet::new();
        let (mut amends, mut swaps) = (Vec::new(), Vec::new());
        for (at, claim) in claims.iter().enumerate() {
            self.pollers.forget(claim.id);
            let Some(alone) = self.owned_cells.forget(claim.id) else { continue };
            // Where the store keeps no time, only this observer can say that the claim still lives.
            if (!keeps_time && alone.until <= now) || !cells.insert(&claim.resource) {
                continue;
            }
            let Ok(put) = Put::nothing(alone.last) else { continue };
            let (resource, seen, epoch) = (claim.resource.clone(), alone.version, alone.last.epoch);
            places.push((at, put.version));
            match keeps_time {
                true => amends.push(CellUpdate { at: resource, seen, kind: AmendKind::Keep, put }),
                false => swaps.push(Swap { at: resource, seen, epoch, basis: Origin::Kept, put }),
            }
        }
        let done: Vec<Result<bool, Failure>> = match keeps_time {
            true if amends.is_empty() => return,
            true => self.commits.amend(amends).await.into_iter().map(|done| Ok(done?.is_some())).collect(),
            false if swaps.is_empty() => return,
            false => self.cells.swap(&swaps).await,
        };
        for ((at, version), done) in places.into_iter().zip(done) {
            match done {
                Ok(true) => {
                    if keeps_time {
                        self.empty_cells.remember(&claims[at].resource, version);
                    }
                    answers[at] = Some(Release::Freed);
                }
                Ok(false) => {}
                Err(failure) => answers[at] = Some(Release::Unknown(failure)),
            }
        }
    }
}
