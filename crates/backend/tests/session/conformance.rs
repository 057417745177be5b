//! Sessions in memory before all laws: one that holds many locks and polls, and one a lock that waits in
//! the server.

use std::sync::Arc;

use leasehold_backend::session::Capacity;
use leasehold_conformance::{SteadyClock, Subject};
use leasehold_core::{Backend, WaitMode};

use crate::store::Server;

struct Subjected(Arc<Server>, Capacity, WaitMode);

#[async_trait::async_trait]
impl Subject for Subjected {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(self.0.client_by(self.1, self.2, Arc::new(SteadyClock::new()))))
    }
}

const ONE: Capacity = Capacity::One { sessions: 300, option: "sessions=" };

mod many_locks_a_session {
    use super::*;
    leasehold_conformance::suite!(Subjected(Server::new(), Capacity::Many, WaitMode::Polls));
}

mod one_lock_a_session {
    use super::*;
    leasehold_conformance::suite!(Subjected(Server::new(), ONE, WaitMode::Blocks));
}
