//! The local wait queue of one resource, as a pure state machine: no I/O, no clock, no task.
//!
//! Ground rules: [`LocalQueue::apply`] is the only way to change a queue, and it ends by deriving all
//! consequences from the resulting state. So no change can forget to start a contender, to stop one that
//! is not needed, to detach a release that something depends on, or to remove an idle queue.
//!
//! After every change of an open queue one of three things holds: a useful contender is under way,
//! nothing waits, or the first waiter has to wait for a claim that this process holds and may hand over.
//! A contender for another waiter is useful if it does not delay the first one. The handles of waiters,
//! of releases and of lingering claims are opaque here.
//!
//! A claim lingers if its last user is gone, and it stays with the process for the next one. Nothing lingers
//! while anything waits: a request that is not met by a lingering claim ends that for all of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leasehold_core::{ClaimId, Moment, Share};

use crate::engine::Want;
use crate::engine::acquire::requester::Requester;
use crate::mutant::mutant;

/// A place in the queue: the greater priority first, then the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    priority: Reverse<i32>,
    /// The number of its ticket: it is unique, and rises from arrival to arrival.
    ticket: u64,
}

impl Place {
    pub(crate) fn new(priority: i32, ticket: u64) -> Place {
        Place { priority: Reverse(priority), ticket }
    }
}

/// The wait queue of one resource; `W` is the handle of a waiter, `E` that of a release that its caller
/// carries out inline, `L` that of a lingering claim.
#[derive(Debug)]
pub(crate) struct LocalQueue<W, E, L> {
    waiters: BTreeMap<Place, Waiter<W>>,
    /// The ticket of the last waiter that entered.
    last_ticket: u64,
    contending: Option<Contending>,
    held: Vec<HeldClaim>,
    /// Those of the held claims that belong to no task.
    lingering: Vec<(ClaimId, L)>,
    inline_release: Option<(ClaimId, E)>,
    /// The number of tasks outside the queue that wait for what this process releases.
    dependents: u32,
    /// `true` if the store has a queue of its own, in which a claim may wait behind what this process holds.
    store_has_queue: bool,
    is_closed: bool,
    #[cfg(test)]
    pub(crate) mutant: Option<tests::Mutant>,
}

/// A waiting task.
#[derive(Debug)]
struct Waiter<W> {
    want: Want,
    task: Option<Requester>,
    entered: Moment,
    handle: W,
}

/// The one claim of this process that is queued on the server.
#[derive(Debug)]
struct Contending {
    want: Want,
    /// The id of its claim, once that is drawn.
    id: Option<ClaimId>,
    /// The ticket of the last waiter that had entered by then.
    drawn_after: u64,
    /// `true` once its patience was ended, because nothing needs it any more.
    is_stopped: bool,
}

/// A claim that this process holds, until its release is confirmed.
#[derive(Debug)]
pub(crate) struct HeldClaim {
    pub(crate) id: ClaimId,
    /// The request for which it was granted.
    pub(crate) want: Want,
    pub(crate) task: Option<Requester>,
    /// `true` once local hand-off is over for it. It does not linger any more either.
    pub(crate) handoff_over: bool,
    /// `true` while no task has it: it lingers, or it has lingered and is being released.
    pub(crate) is_unused: bool,
    /// `true` once it was reported in [`Outcome::handoff_candidates`].
    pub(crate) is_reported: bool,
}

/// The first waiter of a queue.
#[cfg(leasehold_sim)]
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The number of its ticket.
    pub ticket: u64,
    /// The share that it requests.
    pub share: Share,
    /// `true` if no other waiter came before it.
    pub came_first: bool,
    /// The claim that is queued on the server for this queue.
    pub contender: Option<ClaimId>,
}

/// A time in which the store has not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    /// The time of the first failure without an answer since.
    pub(crate) began: Moment,
    /// Waiters that have entered by then have waited for as long as an outage is tolerated.
    pub(crate) limit: Moment,
}

/// One change of a queue.
pub(crate) enum Change<W, E, L> {
    /// A task enters the queue. It gets a lingering claim, if its request matches exactly.
    Enter { place: Place, want: Want, task: Option<Requester>, entered: Moment, handle: W },
    /// A task leaves the queue, if it is still in it.
    Leave(Place),
    /// A task that does not wait makes this request now. It gets a lingering claim in the same way.
    Try { want: Want, task: Option<Requester> },
    /// The contender has drawn the id of its claim.
    Drawn(ClaimId),
    /// The contender's claim was granted. It is held from here on, even if no waiter takes it.
    Granted(HeldClaim),
    /// The contender ended without a grant; `failed` if every waiter with the same request gets its error, and in
    /// an outage every one that has waited for as long as it is tolerated.
    Ended { failed: bool, outage: Option<Outage> },
    /// A claim was granted to a task outside the queue.
    GrantedOutsideQueue(HeldClaim),
    /// A task has released a claim that may be handed off `left` more times. The first waiter gets it if
    /// its request matches exactly. If nothing waits, it lingers, where `lingering` is its handle. Otherwise the
    /// claim stays held until `Departed`.
    Returned { id: ClaimId, left: u32, lingering: Option<L> },
    /// A claim is no longer handed off locally, and lingers no more.
    HandoffOver(ClaimId),
    /// The caller of a release wants to carry it out inline.
    ReleaseInline(ClaimId, E),
    /// A task outside the queue begins to wait for what this process releases.
    AddDependent,
    /// Such a task waits no longer.
    RemoveDependent,
    /// The server no longer has the claim, or everything was done that can be.
    Departed(ClaimId),
    /// The client closes.
    Close,
}

/// The consequences of a change.
#[derive(Debug)]
pub(crate) struct Outcome<W, E, L> {
    /// The waiter that gets what was granted or released, with its request.
    pub(crate) taker: Option<(W, Want)>,
    /// `true` if the taker came after the claim, which was drawn for others, and other clients may have been granted
    /// later claims before it came: the claim is handed on to it.
    pub(crate) is_handed_on: bool,
    /// The lingering claim that the taker gets, or a task whose `Try` is allowed.
    pub(crate) resumed: Option<L>,
    /// `true` if the released claim lingers now.
    pub(crate) lingers: bool,
    /// The claims that linger no more: the caller has to release them.
    pub(crate) linger_over: Vec<L>,
    /// The waiters that get the contender's error.
    pub(crate) failed: Vec<W>,
    /// The request for which a contender has to be started.
    pub(crate) start: Option<Want>,
    /// The time from which on the store has not answered, as far as its waiter was there.
    pub(crate) failing_since: Option<Moment>,
    /// `true` if the contender has to be stopped.
    pub(crate) stop: bool,
    /// The claims that the first waiter may get by hand-off, while it has no place on the server: the caller
    /// has to report when hand-off is over for them.
    pub(crate) handoff_candidates: Vec<ClaimId>,
    /// The release that has to be detached from its caller.
    pub(crate) detach: Option<E>,
    /// `true` if the request is allowed: to try, or to carry out a release inline.
    pub(crate) is_allowed: bool,
    /// `true` if a `Try` is not allowed only until the claims that no task has have departed.
    pub(crate) may_try_later: bool,
    /// `true` if the task itself holds, exclusively, what it now waits for.
    pub(crate) waits_for_itself: bool,
    /// `true` if the queue is empty and has to be removed.
    pub(crate) is_idle: bool,
}

impl<W, E, L> Default for Outcome<W, E, L> {
    fn default() -> Self {
        Outcome {
            taker: None,
            is_handed_on: false,
            resumed: None,
            lingers: false,
            linger_over: Vec::new(),
            failed: Vec::new(),
            start: None,
            failing_since: None,
            stop: false,
            handoff_candidates: Vec::new(),
            detach: None,
            is_allowed: false,
            may_try_later: false,
            waits_for_itself: false,
            is_idle: true,
        }
    }
}

impl<W, E, L> LocalQueue<W, E, L> {
    /// Creates an empty queue.
    pub(crate) fn new(store_has_queue: bool, is_closed: bool) -> Self {
        LocalQueue {
            waiters: BTreeMap::new(),
            last_ticket: 0,
            contending: None,
            held: Vec::new(),
            lingering: Vec::new(),
            inline_release: None,
            dependents: 0,
            store_has_queue,
            is_closed,
            #[cfg(test)]
            mutant: None,
        }
    }

    /// Applies a change and returns its consequences.
    pub(crate) fn apply(&mut self, change: Change<W, E, L>) -> Outcome<W, E, L> {
        #[cfg(test)]
        let forgets = self.mutant.is_some_and(|mutant| mutant.forgets(&change));
        let mut outcome = Outcome::default();
        let is_try = matches!(change, Change::Try { .. });
        let skips_follow_up = self.skips_follow_up(&change);
        match change {
            Change::Enter { place, want, task, entered, handle } => {
                self.enter(place, Waiter { want, task, entered, handle }, &mut outcome);
            }
            Change::Leave(place) => drop(self.waiters.remove(&place)),
            Change::Try { want, task } => {
                outcome.resumed = self.resume(&want, task);
                // What fits beside an unused claim here may not fit in the store, which knows of more claims.
                let is_clear = !self.has_unused() || mutant!("a try leaves alone what fits beside it");
                let is_clear = is_clear && self.admits(want.share, |_| true);
                outcome.is_allowed = outcome.resumed.is_some() || is_clear;
                outcome.may_try_later =
                    !outcome.is_allowed && self.admits(want.share, |held| !held.is_unused);
            }
            Change::Drawn(id) => {
                let drawn_after = self.last_ticket;
                if let Some(contending) = &mut self.contending {
                    (contending.id, contending.drawn_after) = (Some(id), drawn_after);
                }
            }
            Change::Granted(claim) => (outcome.taker, outcome.is_handed_on) = self.grant(claim),
            Change::Ended { failed, outage } => {
                outcome.failed = self.end_contender(failed, outage);
                let first = self.waiters.values().next();
                outcome.failing_since =
                    outage.zip(first).map(|(outage, first)| outage.began.max(first.entered));
            }
            Change::GrantedOutsideQueue(claim) => self.held.push(claim),
            Change::Returned { id, left, lingering } => {
                outcome.taker = self.hand_off(id, left);
                let lingering = lingering.filter(|_| outcome.taker.is_none());
                outcome.lingers = lingering.is_some_and(|lingering| self.let_linger(id, lingering));
            }
            Change::HandoffOver(id) => {
                self.held.iter_mut().filter(|held| held.id == id).for_each(|held| held.handoff_over = true);
            }
            Change::ReleaseInline(id, inline) => {
                // Closing detaches the inline release, so none may start afterwards.
                outcome.is_allowed = !self.is_closed && !self.is_awaited() && self.inline_release.is_none();
                if outcome.is_allowed {
                    self.inline_release = Some((id, inline));
                }
            }
            Change::AddDependent => self.dependents += 1,
            Change::RemoveDependent => self.dependents -= 1,
            Change::Departed(id) => {
                // If it still lingers, the renewer has released it, and the caller finds nothing to do.
                self.take_lingering(&mut outcome.linger_over, |claim| claim.id == id);
                self.held.retain(|claim| claim.id != id);
                self.inline_release.take_if(|(released, _)| *released == id);
            }
            Change::Close => self.is_closed = true,
        }
        #[cfg(test)]
        if forgets {
            outcome.is_idle = false;
            return outcome;
        }
        if skips_follow_up {
            outcome.is_idle = self.held.is_empty() && !self.is_awaited();
            return outcome;
        }
        let is_refused = is_try && !outcome.is_allowed;
        self.follow_up(&mut outcome, is_refused);
        self.check_invariants();
        outcome
    }

    /// Gives a waiter a claim that lingers, or else a place.
    fn enter(&mut self, place: Place, waiter: Waiter<W>, outcome: &mut Outcome<W, E, L>) {
        self.last_ticket = place.ticket;
        let is_own = |claim: &HeldClaim| claim.task == waiter.task && claim.want.share.is_exclusive();
        outcome.waits_for_itself = waiter.task.is_some() && self.held.iter().any(is_own);
        match self.resume(&waiter.want, waiter.task) {
            Some(lingering) => {
                (outcome.taker, outcome.resumed) = (Some((waiter.handle, waiter.want)), Some(lingering));
            }
            None => drop(self.waiters.insert(place, waiter)),
        }
    }

    /// Records that the contender's claim is held. Returns the waiter that gets it, and whether it is handed on to it.
    fn grant(&mut self, claim: HeldClaim) -> (Option<(W, Want)>, bool) {
        // It is held even if its waiter has left: the engine then drops the hold, which releases it.
        let contending = self.contending.take();
        let place = contending.as_ref().and_then(|contending| self.first(&contending.want));
        let drawn_after = contending.map_or(u64::MAX, |contending| contending.drawn_after);
        // No later claim is granted beside one that excludes all others.
        let is_late = |place: &Place| place.ticket > drawn_after && !claim.want.share.is_exclusive();
        let is_handed_on =
            place.as_ref().is_some_and(is_late) && !mutant!("a claim of others counts as asked for");
        let taker = place.and_then(|place| self.waiters.remove(&place));
        let task = taker.as_ref().and_then(|waiter| waiter.task);
        self.held.push(HeldClaim { task, ..claim });
        (taker.map(|waiter| (waiter.handle, waiter.want)), is_handed_on)
    }

    /// Records that the contender has ended without a grant, and returns the waiters that get its error.
    fn end_contender(&mut self, failed: bool, outage: Option<Outage>) -> Vec<W> {
        let contending = self.contending.take().filter(|_| failed);
        let Some(Contending { want, .. }) = contending else { return Vec::new() };
        let is_over = |waiter: &Waiter<W>| outage.is_some_and(|outage| waiter.entered <= outage.limit);
        let fails = |waiter: &Waiter<W>| waiter.want == want || is_over(waiter);
        let (failed, waiting) = std::mem::take(&mut self.waiters)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, waiter)| fails(waiter));
        self.waiters = waiting;
        failed.into_values().map(|waiter| waiter.handle).collect()
    }

    /// Hands a released claim to the first waiter, if its request matches, and returns that waiter.
    fn hand_off(&mut self, id: ClaimId, left: u32) -> Option<(W, Want)> {
        let claim = self.held.iter_mut().find(|claim| claim.id == id && left > 0)?;
        // Only the first waiter is considered, so that none is overtaken.
        let first = self.waiters.first_entry().filter(|first| {
            let want = &first.get().want;
            claim.may_serve(want) || (mutant!("what is over is handed off") && want.is_met_by(&claim.want))
        })?;
        let waiter = first.remove();
        claim.task = waiter.task;
        claim.handoff_over |= left == 1;
        Some((waiter.handle, waiter.want))
    }

    /// Gives a lingering claim to a task, if its request matches exactly. Returns the handle of the claim.
    fn resume(&mut self, want: &Want, task: Option<Requester>) -> Option<L> {
        let LocalQueue { held, lingering, .. } = self;
        // Nothing waits while a claim lingers, so no waiter is overtaken.
        let (at, claim) = lingering.iter().enumerate().find_map(|(at, (id, _))| {
            let claim = held.iter().position(|claim| claim.id == *id && claim.may_serve(want))?;
            Some((at, claim))
        })?;
        (held[claim].task, held[claim].is_unused) = (task, false);
        Some(lingering.remove(at).1)
    }

    /// Lets a released claim linger, if nothing waits. Returns `true` if it lingers now.
    fn let_linger(&mut self, id: ClaimId, lingering: L) -> bool {
        if self.is_closed || self.is_awaited() {
            return false;
        }
        let may_linger = |claim: &&mut HeldClaim| claim.id == id && !claim.handoff_over;
        let Some(claim) = self.held.iter_mut().find(may_linger) else { return false };
        (claim.task, claim.is_unused) = (None, true);
        self.lingering.push((id, lingering));
        true
    }

    /// Lets these claims linger no more, and adds their handles to `over`. No task gets them from here on.
    fn take_lingering(&mut self, over: &mut Vec<L>, is_meant: impl Fn(&HeldClaim) -> bool) {
        if self.lingering.is_empty() {
            return;
        }
        let held = &mut self.held;
        let ended = self.lingering.extract_if(.., |(id, _)| {
            let claim = held.iter_mut().find(|claim| claim.id == *id);
            // Invariant: a lingering claim is held.
            claim.is_none_or(|claim| {
                let is_over = is_meant(claim);
                claim.handoff_over |= is_over;
                is_over
            })
        });
        over.extend(ended.map(|(_, lingering)| lingering));
    }

    /// Returns `true` if an injected defect forgets the consequences of a change.
    fn skips_follow_up(&self, change: &Change<W, E, L>) -> bool {
        match change {
            Change::Leave(_) if mutant!("who leaves wakes nobody") => true,
            // A task that was handed a claim leaves once more, without being in the queue.
            Change::Leave(place) if mutant!("who is handed it wakes nobody") => {
                !self.waiters.contains_key(place)
            }
            Change::Returned { .. } => mutant!("who is handed it wakes nobody"),
            _ => false,
        }
    }

    /// Derives the consequences from the state alone.
    fn follow_up(&mut self, outcome: &mut Outcome<W, E, L>, is_refused: bool) {
        // What nobody uses must not delay anything. Lingering claims come first: a claim that cannot be handed
        // off any more is not waited for.
        let is_in_the_way = is_refused || self.is_closed || self.is_awaited();
        self.take_lingering(&mut outcome.linger_over, |claim| is_in_the_way || claim.handoff_over);
        // A queue has at most one contender: start one where none is under way, or stop the present one
        // when it has become useless.
        match &self.contending {
            None => {
                outcome.start = self.next_to_contend();
                outcome.handoff_candidates = self.take_handoff_candidates(outcome.start.is_none());
            }
            Some(contending) => {
                let is_useful = || !self.is_closed && self.is_useful(&contending.want);
                outcome.stop = !contending.is_stopped && !is_useful();
            }
        }
        if let Some(contending) = &mut self.contending {
            contending.is_stopped |= outcome.stop;
        }
        if let Some(want) = &outcome.start {
            self.contending =
                Some(Contending { want: want.clone(), id: None, drawn_after: u64::MAX, is_stopped: false });
        }
        // A release that something waits for must not depend on how often its caller is polled. A waiter
        // counts however it came, so this check is here and not at each change.
        if is_refused || self.is_closed || self.is_awaited() {
            outcome.detach = self.inline_release.take().map(|(_, inline)| inline);
        }
        outcome.is_idle = self.held.is_empty() && !self.is_awaited();
    }

    /// Checks what follows from the state after each change of an open queue.
    fn check_invariants(&self) {
        // Invariant: if the first waiter fits, a contender is under way.
        debug_assert!(
            self.is_closed || self.contending.is_some() || self.next_to_contend().is_none(),
            "the first waiter could ask the server, and has no contender"
        );
        // Invariant: nothing lingers while anything waits.
        debug_assert!(
            self.lingering.is_empty() || !(self.is_closed || self.is_awaited()),
            "a claim lingers, and a task waits"
        );
        // Invariant: nothing waits for an inline release.
        debug_assert!(
            self.inline_release.is_none() || !self.is_awaited(),
            "a task depends on a release that its caller may leave"
        );
    }

    /// Returns the request of the first waiter, if the server is to be asked for it.
    fn next_to_contend(&self) -> Option<Want> {
        let want = &self.waiters.values().next().filter(|_| !self.is_closed)?.want;
        // A waiter whose request matches a held claim may get it by hand-off. Any other gains nothing by
        // waiting here, and on a store with a queue of its own other processes would overtake it.
        let may_be_handed = || self.held.iter().any(|claim| claim.may_serve(want));
        let store_has_queue = self.store_has_queue && !mutant!("a writer waits for its own process first");
        (self.fits(want.share) || (store_has_queue && !may_be_handed())).then(|| want.clone())
    }

    /// Returns the claims that the first waiter may get by hand-off, except those that were reported before.
    fn take_handoff_candidates(&mut self, waits: bool) -> Vec<ClaimId> {
        let first = self.waiters.values().next().filter(|_| waits && self.store_has_queue && !self.is_closed);
        let Some(Waiter { want, .. }) = first else { return Vec::new() };
        let handoff_candidates =
            self.held.iter_mut().filter(|claim| !claim.is_reported && claim.may_serve(want));
        handoff_candidates
            .map(|claim| {
                claim.is_reported = true;
                claim.id
            })
            .collect()
    }

    /// Returns `true` if a contender for `want` is useful: some waiter wants it, and the first waiter
    /// could not be granted its own request any sooner without it.
    fn is_useful(&self, want: &Want) -> bool {
        let Some((first_place, first)) = self.waiters.first_key_value() else { return false };
        // That of the waiter that would get the contender's claim.
        let Some(place) = self.first(want) else { return false };
        let share = first.want.share;
        // A share of smaller weight or larger capacity may fit where that of the contender does not.
        let is_easier = share.weight() < want.share.weight() || share.capacity() > want.share.capacity();
        // Priority alone does not take over the place of another waiter, unless that waiter waits for this
        // process.
        let waits_for_us = self.fits(share) && !self.fits(want.share);
        !(waits_for_us || (is_easier && first_place.ticket < place.ticket))
    }

    /// Returns `true` if a task outside the queue may ask the server: if no claim of this process that counts is
    /// in its way, or in the way of the first waiter, which would wait longer.
    fn admits(&self, share: Share, counts: fn(&HeldClaim) -> bool) -> bool {
        let first = self.waiters.values().next().filter(|_| !mutant!("who tries passes who waits"));
        self.fits_beside(share, counts)
            && first.is_none_or(|first| self.fits_beside(first.want.share, counts))
    }

    /// Returns `true` if this process holds a claim that no task has.
    pub(crate) fn has_unused(&self) -> bool {
        self.held.iter().any(|claim| claim.is_unused)
    }

    /// Returns `true` if a task that does not enter the queue may ask the server: nothing waits, no claim is
    /// unused, and none is in its way.
    pub(crate) fn admits_fast_path(&self, share: Share) -> bool {
        let is_awaited = self.is_awaited() && !mutant!("who is granted at once passes who waits");
        !self.is_closed && !is_awaited && !self.has_unused() && self.fits(share)
    }

    /// Returns the contender's claim, if it is for exactly this request and this process holds nothing.
    pub(crate) fn queued_claim(&self, want: &Want) -> Option<ClaimId> {
        let contending = self.contending.as_ref().filter(|_| self.held.is_empty())?;
        contending.id.filter(|_| contending.want == *want)
    }

    /// Returns the handles of the lingering claims.
    pub(crate) fn into_lingering(self) -> impl Iterator<Item = L> {
        self.lingering.into_iter().map(|(_, lingering)| lingering)
    }

    /// Returns the lingering claims.
    pub(crate) fn lingering(&self) -> &[(ClaimId, L)] {
        &self.lingering
    }

    /// Returns the first waiter.
    #[cfg(leasehold_sim)]
    pub(crate) fn head(&self) -> Option<Head> {
        let (place, first) = self.waiters.first_key_value()?;
        Some(Head {
            ticket: place.ticket,
            share: first.want.share,
            came_first: self.waiters.keys().all(|other| other.ticket >= place.ticket),
            contender: self.contending.as_ref().and_then(|contending| contending.id),
        })
    }

    fn fits(&self, share: Share) -> bool {
        self.fits_beside(share, |_| true)
    }

    /// Returns `true` if the share fits beside those of the held claims that count.
    fn fits_beside(&self, share: Share, counts: fn(&HeldClaim) -> bool) -> bool {
        let held = || self.held.iter().filter(|claim| counts(claim)).map(|claim| claim.want.share);
        let load: u64 = held().map(|held| u64::from(held.weight())).sum();
        let capacity = held().map(Share::capacity).fold(share.capacity(), u32::min);
        load + u64::from(share.weight()) <= u64::from(capacity)
    }

    fn is_awaited(&self) -> bool {
        !self.waiters.is_empty() || self.contending.is_some() || self.dependents > 0
    }

    /// Returns the place of the first waiter with exactly this request.
    fn first(&self, want: &Want) -> Option<Place> {
        self.waiters.iter().find(|(_, waiter)| waiter.want == *want).map(|(place, _)| *place)
    }
}

impl HeldClaim {
    pub(crate) fn new(id: ClaimId, want: Want, task: Option<Requester>) -> HeldClaim {
        HeldClaim { id, want, task, handoff_over: false, is_unused: false, is_reported: false }
    }

    /// Returns `true` if it may be handed to a waiter with this request.
    fn may_serve(&self, want: &Want) -> bool {
        !self.handoff_over && want.is_met_by(&self.want)
    }
}

#[cfg(test)]
mod tests;
