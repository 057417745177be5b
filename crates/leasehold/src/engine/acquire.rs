//! The acquisition of a lock: the fast paths, and then the slow path, over the local queue.

pub(super) mod at_once;
mod attempt;
pub(super) mod contender;
pub(super) mod direct;
pub(super) mod handoff;
pub(super) mod in_flight;
pub(super) mod lately_busy;
pub(super) mod linger;
pub(super) mod local_queue;
pub(super) mod queue;
pub(super) mod requester;
pub(super) mod span;
pub(super) mod transfer;
pub(super) mod upgrade;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Claim, Resource};

use crate::engine::acquire::contender::try_once;
use crate::engine::acquire::direct::FastOutcome;
use crate::engine::acquire::linger::TriedLocally;
use crate::engine::deadline::Deadline;
use crate::engine::{Engine, Hold, Want};
use crate::error::{Error, Result};

impl Engine {
    /// Acquires the lock for no owner.
    pub(crate) async fn acquire_unowned(
        self: &Arc<Self>,
        want: Want,
        deadline: Deadline,
        priority: i32,
    ) -> Result<Option<Hold>> {
        let fast = match self.acquire_at_once(&want).await? {
            FastOutcome::Declined => self.acquire_directly(&want, &deadline).await?,
            decided => decided,
        };
        let unanswered = match fast {
            FastOutcome::Granted(hold) => return Ok(Some(hold)),
            FastOutcome::Busy(_) => return Ok(None),
            FastOutcome::Declined => None,
            FastOutcome::Unknown(claim) => Some(claim),
        };
        // Boxed, so that the common future, which is moved with the caller's, stays small.
        Box::pin(self.acquire_on_slow_path(want, deadline, priority, unanswered)).await
    }

    /// Acquires it over the local queue and its contender, or asks once in a task of its own. The store may have
    /// granted the claim that is `unanswered`.
    async fn acquire_on_slow_path(
        self: &Arc<Self>,
        want: Want,
        deadline: Deadline,
        priority: i32,
        unanswered: Option<Claim>,
    ) -> Result<Option<Hold>> {
        if deadline.is_zero() {
            return self.acquire_now(want, unanswered).await;
        }
        if let Some(claim) = unanswered {
            self.reaper.abandon(claim);
        }
        let resource = want.resource.clone();
        let again = deadline.is_limited().then(|| want.clone());
        // If this future is dropped, so is the ticket, which leaves the queue. The queue then decides whether
        // the contender is still needed.
        let mut ticket = self.enter_queue(want, priority);
        let closed = || Error::closed("lock").on(&resource);
        tokio::select! {
            biased;
            reply = ticket.reply() => reply.unwrap_or_else(|| Err(closed())).map(Some),
            () = self.closed.cancelled() => Err(closed()),
            () = deadline.passed() => {
                let again = again.filter(|want| !self.was_busy_recently(want));
                let attempt = Box::pin(self.try_at_deadline(again, deadline.waited(), &resource));
                // The place in the queue is kept meanwhile: its request may still be answered late.
                let last_try = tokio::select! {
                    biased;
                    reply = ticket.reply() => return reply.unwrap_or_else(|| Err(closed())).map(Some),
                    last_try = attempt => last_try,
                };
                match ticket.withdraw() {
                    // The grant arrived while the time ran out, so the caller gets it. If the last try
                    // was granted as well, that hold is returned, and this one is dropped and so released.
                    Some(Ok(hold)) if last_try.is_err() => Ok(Some(hold)),
                    _ => last_try.map(Some),
                }
            }
        }
    }

    /// Asks the store once more at the end of a timed wait. `want` is `None` where the store has said
    /// lately that the lock is not free.
    ///
    /// # Errors
    /// `Timeout` where the lock is not free; otherwise those of [`Engine::with_answer_limit`].
    pub(crate) async fn try_at_deadline(
        self: &Arc<Self>,
        want: Option<Want>,
        waited: Duration,
        resource: &Resource,
    ) -> Result<Hold> {
        let hold = match want {
            Some(want) => self.with_answer_limit(waited, self.acquire_now(want, None)).await,
            None => Ok(None),
        };
        let hold = hold.map_err(|error| error.on(resource))?;
        hold.ok_or_else(|| Error::timeout(waited, resource))
    }

    /// Waits for the answer to a last attempt after a wait of `waited`, with a time limit of its own, so
    /// that the caller learns when the store does not answer.
    ///
    /// # Errors
    /// `OutcomeUnknown` where no answer came, `Closed` where the client closes, and those of `attempt`.
    pub(crate) async fn with_answer_limit<T>(
        &self,
        waited: Duration,
        attempt: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        tokio::select! {
            biased;
            last_try = attempt => last_try.map_err(|error| error.after_wait(waited)),
            is_open = self.sleep(LAST_ANSWER_LIMIT) => {
                Err(if is_open { Error::no_answer(waited) } else { Error::closed("lock") })
            }
        }
    }

    /// Asks once, without joining a queue: for the claim that is `unanswered`, if there is one.
    pub(crate) async fn acquire_now(
        self: &Arc<Self>,
        want: Want,
        unanswered: Option<Claim>,
    ) -> Result<Option<Hold>> {
        if unanswered.is_none() {
            match self.try_locally(&want).await? {
                TriedLocally::Granted(hold) => return Ok(Some(hold)),
                TriedLocally::Refused => return Ok(None),
                TriedLocally::Allowed => {}
            }
        }
        let resource = want.resource.clone();
        let attempt = try_once(self.clone(), want, unanswered);
        match self.tracked.spawn_on(attempt, &self.runtime).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::closed("lock").on(&resource)),
        }
    }
}

/// The time that the store has to answer a last attempt after the end of a wait.
const LAST_ANSWER_LIMIT: Duration = Duration::from_secs(2);
