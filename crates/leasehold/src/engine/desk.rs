//! What the watchdog is told, without waking it for what can wait.
//!
//! Most locks are held for a moment only: they are given back long before the first look at them is due. So a claim is laid
//! on the desk, and the watchdog finds it there when it comes by, unless that would be too late; one that is given back before
//! never reaches it. Waking the watchdog for each would cost two changes of tasks for every lock, and threads with them.
//!
//! Ground rules: the desk is locked for a few instructions only, and nothing is dropped under its lock that could come back here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{ClaimId, Moment};
use tokio::sync::{Notify, oneshot};

use super::held::Held;
use crate::mutant::mutant;
use crate::random::HashMap;

/// What lies there for the watchdog.
#[derive(Debug, Default)]
pub(super) struct Desk {
    papers: Mutex<Papers>,
    bell: Notify,
}

/// Claims bound it: each is fresh, or forgotten, at most once; and each of its users has it looked at at most once.
#[derive(Debug, Default)]
pub(super) struct Papers {
    /// Claims that are no longer to be watched. They come first: a claim that was handed on may be here anew under its old id.
    pub(super) forgotten: Vec<ClaimId>,
    /// Claims that are to be watched from now on.
    pub(super) fresh: HashMap<ClaimId, Arc<Held>>,
    /// Claims whose end has come nearer, or is there.
    pub(super) hastened: Vec<ClaimId>,
    /// Who closes the client, and waits until every claim is lost.
    pub(super) closing: Vec<oneshot::Sender<()>>,
    /// The client and all guards are gone.
    pub(super) is_over: bool,
    /// The client closes, or the watchdog is gone: nothing is watched any more.
    is_closed: bool,
    /// The watchdog is gone.
    is_abandoned: bool,
    /// When the watchdog comes by anyway; `None` where it sleeps until the bell rings.
    comes_at: Option<Moment>,
}

impl Desk {
    /// A claim that is to be looked at when `due` comes. `false` where nobody will: then it is not kept.
    pub(super) fn watch(&self, held: Arc<Held>, due: Moment) -> bool {
        let mut papers = self.papers();
        if papers.is_closed && !mutant!("a closed client is granted") {
            return false;
        }
        let before = papers.fresh.insert(held.claim.id, held);
        self.call_for(papers, due);
        drop(before);
        true
    }

    /// A claim that is watched ends at `end`, which is sooner than it was.
    pub(super) fn hasten(&self, id: ClaimId, end: Moment) {
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

    /// A claim that is to be left alone from now on.
    pub(super) fn forget(&self, id: ClaimId) {
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

    /// Every claim is to be lost, and none is watched from here on; answered when it is done, or the watchdog is gone.
    pub(super) fn lose_all(&self) -> oneshot::Receiver<()> {
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

    /// The watchdog is gone. Takes everything that lies here, which nobody will look at any more.
    pub(super) fn abandon(&self) -> Papers {
        let mut papers = self.papers();
        let rest = Papers { is_closed: true, is_abandoned: true, ..Papers::default() };
        std::mem::replace(&mut papers, rest)
    }

    /// Nothing more will be laid here.
    pub(super) fn end(&self) {
        self.papers().is_over = true;
        self.bell.notify_one();
    }

    /// Comes back when the bell rings, or rang since the last time.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Takes everything that lies here.
    pub(super) fn clear(&self) -> Papers {
        let mut papers = self.papers();
        let Papers { comes_at, is_over, is_closed, .. } = *papers;
        std::mem::replace(&mut papers, Papers { comes_at, is_over, is_closed, ..Papers::default() })
    }

    /// The watchdog says when it comes by next. `false` where something was laid here since it cleared the desk.
    pub(super) fn leave_until(&self, comes_at: Option<Moment>) -> bool {
        let mut papers = self.papers();
        let is_clear = papers.is_clear();
        if is_clear {
            papers.comes_at = comes_at;
        }
        is_clear
    }

    /// Rings where the watchdog would come too late.
    fn call_for(&self, papers: MutexGuard<'_, Papers>, due: Moment) {
        let waits = papers.comes_at.is_some_and(|comes_at| comes_at <= due);
        drop(papers);
        if !waits {
            self.bell.notify_one();
        }
    }

    fn papers(&self) -> MutexGuard<'_, Papers> {
        // Every change is whole before anything can panic.
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Papers {
    fn is_clear(&self) -> bool {
        self.forgotten.is_empty()
            && self.fresh.is_empty()
            && self.hastened.is_empty()
            && self.closing.is_empty()
            && !self.is_over
    }
}
