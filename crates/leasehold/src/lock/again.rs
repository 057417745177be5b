//! How to get again what was given back.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Claim;

use super::Guard;
use crate::engine::{Engine, Manner, Owner, Wait, Want};
use crate::error::{Error, Result};

/// What a lock was asked for with, besides what its claim says.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(super) max_hold: Option<Duration>,
    pub(super) at_least: Duration,
    pub(super) quiet: Duration,
    pub(super) manner: Manner,
    pub(super) owner: Option<Owner>,
}

/// A lock that was held, to be asked for again.
#[derive(Debug)]
pub(crate) struct Again {
    engine: Arc<Engine>,
    want: Want,
    terms: Terms,
}

impl Again {
    pub(super) fn of(engine: Arc<Engine>, claim: &Claim, terms: Terms) -> Again {
        let want = Want {
            resource: claim.resource.clone(),
            share: claim.share,
            // The store was asked for both together.
            ttl: claim.ttl.saturating_sub(terms.quiet),
            quiet: terms.quiet,
            max_hold: terms.max_hold,
            note: claim.note.clone(),
        };
        Again { engine, want, terms }
    }

    /// Waits in line for it.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind.
    pub(crate) async fn lock(&self) -> Result<Guard> {
        let owner = self.terms.owner.as_ref();
        match self.engine.acquire(self.want.clone(), owner, Wait::Forever, self.terms.manner).await? {
            Some(hold) => Ok(Guard::new(hold, self.terms.clone())),
            None => Err(Error::timeout(Duration::ZERO, &self.want.resource)),
        }
    }
}
