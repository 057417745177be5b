//! Acquisition of a claim: seize what is free, else queue, and check again when something may have changed.

use std::time::Duration;

use leasehold_core::{
    Claim, Effect, Failure, Fence, Grant, Hint, Ledger, MAX_QUEUE, Moment, Patience, QueueOrder, Release,
    Step, Verdict, Wait, WaitMode, spread, stagger,
};
use tokio::time::Instant;

use crate::cell::backend::CellBackend;
use crate::cell::cells::{
    Call, Cell, CellStore, ClockSource, Locked, Put, Write, WriteAnswer, WriteCondition, WriteOutcome,
    read_one, version_for, write_one,
};
use crate::cell::state::decoded::{self, BY_STORE, DecodedCell};
use crate::cell::state::owned_cells::Alone;
use crate::cell::wait::notifier::{Notification, Subscription, address};
use crate::cell::wait::polling;
use crate::cell::wait::timing::{self, LAST_POLL, PLACE_TTL, REFRESH, TICK, Tries};
use crate::changes::patience_ended;

impl<C: CellStore> CellBackend<C> {
    /// Takes one step towards holding the claim.
    pub(crate) async fn contend_step(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        timing::check(self.cells.profile(), claim)?;
        if patience.is_ended() {
            self.pollers.forget(claim.id);
            return Ok(match self.contend_once(claim, patience, Wait::No, FirstRequest::Seize).await? {
                Outcome::Granted(grant) => Step::Granted(grant),
                Outcome::Busy { ahead, .. } => Step::Busy(Hint { ask_again_in: None, ahead: Some(ahead) }),
            });
        }
        match self.cells.profile().waiting {
            WaitMode::Polls => self.poll(claim, patience).await,
            _ => self.wait(claim, patience).await,
        }
    }

    /// Contends once, and returns when to ask again.
    async fn poll(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let round = self.pollers.count(claim.id);
        let first = if round == 0 { FirstRequest::Seize } else { FirstRequest::Read };
        match self.contend_once(claim, patience, self.place(), first).await? {
            Outcome::Granted(grant) => {
                self.pollers.forget(claim.id);
                Ok(Step::Granted(grant))
            }
            Outcome::Busy { ahead, .. } if patience.is_ended() => self.leave(claim, Some(ahead)).await,
            Outcome::Busy { ahead, before, first_end } => {
                let ask_again_in = Some(polling::pause_in_queue(claim, round, before, first_end));
                Ok(Step::Busy(Hint { ask_again_in, ahead: Some(ahead) }))
            }
        }
    }

    /// Waits in the queue until the claim is granted or patience ends.
    async fn wait(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let notifier = self.notifier();
        let subscribe = || notifier.subscribe(&claim.resource, Some(address(claim.id)));
        // A subscription makes the client listen to the store, which a free lock does not need.
        let mut subscription = notifier.is_connected().then(subscribe);
        let mut first = FirstRequest::Seize;
        let mut last_ahead = None;
        for round in 0.. {
            subscription.iter().for_each(Subscription::forget_calls);
            let (ahead, before, first_end) =
                match self.contend_once(claim, patience, self.place(), first).await? {
                    Outcome::Granted(grant) => return Ok(Step::Granted(grant)),
                    Outcome::Busy { ahead, before, first_end } => (ahead, before, first_end),
                };
            first = FirstRequest::Read;
            last_ahead = Some(ahead);
            if patience.is_ended() {
                break;
            }
            let is_new = subscription.is_none();
            let subscription = subscription.get_or_insert_with(subscribe);
            if is_new && subscription.is_connected() {
                // Another waiter made the client listen meanwhile, so a call may have come before the subscription.
                continue;
            }
            tokio::select! {
                () = until_next_check(claim, subscription, before, first_end, round) => {}
                () = patience_ended(patience) => break,
            }
        }
        self.leave(claim, last_ahead).await
    }

    /// Contends once, and again as long as other writers change the cell in between.
    async fn contend_once(
        &self,
        claim: &Claim,
        patience: &Patience,
        wait: Wait,
        mut first: FirstRequest,
    ) -> Result<Outcome, Failure> {
        let _guard = match wait {
            Wait::No => match self.per_resource.try_lock(&claim.resource) {
                Some(guard) => guard,
                None => {
                    // Another task's request may be slow. A read alone makes no other writer lose a race, and
                    // mostly says enough.
                    if let Some(busy) = self.peek(claim).await? {
                        return Ok(busy);
                    }
                    self.per_resource.lock_to_try(&claim.resource).await?
                }
            },
            Wait::Queued(_) | Wait::Barging => self.per_resource.lock(&claim.resource).await,
        };
        let mut tries = Tries::many();
        loop {
            let attempt = Attempt { claim, asked_at: patience.now(), asked_here: self.clock.now() };
            let cell = match first {
                FirstRequest::Read => read_one(&*self.cells, &claim.resource).await?,
                FirstRequest::Seize => match self.seize(&attempt).await? {
                    Seizure::Granted(grant) => return Ok(Outcome::Granted(grant)),
                    Seizure::Held(Some(cell)) => Some(cell),
                    Seizure::Held(None) => read_one(&*self.cells, &claim.resource).await?,
                },
            };
            let Some(cell) = cell else {
                // It was removed in between: what does not exist can be seized.
                first = FirstRequest::Seize;
                let Some(lost) = tries.next() else { return Err(timing::too_busy()) };
                timing::before_retry(lost).await;
                continue;
            };
            first = FirstRequest::Read;
            if let Some(outcome) = self.decide(&attempt, &cell, wait).await? {
                return Ok(outcome);
            }
            let Some(lost) = tries.next() else { return Err(timing::too_busy()) };
            timing::before_retry(lost).await;
        }
    }

    /// Reads the cell, and writes nothing. Returns what keeps out a claim that does not wait; `None` where it
    /// may be granted, or is in the cell already and must not stay there.
    async fn peek(&self, claim: &Claim) -> Result<Option<Outcome>, Failure> {
        let Some(cell) = read_one(&*self.cells, &claim.resource).await? else { return Ok(None) };
        let decoded = self.open(&claim.resource, &cell)?;
        if decoded.has(claim) {
            return Ok(None);
        }
        let (ledger, verdict) = self.contend_in(&decoded, claim, Wait::No);
        Ok(match verdict {
            Verdict::Busy { ahead, earliest } => Some(busy(&decoded, &ledger, claim, ahead, earliest)),
            Verdict::Granted(_) | Verdict::Full => None,
        })
    }

    /// Puts the claim into a cell that has no claims.
    async fn seize(&self, attempt: &Attempt<'_>) -> Result<Seizure, Failure> {
        let (claim, clock_source) = (attempt.claim, self.cells.clock_source());
        let version = version_for(&*self.cells)?;
        let outcome = match self.empty_cells.take(&claim.resource) {
            // Together with what others of its tasks want just now.
            Some(left) => self.commits.write_one(attempt.return_to(left, clock_source, version)).await?,
            None => {
                let write = attempt.taking(clock_source, version);
                write_one(&*self.cells, &write, Locked::Wait).await?
            }
        };
        Ok(match outcome {
            WriteOutcome::Refused(cell) => Seizure::Held(cell),
            WriteOutcome::Written { version, fence } => {
                let alone = version.map(|version| attempt.alone(version, fence, fence));
                self.knowledge.record_taken(claim, fence, alone, clock_source, self.clock.now());
                Seizure::Granted(attempt.granted(fence))
            }
        })
    }

    /// Lets the ledger decide, and writes its decision. Returns `None` where another writer was first.
    async fn decide(
        &self,
        attempt: &Attempt<'_>,
        cell: &Cell,
        wait: Wait,
    ) -> Result<Option<Outcome>, Failure> {
        let claim = attempt.claim;
        let decoded = self.open(&claim.resource, cell)?;
        let (ledger, verdict) = self.contend_in(&decoded, claim, wait);
        let outcome = match verdict {
            Verdict::Full => return Err(queue_is_full(claim, MAX_QUEUE)),
            Verdict::Granted(_) => None,
            Verdict::Busy { ahead, earliest } => Some(busy(&decoded, &ledger, claim, ahead, earliest)),
        };
        if outcome.is_some() && !decoded.is_worth_writing(&ledger, claim, PLACE_TTL) {
            return Ok(outcome);
        }
        let put = decoded.put(&claim.resource, &ledger)?;
        if put.text.len() > self.cells.max_text() {
            return Err(queue_is_full(claim, ledger.entries().len().saturating_sub(1)));
        }
        let written = self.as_written(cell, &put);
        let when = WriteCondition::Seen { version: decoded.version, epoch: decoded.floor.epoch };
        let answer = if outcome.is_none() { WriteAnswer::Full } else { WriteAnswer::Brief };
        let write = Write { at: claim.resource.clone(), when, put, answer };
        let WriteOutcome::Written { version, fence: last } =
            write_one(&*self.cells, &write, Locked::Wait).await?
        else {
            return Ok(None);
        };
        if let Some(written) = written {
            self.open(&claim.resource, &written)?;
        }
        let Verdict::Granted(fence) = verdict else { return Ok(outcome) };
        if let (Some(version), [only]) = (version, ledger.entries())
            && only.id == claim.id
        {
            let alone = Alone { is_contested: true, ..attempt.alone(version, fence, last) };
            self.knowledge.owned_cells.remember(claim.id, alone, attempt.asked_here);
        }
        Ok(Some(Outcome::Granted(attempt.granted(fence))))
    }

    /// Returns the cell as it is after the write, where each observer counts by itself since when it has
    /// seen what. A waiter that the write calls has the grace of a call from then on, and not from the next
    /// read.
    fn as_written(&self, cell: &Cell, put: &Put) -> Option<Cell> {
        let text = (self.cells.clock_source() == ClockSource::Observer).then(|| put.text.clone())?;
        Some(Cell { text, version: put.version, fence: put.fence, ..cell.clone() })
    }

    fn contend_in(&self, decoded: &DecodedCell, claim: &Claim, wait: Wait) -> (Ledger, Verdict) {
        contend_in(decoded, claim, wait, self.cells.profile().order)
    }

    fn place(&self) -> Wait {
        Wait::Queued(PLACE_TTL)
    }

    /// Leaves the queue. Nothing of the claim remains.
    async fn leave(&self, claim: &Claim, ahead: Option<u32>) -> Result<Step, Failure> {
        match self.release_batch(&[claim]).await.pop() {
            // No matter what this request did, the place may still exist.
            Some(Release::Unknown(failure)) => Err(failure.with_effect(Effect::Unknown)),
            _ => Ok(Step::Busy(Hint { ask_again_in: None, ahead })),
        }
    }
}

/// Contends in the ledger of a cell: where the order is free, a claim asks past the queue first, and is
/// queued only as one of those to be called.
pub(super) fn contend_in(
    decoded: &DecodedCell,
    claim: &Claim,
    wait: Wait,
    order: QueueOrder,
) -> (Ledger, Verdict) {
    if order == QueueOrder::Unordered && !decoded.has(claim) {
        let (ledger, verdict) = decoded.contend(&decoded::ask_of(claim, Wait::Barging));
        if matches!(verdict, Verdict::Granted(_)) {
            return (ledger, verdict);
        }
    }
    decoded.contend(&decoded::ask_of(claim, wait))
}

/// Waits until something may have changed for this claim.
async fn until_next_check(
    claim: &Claim,
    subscription: &Subscription,
    before: u32,
    first_end: Duration,
    round: u32,
) {
    let stagger = stagger(before);
    let at_end = first_end.saturating_add(TICK + stagger).min(spread(claim.id, REFRESH, round));
    let mut next_check = Instant::now() + at_end;
    loop {
        if !subscription.is_connected() {
            next_check = next_check.min(Instant::now() + spread(claim.id, LAST_POLL, round));
        }
        // Others are first. If they are dead, the waiters call more of the queue.
        let after_others = subscription.next_check().map(|at| at + TICK + stagger);
        tokio::select! {
            notification = subscription.receive() => match notification {
                Notification::Called => return,
                Notification::Others => {}
            },
            () = tokio::time::sleep_until(after_others.map_or(next_check, |at| at.min(next_check))) => return,
        }
    }
}

/// Returns the answer to a claim that is not granted.
fn busy(decoded: &DecodedCell, ledger: &Ledger, claim: &Claim, ahead: u32, earliest: Moment) -> Outcome {
    let before = waiting_before(ledger, claim);
    Outcome::Busy { ahead, before, first_end: decoded.now.until(earliest) }
}

/// Returns the number of claims that wait before this one. Holders do not count: they keep no waiter from
/// checking soon.
fn waiting_before(ledger: &Ledger, claim: &Claim) -> u32 {
    let before = ledger.entries().iter().take_while(|entry| entry.id != claim.id);
    u32::try_from(before.filter(|entry| entry.granted.is_none()).count()).unwrap_or(u32::MAX)
}

/// The kind of the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstRequest {
    /// A request to take the cell, in the hope that it has no claims.
    Seize,
    /// A request to read the cell, since it has claims.
    Read,
}

/// One attempt, with the time before its first request.
pub(super) struct Attempt<'a> {
    pub(super) claim: &'a Claim,
    pub(super) asked_at: Moment,
    /// The same by the backend's own clock.
    pub(super) asked_here: Moment,
}

impl Attempt<'_> {
    /// Returns the value of a cell in which the claim is alone, with the fence that the store makes.
    fn put_alone(&self, clock_source: ClockSource, version: u64) -> Put {
        let text = decoded::alone(self.claim, BY_STORE, BY_STORE, Duration::ZERO, clock_source);
        Put { text, version, fence: BY_STORE, keep: self.claim.ttl, call: Call::None }
    }

    /// Returns the write that puts the claim into a cell without claims.
    pub(super) fn taking(&self, clock_source: ClockSource, version: u64) -> Write {
        let (at, put) = (self.claim.resource.clone(), self.put_alone(clock_source, version));
        Write { at, when: WriteCondition::Free, put, answer: WriteAnswer::Full }
    }

    /// Returns the write that puts the claim into the cell that this client left empty under that version.
    pub(super) fn return_to(&self, left: u64, clock_source: ClockSource, version: u64) -> Write {
        let (at, put) = (self.claim.resource.clone(), self.put_alone(clock_source, version));
        Write { at, when: WriteCondition::Emptied(left), put, answer: WriteAnswer::Brief }
    }

    /// Returns what is known of a cell in which the claim is alone.
    pub(super) fn alone(&self, version: u64, fence: Fence, last: Fence) -> Alone {
        let (since, until) = (self.asked_here, self.asked_here.after(self.claim.ttl));
        Alone { version, is_contested: false, fence, last, since, until }
    }

    pub(super) fn granted(&self, fence: Fence) -> Grant {
        Grant::new(self.asked_at).fence(Some(fence))
    }
}

/// The result of an attempt to put the claim into a cell without claims.
enum Seizure {
    Granted(Grant),
    /// Claims live in it. The cell, where the answer had it.
    Held(Option<Cell>),
}

/// The result of contending once.
enum Outcome {
    Granted(Grant),
    Busy {
        ahead: u32,
        /// The number of waiting claims among those.
        before: u32,
        first_end: Duration,
    },
}

fn queue_is_full(claim: &Claim, claims: usize) -> Failure {
    Failure::unavailable(format!(
        "{claims} claims are queued for {:?} already, and its cell has no room for more: try again later",
        claim.resource
    ))
}

#[cfg(test)]
mod tests {
    use leasehold_core::{ClaimId, Resource, Share};

    use super::*;

    #[test]
    fn holders_keep_no_waiter_from_checking_soon() {
        let lease = Duration::from_secs(30);
        let claim = |number| {
            Claim::new(ClaimId::from_bytes([number; 16]), Resource::new("r").unwrap(), Share::MUTEX, lease)
        };
        let mut ledger = Ledger::new(Fence::default());
        for number in 0..4 {
            ledger.contend(&decoded::ask_of(&claim(number), Wait::Queued(lease)), Moment::from_millis(1));
        }
        let before = [0, 1, 2, 3].map(|number| waiting_before(&ledger, &claim(number)));
        assert_eq!(before, [0, 0, 1, 2]);
    }
}
