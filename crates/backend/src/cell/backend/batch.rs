//! Changes of many cells at once: read them together, let each ledger decide, write them together.
//!
//! Ground rules: the claims of one resource are decided on one ledger, in order. What lost a race is read
//! again, with all others that did. A cell that need not change is not written. A cell that a transaction
//! of another client keeps locked delays no other claim: its own claims are answered for alone.

use std::collections::{BTreeMap, HashMap};

use leasehold_core::{Claim, Failure, Ledger, Moment, Resource};

use crate::cell::backend::CellBackend;
use crate::cell::cells::{
    Cell, CellStore, Locked, Write, WriteAnswer, WriteCondition, WriteOutcome, unread, unwritten,
};
use crate::cell::wait::timing::{self, BATCH_MAX, LOCKED_TRIES, MAX_TRIES, Tries};

/// The answer for each claim of a cell, and the write that makes it true, with the version that it replaces.
type Prepared = (Vec<bool>, Option<(u64, Write)>);

/// A change to one claim in a ledger; `false` where the claim is gone.
pub(crate) type Change = fn(&mut Ledger, &Claim, Moment) -> bool;

impl<C: CellStore> CellBackend<C> {
    /// Makes the change to each claim and answers in order. `found` are cells that were read just now and
    /// need not be read again. `is_alone` says that no other claim's answer
    /// waits for these: then a busy cell and a slow commit of another client get more tries.
    pub(crate) async fn change(
        &self,
        claims: &[&Claim],
        mut found: HashMap<Resource, Cell>,
        is_alone: bool,
        change: Change,
    ) -> Vec<Result<bool, Failure>> {
        let mut answers: Vec<Result<bool, Failure>> =
            claims.iter().map(|_| Err(timing::too_busy())).collect();
        let most = self.cells.profile().renew_batch_max.clamp(1, BATCH_MAX);
        for some in grouped(claims).chunks(most) {
            let mut pending: Vec<Pending<'_>> = some.iter().map(Pending::of).collect();
            let mut tries = if is_alone { Tries::many() } else { Tries::few() };
            loop {
                pending = self.try_change(pending, claims, &mut found, change, &mut answers, is_alone).await;
                if pending.is_empty() {
                    break;
                }
                let Some(lost) = tries.next() else { break };
                // Others wait for what is done here, so it is tried again sooner than they try.
                timing::before_retry(lost / 2).await;
            }
        }
        answers
    }

    /// Tries one read and one write for all; returns those that lost a race.
    async fn try_change<'g>(
        &self,
        pending: Vec<Pending<'g>>,
        claims: &[&Claim],
        found: &mut HashMap<Resource, Cell>,
        change: Change,
        answers: &mut [Result<bool, Failure>],
        is_alone: bool,
    ) -> Vec<Pending<'g>> {
        let locked_after = if is_alone { MAX_TRIES - 2 } else { LOCKED_TRIES };
        let mut writes = Vec::new();
        let mut prepared = Vec::new();
        let unknown: Vec<&Resource> = pending.iter().map(|pending| pending.group.resource).collect();
        let unknown: Vec<&Resource> = unknown.into_iter().filter(|at| !found.contains_key(*at)).collect();
        let read = if unknown.is_empty() { Vec::new() } else { self.cells.read(&unknown).await };
        let mut read = read.into_iter();
        for pending in pending {
            let group = pending.group;
            let cell = match found.remove(group.resource) {
                Some(cell) => Ok(Some(cell)),
                None => read.next().unwrap_or_else(|| Err(unread())),
            };
            match cell.and_then(|cell| self.prepare(group, cell, claims, change)) {
                Err(failure) => group.settle(answers, |_| Err(failure.clone())),
                Ok((done, None)) => group.settle(answers, |n| Ok(done[n])),
                Ok((done, Some((version, write)))) => {
                    prepared.push((pending.again(version), done));
                    writes.push(write);
                }
            }
        }
        if writes.is_empty() {
            return Vec::new();
        }
        let writes: Vec<&Write> = writes.iter().collect();
        let mut written = self.cells.write(&writes, Locked::Skip).await.into_iter();
        let mut lost = Vec::new();
        for (pending, done) in prepared {
            let group = pending.group;
            match written.next().unwrap_or_else(|| Err(unwritten())) {
                Ok(WriteOutcome::Written { .. }) => group.settle(answers, |n| Ok(done[n])),
                Ok(WriteOutcome::Refused(_)) if pending.unchanged >= locked_after => {
                    group.settle(answers, |_| Err(timing::locked(group.resource)));
                }
                Ok(WriteOutcome::Refused(_)) => lost.push(pending),
                Err(failure) => group.settle(answers, |_| Err(failure.clone())),
            }
        }
        lost
    }

    /// Prepares the change of one cell.
    fn prepare(
        &self,
        group: &Group<'_>,
        cell: Option<Cell>,
        claims: &[&Claim],
        change: Change,
    ) -> Result<Prepared, Failure> {
        let Some(cell) = cell else { return Ok((vec![false; group.members.len()], None)) };
        let decoded = self.open(group.resource, &cell)?;
        let mut ledger = decoded.ledger.clone();
        let done: Vec<bool> =
            group.members.iter().map(|at| change(&mut ledger, claims[*at], decoded.now)).collect();
        if !done.contains(&true) {
            return Ok((done, None));
        }
        let when = WriteCondition::Seen { version: decoded.version, epoch: decoded.floor.epoch };
        let put = decoded.put(group.resource, &ledger)?;
        let write = Write { at: group.resource.clone(), when, put, answer: WriteAnswer::Brief };
        Ok((done, Some((decoded.version, write))))
    }
}

/// Claims of one resource that have no answer yet.
struct Pending<'a> {
    group: &'a Group<'a>,
    /// The version that the last try saw, and how many tries before it saw the same.
    seen: Option<u64>,
    unchanged: u32,
}

impl<'a> Pending<'a> {
    fn of(group: &'a Group<'a>) -> Pending<'a> {
        Pending { group, seen: None, unchanged: 0 }
    }

    /// Returns one more try, which sees this version.
    fn again(self, seen: u64) -> Pending<'a> {
        let unchanged = if self.seen == Some(seen) { self.unchanged + 1 } else { 0 };
        Pending { seen: Some(seen), unchanged, ..self }
    }
}

/// The claims of a batch that are on one resource, by their places in the batch.
struct Group<'a> {
    resource: &'a Resource,
    members: Vec<usize>,
}

impl Group<'_> {
    fn settle(&self, answers: &mut [Result<bool, Failure>], answer: impl Fn(usize) -> Result<bool, Failure>) {
        for (n, at) in self.members.iter().enumerate() {
            answers[*at] = answer(n);
        }
    }
}

/// Groups claims by the order of names, so that two batches lock rows in the same order.
fn grouped<'a>(claims: &[&'a Claim]) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<&Resource, Vec<usize>> = BTreeMap::new();
    for (at, claim) in claims.iter().enumerate() {
        groups.entry(&claim.resource).or_default().push(at);
    }
    groups.into_iter().map(|(resource, members)| Group { resource, members }).collect()
}
