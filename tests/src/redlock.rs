//! Clients of a quorum of Redis servers.

use std::any::Any;

use leasehold::Leasehold;
use leasehold::layer::{Quorum, Rearmed};

/// Opens a quorum by its hosts and options.
pub async fn redlock(hosts: &str, options: &str) -> Leasehold {
    Leasehold::open(&format!("redlock://{hosts}{options}")).await.unwrap()
}

/// The layer behind a client.
pub fn quorum(locks: &Leasehold) -> &Quorum {
    let backend: &dyn Any = &**locks.backend();
    backend.downcast_ref().unwrap()
}

/// Arms all servers at once, as an operator does who has just set them up.
pub async fn arm(locks: &Leasehold) -> Rearmed {
    quorum(locks).rearm().await.unwrap()
}
