//! Upgrades: acquisition of more of a resource by a holder that keeps the part it already has.
//!
//! Ground rules: an upgrade does not enter the local queue, where it would wait behind waiters for the
//! part that it holds. On the server it queues like any other claim. If a claim ahead of it there waits
//! for the held part, both would wait for ever. The upgrade detects that by reading the queue for as long
//! as it waits in it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimId, Patience, QueueOrder, Resource, Share, Snapshot};
use tokio::sync::{oneshot, watch};

use crate::engine::Engine;
use crate::engine::Wait;
use crate::engine::Want;
use crate::engine::acquire::contender::contend_until_granted;
use crate::engine::acquire::span;
use crate::engine::deadline::Deadline;
use crate::engine::hold::Hold;
use crate::engine::hold::handle::HoldHandle;
use crate::engine::inspect::EndOnDrop;
use crate::engine::retry::jittered;
use crate::error::{Error, ErrorKind, Result};
use crate::mutant::mutant;

impl Engine {
    /// Acquires `want` in addition to a claim of the share `has` on the same resource, which stays held.
    ///
    /// Cancel safe: a dropped future leaves nothing behind.
    pub(crate) async fn acquire_alongside(
        self: &Arc<Self>,
        want: Want,
        has: Share,
        wait: Wait,
    ) -> Result<HoldHandle> {
        span::run_reported(self, &want.clone(), self.alongside(want, has, wait)).await
    }

    async fn alongside(self: &Arc<Self>, want: Want, has: Share, wait: Wait) -> Result<Hold> {
        let resource = want.resource.clone();
        self.check_open("upgrade").map_err(|error| error.on(&resource))?;
        let deadline = Deadline::of(wait, self);
        if deadline.is_zero() {
            let tried = self.try_at_deadline(Some(want), deadline.waited(), &resource).await;
            return tried.map_err(|error| error.with_op("upgrade"));
        }
        let _dependent = self.depend_on_release(&resource);
        let (drawn, contender_id) = watch::channel(None);
        // A task of its own sends the requests. When this future returns or is dropped, `leaving` ends the
        // patience of that task, which then gives up its place.
        let patience = Patience::unlimited(self.clock.clone());
        let leaving = EndOnDrop(patience.clone());
        let again = deadline.is_limited().then(|| want.clone());
        let (reply, mut receiver) = oneshot::channel();
        let engine = self.clone();
        self.spawn(async move {
            let drawn = |id| {
                drawn.send_replace(Some(id));
            };
            let mut failing_since = None;
            let contending = contend_until_granted(&engine, &want, &patience, &mut failing_since, drawn);
            // Closing waits for this task.
            let outcome = engine.wait_until_closing(&patience, contending).await;
            let outcome = outcome.and_then(|pending| pending.map(Engine::grant_outside_queue).transpose());
            // If it cannot be delivered, the hold is dropped here, which releases it.
            drop(reply.send(outcome));
        });
        let ended = tokio::select! {
            biased;
            outcome = &mut receiver => outcome.ok(),
            () = self.closed.cancelled() => None,
            () = deadline.passed() => {
                let last_try = tokio::select! {
                    biased;
                    outcome = &mut receiver => Err(outcome.ok()),
                    last_try = Box::pin(self.try_at_deadline(again, deadline.waited(), &resource)) => Ok(last_try),
                };
                match last_try {
                    Err(outcome) => outcome,
                    Ok(Ok(hold)) => Some(Ok(Some(hold))),
                    Ok(Err(error)) => {
                        // The grant of the first claim may have arrived while the time ran out, and the last try was
                        // then refused because of it: the caller gets it.
                        leaving.0.end();
                        match self.first_answer(&mut receiver, &error).await {
                            Some(hold) => Some(Ok(Some(hold))),
                            None => Some(Err(error)),
                        }
                    }
                }
            }
            ahead = self.waits_for_itself(&resource, contender_id, has) => Some(Err(ahead)),
        };
        match ended {
            Some(Ok(Some(hold))) => Ok(hold),
            Some(Err(error)) => Err(error.with_op("upgrade")),
            Some(Ok(None)) | None => Err(Error::closed("upgrade").on(&resource)),
        }
    }

    /// Returns what the first claim of a wait was granted, after the last try failed with `error`. Waits for the end of
    /// that claim if the store answers.
    async fn first_answer(&self, receiver: &mut Receiver, error: &Error) -> Option<Hold> {
        if error.kind() != ErrorKind::Timeout || mutant!("an upgrade is refused because of its own claim") {
            receiver.close();
            return receiver.try_recv().ok()?.ok()?;
        }
        let answer = async { receiver.await.unwrap_or(Ok(None)) };
        self.with_answer_limit(Duration::ZERO, answer).await.ok()?
    }

    /// Reads the queue until a claim further ahead in it waits for what is held, and returns that error.
    /// Never returns if no such claim exists.
    ///
    /// Claims ahead can only leave, unless this claim loses its place: if it was skipped because it did
    /// not answer in time, or forgotten by the server, it is at the end of the queue. So the reads
    /// continue for as long as it waits, if seldom.
    async fn waits_for_itself(
        self: &Arc<Self>,
        resource: &Resource,
        contender_id: watch::Receiver<Option<ClaimId>>,
        has: Share,
    ) -> Error {
        if self.profile().order < QueueOrder::Fifo {
            // Without a queue no claim is ahead: one that waits for the held part is overtaken.
            return std::future::pending().await;
        }
        let mut pause = CHECK_FIRST;
        loop {
            if !self.sleep(jittered(pause)).await {
                return std::future::pending().await;
            }
            pause = (pause * 2).min(CHECK_LAST.max(pause));
            // A failed read says nothing; the next one may succeed.
            let Ok(queue) = self.inspect(resource, None, Duration::ZERO).await else { continue };
            let Some(id) = *contender_id.borrow() else { continue };
            match is_behind_a_conflict(&queue, id, has) {
                None => {}
                Some(false) if mutant!("an upgrade looks once") => return std::future::pending().await,
                Some(false) => pause = CHECK_SELDOM,
                Some(true) => {
                    let text = "a waiter ahead in the queue waits for what is held here, so each would \
                                wait for the other; nothing changed; release the lock, then acquire all \
                                of it";
                    return Error::new(ErrorKind::Deadlock, "upgrade", text).on(resource);
                }
            }
        }
    }
}

/// The receiver of what the task of a claim was granted.
type Receiver = oneshot::Receiver<Result<Option<Hold>>>;

/// Returns `true` if a claim ahead of this one cannot be admitted together with `has`; `None` where this claim
/// is not in the queue.
fn is_behind_a_conflict(queue: &Snapshot, id: ClaimId, has: Share) -> Option<bool> {
    let place = queue.waiting.iter().position(|info| info.id == id)?;
    let conflicts = |share: Share| {
        u64::from(share.weight()) + u64::from(has.weight()) > u64::from(share.capacity().min(has.capacity()))
    };
    Some(queue.waiting[..place].iter().any(|info| conflicts(info.share)))
}

const CHECK_FIRST: Duration = Duration::from_millis(10);
const CHECK_LAST: Duration = Duration::from_secs(1);
/// The pause between two reads for a claim with no conflict ahead of it.
const CHECK_SELDOM: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use leasehold_core::{ClaimInfo, SnapshotVersion};

    use super::*;

    #[test]
    fn claim_ahead_conflicts_if_both_do_not_fit_together() {
        let permits = |weight, capacity| Share::permits(weight, capacity).unwrap();
        let id = |number| ClaimId::from_bytes([number; 16]);
        let behind = |ahead, has| {
            let claim = |number, share| ClaimInfo::new(id(number), share);
            let waiting = vec![claim(1, ahead), claim(2, permits(1, 5)), claim(3, permits(5, 5))];
            let queue =
                Snapshot::new(Resource::new("r").unwrap(), SnapshotVersion::new("1")).waiting(waiting);
            (is_behind_a_conflict(&queue, id(2), has), is_behind_a_conflict(&queue, id(4), has))
        };
        assert_eq!(behind(permits(3, 5), permits(2, 5)), (Some(false), None));
        assert_eq!(behind(permits(4, 5), permits(2, 5)), (Some(true), None));
        assert_eq!(behind(permits(3, 4), permits(2, 5)).0, Some(true));
        assert_eq!(behind(Share::READER, Share::READER).0, Some(false));
        assert_eq!(behind(Share::WRITER, Share::READER).0, Some(true));
    }
}
