//! Inbox of the renewer. Messages that are not urgent do not wake it.
//!
//! Most locks are released before their first renewal is due. A new claim is therefore put into the
//! inbox, and the renewer finds it at its next turn; only a claim that would be found too late wakes it.
//! A claim that is released first is removed from the inbox and never reaches the renewer. Waking the
//! renewer for each lock would cost two task switches, and often thread switches.
//!
//! Ground rules: the mutex is held for a few instructions only, and nothing is dropped under it that
//! could call back into this module.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{ClaimId, Moment};
use tokio::sync::{Notify, oneshot};

use crate::engine::lease::Lease;
use crate::mutant::mutant;
use crate::random::IdMap;

/// The inbox and the signal that wakes the renewer.
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
    /// Set once the client closes or the renewer has ended: no claim is watched from then on.
    is_closed: bool,
    /// Set once the renewer has ended.
    is_abandoned: bool,
    /// Time of the renewer's next turn; `None` while it sleeps until it is woken.
    next_turn: Option<Moment>,
}

impl RenewalInbox {
    /// Adds a claim that has to be checked at `due`. Returns `false`, and does not keep the claim, where
    /// the inbox is closed.
    pub(crate) fn watch(&self, lease: Arc<Lease>, due: Moment) -> bool {
        let mut mail = self.mail();
        if mail.is_closed && !mutant!("a closed client is granted") {
            return false;
        }
        // A turn that should have been before the grant is late, as after a suspend of the machine.
        if mail.next_turn.is_some_and(|next_turn| next_turn < lease.granted_at) {
            mail.next_turn = None;
        }
        let before = mail.fresh.insert(lease.claim.id, lease);
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

    /// Asks the renewer to mark every claim as lost, and closes the inbox. The receiver completes when
    /// that is done, or fails when the renewer has ended.
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

    /// Closes the inbox because the renewer has ended. Returns all unread messages, which nothing will
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

    /// Waits until the renewer is woken. Returns at once where that happened since the last call.
    pub(crate) async fn woken(&self) {
        self.wakeup.notified().await;
    }

    /// Returns all unread messages and leaves the inbox empty.
    pub(crate) fn clear(&self) -> RenewalMail {
        let mut mail = self.mail();
        let RenewalMail { next_turn, is_over, is_closed, .. } = *mail;
        std::mem::replace(&mut mail, RenewalMail { next_turn, is_over, is_closed, ..RenewalMail::default() })
    }

    /// Records the time of the renewer's next turn. Returns `false` where a message has arrived since the
    /// inbox was cleared, so that the next turn is now.
    pub(crate) fn set_next_turn(&self, next_turn: Option<Moment>) -> bool {
        let mut mail = self.mail();
        mail.next_turn = next_turn;
        mail.is_clear()
    }

    /// Wakes the renewer where its next turn would be later than `due`.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use leasehold_core::{Claim, Clock, Grant, ManualClock, Resource, Share};

    use super::*;
    use crate::engine::lease::Term;
    use crate::events::EventSink;

    const TTL: Duration = Duration::from_secs(30);

    /// Returns the lease of a claim of this id that was granted now.
    fn lease(id: ClaimId, clock: &Arc<ManualClock>) -> Arc<Lease> {
        let claim = Claim::new(id, Resource::new("job").unwrap(), Share::MUTEX, TTL);
        let term = Term::Lease { given: TTL, relied_on: TTL, lock_delay: Duration::ZERO };
        let (grant, now) = (Grant::new(clock.now()), clock.now());
        Arc::new(Lease::new(claim, &grant, term, clock.clone(), EventSink::default(), now))
    }

    fn id(number: u8) -> ClaimId {
        ClaimId::from_bytes([number; 16])
    }

    fn is_woken(inbox: &RenewalInbox) -> bool {
        inbox.woken().now_or_never().is_some()
    }

    #[test]
    fn claim_wakes_the_renewer_if_its_next_turn_is_too_late() {
        let (inbox, clock) = (RenewalInbox::default(), Arc::new(ManualClock::new()));
        let next_turn = clock.now().after(Duration::from_secs(1));
        let (later, sooner) = (clock.now().after(TTL), clock.now().after(Duration::from_millis(900)));
        for (next_turn, due, wakes) in
            [(Some(next_turn), later, false), (Some(next_turn), sooner, true), (None, later, true)]
        {
            inbox.clear();
            assert!(inbox.set_next_turn(next_turn));
            assert!(inbox.watch(lease(id(1), &clock), due));
            assert_eq!(is_woken(&inbox), wakes, "{next_turn:?}, {due:?}");
            assert!(inbox.clear().fresh.contains_key(&id(1)));
        }
        // Its limit is reached before the next turn.
        assert!(inbox.set_next_turn(Some(next_turn)) && inbox.watch(lease(id(1), &clock), later));
        inbox.hasten(id(1), later);
        assert!(!is_woken(&inbox));
        inbox.hasten(id(1), sooner);
        assert!(is_woken(&inbox));
        // The machine was suspended meanwhile, so the turn is late.
        inbox.clear();
        assert!(inbox.set_next_turn(Some(next_turn)));
        clock.advance(Duration::from_secs(2));
        assert!(inbox.watch(lease(id(2), &clock), later) && is_woken(&inbox));
    }

    #[test]
    fn claim_released_before_the_renewer_sees_it_leaves_no_message() {
        let (inbox, clock) = (RenewalInbox::default(), Arc::new(ManualClock::new()));
        let next_turn = Some(clock.now().after(Duration::from_secs(1)));
        assert!(inbox.set_next_turn(next_turn));
        assert!(inbox.watch(lease(id(1), &clock), clock.now().after(TTL)));
        inbox.forget(id(1));
        assert!(!is_woken(&inbox) && inbox.set_next_turn(next_turn));
    }

    #[test]
    fn renewer_does_not_sleep_over_a_message() {
        let clock = Arc::new(ManualClock::new());
        let messages: [&dyn Fn(&RenewalInbox); 5] = [
            &|inbox| assert!(inbox.watch(lease(id(1), &clock), Moment::START)),
            &|inbox| inbox.forget(id(1)),
            &|inbox| inbox.hasten(id(1), Moment::START),
            &|inbox| drop(inbox.lose_all()),
            &RenewalInbox::end,
        ];
        for (number, message) in messages.iter().enumerate() {
            let inbox = RenewalInbox::default();
            inbox.clear();
            message(&inbox);
            assert!(!inbox.set_next_turn(None) && is_woken(&inbox), "message {number}");
        }
    }

    #[test]
    fn inbox_of_a_renewer_that_has_ended_keeps_nothing() {
        let (inbox, clock) = (RenewalInbox::default(), Arc::new(ManualClock::new()));
        assert!(inbox.watch(lease(id(1), &clock), clock.now()));
        assert!(inbox.abandon().fresh.contains_key(&id(1)));
        assert!(!inbox.watch(lease(id(2), &clock), clock.now()), "nothing would renew it");
        inbox.forget(id(1));
        inbox.hasten(id(1), clock.now());
        assert!(inbox.lose_all().now_or_never().is_some_and(|lost| lost.is_err()));
        assert!(inbox.set_next_turn(None), "no message is left");
    }
}
