//! The deadline and the cancellation of one wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{Clock, Moment};

/// The limit of one wait. Cloned freely: all clones end together.
///
/// The engine ends it, at the deadline or because no caller needs the answer; a backend listens and returns
/// its present answer. The engine never drops a backend's future instead.
#[derive(Clone)]
pub struct Patience {
    clock: Arc<dyn Clock>,
    deadline: Option<Moment>,
    ended: CancellationToken,
}

impl Patience {
    /// Creates a wait without a deadline.
    pub fn unlimited(clock: Arc<dyn Clock>) -> Self {
        Patience { clock, deadline: None, ended: CancellationToken::new() }
    }

    /// Creates a wait up to `deadline`. Its creator must also call [`Patience::end`] then: there is no
    /// timer in here.
    pub fn until(clock: Arc<dyn Clock>, deadline: Moment) -> Self {
        Patience { clock, deadline: Some(deadline), ended: CancellationToken::new() }
    }

    /// Creates a patience that does not wait at all: the backend tries once and answers.
    pub fn none(clock: Arc<dyn Clock>) -> Self {
        let patience = Patience::unlimited(clock);
        patience.end();
        patience
    }

    /// Returns the local time, for [`Grant::asked_at`](crate::Grant::asked_at).
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns the clock behind [`Patience::now`].
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the moment at which the wait ends at the latest.
    pub fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Returns the time that is left: zero when it has ended, [`Duration::MAX`] without a deadline.
    pub fn left(&self) -> Duration {
        if self.ended.is_cancelled() {
            return Duration::ZERO;
        }
        self.deadline.map_or(Duration::MAX, |deadline| self.clock.now().until(deadline))
    }

    /// Ends the wait. Repeating it changes nothing.
    pub fn end(&self) {
        self.ended.cancel();
    }

    /// Returns `true` if the wait is over, by a call of [`Patience::end`] or by the clock.
    pub fn is_ended(&self) -> bool {
        self.left().is_zero()
    }

    /// Waits until [`Patience::end`] was called.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("deadline", &self.deadline).field("ended", &self.is_ended()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ManualClock;

    #[test]
    fn patience_ends_by_the_clock_or_by_a_call() {
        let clock = Arc::new(ManualClock::new());
        let patience = Patience::until(clock.clone(), Moment::from_millis(5));
        assert!(!patience.is_ended());
        clock.advance(Duration::from_millis(5));
        assert!(patience.is_ended());

        let patience = Patience::unlimited(clock.clone());
        assert_eq!(patience.left(), Duration::MAX);
        patience.clone().end();
        assert!(patience.is_ended());
        assert!(Patience::none(clock).is_ended());
    }

    #[test]
    fn a_backend_sees_the_deadline_and_the_end_of_a_wait() {
        let clock = Arc::new(ManualClock::new());
        let deadline = Moment::from_millis(5);
        assert_eq!(Patience::until(clock.clone(), deadline).deadline(), Some(deadline));
        let patience = Patience::unlimited(clock);
        assert_eq!(patience.deadline(), None);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut ended = std::pin::pin!(patience.ended());
        assert!(ended.as_mut().poll(&mut context).is_pending());
        patience.end();
        assert!(ended.as_mut().poll(&mut context).is_ready());
    }
}
