//! Limits of every wait and retry: how long, how often, how many.

use std::time::Duration;

use crate::random;
use leasehold_core::{
    Claim, Effect, Failure, FailureKind, Profile, Resource, SILENT_AFTER, Share, doubled, part_of,
};
use tokio::time::Instant;

/// The shortest lease of a store that counts in fractions of a second.
pub const MIN_TTL: Duration = Duration::from_millis(200);

/// The longest lease.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// The time for which a place is kept for a silent waiter. Generous, because it is not what the queue waits
/// for: a dead waiter is passed over within the grace of its call once its turn comes, or once it keeps
/// another from free capacity.
pub const PLACE_TTL: Duration = Duration::from_secs(60);

/// The longest time between two checks of a waiter that is notified: a third of the time for which its place
/// is kept, so that two may fail.
pub(crate) const REFRESH: Duration = Duration::from_secs(PLACE_TTL.as_secs() / 3);

/// A check in the very instant of an end is one too early.
pub(crate) const TICK: Duration = Duration::from_millis(2);

/// The pauses of a claim that polls. Within the longest, a live claim answers a call.
pub(crate) const FIRST_POLL: Duration = Duration::from_millis(25);
/// The longest pause of the waiter that is next in the queue; those behind it have as many times as long.
pub(crate) const HEAD_POLL: Duration = Duration::from_millis(100);
pub(crate) const LAST_POLL: Duration = SILENT_AFTER;

/// Tries of one change against other writers, before the cell counts as too busy. Every lost try is
/// another's success.
pub(crate) const MAX_TRIES: u32 = 50;
/// The time for which a change that delays no other is tried at least, whatever the number of tries: a
/// crowd of two hundred writers on a slow store succeeds one after another for seconds.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// Limit of tries that find the cell unchanged and cannot change it, before it counts as locked, where
/// other cells of the same call wait meanwhile. One that is alone gets nearly all tries, about a second.
pub(crate) const LOCKED_TRIES: u32 = 16;
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_millis(40);

/// The most resources in one read or swap.
pub const BATCH_MAX: usize = 500;

/// Sleeps for a random pause before another try against other writers, longer each time.
pub async fn before_retry(tries: u32) {
    let longest = doubled(FIRST_RETRY, LONGEST_RETRY, tries);
    tokio::time::sleep(part_of(longest, random::chance())).await;
}

/// The tries of one change against other writers.
#[derive(Debug)]
pub(crate) struct Tries {
    made: u32,
    /// The time until which there is always another try.
    until: Option<Instant>,
}

impl Tries {
    /// Counts the tries of a change that others wait for: [`MAX_TRIES`].
    pub(crate) fn few() -> Tries {
        Tries { made: 0, until: None }
    }

    /// Counts the tries of a change that nothing else waits for: [`MAX_TRIES`], and more until
    /// [`BUSY_FOR`] has passed.
    pub(crate) fn many() -> Tries {
        Tries { made: 0, until: Some(Instant::now() + BUSY_FOR) }
    }

    /// Counts a lost try. Returns the number of tries lost before it; `None` if it was the last one.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.made += 1;
        let is_early = self.until.is_some_and(|until| Instant::now() < until);
        (self.made < MAX_TRIES || is_early).then_some(self.made - 1)
    }
}

/// Names one state of a cell, among all states of all cells.
pub(crate) fn draw_version() -> Result<u64, Failure> {
    // Stores count in signed numbers.
    random::number().map(|number| (number >> 1).max(1))
}

/// Checks that the claim can be kept at all by a store of this profile.
///
/// # Errors
/// `Unsupported` for a share, `Invalid` for a ttl that it does not admit.
pub fn check(profile: &Profile, claim: &Claim) -> Result<(), Failure> {
    check_share(profile, claim.share)?;
    let leasehold_core::Liveness::Lease { min, max } = profile.liveness else { return Ok(()) };
    if (min..=max).contains(&claim.ttl) {
        return Ok(());
    }
    let shown = humantime::format_duration;
    Err(Failure::new(
        FailureKind::Invalid,
        Effect::None,
        format!("a ttl of {} cannot be kept: choose {} to {}", shown(claim.ttl), shown(min), shown(max)),
    ))
}

fn check_share(profile: &Profile, share: Share) -> Result<(), Failure> {
    profile
        .admits(share)
        .map_err(|unmet| Failure::new(FailureKind::Unsupported, Effect::None, unmet.to_string()))
}

/// Returns the failure of a cell that changed whenever it was to be written.
pub(crate) fn too_busy() -> Failure {
    Failure::unavailable(format!(
        "other clients changed it more than {MAX_TRIES} times between look and write: try again later"
    ))
}

/// Describes a cell that stays as it was read, and cannot be written.
pub(crate) fn locked(at: &Resource) -> Failure {
    Failure::unavailable(format!(
        "another transaction keeps the cell of {at:?} locked in the store: let it end"
    ))
}

#[cfg(test)]
mod tests {
    use leasehold_core::{ClaimId, Liveness, LockSupport};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tries_end_after_their_number_or_their_time() {
        let counted = |tries: &mut Tries| std::iter::from_fn(|| tries.next()).collect::<Vec<u32>>();
        let all: Vec<u32> = (0..MAX_TRIES - 1).collect();
        assert_eq!(counted(&mut Tries::few()), all);
        let mut many = Tries::many();
        for lost in 0..2 * MAX_TRIES {
            assert_eq!(many.next(), Some(lost));
        }
        tokio::time::advance(BUSY_FOR).await;
        assert_eq!(many.next(), None);
        let mut late = Tries::many();
        tokio::time::advance(BUSY_FOR).await;
        assert_eq!(counted(&mut late), all, "it is too slow to be tried often");
    }

    #[test]
    fn versions_are_positive_in_signed_numbers() {
        for _ in 0..100 {
            assert!(i64::try_from(draw_version().unwrap()).unwrap() > 0);
        }
    }

    #[test]
    fn claim_is_checked_before_anything_is_sent() {
        let profile = Profile::new("least", Liveness::Lease { min: MIN_TTL, max: MAX_TTL })
            .admission(LockSupport::Exclusive);
        let claim =
            |share, ttl| Claim::new(ClaimId::from_bytes([1; 16]), Resource::new("r").unwrap(), share, ttl);
        let refused = |claim: Claim| check(&profile, &claim).err().map(|failure| failure.kind);
        assert_eq!(refused(claim(Share::MUTEX, MIN_TTL)), None);
        assert_eq!(refused(claim(Share::READER, MIN_TTL)), Some(FailureKind::Unsupported));
        assert_eq!(refused(claim(Share::MUTEX, MIN_TTL / 2)), Some(FailureKind::Invalid));
    }
}
