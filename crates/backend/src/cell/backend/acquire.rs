//! Acquisition of a claim: seize what is free, else queue, and look again when it is worth it.

use std::time::Duration;

use leasehold_core::{
    Claim, Effect, Failure, Fence, Grant, Hint, Ledger, MAX_LINE, Moment, Patience, Proof, QueueOrder,
    Release, Step, Verdict, Wait, WaitMode, stagger,
};
use tokio::time::Instant;

use crate::cell::backend::CellBackend;
use crate::cell::cells::{
    AmendKind, Cell, CellStore, CellUpdate, ClockSource, InsertOutcome, Origin, Put, Swap,
};
use crate::cell::state::decoded::{self, BY_STORE, DecodedCell};
use crate::cell::state::owned_cells::Alone;
use crate::cell::wait::notifier::{News, Waiter, address};
use crate::cell::wait::pollers;
use crate::cell::wait::timing::{self, LAST_POLL, PLACE_TTL, REFRESH, TICK, Tries, ended, jittered};

impl<C: CellStore> CellBackend<C> {
    /// Takes one step towards holding the claim.
    pub(crate) async fn step(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        timing::check(self.cells.profile(), claim)?;
        if patience.is_ended() {
            self.pollers.forget(claim.id);
            return Ok(match self.look(claim, patience, Wait::No, First::Seize).await? {
                Seen::Granted(grant) => Step::Granted(grant),
                Seen::Busy { ahead, .. } => Step::Busy(Hint { ask_again_in: None, ahead: Some(ahead) }),
            });
        }
        match self.cells.profile().waiting {
            WaitMode::Polls => self.poll(claim, patience).await,
            _ => self.wait(claim, patience).await,
        }
    }

    /// Looks once and says when to look again.
    async fn poll(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let round = self.pollers.count(claim.id);
        let first = if round == 0 { First::Seize } else { First::Read };
        match self.look(claim, patience, self.place(), first).await? {
            Seen::Granted(grant) => {
                self.pollers.forget(claim.id);
                Ok(Step::Granted(grant))
            }
            Seen::Busy { ahead, .. } if patience.is_ended() => self.leave(claim, Some(ahead)).await,
            Seen::Busy { ahead, before, first_end } => {
                let ask_again_in = Some(pollers::pause_in_line(claim, round, before, first_end));
                Ok(Step::Busy(Hint { ask_again_in, ahead: Some(ahead) }))
            }
        }
    }

    /// Waits in the queue until the claim is granted or patience ends.
    async fn wait(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let bell = self.bells().hang(&claim.resource, Some(address(claim.id)));
        let mut first = First::Seize;
        let mut last_ahead = None;
        for round in 0.. {
            bell.look();
            let (ahead, before, first_end) = match self.look(claim, patience, self.place(), first).await? {
                Seen::Granted(grant) => return Ok(Step::Granted(grant)),
                Seen::Busy { ahead, before, first_end } => (ahead, before, first_end),
            };
            first = First::Read;
            last_ahead = Some(ahead);
            if patience.is_ended() {
                break;
            }
            tokio::select! {
                () = until_worth_a_look(claim, &bell, before, first_end, round) => {}
                () = ended(patience) => break,
            }
        }
        self.leave(claim, last_ahead).await
    }

    /// Asks the store once, and again as long as other writers come between.
    async fn look(
        &self,
        claim: &Claim,
        patience: &Patience,
        wait: Wait,
        mut first: First,
    ) -> Result<Seen, Failure> {
        let _turn = match wait {
            Wait::No => match self.turns.take_now(&claim.resource) {
                Some(turn) => turn,
                None => {
                    // Another task's request may be slow. A look without a write makes nobody lose, and
                    // mostly says enough.
                    if let Some(busy) = self.glance(claim).await? {
                        return Ok(busy);
                    }
                    self.turns.take_to_try(&claim.resource).await?
                }
            },
            Wait::InLine(_) | Wait::Barging => self.turns.take(&claim.resource).await,
        };
        let mut tries = Tries::many();
        loop {
            let asking = Asking { claim, asked_at: patience.now(), asked_here: self.clock.now() };
            let cell = match first {
                First::Read => self.read_one(claim).await?,
                First::Seize => match self.try_insert(&asking).await? {
                    Taking::Granted(grant) => return Ok(Seen::Granted(grant)),
                    Taking::Held(Some(cell)) => Some(cell),
                    Taking::Held(None) => self.read_one(claim).await?,
                },
            };
            let Some(cell) = cell else {
                // It went away in between: what is not there can be seized.
                first = First::Seize;
                let Some(lost) = tries.next() else { return Err(timing::too_busy()) };
                timing::before_retry(lost).await;
                continue;
            };
            first = First::Read;
            if let Some(seen) = self.decide(&asking, &cell, wait).await? {
                return Ok(seen);
            }
            let Some(lost) = tries.next() else { return Err(timing::too_busy()) };
            timing::before_retry(lost).await;
        }
    }

    /// Reads the cell, and writes nothing: what keeps out a claim that does not wait; `None` where it may
    /// be granted, or is in the cell already and must not stay there.
    async fn glance(&self, claim: &Claim) -> Result<Option<Seen>, Failure> {
        let Some(cell) = self.read_one(claim).await? else { return Ok(None) };
        let page = self.open(&claim.resource, &cell)?;
        if page.ledger.entries().iter().any(|entry| entry.id == claim.id) {
            return Ok(None);
        }
        let (ledger, verdict) = self.contend_in(&page, claim, Wait::No);
        Ok(match verdict {
            Verdict::Busy { ahead, earliest } => Some(busy(&page, &ledger, claim, ahead, earliest)),
            Verdict::Granted(_) | Verdict::Full => None,
        })
    }

    /// Puts the claim into a cell that has no claims.
    async fn try_insert(&self, asking: &Asking<'_>) -> Result<Taking, Failure> {
        let claim = asking.claim;
        let kept_by = self.cells.timekeeping();
        let put = Put {
            text: decoded::alone(claim, BY_STORE, BY_STORE, Duration::ZERO, kept_by),
            version: timing::draw_version()?,
            fence: BY_STORE,
            keep: claim.ttl,
            call: crate::cell::Call::Nobody,
        };
        let seized = match self.left.take(&claim.resource) {
            Some(seen) => self.retake(claim, seen, &put).await?,
            None => self.cells.try_insert(&claim.resource, &put).await?,
        };
        Ok(match seized {
            InsertOutcome::Held(cell) => Taking::Held(cell),
            InsertOutcome::Taken { version, fence } => {
                if kept_by == ClockSource::Observer {
                    // The claim's own span begins now for this observer, too.
                    let cell = Cell { text: put.text, version, fence, floor: fence, age: None };
                    self.open(&claim.resource, &cell)?;
                }
                self.remember(asking, version, fence, fence);
                Taking::Granted(asking.granted(fence))
            }
        })
    }

    /// Puts the claim into a cell that this client left empty, together with what others of its tasks want
    /// just now.
    async fn retake(&self, claim: &Claim, seen: u64, put: &Put) -> Result<InsertOutcome, Failure> {
        let amend = CellUpdate { at: claim.resource.clone(), seen, way: AmendKind::Retake, put: put.clone() };
        Ok(match self.commits.amend_one(amend).await? {
            Some(fence) => InsertOutcome::Taken { version: put.version, fence },
            None => InsertOutcome::Held(None),
        })
    }

    /// Lets the ledger decide, and writes down what it decided. `None` where another writer came between.
    async fn decide(&self, asking: &Asking<'_>, cell: &Cell, wait: Wait) -> Result<Option<Seen>, Failure> {
        let claim = asking.claim;
        let page = self.open(&claim.resource, cell)?;
        let (ledger, verdict) = self.contend_in(&page, claim, wait);
        let seen = match verdict {
            Verdict::Full => return Err(line_is_full(claim, MAX_LINE)),
            Verdict::Granted(_) => None,
            Verdict::Busy { ahead, earliest } => Some(busy(&page, &ledger, claim, ahead, earliest)),
        };
        if seen.is_some() && !page.is_worth_writing(&ledger, claim, PLACE_TTL) {
            return Ok(seen);
        }
        let put = page.put(&claim.resource, &ledger)?;
        if put.text.len() > self.cells.max_text() {
            return Err(line_is_full(claim, ledger.entries().len().saturating_sub(1)));
        }
        let (version, last) = (put.version, put.fence);
        let written = self.own_sight(cell, &put);
        if !self.write(&page, claim, put).await? {
            return Ok(None);
        }
        if let Some(written) = written {
            self.open(&claim.resource, &written)?;
        }
        let Verdict::Granted(fence) = verdict else { return Ok(seen) };
        if matches!(ledger.entries(), [only] if only.id == claim.id) {
            self.remember(asking, version, fence, last);
        }
        Ok(Some(Seen::Granted(asking.granted(fence))))
    }

    /// Returns the cell as it is after the write, where each observer counts by itself since when it has
    /// seen what. Whom it calls has the grace of a call from then on, and not from the next look.
    fn own_sight(&self, cell: &Cell, put: &Put) -> Option<Cell> {
        let text = (self.cells.timekeeping() == ClockSource::Observer).then(|| put.text.clone())?;
        Some(Cell { text, version: put.version, fence: put.fence, ..cell.clone() })
    }

    /// Contends in a page: where the order is free, a claim asks past the queue first, and is queued only as
    /// one of those to be called.
    fn contend_in(&self, page: &DecodedCell, claim: &Claim, wait: Wait) -> (Ledger, Verdict) {
        let known = page.ledger.entries().iter().any(|entry| entry.id == claim.id);
        if self.cells.profile().order == QueueOrder::Unordered && !known {
            let (ledger, verdict) = page.contend(&decoded::ask_of(claim, Wait::Barging));
            if matches!(verdict, Verdict::Granted(_)) {
                return (ledger, verdict);
            }
        }
        page.contend(&decoded::ask_of(claim, wait))
    }

    async fn write(&self, page: &DecodedCell, claim: &Claim, put: Put) -> Result<bool, Failure> {
        let swap = Swap {
            at: claim.resource.clone(),
            seen: page.version,
            epoch: page.floor.epoch,
            basis: Origin::Kept,
            put,
        };
        match self.cells.swap(&[swap]).await.pop() {
            Some(answer) => answer,
            None => Err(Failure::unanswered("the store did not answer a write")),
        }
    }

    async fn read_one(&self, claim: &Claim) -> Result<Option<Cell>, Failure> {
        match self.cells.read(&[&claim.resource]).await.pop() {
            Some(answer) => answer,
            None => Err(Failure::unavailable("the store did not answer a read")),
        }
    }

    /// Keeps in mind that this claim is alone in its cell.
    fn remember(&self, asking: &Asking<'_>, version: u64, fence: Fence, last: Fence) {
        let until = asking.asked_here.after(asking.claim.ttl);
        let alone = Alone { version, fence, last, since: asking.asked_here, until };
        self.mine.remember(asking.claim.id, alone);
    }

    fn place(&self) -> Wait {
        Wait::InLine(PLACE_TTL)
    }

    /// Leaves the queue. Nothing of the claim remains.
    async fn leave(&self, claim: &Claim, ahead: Option<u32>) -> Result<Step, Failure> {
        self.pollers.forget(claim.id);
        match self.end(&[claim]).await.pop() {
            Some(Release::Unknown(mut failure)) => {
                // No matter what this request did, the place may still exist.
                failure.effect = Effect::Unknown;
                Err(failure)
            }
            _ => Ok(Step::Busy(Hint { ask_again_in: None, ahead })),
        }
    }
}

/// Comes back when something may have changed for this claim.
async fn until_worth_a_look(claim: &Claim, bell: &Waiter, before: u32, first_end: Duration, round: u32) {
    let stagger = stagger(before);
    let at_end = first_end.saturating_add(TICK + stagger).min(jittered(claim, REFRESH, round));
    let mut look_at = Instant::now() + at_end;
    loop {
        if !bell.is_hearing() {
            look_at = look_at.min(Instant::now() + jittered(claim, LAST_POLL, round));
        }
        // Others go first. Should they be dead, the waiters call more of the queue.
        let after_others = bell.look_at().map(|at| at + TICK + stagger);
        tokio::select! {
            news = bell.hear() => match news {
                News::Called => return,
                News::Others => {}
            },
            () = tokio::time::sleep_until(after_others.map_or(look_at, |at| at.min(look_at))) => return,
        }
    }
}

/// Returns the answer to a claim that is not granted.
fn busy(page: &DecodedCell, ledger: &Ledger, claim: &Claim, ahead: u32, earliest: Moment) -> Seen {
    let before = waiting_before(ledger, claim);
    Seen::Busy { ahead, before, first_end: page.now.until(earliest) }
}

/// Returns the number of claims that wait before this one. Holders do not count: they keep no waiter from
/// looking soon.
fn waiting_before(ledger: &Ledger, claim: &Claim) -> u32 {
    let before = ledger.entries().iter().take_while(|entry| entry.id != claim.id);
    u32::try_from(before.filter(|entry| entry.granted.is_none()).count()).unwrap_or(u32::MAX)
}

/// The kind of the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// A request to take the cell, in the hope that it has no claims.
    Seize,
    /// A request to look, since the cell has claims.
    Read,
}

/// One attempt, with the time before its first request.
struct Asking<'a> {
    claim: &'a Claim,
    asked_at: Moment,
    /// The same by the backend's own clock.
    asked_here: Moment,
}

impl Asking<'_> {
    fn granted(&self, fence: Fence) -> Grant {
        Grant { asked_at: self.asked_at, fence: Some(fence), lost: None, proof: Proof::none() }
    }
}

enum Taking {
    Granted(Grant),
    Held(Option<Cell>),
}

/// The result of one look.
enum Seen {
    Granted(Grant),
    Busy {
        ahead: u32,
        /// The number of waiting claims among those.
        before: u32,
        first_end: Duration,
    },
}

fn line_is_full(claim: &Claim, claims: usize) -> Failure {
    Failure::unavailable(format!(
        "{claims} claims are queued for {:?} already, and its cell has no room for more: try again later",
        claim.resource
    ))
}
