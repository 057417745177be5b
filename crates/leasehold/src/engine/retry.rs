//! The decision whether a failed call of the store is repeated, and after which pause.
//!
//! One [`RetryState`] belongs to one caller that waits for an answer: a claim that is requested, a transfer,
//! or a register that is read or written. The caller gives up when the store has failed for as long as
//! [`Tuning::outage`](super::Tuning::outage). The calls themselves are in the files of their callers.
//!
//! Releases do not use it. They are retried by `release/reaper_task.rs`, with the pauses of `release/job.rs`, and
//! no longer than their leases last.

use std::time::Duration;

use leasehold_core::{Backoff, Effect, Failure, Moment};

use super::Engine;
use crate::random;

/// A series of failures without an answer in between.
pub(super) struct RetryState {
    began: Option<Moment>,
    last: Option<Moment>,
    backoff: Backoff,
    /// `true` once a request was not answered, so that the claim may exist on the server. A later answer does
    /// not change that: the request may still arrive.
    pub(super) unanswered: bool,
}

impl RetryState {
    pub(super) fn none() -> Self {
        RetryState {
            began: None,
            last: None,
            backoff: Backoff::new(RETRY_FIRST, RETRY_LAST),
            unanswered: false,
        }
    }

    /// Continues a series that began then, with no answer since.
    pub(super) fn since(began: Option<Moment>) -> Self {
        RetryState { began, ..RetryState::none() }
    }

    /// Returns the time of the first failure without an answer since.
    pub(super) fn began(&self) -> Option<Moment> {
        self.began
    }

    /// Returns the failure as it is to be reported: that the last attempt had no effect says nothing
    /// about those before it.
    pub(super) fn with_overall_effect(&mut self, failure: Failure) -> Failure {
        self.unanswered |= failure.effect == Effect::Unknown;
        if self.unanswered { failure.with_effect(Effect::Unknown) } else { failure }
    }

    /// Ends the series of failures, because a request was answered.
    pub(super) fn end(&mut self) {
        *self = RetryState { unanswered: self.unanswered, ..RetryState::none() };
    }

    /// Records that a request was sent at `sent` and that nothing has failed since the previous failure.
    /// A series ends when that failure is older than the outage tolerance.
    pub(super) fn reset_if_over(&mut self, engine: &Engine, sent: Moment) {
        if self.last.is_some_and(|last| sent.since(last) >= engine.tuning.outage) {
            *self = RetryState::none();
        }
    }

    /// Counts one failure. Returns the pause before the next try, or `None` when it is time to give up.
    pub(super) fn next_pause(&mut self, engine: &Engine, failure: &Failure) -> Option<Duration> {
        let now = engine.clock.now();
        let began = *self.began.get_or_insert(now);
        self.last = Some(now);
        // Half of each pause is random, so that the clients of a store do not retry in step.
        let pause = self.backoff.failed(random::chance());
        if !failure.is_transient() || now.since(began) >= engine.tuning.outage {
            return None;
        }
        Some(pause)
    }
}

/// Returns a random duration between half of `ceiling` and all of it.
pub(super) fn jittered(ceiling: Duration) -> Duration {
    leasehold_core::jittered(ceiling, random::chance())
}

const RETRY_FIRST: Duration = Duration::from_millis(40);
const RETRY_LAST: Duration = Duration::from_secs(1);
