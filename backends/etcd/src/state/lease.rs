//! One lease of the server, shared by claims, and how long it has to be.

use std::time::Duration;

use leasehold_core::Moment;

/// The purpose of a lease. Leases of one purpose are interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// The holding of claims, for this many seconds.
    Hold(u64),
    /// The wait: as short as a server allows, so that the place of a process that died is free soon.
    Wait,
}

impl Purpose {
    /// Returns the ttl that is asked for, in seconds.
    pub(crate) fn seconds(self) -> u64 {
        match self {
            Purpose::Hold(seconds) => seconds,
            Purpose::Wait => WAIT_SECONDS,
        }
    }

    /// Returns the most leases of this purpose, beyond a few that are opened at the same moment.
    pub(crate) fn max_leases(self) -> usize {
        match self {
            Purpose::Hold(_) => HOLDING_MOST,
            Purpose::Wait => 1,
        }
    }

    /// Returns `true` if a lease is long enough to put a claim on it.
    pub(crate) fn suits(self, lease: &ServerLease, now: Moment) -> bool {
        let slack = match self {
            Purpose::Hold(_) => Duration::ZERO,
            // A key that is moved there has to outlast the time until the lease is kept alive the next time.
            Purpose::Wait => lease.ttl / 2,
        };
        lease.purpose == self && lease.covers() > now.after(slack)
    }
}

/// One lease of the server.
#[derive(Clone, Debug)]
pub(crate) struct ServerLease {
    pub(crate) id: i64,
    pub(crate) purpose: Purpose,
    /// The ttl that the server gave, at least as long.
    pub(crate) ttl: Duration,
    pub(crate) kept_at: Moment,
    /// The version of its mark: late requests carry an older one.
    pub(crate) mark: i64,
    pub(crate) claims: usize,
    pub(crate) waiters: usize,
    pub(crate) keep_again_at: Moment,
}

impl ServerLease {
    /// Returns the moment up to which it surely runs.
    pub(crate) fn covers(&self) -> Moment {
        self.kept_at.after(self.ttl)
    }

    /// Returns the moment by which it has to be kept alive for the claims that wait on it.
    pub(crate) fn due(&self) -> Moment {
        self.kept_at.after(self.ttl / 3).max(self.keep_again_at)
    }

    /// Returns `true` if a claim that is granted now would outlive it.
    pub(crate) fn is_short_of(&self, ttl: Duration, now: Moment) -> bool {
        self.covers() < now.after(ttl)
    }

    /// Returns the latest moment from which it covers a whole ttl, not after `asked_at`.
    pub(crate) fn covers_from(&self, ttl: Duration, asked_at: Moment) -> Moment {
        self.covers().before(ttl).min(asked_at)
    }
}

/// Returns `true` if a claim that waits is better off on a lease for waiting than on one of this
/// length, in seconds.
pub(crate) fn is_worth_parking(length: u64) -> bool {
    length > WAIT_SECONDS
}

/// Returns the length of the lease for claims of this ttl, in seconds.
///
/// At least one second longer, so that a lease that is kept alive once a second covers every new claim;
/// and one of a few lengths, so that the number of leases is bounded for any ttls.
pub(crate) fn length_for(ttl: Duration) -> u64 {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0) + 1;
    if seconds < EXACT_BELOW {
        return seconds;
    }
    let step = 1 << (seconds.ilog2() - STEPS_LOG2);
    seconds.div_ceil(step) * step
}

/// The shortest lease that a cluster with the usual election timeout of a second grants.
pub(crate) const WAIT_SECONDS: u64 = 2;
const HOLDING_MOST: usize = 8;
/// Below this length, in seconds, leases have exactly the needed length.
const EXACT_BELOW: u64 = 64;
/// Of the longer ones there are two to this power for each doubling.
const STEPS_LOG2: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_ttl_exceeds_claim_ttl_by_at_least_1s_at_most_an_eighth() {
        for millis in (100..200_000).step_by(37).chain([86_400_000]) {
            let ttl = Duration::from_millis(millis);
            let length = Duration::from_secs(length_for(ttl));
            assert!(length >= ttl + Duration::from_secs(1), "{ttl:?} {length:?}");
            assert!(length <= ttl + Duration::from_secs(2) + ttl / 8, "{ttl:?} {length:?}");
        }
        let lengths: std::collections::HashSet<u64> =
            (1..=86_400).map(|seconds| length_for(Duration::from_secs(seconds))).collect();
        assert!(lengths.len() < 160, "{}", lengths.len());
    }
}
