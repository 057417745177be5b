//! The view of a simulation on the engine, without changing anything: only if this crate is compiled
//! with `cfg(leasehold_sim)`, which builds of users are not.

use std::future::Future;

use leasehold_core::{LossCause, Moment, Resource};

pub use crate::engine::Head;
use crate::engine::State;
use crate::{Client, Guard};

/// Draws everything random from `seed` from now on, on this thread, and puts back the defect of this
/// name; none if it is empty.
pub fn begin(seed: u64, mutant: &'static str) {
    crate::random::seed(seed);
    crate::mutant::put_back(mutant);
}

/// One guard, as the engine has it marked.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The state that was marked last, which may be behind the clock.
    pub marked: State,
    /// The end by the clock of its client, unless it is renewed.
    pub until: Moment,
    /// The present time of that clock.
    pub now: Moment,
}

impl Seen {
    /// Returns `true` if its holder may rely on it.
    pub fn is_valid(&self) -> bool {
        !matches!(self.marked, State::Lost(_)) && self.now < self.until
    }
}

/// Looks at a guard; a loss that no task has marked yet stays unmarked.
pub fn look(guard: &Guard) -> Seen {
    let lease = guard.hold().lease();
    Seen { marked: lease.marked(), until: lease.valid_until(), now: guard.hold().now() }
}

/// Resolves when a guard ends: lost with a cause, or released (`None`).
pub fn ending(guard: &Guard) -> impl Future<Output = Option<LossCause>> + Send + 'static {
    guard.ending()
}

/// Returns the number of resources that the engine of a client remembers, for waiters or holders.
pub fn queues(client: &Client) -> usize {
    client.engine().queues()
}

/// Returns the first task in the local queue of a resource.
pub fn head(client: &Client, resource: &Resource) -> Option<Head> {
    client.engine().head(resource)
}
