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
use crate::random::IdMap;

/// The inbox and the signal that wakes the watchdog.
#[derive(Debug, Default)]
pub(crate) struct RenewalInbox {
    mail: Mutex<RenewalMail>,
    wakeup: Notify,
}

/// The unread messages. Their number is bounded by the number of claims: each claim is fresh or forgotten
/// at most once, and each of its users hastens it at most once.
#[derive(Debug, Default)]
pub(crate) struct RenewalMail {
    /// Claims to stop watching. They are processed first: a claim that was passed on may be in `fresh`
    /// again under its old id.
    pub(crate) forgotten: Vec<ClaimId>,
    /// Claims to start watching.
    pub(crate) fresh: IdMap<Arc<Lease>>,
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
    next_turn: Option<Moment>,
}

impl RenewalInbox {
    /// Adds a claim that has to be checked at `due`. Returns `false`, and does not keep the claim, where
    /// the inbox is closed.
    pub(crate) fn watch(&self, held: Arc<Lease>, due: Moment) -> bool {
        let mut mail = self.mail();
        if mail.is_closed && !mutant!("a closed client is granted") {
            return false;
        }
        // A turn that should have been before the grant is late, as after a suspend of the machine.
        if mail.next_turn.is_some_and(|next_turn| next_turn < held.granted_at) {
            mail.next_turn = None;
        }
        let before = mail.fresh.insert(held.claim.id, held);
        self.wake_by(mail, due);
        drop(before);
        true
    }

    /// Reports that a watched claim now ends at `end`, which is sooner than before.
    pub(crate) fn hasten(&self, id: ClaimId, end: Moment) {
        let mut mail = self.mail();
        if mail.fresh.contains_key(&id) {
            return self.wake_by(mail, end);
        }
        if !mail.is_abandoned {
            mail.hastened.push(id);
        }
        drop(mail);
        self.wakeup.notify_one();
    }

    /// Reports that a claim need not be watched any more.
    pub(crate) fn forget(&self, id: ClaimId) {
        let mut mail = self.mail();
        let unread = mail.fresh.remove(&id);
        if unread.is_none() && !mail.is_abandoned {
            mail.forgotten.push(id);
        }
        drop(mail);
        match unread {
            Some(unread) => drop(unread),
            None => self.wakeup.notify_one(),
        }
    }

    /// Asks the watchdog to mark every claim as lost, and closes the inbox. The receiver completes when
    /// that is done, or fails when the watchdog has ended.
    pub(crate) fn lose_all(&self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        let mut mail = self.mail();
        mail.is_closed = true;
        if !mail.is_abandoned {
            mail.closing.push(done);
        }
        drop(mail);
        self.wakeup.notify_one();
        receiver
    }

    /// Closes the inbox because the watchdog has ended. Returns all unread messages, which nothing will
    /// process any more.
    pub(crate) fn abandon(&self) -> RenewalMail {
        let mut mail = self.mail();
        let rest = RenewalMail { is_closed: true, is_abandoned: true, ..RenewalMail::default() };
        std::mem::replace(&mut mail, rest)
    }

    /// Reports that no further message will come.
    pub(crate) fn end(&self) {
        self.mail().is_over = true;
        self.wakeup.notify_one();
    }

    /// Waits until the watchdog is woken. Returns at once where that happened since the last call.
    pub(crate) async fn woken(&self) {
        self.wakeup.notified().await;
    }

    /// Returns all unread messages and leaves the inbox empty.
    pub(crate) fn clear(&self) -> RenewalMail {
        let mut mail = self.mail();
        let RenewalMail { next_turn, is_over, is_closed, .. } = *mail;
        std::mem::replace(&mut mail, RenewalMail { next_turn, is_over, is_closed, ..RenewalMail::default() })
    }

    /// Records the time of the watchdog's next turn. Returns `false`, and records nothing, where a
    /// message has arrived since the inbox was cleared.
    pub(crate) fn set_next_turn(&self, next_turn: Option<Moment>) -> bool {
        let mut mail = self.mail();
        let is_clear = mail.is_clear();
        if is_clear {
            mail.next_turn = next_turn;
        }
        is_clear
    }

    /// Wakes the watchdog where its next turn would be later than `due`.
    fn wake_by(&self, mail: MutexGuard<'_, RenewalMail>, due: Moment) {
        let waits = mail.next_turn.is_some_and(|next_turn| next_turn <= due);
        drop(mail);
        if !waits {
            self.wakeup.notify_one();
        }
    }

    fn mail(&self) -> MutexGuard<'_, RenewalMail> {
        // Every change is whole before anything can panic.
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
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
