//! Direct requests: a claim is put into a cell without claims, by one write that is sent on the thread of the caller.
//! If claims live in the cell, their ledger says whether a request that leaves no place can be more than refused.

use leasehold_core::{
    Claim, DirectAnswer, DirectRelease, DirectReply, DirectRequests, Effect, Moment, Verdict, Wait,
};

use crate::cell::backend::CellBackend;
use crate::cell::backend::acquire::{Attempt, contend_in};
use crate::cell::cells::{CellStore, WriteOutcome, version_for};
use crate::cell::state::decoded::DecodedCell;
use crate::cell::wait::timing;

impl<C: CellStore> DirectRequests for CellBackend<C> {
    fn ask_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        timing::check(self.cells.profile(), claim).ok()?;
        if !claim.share.is_exclusive() {
            // It mostly finds others that it goes together with, which takes a look and a write.
            return None;
        }
        let (clock_source, version) = (self.cells.clock_source(), version_for(&*self.cells).ok()?);
        let asked_here = self.clock.now();
        let write = Attempt { claim, asked_at, asked_here }.taking(clock_source, version);
        let sent = self.cells.send_now(write)?;
        let (claim, clock, knowledge) = (claim.clone(), self.clock.clone(), self.knowledge.clone());
        let order = self.cells.profile().order;
        Some(Box::pin(async move {
            let cell = match sent.await {
                Ok(WriteOutcome::Written { version, fence }) => {
                    let attempt = Attempt { claim: &claim, asked_at, asked_here };
                    let alone = version.map(|version| attempt.alone(version, fence, fence));
                    knowledge.record_taken(&claim, fence, alone, clock_source, clock.now());
                    return DirectReply::Granted(attempt.granted(fence));
                }
                Ok(WriteOutcome::Refused(Some(cell))) => cell,
                // A store that looks after its write may have made the write, and found nothing any more.
                Ok(WriteOutcome::Refused(None)) => return DirectReply::Unknown,
                Err(failure) if failure.effect == Effect::None => return DirectReply::Declined,
                Err(_) => return DirectReply::Unknown,
            };
            let now = clock.now();
            let decoded = DecodedCell::open(&claim.resource, &cell, clock_source, &knowledge.observed, now);
            let Ok(decoded) = decoded else { return DirectReply::Declined };
            if decoded.has(&claim) {
                // It was put in, and others joined it before the store looked.
                return DirectReply::Unknown;
            }
            match contend_in(&decoded, &claim, Wait::No, order).1 {
                Verdict::Busy { ahead, .. } => DirectReply::Busy { ahead: Some(ahead) },
                // The slow path takes what is left of the capacity, or of the dead.
                Verdict::Granted(_) | Verdict::Full => DirectReply::Declined,
            }
        }))
    }

    fn release_directly(&self, _: &Claim) -> Option<DirectRelease> {
        // If others have joined the claim, its release takes more than one request, which must not depend on a caller
        // that is polled.
        None
    }
}
