//! Holders are shown to other clients when they have held for a while.
//!
//! Ground rules: a lock decides, and what shows its holder only informs. It is written while the claim
//! holds and at no other time: a release waits for the end of the writing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::{Clock, Moment};

use crate::session::claims::{ClaimTable, ToShow};
use crate::session::sessions::{Holder, SHOWN_AFTER, Session};

/// The writing of what shows holders to other clients.
#[derive(Debug)]
pub(crate) struct Showing<S> {
    claims: Arc<ClaimTable<S>>,
    clock: Arc<dyn Clock>,
    /// `true` while there is a task that shows claims.
    is_awake: AtomicBool,
    writing: tokio::sync::Mutex<()>,
}

impl<S: Session> Showing<S> {
    pub(crate) fn new(claims: Arc<ClaimTable<S>>, clock: Arc<dyn Clock>) -> Self {
        Showing { claims, clock, is_awake: AtomicBool::new(false), writing: tokio::sync::Mutex::new(()) }
    }

    /// Sees to it that the claim that was just granted will be shown.
    pub(crate) fn wake(self: &Arc<Self>) {
        if !self.is_awake.swap(true, Ordering::SeqCst) {
            let showing = Arc::downgrade(self);
            leasehold_machine::spawn(async move { show_all(showing).await });
        }
    }

    /// Waits until what is being written has been written.
    pub(crate) async fn until_written(&self) {
        drop(self.writing.lock().await);
    }

    /// Shows what is to be shown by now.
    async fn show_due(&self) {
        let _writing = self.writing.lock().await;
        for (open, holders) in self.claims.begin_to_show(self.clock.now()) {
            self.show(&(open, holders)).await;
        }
    }

    async fn show(&self, (open, holders): &ToShow<S>) {
        for some in holders.chunks(AT_ONCE) {
            let again = self.clock.now().after(AGAIN_AFTER);
            let mut attempt =
                Attempt { claims: &self.claims, failed: some.iter().collect(), shown: vec![], again };
            if open.session.show(some).await.is_ok() {
                attempt.shown = std::mem::take(&mut attempt.failed);
                continue;
            }
            // One that cannot be shown must not hide the others.
            for one in some {
                match open.session.show(std::slice::from_ref(one)).await {
                    Ok(()) => {
                        attempt.failed.retain(|failed| failed.claim.id != one.claim.id);
                        attempt.shown.push(one);
                    }
                    Err(failure) => {
                        let resource = &one.claim.resource;
                        tracing::warn!(%failure, %resource, "other clients do not see who holds a lock");
                    }
                }
            }
        }
    }

    /// Notes that the task ends; `false` where it has to continue.
    fn rest(&self) -> bool {
        if self.claims.has_unshown() {
            return false;
        }
        self.is_awake.store(false, Ordering::SeqCst);
        // A claim that was entered meanwhile has found the task awake.
        !self.claims.has_unshown() || self.is_awake.swap(true, Ordering::SeqCst)
    }
}

/// An attempt to show claims. It ends when it is dropped, so that no release waits for it for ever.
struct Attempt<'a, S: Session> {
    claims: &'a ClaimTable<S>,
    failed: Vec<&'a Holder>,
    shown: Vec<&'a Holder>,
    /// The moment at which those that failed are tried again.
    again: Moment,
}

impl<S: Session> Drop for Attempt<'_, S> {
    fn drop(&mut self) {
        self.claims.end_showing(&self.shown, None);
        self.claims.end_showing(&self.failed, Some(self.again));
    }
}

/// Shows claims until there are none. A client that is dropped meanwhile closes its sessions.
async fn show_all<S: Session>(showing: Weak<Showing<S>>) {
    loop {
        tokio::time::sleep(SHOWN_AFTER).await;
        let Some(showing) = showing.upgrade() else { return };
        showing.show_due().await;
        if showing.rest() {
            return;
        }
    }
}

/// Holders that are written at the same time.
const AT_ONCE: usize = 100;
/// The time after which it is tried again, where it failed.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
