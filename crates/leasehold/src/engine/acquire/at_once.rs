//! An uncontended acquisition on the thread of its caller, over a store that decides at once.
//!
//! It costs no task, no channel and no switch of threads. Everything that is out of the ordinary goes the longer
//! way: a local queue in which anything waits, a store that does not grant, a store that panics.
//!
//! Ground rules: nothing is awaited between the request and the hold, so a caller that is dropped leaves nothing.
//! Closing waits for an acquisition that began before.

use std::sync::Arc;

use leasehold_core::Grant;

use crate::engine::acquire::contender::abandon;
use crate::engine::backend_call::Attempt;
use crate::engine::hold::Hold;
use crate::engine::hold::pending_grant::PendingGrant;
use crate::engine::{Engine, Want, claim_of, no_random};
use crate::error::Result;
use crate::mutant::mutant;
use crate::panics::{called_in, contained};

/// The answer of a store that decides at once.
enum Answer {
    Granted(Grant),
    /// Nothing of the claim exists.
    Declined,
    /// The claim may exist.
    Unknown,
}

impl Engine {
    /// Acquires the lock at once if nothing waits for it here and the store grants it; otherwise `None`, and nothing
    /// is left behind.
    ///
    /// Cancel safe: it awaits only before it asks.
    pub(crate) async fn acquire_at_once(self: &Arc<Self>, want: &Want) -> Result<Option<Hold>> {
        if contained(|| self.backend.at_once().is_none()).unwrap_or(true) {
            return Ok(None);
        }
        // A task that locks in a loop would never let the others run: the renewal task, for one.
        if !mutant!("who is granted at once never pauses") {
            tokio::task::coop::consume_budget().await;
        }
        self.try_at_once(want)
    }

    fn try_at_once(self: &Arc<Self>, want: &Want) -> Result<Option<Hold>> {
        // Before the look whether the client is open: closing ends this first, or is seen here.
        let _under_way = self.contenders.token();
        self.is_open("lock").map_err(|error| error.on(&want.resource))?;
        if !self.admits_at_once(want) {
            return Ok(None);
        }
        let id = self.ids.draw().map_err(|error| no_random("lock", &error))?;
        let claim = claim_of(want, id);
        let attempt = Attempt::of(self, &claim);
        let asked_at = self.clock.now();
        let span =
            || tracing::debug_span!("leasehold.contend", resource = %claim.resource, share = %claim.share);
        // The store may start tasks for what it grants.
        let grant = || self.backend.at_once().and_then(|store| store.grant_now(&claim, asked_at));
        let (asked, span) = called_in(span, &self.runtime, grant);
        drop(span);
        let answer = match asked {
            Some(Some(grant)) => Answer::Granted(grant),
            Some(None) => Answer::Declined,
            None => Answer::Unknown,
        };
        let outcome = match answer {
            Answer::Declined => Ok(None),
            Answer::Unknown => {
                abandon(self, &claim);
                Ok(None)
            }
            Answer::Granted(grant) => match PendingGrant::take(self, want, &claim, grant) {
                Ok(Some(pending)) => Engine::grant_directly(pending).map(Some),
                Ok(None) => {
                    abandon(self, &claim);
                    Ok(None)
                }
                Err(error) => Err(error),
            },
        };
        attempt.over(outcome)
    }
}
