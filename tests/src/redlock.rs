//! Clients of a quorum of Redis servers.

use std::any::Any;
use std::time::Instant;

use leasehold::Client;
use leasehold::layer::{Quorum, RearmReport};

use crate::opening::{LIMIT, opened};

/// Opens a quorum by its hosts and options.
pub async fn redlock(hosts: &str, options: &str) -> Client {
    opened(&format!("redlock://{hosts}{options}")).await
}

/// The layer behind a client.
pub fn quorum(locks: &Client) -> &Quorum {
    let backend: &dyn Any = &**locks.backend();
    backend.downcast_ref().unwrap()
}

/// Arms all servers, like an operator that has just set them up, and who tries again where a server is late.
pub async fn arm(locks: &Client) -> RearmReport {
    let began = Instant::now();
    loop {
        let rearmed = quorum(locks).rearm().await;
        match &rearmed {
            Ok(report) if report.missed.is_empty() => return rearmed.unwrap(),
            Ok(_) => {}
            Err(failure) => assert!(failure.is_transient(), "{failure}"),
        }
        assert!(began.elapsed() < LIMIT, "{rearmed:?}");
    }
}
