//! The engine's handle to the renewer, which renews every lease of one client and reports each loss.
//!
//! Ground rules: what the handle has to say waits in the inbox of the renewer (`inbox.rs`). In a fork it says nothing:
//! the inbox may be locked there for ever.

use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::{Backend, Clock, LossCause, LossSignal, Moment};
use leasehold_machine::Process;
use tokio::runtime::Handle;

use crate::engine::Engine;
use crate::engine::Tuning;
use crate::engine::lease::{Lease, State};
use crate::engine::renew::inbox::RenewalInbox;
use crate::engine::renew::renewer_task::{RenewerTask, next_due};
use crate::events::{Event, EventSink};

/// The engine's handle to the renewer. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Renewer {
    inbox: Arc<RenewalInbox>,
    events: EventSink,
    renew_at: f64,
    process: Process,
}

impl Renewer {
    pub(crate) fn start(
        runtime: &Handle,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        tuning: &Tuning,
        events: EventSink,
        engine: Weak<Engine>,
    ) -> Renewer {
        let inbox = Arc::<RenewalInbox>::default();
        // The agenda reads the clock of the runtime.
        let _entered = runtime.enter();
        let task = RenewerTask::new(backend, clock, tuning.renew_at, events.clone(), engine, inbox.clone());
        drop(runtime.spawn(task.run()));
        Renewer { inbox, events, renew_at: tuning.renew_at, process: Process::this() }
    }

    /// Renews the claim from now on, and marks its loss. Returns `false` if the client is closed; the caller then
    /// releases the claim. It has had no user, so that is no loss.
    pub(crate) fn watch(&self, lease: &Arc<Lease>, lost: Option<&LossSignal>) -> bool {
        let due = next_due(lease, lease.began_at, self.renew_at);
        if !self.inbox.watch(lease.clone(), due.min(lease.valid_until())) {
            return false;
        }
        self.events.emit(|| Event::LeaseStarted { resource: &lease.claim.resource });
        if let Some(signal) = lost {
            let (weak, inbox) = (Arc::downgrade(lease), self.inbox.clone());
            lease.listen(signal.on_loss(move |cause| {
                // A loss that only the backend can see. Once the claim is dropped, no holder is left to
                // notify.
                if let Some(lease) = weak.upgrade() {
                    lease.lose(cause);
                    inbox.hasten(lease.claim.id, Moment::START);
                }
            }));
        }
        true
    }

    /// Starts the `max_hold` of one user of the claim; it may end before the next check.
    pub(crate) fn limit_hold(&self, lease: &Lease, max_hold: Option<Duration>) {
        lease.limit_hold(max_hold);
        if max_hold.is_some() {
            self.inbox.hasten(lease.claim.id, lease.valid_until());
        }
    }

    /// Stops watching the claim.
    pub(crate) fn forget(&self, lease: &Lease) {
        // Another thread may have had the inbox locked when the process was forked, and does not exist in the fork.
        if !self.process.is_this() {
            return;
        }
        self.inbox.forget(lease.claim.id);
        self.events.emit(|| Event::LeaseEnded { resource: &lease.claim.resource });
    }

    /// Marks the claim as lost, unless it is, and has it released.
    pub(crate) fn lose(&self, lease: &Lease, cause: LossCause) {
        // In a fork every claim is lost already, and nothing is marked.
        if !matches!(lease.state(), State::Lost(_)) {
            lease.lose(cause);
            self.inbox.hasten(lease.claim.id, Moment::START);
        }
    }

    /// Marks every claim as lost, because the client closes. Returns when all of them have been queued
    /// for release; from here on no claim is watched.
    pub(crate) async fn lose_all(&self) {
        // A runtime that has ended has nothing left to lose.
        let _ = self.inbox.lose_all().await;
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        if self.process.is_this() {
            self.inbox.end();
        }
    }
}
