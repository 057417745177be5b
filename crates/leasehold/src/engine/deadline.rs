//! The limit of one caller's wait.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Moment;

use crate::engine::{Engine, Wait};

/// The deadline of one caller's wait.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    engine: Arc<Engine>,
    began: Moment,
    wait: Wait,
}

impl Deadline {
    pub(crate) fn of(wait: Wait, engine: &Arc<Engine>) -> Self {
        // Without a limit nothing asks for the time.
        let began = if let Wait::For(_) = wait { engine.clock.now() } else { Moment::START };
        Deadline { engine: engine.clone(), began, wait }
    }

    pub(crate) fn is_zero(&self) -> bool {
        matches!(self.wait, Wait::No) || matches!(self.wait, Wait::For(limit) if limit.is_zero())
    }

    pub(crate) fn is_limited(&self) -> bool {
        matches!(self.wait, Wait::For(_))
    }

    pub(crate) fn waited(&self) -> Duration {
        match self.wait {
            Wait::For(_) => self.engine.clock.now().since(self.began),
            Wait::No | Wait::Forever => Duration::ZERO,
        }
    }

    /// Returns `true` if nothing is left to wait for.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.left(), Wait::No | Wait::For(Duration::ZERO))
    }

    /// Returns the rest of the wait.
    pub(crate) fn left(&self) -> Wait {
        match self.wait {
            Wait::For(limit) => Wait::For(limit.saturating_sub(self.waited())),
            unlimited => unlimited,
        }
    }

    /// Waits until the deadline has passed; never returns if the client closes first.
    pub(crate) async fn passed(&self) {
        let end = match self.wait {
            Wait::No => return,
            Wait::For(limit) => self.began.after(limit),
            Wait::Forever => return std::future::pending().await,
        };
        if !self.engine.sleep_until(end).await {
            std::future::pending().await
        }
    }
}
