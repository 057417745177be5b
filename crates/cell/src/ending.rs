//! Release: who is known to be alone in a cell empties it at once, all others look first.

use std::collections::HashSet;
use std::time::Duration;

use leasehold_core::{Claim, Failure, Release};

use crate::backend::CellBackend;
use crate::cells::{Basis, Call, Cells, Put, Swap, Timekeeping};
use crate::pace::{self, BATCH_MAX};

impl<C: Cells> CellBackend<C> {
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
        let changed = self.change(&rest, |ledger, claim, now| ledger.release(claim.id, now)).await;
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

    /// Empties the cells of those that are known to be alone. What turns out otherwise keeps no answer.
    async fn end_alone(&self, answers: &mut [Option<Release>], claims: &[&Claim]) {
        let now = self.clock.now();
        let mut swaps = Vec::new();
        let mut places = Vec::new();
        let mut cells = HashSet::new();
        for (at, claim) in claims.iter().enumerate() {
            self.pollers.forget(claim.id);
            let Some(alone) = self.mine.forget(claim.id) else { continue };
            let basis = match self.cells.timekeeping() {
                Timekeeping::Store => Basis::Renewed,
                // Only this observer can say that the claim still lives.
                Timekeeping::Observer if alone.until > now => Basis::Kept,
                Timekeeping::Observer => continue,
            };
            if !cells.insert(&claim.resource) {
                continue;
            }
            let Ok(version) = pace::draw_version() else { continue };
            let put = Put {
                text: String::new(),
                version,
                fence: alone.last,
                keep: Duration::ZERO,
                call: Call::Nobody,
            };
            let (seen, epoch) = (alone.version, alone.last.epoch);
            swaps.push(Swap { at: claim.resource.clone(), seen, epoch, basis, put });
            places.push(at);
        }
        if swaps.is_empty() {
            return;
        }
        for (at, swapped) in places.into_iter().zip(self.cells.swap(&swaps).await) {
            match swapped {
                Ok(true) => {
                    if self.cells.timekeeping() == Timekeeping::Store {
                        self.left.remember(&claims[at].resource);
                    }
                    answers[at] = Some(Release::Freed);
                }
                Ok(false) => {}
                Err(failure) => answers[at] = Some(Release::Unknown(failure)),
            }
        }
    }
}
