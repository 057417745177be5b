//! What a thread holds.

use std::time::Duration;

use leasehold_core::{Fence, LossCause, Resource, Share};

use super::runtime::wait;
use crate::engine::State;
use crate::error::Result;

/// A lock that is held, as [`leasehold::Guard`](crate::Guard). Dropping it gives the lock back in the background.
///
/// It may be sent to another thread and given back there, also where the lock is [reentrant](super::Lock::reentrant): what
/// counts is the owner in whose name it was asked for.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard {
    guard: std::sync::Arc<crate::Guard>,
}

impl Guard {
    pub(super) fn new(guard: crate::Guard) -> Guard {
        Guard { guard: std::sync::Arc::new(guard) }
    }

    /// As [`Guard::fence`](crate::Guard::fence).
    pub fn fence(&self) -> Option<Fence> {
        self.guard.fence()
    }

    /// What is held.
    pub fn resource(&self) -> &Resource {
        self.guard.resource()
    }

    /// How much of it is held.
    pub fn share(&self) -> Share {
        self.guard.share()
    }

    /// How sure one may be to hold it, by the clock, now.
    pub fn state(&self) -> State {
        self.guard.state()
    }

    /// Whether it is still held, by the clock, now. Call it between the steps of your work.
    ///
    /// # Errors
    /// `Lost`, with the cause.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// For how long it is held without another renewal.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Blocks until it is lost, for up to `limit`; `None` where it is still held then.
    ///
    /// # Errors
    /// `Closed` in a forked process.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<LossCause>> {
        let guard = self.guard.clone();
        wait("lost", async move { tokio::time::timeout(limit, guard.lost()).await.ok() })
    }

    /// Calls `act` once, on a thread of leasehold, when the lock is lost. Never where it is given back before.
    ///
    /// For stopping what cannot ask by itself: closing a socket, setting a flag. It must not block.
    ///
    /// # Errors
    /// `Closed` in a forked process.
    pub fn on_lost(&self, act: impl FnOnce(LossCause) + Send + 'static) -> Result<()> {
        let ending = self.guard.ending();
        wait("lost", async move {
            drop(tokio::spawn(async move {
                if let Some(cause) = ending.await {
                    act(cause);
                }
            }));
        })
    }

    /// Gives the lock back and blocks until that is confirmed.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<()> {
        // Whoever waits for the loss on another thread keeps a handle; then that one gives it back.
        match std::sync::Arc::into_inner(self.guard) {
            Some(guard) => wait("release", guard.release())?,
            None => Ok(()),
        }
    }
}
