//! The trust in a connection, which it earns by the token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The trust in one connection. It lasts for as long as the connection does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust(Arc<AtomicBool>);

impl Trust {
    pub(crate) fn earn(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_earned(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
