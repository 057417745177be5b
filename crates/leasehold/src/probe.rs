//! What a simulation of the engine sees of it, without changing anything: only where this crate is compiled with
//! `cfg(leasehold_sim)`, which no user's build is.

use std::future::Future;

use leasehold_core::{ClaimId, LossCause, Moment, Resource, Share};

use crate::engine::State;
use crate::{Guard, Leasehold};

/// Draws everything random from `seed` from now on, on this thread, and puts back the defect of this name; none where it is empty.
pub fn begin(seed: u64, mutant: &'static str) {
    crate::random::seed(seed);
    crate::mutant::put_back(mutant);
}

/// One guard, as the engine has it marked.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The state that was marked last, whatever the clock says by now.
    pub marked: State,
    /// When it ends by the clock of its client, unless it is renewed.
    pub until: Moment,
    /// That clock.
    pub now: Moment,
}

impl Seen {
    /// Whether its holder may rely on it.
    pub fn is_valid(&self) -> bool {
        !matches!(self.marked, State::Lost(_)) && self.now < self.until
    }
}

/// Looks at a guard; a loss that nobody marked yet stays unmarked.
pub fn look(guard: &Guard) -> Seen {
    let held = guard.hold().held();
    Seen { marked: held.marked(), until: held.valid_until(), now: guard.hold().now() }
}

/// How a guard ends: lost, or given back (`None`).
pub fn ending(guard: &Guard) -> impl Future<Output = Option<LossCause>> + Send + 'static {
    guard.ending()
}

/// How many resources the engine of a client remembers, for those who wait or hold.
pub fn lines(client: &Leasehold) -> usize {
    client.engine().lines()
}

/// The first task in the local line of a resource.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// A number that no other task has.
    pub number: u64,
    /// What it waits for.
    pub share: Share,
    /// Nobody else in the line came before it.
    pub came_first: bool,
    /// The claim of this client that stands on the server for this task, or for another one of the line.
    pub asks: Option<ClaimId>,
}

/// Looks at who is first in the local line of a resource.
pub fn head(client: &Leasehold, resource: &Resource) -> Option<Head> {
    let (number, share, came_first, asks) = client.engine().head(resource)?;
    Some(Head { number, share, came_first, asks })
}
