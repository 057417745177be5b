//! What the author of a backend hands to the suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::Backend;

/// A backend under examination: how to connect to it, and how to do so from another process.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// One more client connection to the *same* store. It is called several times for one law; the connections
    /// should share no more than those of two processes would.
    ///
    /// `None` where there is nothing to connect to on this machine: the law is skipped. Say why before, for
    /// instance with `skip` of `leasehold-testkit`.
    async fn open(&self) -> Option<Arc<dyn Backend>>;

    /// The ttl of claims that are left to run out. Laws wait for it several times: choose it short, but not so
    /// short that a loaded machine cannot renew within it. It is kept within the range of the profile.
    fn ttl(&self) -> Duration {
        Duration::from_millis(500)
    }
}
