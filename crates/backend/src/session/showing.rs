//! Holders are shown to other clients when they have held for a while.
//!
//! Ground rules: a lock decides, and what shows its holder only informs. It is written while the claim
//! holds and at no other time: a release waits for the end of the writing.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::{ClaimInfo, Clock, Failure, Moment, Resource};

use crate::session::claims::ClaimTable;
use crate::session::sessions::{Holder, SHOWN_AFTER, Session, Sessions};

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
            let task = Awake(Arc::downgrade(self));
            leasehold_machine::spawn(task.show_all());
        }
    }

    /// Waits until what is being written has been written.
    pub(crate) async fn until_written(&self) {
        drop(self.writing.lock().await);
    }

    /// Shows what is to be shown by now. A server that is slow to write it is given up soon, since releases
    /// wait for the end.
    async fn show_due(&self) {
        let _writing = self.writing.lock().await;
        let begun = self.clock.now();
        let due = self.claims.begin_to_show(begun);
        let pending = due.iter().flat_map(|(_, holders)| holders).collect();
        let mut attempt = Attempt { claims: &self.claims, clock: &*self.clock, pending };
        for (session, holders) in &due {
            for some in holders.chunks(AT_ONCE) {
                if self.is_slow(begun) {
                    return;
                }
                match session.inner.show(some).await {
                    Ok(()) => attempt.end(some.len(), None),
                    // One that cannot be shown must not hide the others.
                    Err(_) => self.show_each(&session.inner, some, begun, &mut attempt).await,
                }
            }
        }
    }

    async fn show_each(&self, session: &S, some: &[Holder], begun: Moment, attempt: &mut Attempt<'_, S>) {
        for one in some {
            if self.is_slow(begun) {
                return attempt.end(usize::MAX, Some(AGAIN_AFTER));
            }
            match session.show(std::slice::from_ref(one)).await {
                Ok(()) => attempt.end(1, None),
                Err(failure) => {
                    let resource = &one.claim.resource;
                    tracing::warn!(%failure, %resource, "other clients do not see who holds a lock");
                    attempt.end(1, Some(AGAIN_AFTER));
                }
            }
        }
    }

    fn is_slow(&self, begun: Moment) -> bool {
        self.clock.now().since(begun) > WRITING_MAX
    }

    /// Notes that the task ends; `false` where it has to continue.
    fn rest(&self) -> bool {
        self.is_awake.store(false, Ordering::SeqCst);
        // A claim that was entered before has found the task awake.
        !self.claims.has_unshown() || self.is_awake.swap(true, Ordering::SeqCst)
    }
}

/// An attempt to show claims. It ends for all that are left when it is dropped, however that happens, so that
/// no release waits for it for ever.
struct Attempt<'a, S: Session> {
    claims: &'a ClaimTable<S>,
    clock: &'a dyn Clock,
    /// The claims that are being shown, in their order.
    pending: VecDeque<&'a Holder>,
}

impl<S: Session> Attempt<'_, S> {
    /// Ends it for so many claims, or all that are left. Those that are not shown are tried again after this
    /// time.
    fn end(&mut self, count: usize, again_after: Option<Duration>) {
        let ended: Vec<&Holder> = self.pending.drain(..count.min(self.pending.len())).collect();
        self.claims.end_showing(&ended, again_after.map(|after| self.clock.now().after(after)));
    }
}

impl<S: Session> Drop for Attempt<'_, S> {
    fn drop(&mut self) {
        self.end(self.pending.len(), Some(AGAIN_AFTER));
    }
}

/// Reads the present holders of the resource. Waits a little for those that another client is about to show.
pub(crate) async fn shown_holders(
    sessions: &impl Sessions,
    resource: &Resource,
) -> Result<Vec<ClaimInfo>, Failure> {
    for is_last in (0..LOOKS).map(|look| look + 1 == LOOKS) {
        if let Some(holders) = sessions.holders(resource, is_last).await? {
            return Ok(holders);
        }
        tokio::time::sleep(SHOWN_AFTER).await;
    }
    Ok(Vec::new())
}

/// Waits a little until the holders are shown that other clients have not shown yet. Locks that are taken later are
/// not waited for.
pub(crate) async fn until_shown(sessions: &impl Sessions) -> Result<(), Failure> {
    let mut awaited: Option<HashSet<String>> = None;
    for _ in 0..LOOKS {
        let unshown = sessions.unshown().await?;
        let left = match awaited {
            None => unshown,
            Some(awaited) => &awaited & &unshown,
        };
        if left.is_empty() {
            break;
        }
        awaited = Some(left);
        tokio::time::sleep(SHOWN_AFTER).await;
    }
    Ok(())
}

/// The task that shows claims. If it ends by a panic or with its runtime, the next grant begins another one.
struct Awake<S: Session>(Weak<Showing<S>>);

impl<S: Session> Awake<S> {
    /// Shows claims until there are none. A client that is dropped meanwhile closes its sessions.
    async fn show_all(mut self) {
        loop {
            tokio::time::sleep(SHOWN_AFTER).await;
            let Some(showing) = self.0.upgrade() else { return };
            showing.show_due().await;
            if showing.rest() {
                // A claim that was entered since has begun another task, whose state is not this one's to change.
                self.0 = Weak::new();
                return;
            }
        }
    }
}

impl<S: Session> Drop for Awake<S> {
    fn drop(&mut self) {
        if let Some(showing) = self.0.upgrade() {
            showing.is_awake.store(false, Ordering::SeqCst);
        }
    }
}

/// Looks for a holder that another client shows in a moment: many times what it takes, where the machines are not
/// overloaded.
const LOOKS: u32 = 50;
/// Holders that are written at the same time.
const AT_ONCE: usize = 100;
/// The time after which it is tried again, where it failed.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// The time for which it is tried to show claims, before the rest is left for the next time.
const WRITING_MAX: Duration = Duration::from_secs(1);
