//! The validity of a grant: the time for which its holder relies on it.
//!
//! Ground rules: it is counted from before the request, and nothing here reads a clock.

use std::time::Duration;

use leasehold_core::{Moment, Profile};

/// The validity of a grant, from the time of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Term {
    /// A lease: the time asked for, the part of it that the holder relies on, and the lock delay, which
    /// is the time that the server keeps the claim beyond it.
    Lease { given: Duration, relied_on: Duration, lock_delay: Duration },
    /// A session: the claim is valid until the session ends.
    Session,
}

impl Term {
    /// Returns the term for a ttl. The holder relies on the ttl less the drift between two clocks, the
    /// coarseness of the server's clock, and a margin for the loss signal itself.
    pub(crate) fn of(profile: &Profile, ttl: Duration, drift: f64) -> Term {
        match profile.liveness.valid_for(ttl) {
            Some(given) => {
                let kept = given.mul_f64(1.0 - drift);
                let relied_on = kept.saturating_sub(profile.granularity).saturating_sub(SIGNAL_MARGIN);
                Term::Lease { given, relied_on, lock_delay: Duration::ZERO }
            }
            None => Term::Session,
        }
    }

    /// Returns `true` if a holder can work within it: at least a tenth of the time asked for is left.
    pub(crate) fn is_useful(&self) -> bool {
        match self {
            Term::Lease { given, relied_on, .. } => *relied_on >= *given / 10,
            Term::Session => true,
        }
    }

    /// Returns this term for a claim that the server keeps for `lock_delay` longer.
    pub(crate) fn with_lock_delay(self, lock_delay: Duration) -> Term {
        match self {
            Term::Lease { given, relied_on, .. } => Term::Lease { given, relied_on, lock_delay },
            Term::Session => Term::Session,
        }
    }

    pub(super) fn beginning(self, asked_at: Moment, now: Moment) -> Moment {
        match self {
            Term::Lease { .. } => asked_at,
            Term::Session => now,
        }
    }

    pub(super) fn end(self, asked_at: Moment) -> Moment {
        match self {
            Term::Lease { relied_on, .. } => asked_at.after(relied_on),
            Term::Session => Moment::NEVER,
        }
    }
}

/// The margin taken off every validity: the time until a loss signal is seen.
const SIGNAL_MARGIN: Duration = Duration::from_millis(2);
