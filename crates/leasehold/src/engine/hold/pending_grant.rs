//! A grant on its way from the server to its first user.
//!
//! Ground rules: a grant is entered into the queue of its resource before the renewer gets it. So every
//! end of the grant, at any time and on any thread, finds it in the queue and removes it there. A grant
//! that is dropped on the way is released.

use std::sync::Arc;

use leasehold_core::{Claim, Grant, LossSignal, Resource};

use crate::engine::Engine;
use crate::engine::Want;
use crate::engine::hold::{Hold, PassedOn};
use crate::engine::lease::{Lease, Term, UseEnd};
use crate::engine::release::reaper::Waits;
use crate::error::{Error, Result};
use crate::panics::logged;

/// A granted claim that has no user yet.
pub(crate) struct PendingGrant {
    engine: Arc<Engine>,
    want: Want,
    lease: Arc<Lease>,
    lost: Option<LossSignal>,
    has_begun: bool,
}

impl PendingGrant {
    /// Wraps a grant of the server. Returns `None` if its lease ran out before it arrived.
    ///
    /// # Errors
    /// `Closed` where this is a fork of the client's process.
    pub(crate) fn take(
        engine: &Arc<Engine>,
        want: &Want,
        claim: &Claim,
        grant: Grant,
    ) -> Result<Option<PendingGrant>> {
        let term = Term::of(engine.profile(), want.ttl, engine.tuning.drift).with_lock_delay(want.lock_delay);
        let now = engine.clock.now();
        let (clock, events) = (engine.clock.clone(), engine.events.clone());
        let mut lease = Lease::new(claim.clone(), &grant, term, clock, events, now);
        lease.set_linger(want.linger);
        let lease = Arc::new(lease);
        // Asked without marking a loss: it has had no user.
        if !lease.is_usable(now) {
            logged!(debug, resource = %claim.resource, "the lease of a grant had ended when the grant arrived");
            return Ok(None);
        }
        if engine.is_forked() {
            engine.reaper.abandon(claim.clone());
            return Err(Error::closed("lock").on(&claim.resource));
        }
        let (engine, want) = (engine.clone(), want.clone());
        Ok(Some(PendingGrant { engine, want, lease, lost: grant.lost, has_begun: false }))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn want(&self) -> &Want {
        &self.want
    }

    pub(crate) fn resource(&self) -> &Resource {
        &self.want.resource
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Begins the first use, by a user to which the claim was `passed` on so often. The grant must be in its queue by
    /// now.
    ///
    /// # Errors
    /// `Closed` where the client was closed meanwhile; the claim is then released.
    pub(crate) fn begin(mut self, passed: PassedOn) -> Result<Hold> {
        self.lease.limit_hold(self.want.max_hold);
        if !self.engine.renewer.watch(&self.lease, self.lost.as_ref()) {
            return Err(Error::closed("lock").on(&self.want.resource));
        }
        self.has_begun = true;
        Ok(Hold::new(self.engine.clone(), self.lease.clone(), passed))
    }
}

impl Drop for PendingGrant {
    fn drop(&mut self) {
        if !self.has_begun && self.lease.retire() {
            let lease = self.lease.clone();
            let now = self.engine.clock.now();
            let ended = UseEnd { state: lease.state_at(now), at: now };
            drop(self.engine.reaper.release(&self.engine, lease, ended, Waits::No));
        }
    }
}
