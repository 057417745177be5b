//! Release: a claim that is known to be alone in its cell empties the cell at once, all others read first.

use std::collections::{HashMap, HashSet};

use leasehold_core::{Claim, Failure, Release, Resource};

use crate::cell::backend::CellBackend;
use crate::cell::backend::batch::Change;
use crate::cell::cells::{
    Cell, CellStore, ClockSource, Put, Write, WriteAnswer, WriteCondition, WriteOutcome, version_for,
};
use crate::cell::state::owned_cells::Alone;
use crate::cell::wait::timing::BATCH_MAX;

impl<C: CellStore> CellBackend<C> {
    pub(crate) async fn release_batch(&self, batch: &[&Claim]) -> Vec<Release> {
        let mut answers: Vec<Option<Release>> = batch.iter().map(|_| None).collect();
        let mut found = HashMap::new();
        for (answers, claims) in answers.chunks_mut(BATCH_MAX).zip(batch.chunks(BATCH_MAX)) {
            self.end_alone(answers, claims, &mut found).await;
        }
        // Mostly all were alone.
        if answers.iter().all(Option::is_some) {
            return answers.into_iter().flatten().collect();
        }
        let rest: Vec<&Claim> = batch
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_none())
            .map(|(claim, _)| *claim)
            .collect();
        let release: Change = |ledger, claim, now| ledger.release(claim.id, now);
        let changed = self.change(&rest, found, batch.len() == 1, release).await;
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

    /// Returns the write that empties the cell of a claim that was alone in it, and the version after it.
    pub(super) fn emptying(&self, claim: &Claim, alone: &Alone) -> Option<(u64, Write)> {
        let put = Put::nothing(alone.last, version_for(&*self.cells).ok()?);
        let epoch = (self.cells.clock_source() == ClockSource::Observer).then_some(alone.last.epoch);
        let when = WriteCondition::Living { version: alone.version, epoch };
        let answer = if alone.is_contested { WriteAnswer::Full } else { WriteAnswer::Brief };
        Some((put.version, Write { at: claim.resource.clone(), when, put, answer }))
    }

    /// Empties the cells of those that are known to be alone. Those that are not alone any more get no
    /// answer here; their cells are put into `found`, where the store has shown them.
    async fn end_alone(
        &self,
        answers: &mut [Option<Release>],
        claims: &[&Claim],
        found: &mut HashMap<Resource, Cell>,
    ) {
        let now = self.clock.now();
        let keeps_time = self.cells.clock_source() == ClockSource::Store;
        let (mut places, mut writes, mut cells) = (Vec::new(), Vec::new(), HashSet::new());
        for (at, claim) in claims.iter().enumerate() {
            self.pollers.forget(claim.id);
            let Some(alone) = self.knowledge.owned_cells.forget(claim.id) else { continue };
            // Where the store keeps no time, only this observer can say that the claim still lives.
            if !keeps_time && alone.until <= now {
                continue;
            }
            // A cell is written to once.
            if claims.len() > 1 && !cells.insert(&claim.resource) {
                continue;
            }
            let Some((version, write)) = self.emptying(claim, &alone) else { continue };
            places.push((at, version));
            writes.push(write);
        }
        if writes.is_empty() {
            return;
        }
        for ((at, version), outcome) in places.into_iter().zip(self.commits.write(writes).await) {
            match outcome {
                Ok(WriteOutcome::Written { .. }) => {
                    if keeps_time {
                        self.empty_cells.remember(&claims[at].resource, version);
                    }
                    answers[at] = Some(Release::Freed);
                }
                Ok(WriteOutcome::Refused(cell)) => {
                    found.extend(cell.map(|cell| (claims[at].resource.clone(), cell)));
                }
                Err(failure) => answers[at] = Some(Release::Unknown(failure)),
            }
        }
    }
}
