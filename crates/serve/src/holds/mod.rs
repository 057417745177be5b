//! The locks that are held for HTTP clients.

use std::time::Duration;

use leasehold::Client;
use leasehold::backend::Liveness;

use crate::config::Limits;

/// The locks that are held for HTTP clients, and the requests that wait for one.
#[derive(Debug)]
pub(crate) struct Holds {
    client: Client,
    #[expect(dead_code, reason = "counted from the next commit on")]
    limits: Limits,
}

impl Holds {
    pub(crate) fn new(client: Client, limits: Limits) -> Holds {
        Holds { client, limits }
    }

    /// Returns `true` if locks of this store end with this process.
    pub(crate) fn is_bound_to_process(&self) -> bool {
        matches!(self.client.profile().liveness, Liveness::Session)
    }

    /// Returns the number of locks that are held.
    pub(crate) fn count(&self) -> usize {
        0
    }

    /// Tells holders that the server ends, and waits until they have released.
    pub(crate) async fn close(&self, _grace: Duration) -> usize {
        self.count()
    }
}
