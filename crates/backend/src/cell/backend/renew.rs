//! Renewal: a claim that is known to be alone in its cell writes at once, all others read first. Either way
//! a whole batch is one request, or two.

use std::collections::{HashMap, HashSet};

use leasehold_core::{Claim, Failure, Renew, Renewal};

use crate::cell::backend::CellBackend;
use crate::cell::backend::batch::Change;
use crate::cell::cells::{
    Call, CellStore, ClockSource, Locked, Put, Write, WriteAnswer, WriteCondition, WriteOutcome,
};
use crate::cell::state::decoded;
use crate::cell::state::owned_cells::Alone;
use crate::cell::wait::timing::{self, BATCH_MAX};

impl<C: CellStore> CellBackend<C> {
    pub(crate) async fn renew_batch(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let mut answers: Vec<Option<Renewal>> = batch.iter().map(|_| None).collect();
        let mut checked = Vec::with_capacity(batch.len());
        for (answer, Renew { claim, .. }) in answers.iter_mut().zip(batch) {
            match timing::check(self.cells.profile(), claim) {
                Ok(()) => checked.push((answer, *claim)),
                Err(failure) => *answer = Some(Renewal::Unknown(failure)),
            }
        }
        self.renew_alone(&mut checked).await;
        let mut rest: Vec<_> = checked.into_iter().filter(|(answer, _)| answer.is_none()).collect();
        let claims: Vec<&Claim> = rest.iter().map(|(_, claim)| *claim).collect();
        let renew: Change = |ledger, claim, now| ledger.renew(claim.id, claim.ttl, now);
        let changed = self.change(&claims, HashMap::new(), batch.len() == 1, renew).await;
        for ((answer, claim), changed) in rest.iter_mut().zip(changed) {
            **answer = Some(match changed {
                Ok(true) => Renewal::Renewed,
                Ok(false) => Renewal::Lost,
                Err(failure) => Renewal::Unknown(failure),
            });
            // Others are in the cell, or it is lost: the remembered state is outdated.
            self.knowledge.owned_cells.forget(claim.id);
        }
        let unanswered = || Renewal::Unknown(Failure::unanswered("the store did not answer a renewal"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Renews those that are known to be alone. Those that are not alone any more get no answer here.
    async fn renew_alone(&self, checked: &mut [(&mut Option<Renewal>, &Claim)]) {
        if self.cells.clock_source() == ClockSource::Observer {
            // The number of a claim's renewals is in its cell.
            return;
        }
        let most = self.cells.profile().renew_batch_max.clamp(1, BATCH_MAX);
        for some in checked.chunks_mut(most) {
            let now = self.clock.now();
            let mut writes = Vec::new();
            let mut cells = HashSet::new();
            let mut places = Vec::new();
            for (at, (_, claim)) in some.iter().enumerate() {
                let Some(alone) = self.knowledge.owned_cells.recall(claim.id) else { continue };
                // A lease is never shortened, and no claim is alone in a cell twice.
                if alone.until > now.after(claim.ttl) || !cells.insert(&claim.resource) {
                    continue;
                }
                let Ok(version) = timing::draw_version() else { continue };
                let clock_source = self.cells.clock_source();
                let text =
                    decoded::alone(claim, alone.fence, alone.last, now.since(alone.since), clock_source);
                let put = Put { text, version, fence: alone.last, keep: claim.ttl, call: Call::None };
                let when = WriteCondition::Living { version: alone.version, epoch: None };
                writes.push(Write { at: claim.resource.clone(), when, put, answer: WriteAnswer::Brief });
                places.push((at, Alone { version, until: now.after(claim.ttl), ..alone }));
            }
            if writes.is_empty() {
                continue;
            }
            let writes: Vec<&Write> = writes.iter().collect();
            let written = self.cells.write(&writes, Locked::Skip).await;
            for ((at, alone), written) in places.into_iter().zip(written) {
                let (answer, claim) = &mut some[at];
                match written {
                    Ok(WriteOutcome::Written { .. }) => {
                        self.knowledge.owned_cells.remember(claim.id, alone, now);
                        **answer = Some(Renewal::Renewed);
                    }
                    Ok(WriteOutcome::Refused(_)) => {}
                    Err(failure) => **answer = Some(Renewal::Unknown(failure)),
                }
            }
        }
    }
}
