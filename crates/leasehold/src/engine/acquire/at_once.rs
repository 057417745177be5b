//! An uncontended acquisition on the thread of its caller, over a store that decides at once.
//!
//! It costs no task, no channel and no switch of threads. Everything that is out of the ordinary takes the
//! slow path: a local queue in which anything waits, a store that does not grant, a store that panics.
//!
//! Ground rules: nothing is awaited between the request and the hold, so a caller that is dropped leaves nothing.
//! Closing waits for an acquisition that began before.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use leasehold_core::DirectReply;

use crate::engine::acquire::direct::FastOutcome;
use crate::engine::acquire::span::contend_span;
use crate::engine::{Engine, Want, claim_of, no_random};
use crate::error::Result;
use crate::mutant::mutant;
use crate::panics::{called_in, can_enter_a_runtime, contained};

impl Engine {
    /// Acquires the lock at once, if nothing waits for it here and the store grants it.
    ///
    /// Cancel safe: it awaits only before it asks.
    pub(crate) async fn acquire_at_once(self: &Arc<Self>, want: &Want) -> Result<FastOutcome> {
        if contained(|| self.backend.at_once().is_none()).unwrap_or(true) {
            return Ok(FastOutcome::Declined);
        }
        // A task that locks in a loop would never let the others run: the renewer, for one.
        if !mutant!("who is granted at once never pauses") {
            tokio::task::coop::consume_budget().await;
            self.pause_at_times().await;
        }
        self.try_at_once(want)
    }

    /// Lets others run at every 128th call, on an executor that has no budget of tokio, too.
    async fn pause_at_times(&self) {
        let mut pauses = self.asked_at_once.fetch_add(1, Ordering::Relaxed) % 128 == 127;
        poll_fn(|context| {
            if !std::mem::take(&mut pauses) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    fn try_at_once(self: &Arc<Self>, want: &Want) -> Result<FastOutcome> {
        // Before the look whether the client is open: closing ends this first, or is seen here.
        let _under_way = self.tracked.token();
        self.check_open("lock").map_err(|error| error.on(&want.resource))?;
        if !self.admits_fast_path(want) || !can_enter_a_runtime() {
            return Ok(FastOutcome::Declined);
        }
        let id = self.ids.draw().map_err(|error| no_random("lock", &error))?;
        let claim = claim_of(want, id);
        let asked_at = self.clock.now();
        // The store may start tasks for what it grants.
        let grant = || self.backend.at_once().map(|store| store.grant_now(&claim, asked_at));
        let (asked, span) = called_in(|| contend_span(&claim), &self.runtime, grant);
        drop(span);
        // A panic leaves the effect unknown.
        match asked.map_or(DirectReply::Unknown, |reply| reply.unwrap_or(DirectReply::Declined)) {
            DirectReply::Granted(grant) => self.take_fast_grant(want, claim, grant),
            DirectReply::Busy { .. } | DirectReply::Declined => Ok(FastOutcome::Declined),
            DirectReply::Unknown => Ok(FastOutcome::Unknown(claim)),
        }
    }
}
