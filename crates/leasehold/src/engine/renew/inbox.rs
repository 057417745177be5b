//! Inbox of the renewal task (the watchdog). Messages that are not urgent do not wake it.
//!
//! Most locks are released before their first renewal is due. A new claim is therefore put into the
//! inbox, and the watchdog finds it at its next turn; only a claim that would be found too late wakes it.
//! A claim that is released first is removed from the inbox and never reaches the watchdog. Waking the
//! watchdog for each lock would cost two task switches, and often thread switches.
//!
//! Ground rules: the mutex is held for a few instructions only, and nothing is dropped under it that
//! could call back into this module.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{ClaimId, Moment};
use tokio::sync::{Notify, oneshot};

use crate::engine::lease::Lease;
use crate::mutant::mutant;
use crate::random::HashMap;

/// The inbox and the signal that wakes the watchdog.
#[derive(Debug, Default)]
pub(crate) struct RenewalInbox {
    papers: Mutex<RenewalMail>,
    bell: Notify,
}

/// The unread messages. Their number is bounded by the number of claims: each claim is fresh or forgotten
/// at most once, and each of its users hastens it at most once.
#[derive(Debug, Default)]
pub(crate) struct RenewalMail {
    /// Claims to stop watching. They are processed first: a claim that was passed on may be in `fresh`
    /// again under its old id.
    pub(crate) forgotten: Vec<ClaimId>,
    /// Claims to start watching.
    pub(crate) fresh: HashMap<ClaimId, Arc<Lease>>,
    /// Claims whose end has moved closer or has been reached.
    pub(crate) hastened: Vec<ClaimId>,
    /// Callers that close the client, each waiting until every claim is marked as lost.
    pub(crate) closing: Vec<oneshot::Sender<()>>,
    /// Set once the client and all its guards are dropped.
    pub(crate) is_over: bool,
    /// Set once the client closes or the watchdog has ended: no claim is watched from then on.
    is_closed: bool,
    /// Set once the watchdog has ended.
    is_abandoned: bool,
    /// Time of the watchdog's next turn; `None` while it sleeps until it is woken.
    comes_at: Option<Moment>,
}

impl RenewalInbox {
    /// Adds a claim that has to be checked at `due`. Returns `false`, and does not keep the claim, where
    /// the inbox is closed.
    pub(crate) fn watch(&self, held: Arc<Lease>, due: Moment) -> bool {
        let mut papers = self.papers();
        if papers.is_closed && !mutant!("a closed client is granted") {
            return false;
        }
        let before = papers.fresh.insert(held.claim.id, held);
        self.call_for(papers, due);
        drop(before);
        true
    }

    /// Reports that a watched claim now ends at `end`, which is sooner than before.
    pub(crate) fn hasten(&self, id: ClaimId, end: Moment) {
        let mut papers = self.papers();
        if papers.fresh.contains_key(&id) {
            return self.call_for(papers, end);
        }
        if !papers.is_abandoned {
            papers.hastened.push(id);
        }
        drop(papers);
        self.bell.notify_one();
    }

    /// Reports that a claim need not be watched any more.
    pub(crate) fn forget(&self, id: ClaimId) {
        let mut papers = self.papers();
        let unseen = papers.fresh.remove(&id);
        if unseen.is_none() && !papers.is_abandoned {
            papers.forgotten.push(id);
        }
        drop(papers);
        match unseen {
            Some(unseen) => drop(unseen),
            None => self.bell.notify_one(),
        }
    }

    /// Asks the watchdog to mark every claim as lost, and closes the inbox. The receiver completes when
    /// that is done, or fails when the watchdog has ended.
    pub(crate) fn lose_all(&self) -> oneshot::Receiver<()> {
        let (done, told) = oneshot::channel();
        let mut papers = self.papers();
        papers.is_closed = true;
        if !papers.is_abandoned {
            papers.closing.push(done);
        }
        drop(papers);
        self.bell.notify_one();
        told
    }

    /// Closes the inbox because the watchdog has ended. Returns all unread messages, which nothing will
    /// process any more.
    pub(crate) fn abandon(&self) -> RenewalMail {
        let mut papers = self.papers();
        let rest = RenewalMail { is_closed: true, is_abandoned: true, ..RenewalMail::default() };
        std::mem::replace(&mut papers, rest)
    }

    /// Reports that no further message will come.
    pub(crate) fn end(&self) {
        self.papers().is_over = true;
        self.bell.notify_one();
    }

    /// Waits until the watchdog is woken. Returns at once where that happened since the last call.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Returns all unread messages and leaves the inbox empty.
    pub(crate) fn clear(&self) -> RenewalMail {
        let mut papers = self.papers();
        let RenewalMail { comes_at, is_over, is_closed, .. } = *papers;
        std::mem::replace(&mut papers, RenewalMail { comes_at, is_over, is_closed, ..RenewalMail::default() })
    }

    /// Records the time of the watchdog's next turn. Returns `false`, and records nothing, where a
    /// message has arrived since the inbox was cleared.
    pub(crate) fn leave_until(&self, comes_at: Option<Moment>) -> bool {
        let mut papers = self.papers();
        let is_clear = papers.is_clear();
        if is_clear {
            papers.comes_at = comes_at;
        }
        is_clear
    }

    /// Wakes the watchdog where its next turn would be later than `due`.
    fn call_for(&self, papers: MutexGuard<'_, RenewalMail>, due: Moment) {
        let waits = papers.comes_at.is_some_and(|comes_at| comes_at <= due);
        drop(papers);
        if !waits {
            self.bell.notify_one();
        }
    }

    fn papers(&self) -> MutexGuard<'_, RenewalMail> {
        // Every change is whole before anything can panic.
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RenewalMail {
    fn is_clear(&self) -> bool {
        self.forgotten.is_empty()
            && self.fresh.is_empty()
            && self.hastened.is_empty()
            && self.closing.is_empty()
            && !self.is_over
    }
}
