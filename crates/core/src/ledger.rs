//! The admission rule as pure code: the queue of claims on one resource.
//!
//! *A claim is admitted iff the weights of all claims ahead of it plus its own fit the capacity.* The
//! capacity is the smallest that any of these claims names. Claims ahead only leave, so admission is
//! monotone: a claim that is admitted stays so until it leaves.
//!
//! No I/O and no clock: time is passed in and is the time of the process that keeps the ledger. Stores
//! that keep a ledger run this code; it is the oracle for those that decide by script, by lease or by sequence.

use std::time::Duration;

use crate::{ClaimId, Fence, Moment, Note, Share};

mod text;

#[cfg(test)]
pub(crate) use text::checksum;

pub use text::DamagedLedger;

/// The time for which the queue waits for a claim whose turn has come and that does not take it, before it
/// passes on.
///
/// A waiter that is alive answers in milliseconds. One that died in the queue costs the others no more than
/// this.
pub const CALL_GRACE: Duration = Duration::from_secs(1);

/// The time for which a called claim may leave its call unanswered before others in the queue are called as
/// well.
///
/// When one waiter died, others may have died with it. They are called while the grace of the first is
/// still running, so that all claims that do not answer are passed over together.
pub const PROBE_AFTER: Duration = Duration::from_millis(250);

/// The time after which an unanswered call makes its claim count as silent, and lets the queue call further.
///
/// No waiter that polls leaves more time between two calls than this.
pub const SILENT_AFTER: Duration = Duration::from_millis(400);

/// The distance from its head to which the queue calls for each claim that is silent; all of it where as
/// many are.
///
/// One dead waiter costs the live ones no more than so many calls, and all dead ones are called in the
/// second step.
pub const PROBED_PER_SILENT: usize = 32;

/// The time for which notified waiters tolerate a claim that keeps them from free capacity.
///
/// Its own turn has not come, so it is not called: a claim that died there would hold up the others for as
/// long as its place is kept. One of them acts after this time, and *challenges* it: it answers within
/// [`CALL_GRACE`], or is passed over. Long enough that a live waiter, behind which others wait for hours, has
/// to answer only now and then. A waiter that asks for another reason challenges a claim that was silent for
/// as long as [`CALL_GRACE`].
pub const CHALLENGE_AFTER: Duration = Duration::from_secs(4);

/// The most claims that one queue may have.
pub const MAX_QUEUE: usize = 10_000;

/// The queue of claims on one resource, holders first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    entries: Vec<Entry>,
    last: Fence,
}

/// One claim in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The id of the claim.
    pub id: ClaimId,
    /// The share that it asks for.
    pub share: Share,
    /// Its fence, once it was granted.
    pub granted: Option<Fence>,
    /// The moment at which it leaves the queue without another sign of life: the end of the lease or of the
    /// place. In a text of spans it is a span since [`Moment::START`].
    pub until: Moment,
    /// The moment at which it was queued, or granted.
    pub since: Moment,
    /// Count of its signs of life: each grant, each renewal and each repeated ask is one more, also where
    /// the end does not move. An observer that shares no clock with the others sees by it that the claim
    /// lives.
    pub beats: u64,
    /// The note of the claim.
    pub note: Note,
}

impl Entry {
    /// Counts a sign of life.
    fn beat(&mut self) {
        self.beats = self.beats.wrapping_add(1);
    }
}

/// One call for admission.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The id of the claim.
    pub id: ClaimId,
    /// The share that it asks for.
    pub share: Share,
    /// The time for which the claim lives once granted; [`Duration::MAX`] where a session keeps it alive.
    pub lease: Duration,
    /// The behaviour when it is not admitted: whether, and for how long, it keeps a place.
    pub wait: Wait,
    /// The note of the claim.
    pub note: Note,
}

/// The behaviour of a claim that is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The claim does not wait, and gives up its place if it had one.
    No,
    /// The claim is queued; the place is kept for this long, [`Duration::MAX`] where a session keeps it
    /// alive.
    Queued(Duration),
    /// The claim is not queued, and passes those that are: admission by what is held alone.
    Barging,
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The claim holds, under this fence.
    Granted(Fence),
    /// The claim does not hold.
    Busy {
        /// The number of claims ahead of it, holders included.
        ahead: u32,
        /// The moment at which the earliest of those ahead leaves without another sign of life, or when
        /// another ask is useful: to challenge one of them, or to call more of the queue.
        earliest: Moment,
    },
    /// The queue has [`MAX_QUEUE`] claims already.
    Full,
}

impl Ledger {
    /// Creates an empty queue whose next fence comes after `last`.
    pub fn new(last: Fence) -> Self {
        Ledger { entries: Vec::new(), last }
    }

    /// Creates the queue of a stored ledger, in order.
    pub fn restore(entries: Vec<Entry>, last: Fence) -> Self {
        let top = entries.iter().filter_map(|entry| entry.granted).max().unwrap_or_default();
        Ledger { entries, last: last.max(top) }
    }

    /// Returns the queue, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the last fence that was granted.
    pub fn last_fence(&self) -> Fence {
        self.last
    }

    /// Makes every later fence greater than `floor`.
    pub fn raise_fence(&mut self, floor: Fence) {
        self.last = self.last.max(floor);
    }

    /// Asks for admission. Repeating it with the same id answers the same, and keeps the place or the lease
    /// alive.
    ///
    /// The share of a claim is fixed when it is first queued; a repeated ask cannot change it.
    pub fn contend(&mut self, ask: &Ask, now: Moment) -> Verdict {
        self.expire(now);
        let known = self.position(ask.id);
        if let Some(index) = known
            && let Some(fence) = self.entries[index].granted
        {
            let entry = &mut self.entries[index];
            entry.until = entry.until.max(now.after(ask.lease));
            entry.beat();
            // Another client may have adopted the claim: then its note is the one that is shown.
            entry.note = ask.note.clone();
            return Verdict::Granted(fence);
        }
        let index = known.unwrap_or(self.entries.len());
        let share = known.map_or(ask.share, |index| self.entries[index].share);
        let ahead = if ask.wait == Wait::Barging { 0 } else { index };
        if self.admits(ahead, share) {
            return Verdict::Granted(self.grant(ask, share, known, now));
        }
        self.call(now);
        match ask.wait {
            Wait::Queued(place) => {
                if known.is_none() {
                    if self.entries.len() >= MAX_QUEUE {
                        return Verdict::Full;
                    }
                    self.entries.push(Entry {
                        id: ask.id,
                        share: ask.share,
                        granted: None,
                        until: now.after(place),
                        since: now,
                        beats: 0,
                        note: ask.note.clone(),
                    });
                } else {
                    self.entries[index].until = now.after(place);
                    self.entries[index].beat();
                }
            }
            Wait::No | Wait::Barging => {
                if known.is_some() {
                    self.entries.remove(index);
                    self.call(now);
                }
            }
        }
        let look_again = match ask.wait {
            Wait::Queued(place) => {
                self.challenge(index, known.is_none(), place, now).min(self.probe(place, now))
            }
            Wait::No | Wait::Barging => Moment::NEVER,
        };
        let ahead = &self.entries[..index.min(self.entries.len())];
        Verdict::Busy {
            ahead: u32::try_from(ahead.len()).unwrap_or(u32::MAX),
            earliest: ahead.iter().map(|entry| entry.until).min().unwrap_or(now).min(look_again),
        }
    }

    /// Extends a granted claim to `lease` from now, never shortening it. `false` where it is gone.
    pub fn renew(&mut self, id: ClaimId, lease: Duration, now: Moment) -> bool {
        self.expire(now);
        match self.entries.iter_mut().find(|entry| entry.id == id && entry.granted.is_some()) {
            None => false,
            Some(entry) => {
                entry.until = entry.until.max(now.after(lease));
                entry.beat();
                true
            }
        }
    }

    /// Ends a claim, granted or waiting. `false` where it is gone.
    pub fn release(&mut self, id: ClaimId, now: Moment) -> bool {
        self.expire(now);
        let Some(index) = self.position(id) else { return false };
        self.entries.remove(index);
        self.call(now);
        true
    }

    /// Removes the claims whose time has passed, and calls those whose turn has come through it.
    pub fn expire(&mut self, now: Moment) {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.until > now);
        if self.entries.len() != before {
            self.call(now);
        }
    }

    /// Returns the waiting claims whose turn has come, in order. They are to be woken.
    pub fn called(&self) -> impl Iterator<Item = &Entry> {
        let called = self.called_up_to();
        self.entries[..called].iter().filter(|entry| entry.granted.is_none())
    }

    /// Returns `true` if a claim waits behind another that alone may keep it from free capacity, now or
    /// when more of it is free.
    ///
    /// This is never so if all want the same: a load that admits the one behind admits the one in front.
    pub fn is_mixed(&self) -> bool {
        let mut blocked = self.entries[self.called_up_to()..].iter().filter(|entry| entry.granted.is_none());
        let Some(first) = blocked.next() else { return false };
        blocked.any(|entry| {
            entry.share.weight() < first.share.weight() || entry.share.capacity() > first.share.capacity()
        })
    }

    /// Finds where the part of the queue ends in which every waiting claim is admitted, in one pass over the
    /// queue.
    fn called_up_to(&self) -> usize {
        // A held claim counts at any place, as in `admits`; a waiting claim counts for those behind it.
        let (mut load, mut capacity) = (0, u32::MAX);
        for entry in self.entries.iter().filter(|entry| entry.granted.is_some()) {
            load += u64::from(entry.share.weight());
            capacity = capacity.min(entry.share.capacity());
        }
        let is_kept_out = |entry: &Entry| {
            if entry.granted.is_some() {
                return false;
            }
            load += u64::from(entry.share.weight());
            capacity = capacity.min(entry.share.capacity());
            load > u64::from(capacity)
        };
        self.entries.iter().position(is_kept_out).unwrap_or(self.entries.len())
    }

    /// Shortens the places of waiting claims whose turn has come: those that do not answer are passed over.
    fn call(&mut self, now: Moment) {
        let called = self.called_up_to();
        for entry in &mut self.entries[..called] {
            // A place that a session keeps ends with the session, which is noticed without a timer.
            if entry.granted.is_none() && entry.until != Moment::NEVER {
                entry.until = entry.until.min(now.after(CALL_GRACE));
            }
        }
    }

    /// Calls more of the queue if calls go unanswered: for each claim that is silent,
    /// [`PROBED_PER_SILENT`] from the head, and of these each that gave no sign of life since the first of the
    /// unanswered calls. Returns when another ask calls more, never if none will.
    ///
    /// A claim that is called this way answers by asking again, and so keeps its place for the whole
    /// time. The claims that do not answer leave the queue together, however many they are.
    fn probe(&mut self, place: Duration, now: Moment) -> Moment {
        // Places that do not last longer than a call do not show which were called; those of sessions end
        // without a timer.
        if place <= CALL_GRACE || place == Duration::MAX {
            return Moment::NEVER;
        }
        // 1. For how long is each call unanswered? A call lets the place end after the grace, so the part of
        // the grace that is over is that time.
        let grace_ends = now.after(CALL_GRACE);
        let is_called = |entry: &&Entry| entry.granted.is_none() && entry.until <= grace_ends;
        let called = self.entries.iter().filter(is_called);
        let unanswered_for: Vec<Duration> =
            called.map(|entry| CALL_GRACE.saturating_sub(now.until(entry.until))).collect();
        let Some(longest) = unanswered_for.iter().max().copied() else { return Moment::NEVER };
        if longest < PROBE_AFTER {
            return now.after(PROBE_AFTER - longest);
        }
        // 2. How far is the queue called? Each silent claim counts for so many from the head, and one always does.
        let silent = unanswered_for.iter().filter(|time| **time >= SILENT_AFTER).count().max(1);
        let reach = if silent < PROBED_PER_SILENT { silent * PROBED_PER_SILENT } else { MAX_QUEUE };
        // 3. Up to there, call each claim that gave no sign of life since the first unanswered call. Its place
        // ends `place` after its last sign of life; one that a session keeps has no end, and is not called.
        let first_call = now.before(longest);
        let is_unheard = |entry: &Entry| {
            entry.granted.is_none() && entry.until > grace_ends && entry.until < first_call.after(place)
        };
        let waiting = self.entries.iter_mut().filter(|entry| entry.granted.is_none());
        for entry in waiting.take(reach) {
            if is_unheard(entry) {
                entry.until = grace_ends;
            }
        }
        if !self.entries.iter().any(is_unheard) {
            return Moment::NEVER;
        }
        // 4. Look again when the next claim becomes silent: the one that was called first of those that are not
        // silent yet. If there is none, it is one that was called just now.
        let oldest = unanswered_for.iter().filter(|time| **time < SILENT_AFTER).max().copied();
        now.after(SILENT_AFTER - oldest.unwrap_or_default())
    }

    /// Shortens the place of the first claim that is not admitted, where it alone keeps the one at `index`
    /// from free capacity and was silent for as long as a call may take. Returns when to ask again, which
    /// is soon for a claim that is new in the queue; never where it blocks no claim.
    ///
    /// The ends of places show when their claims last gave a sign of life, as all of a queue keep them for as
    /// long, which is `place`.
    fn challenge(&mut self, index: usize, is_new: bool, place: Duration, now: Moment) -> Moment {
        // 1. Would this claim be admitted in the place of the first one that is not?
        let share = self.entries[index].share;
        let first = self.called_up_to();
        if first >= index || !self.admits(first, share) {
            return Moment::NEVER;
        }
        let blocker = &mut self.entries[first];
        // A place that a session keeps ends with the session, which is noticed without a timer.
        if blocker.until == Moment::NEVER {
            return Moment::NEVER;
        }
        // 2. For how long was that one silent? Less than a call may take is no reason to challenge it.
        let silent = place.saturating_sub(now.until(blocker.until));
        if silent < CALL_GRACE {
            return now.after(if is_new { CALL_GRACE - silent } else { CHALLENGE_AFTER - silent });
        }
        // 3. Challenge it: it asks again within the grace, or leaves the queue.
        blocker.until = blocker.until.min(now.after(CALL_GRACE));
        blocker.until
    }

    /// Returns the rule itself, for a claim that is behind the first `ahead` entries.
    ///
    /// A held claim counts at any place in the queue: one that passes the queue blocks no claim only while
    /// it fits.
    fn admits(&self, ahead: usize, share: Share) -> bool {
        let mut load = u64::from(share.weight());
        let mut capacity = share.capacity();
        for (index, entry) in self.entries.iter().enumerate() {
            if index < ahead || entry.granted.is_some() {
                load += u64::from(entry.share.weight());
                capacity = capacity.min(entry.share.capacity());
            }
        }
        load <= u64::from(capacity)
    }

    fn grant(&mut self, ask: &Ask, share: Share, known: Option<usize>, now: Moment) -> Fence {
        let fence = Fence { epoch: self.last.epoch, seq: self.last.seq + 1, sub: 0 };
        debug_assert!(fence > self.last, "a fence must rise: {fence:?} after {:?}", self.last);
        self.last = fence;
        let entry = Entry {
            id: ask.id,
            share,
            granted: Some(fence),
            until: now.after(ask.lease),
            since: now,
            beats: known.map_or(0, |index| self.entries[index].beats.wrapping_add(1)),
            note: ask.note.clone(),
        };
        match (known, ask.wait) {
            (Some(index), _) => self.entries[index] = entry,
            // One that passes the queue is put ahead of it, or the waiters would be counted as if it came
            // after them.
            (None, Wait::Barging) => self.entries.insert(0, entry),
            (None, _) => self.entries.push(entry),
        }
        fence
    }

    fn position(&self, id: ClaimId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.id == id)
    }
}

#[cfg(test)]
mod deaths;
#[cfg(test)]
mod tests;
