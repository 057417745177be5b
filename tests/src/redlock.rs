//! Clients of a quorum of Redis servers.

use std::any::Any;

use leasehold::Client;
use leasehold::layer::{Quorum, RearmReport};

use crate::store::opened;

/// Opens a quorum by its hosts and options.
pub async fn redlock(hosts: &str, options: &str) -> Client {
    opened(&format!("redlock://{hosts}{options}")).await
}

/// The layer behind a client.
pub fn quorum(locks: &Client) -> &Quorum {
    let backend: &dyn Any = &**locks.backend();
    backend.downcast_ref().unwrap()
}

/// Arms all servers at once, like an operator that has just set them up.
pub async fn arm(locks: &Client) -> RearmReport {
    quorum(locks).rearm().await.unwrap()
}
