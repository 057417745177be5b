//! The claims that this client holds, with their sessions.
//!
//! Ground rules: a server lets one session take one lock again and again, so which claims of this client
//! exclude each other is decided here, before anything is sent. The table is behind a plain mutex that is
//! never held across an await. The end of a session removes all claims that it held, and notifies every
//! holder, in one step.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{
    Claim, ClaimId, Failure, Fence, Grant, LossCause, LossSignal, LossTrigger, Moment, Resource, Share,
};
use tokio_util::sync::CancellationToken;

use crate::session::open_session::OpenSession;
use crate::session::sessions::{Holder, SHOWN_AFTER, Session, Sharing, collision};

/// The claims of one client.
#[derive(Debug)]
pub(crate) struct ClaimTable<S>(Mutex<Entries<S>>);

#[derive(Debug)]
struct Entries<S> {
    held: HashMap<ClaimId, HeldLock<S>>,
    /// The locks of the sessions that hold many, requests under way included.
    keys: HashMap<String, Taken>,
    waiting: HashMap<ClaimId, CancellationToken>,
    /// The claims whose release is under way. The tokens are cancelled at its end.
    ending: HashMap<ClaimId, CancellationToken>,
    /// The claims that are not shown to other clients yet, by the moment at which they are to be. Some have
    /// been released since.
    unshown: BTreeSet<(Moment, ClaimId)>,
}

#[derive(Debug)]
struct HeldLock<S> {
    session: Arc<OpenSession<S>>,
    claim: Claim,
    fence: Option<Fence>,
    since: Moment,
    shown: Shown,
    lost: LossTrigger,
    signal: LossSignal,
}

/// The state of what shows a holder to other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    No,
    /// It is being written.
    Soon,
    /// It was written, or an attempt to do so failed: the release removes it.
    Yes,
}

/// One lock of a session that holds many.
#[derive(Debug)]
struct Taken {
    session_number: u64,
    resource: Resource,
    is_shared: bool,
    claims: usize,
}

/// The answer to whether a lock may be asked for.
#[derive(Debug)]
pub(crate) enum Reserved {
    /// The lock may be asked for; the answer has to be entered, or the reservation given up.
    Free(Sharing),
    /// Another claim of this client has it.
    Busy,
}

/// The outcome of removing a claim that is to be released.
#[derive(Debug)]
pub(crate) enum Removed<'a, S: Session> {
    /// The claim was held.
    Held {
        /// The session that has the lock.
        session: Arc<OpenSession<S>>,
        /// The others that have it there.
        sharing: Sharing,
        is_shown: bool,
        /// The trigger of its loss signal.
        lost: LossTrigger,
        /// The scope of its release.
        ending: Ending<'a, S>,
    },
    /// It is being shown to others, which has to end first. It was not removed.
    BeingShown,
    /// It is not held.
    Gone,
}

/// The claims of one session that are to be shown to other clients.
pub(crate) type ToShow<S> = (Arc<OpenSession<S>>, Vec<Holder>);

/// A lock that the server gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenLock {
    pub(crate) fence: Option<Fence>,
    /// `true` if other clients can see the holder already.
    pub(crate) is_shown: bool,
    /// The moment before the request that was answered.
    pub(crate) asked_at: Moment,
}

/// The outcome of entering a lock that the server gave.
#[derive(Debug)]
pub(crate) enum Entered {
    /// The claim holds it.
    Held(Grant),
    /// The claim was released while it waited: the lock is to be released.
    Released,
    /// The session has ended meanwhile, and the lock with it.
    Ended,
}

impl<S: Session> ClaimTable<S> {
    pub(crate) fn new() -> Self {
        ClaimTable(Mutex::new(Entries {
            held: HashMap::new(),
            keys: HashMap::new(),
            waiting: HashMap::new(),
            ending: HashMap::new(),
            unshown: BTreeSet::new(),
        }))
    }

    /// Returns the session in which the claim is held.
    pub(crate) fn find(&self, claim: &Claim) -> Option<Arc<OpenSession<S>>> {
        let entries = self.entries();
        let held = entries.held.get(&claim.id).filter(|held| held.claim.resource == claim.resource);
        held.map(|held| held.session.clone())
    }

    /// Returns the grant of a claim that is held, as of `asked_at`.
    pub(crate) fn grant(&self, claim: &Claim, asked_at: Moment) -> Option<Grant> {
        let entries = self.entries();
        let held = entries.held.get(&claim.id).filter(|held| held.claim.resource == claim.resource)?;
        let lost = Some(held.signal.clone());
        Some(Grant::new(asked_at).fence(held.fence).lost(lost))
    }

    /// Reserves a lock against the claims of this client, before the server is asked.
    pub(crate) fn reserve(
        &self,
        key: &str,
        resource: &Resource,
        share: Share,
        session_number: u64,
    ) -> Result<Reserved, Failure> {
        let mut entries = self.entries();
        let is_shared = !share.is_exclusive();
        match entries.keys.get_mut(key) {
            None => {
                let taken = Taken { session_number, resource: resource.clone(), is_shared, claims: 1 };
                entries.keys.insert(key.to_owned(), taken);
                Ok(Reserved::Free(Sharing::None))
            }
            Some(taken) if taken.resource != *resource => Err(collision(resource, taken.resource.as_str())),
            Some(taken) if taken.is_shared && is_shared && taken.session_number == session_number => {
                taken.claims += 1;
                Ok(Reserved::Free(Sharing::Readers))
            }
            Some(_) => Ok(Reserved::Busy),
        }
    }

    /// Forgets a lock that the server did not give, or has back.
    pub(crate) fn give_up(&self, key: &str, session_number: u64) {
        let mut entries = self.entries();
        let Some(taken) = entries.keys.get_mut(key).filter(|taken| taken.session_number == session_number)
        else {
            return;
        };
        taken.claims = taken.claims.saturating_sub(1);
        if taken.claims == 0 {
            entries.keys.remove(key);
        }
    }

    /// Enters a lock that the server gave by `now`.
    pub(crate) fn enter(
        &self,
        claim: &Claim,
        session: &Arc<OpenSession<S>>,
        lock: TakenLock,
        now: Moment,
    ) -> Entered {
        let TakenLock { fence, is_shown, asked_at } = lock;
        let mut entries = self.entries();
        // The task that watches it may not have noticed yet.
        if !session.is_live() {
            return Entered::Ended;
        }
        if entries.waiting.remove(&claim.id).is_some_and(|released| released.is_cancelled()) {
            return Entered::Released;
        }
        let (lost, signal) = LossTrigger::new();
        let (mut shown, mut since) = (Shown::Yes, asked_at);
        if !is_shown {
            (shown, since) = (Shown::No, now);
            entries.unshown.insert((now.after(SHOWN_AFTER), claim.id));
        }
        let (session, claim) = (session.clone(), claim.clone());
        let id = claim.id;
        entries
            .held
            .insert(id, HeldLock { session, claim, fence, since, shown, lost, signal: signal.clone() });
        Entered::Held(Grant::new(asked_at).fence(fence).lost(Some(signal)))
    }

    /// Removes a claim, to be released. Its key stays taken until [`ClaimTable::give_up`].
    pub(crate) fn remove(&self, claim: &Claim, key: &str) -> Removed<'_, S> {
        let mut entries = self.entries();
        match entries.held.get(&claim.id) {
            Some(held) if held.claim.resource != claim.resource => return Removed::Gone,
            Some(held) if held.shown == Shown::Soon => return Removed::BeingShown,
            _ => {}
        }
        let Some(held) = entries.held.remove(&claim.id) else { return Removed::Gone };
        let others = entries.keys.get(key).is_some_and(|taken| taken.claims > 1);
        let sharing = if others { Sharing::Readers } else { Sharing::None };
        entries.ending.insert(claim.id, CancellationToken::new());
        let ending = Ending { table: self, id: claim.id };
        Removed::Held {
            session: held.session,
            sharing,
            is_shown: held.shown == Shown::Yes,
            lost: held.lost,
            ending,
        }
    }

    /// Waits until no release of this claim by this client is under way.
    pub(crate) async fn until_ended(&self, id: ClaimId) {
        let ended = self.entries().ending.get(&id).cloned();
        if let Some(ended) = ended {
            ended.cancelled().await;
        }
    }

    /// Returns the claims that are to be shown to other clients by now, by session, and notes that they are
    /// being shown.
    pub(crate) fn begin_to_show(&self, now: Moment) -> Vec<ToShow<S>> {
        let mut entries = self.entries();
        let mut by_session: HashMap<u64, ToShow<S>> = HashMap::new();
        // Bounded by the claims that were granted since the last time.
        while let Some((due, id)) = entries.unshown.first().copied().filter(|(due, _)| *due <= now) {
            entries.unshown.remove(&(due, id));
            let Some(held) = entries.held.get_mut(&id) else { continue };
            held.shown = Shown::Soon;
            let (claim, fence) = (held.claim.clone(), held.fence);
            let holder = Holder { claim, fence, held_for: now.since(held.since) };
            by_session
                .entry(held.session.number)
                .or_insert_with(|| (held.session.clone(), Vec::new()))
                .1
                .push(holder);
        }
        by_session.into_values().collect()
    }

    /// Notes that an attempt to show these claims has ended. It is repeated at `again`, where it failed.
    pub(crate) fn end_showing(&self, holders: &[&Holder], again: Option<Moment>) {
        let mut entries = self.entries();
        for Holder { claim, .. } in holders {
            let Some(held) = entries.held.get_mut(&claim.id) else { continue };
            held.shown = Shown::Yes;
            if let Some(again) = again {
                entries.unshown.insert((again, claim.id));
            }
        }
    }

    /// Returns `true` if there are claims that are to be shown.
    pub(crate) fn has_unshown(&self) -> bool {
        !self.entries().unshown.is_empty()
    }

    /// Forgets what the session held, and notifies every holder.
    pub(crate) fn lose(&self, session_number: u64) {
        let mut entries = self.entries();
        entries.keys.retain(|_, taken| taken.session_number != session_number);
        let lost = entries.held.extract_if(|_, held| held.session.number == session_number);
        let lost: Vec<HeldLock<S>> = lost.map(|(_, held)| held).collect();
        // Listeners are foreign code, and the last handle of a session may be among what is dropped:
        // the tasks that want the table must not wait for either.
        drop(entries);
        for held in &lost {
            held.lost.fire(LossCause::SessionEnded);
        }
        drop(lost);
    }

    /// Notes a claim that waits in the server, until what is returned is dropped.
    pub(crate) fn begin_to_wait(&self, id: ClaimId) -> Wait<'_, S> {
        let released = CancellationToken::new();
        self.entries().waiting.insert(id, released.clone());
        Wait { table: self, id, released }
    }

    /// Ends the wait of a claim that waits; `false` where it does not.
    pub(crate) fn end_wait(&self, id: ClaimId) -> bool {
        match self.entries().waiting.get(&id) {
            Some(released) => {
                released.cancel();
                true
            }
            None => false,
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries<S>> {
        // Every change of the table is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim that waits in the server.
#[derive(Debug)]
pub(crate) struct Wait<'a, S: Session> {
    table: &'a ClaimTable<S>,
    id: ClaimId,
    /// A token that is cancelled when the claim is released while it waits.
    pub(crate) released: CancellationToken,
}

impl<S: Session> Drop for Wait<'_, S> {
    fn drop(&mut self) {
        self.table.entries().waiting.remove(&self.id);
    }
}

/// The release of a claim, which is over when this is dropped.
#[derive(Debug)]
pub(crate) struct Ending<'a, S: Session> {
    table: &'a ClaimTable<S>,
    id: ClaimId,
}

impl<S: Session> Drop for Ending<'_, S> {
    fn drop(&mut self) {
        if let Some(ended) = self.table.entries().ending.remove(&self.id) {
            ended.cancel();
        }
    }
}
