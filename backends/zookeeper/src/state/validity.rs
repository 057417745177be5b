//! For how long a holder may count on its claim after a confirmed renewal.
//!
//! The leader counts a session's timeout from when it last heard of the session, and that is earlier
//! than the renewal: twice a tick a server reports to its leader the sessions that it has heard of, and
//! the client is silent for up to a quarter of the timeout. So three quarters of the timeout are left,
//! less half a tick; and never more than half of the timeout is counted on, which is the same where a
//! session is two ticks long. Servers give shorter ones only where `minSessionTimeout` is set so.
//! A client that was silent for longer, because its process did not run, is the matter of `net/pulse.rs`.

use std::time::Duration;

use leasehold_core::{Effect, Failure, FailureKind};

/// The counting of the sessions of one client by an ensemble.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Validity {
    /// The time for which the servers keep a session that they do not hear of.
    pub(crate) session: Duration,
    /// The length of their tick, where they say so.
    pub(crate) tick: Option<Duration>,
    /// The time for which a holder may count on its claim.
    pub(crate) valid: Duration,
}

impl Validity {
    /// Returns the validity that a session of this length allows.
    ///
    /// # Errors
    /// `Invalid` where the sessions are too short to count on.
    pub(crate) fn of(session: Duration, tick: Option<Duration>) -> Result<Validity, Failure> {
        let counted = tick.unwrap_or(USUAL_TICK);
        let valid = (session / 2).min((session * 3 / 4).saturating_sub(report_lag(tick)));
        if valid >= session / 4 {
            return Ok(Validity { session, tick, valid });
        }
        let known = match tick {
            Some(_) => format!("their tickTime is {counted:?}"),
            None => format!(
                "they do not say their tickTime, which is {counted:?} unless set: let them answer `conf`"
            ),
        };
        let text = format!(
            "the servers give sessions of {session:?}, and {known}: a session of one tick at least is needed, and two are \
             better; ask for a longer `session`"
        );
        Err(Failure::new(FailureKind::Invalid, Effect::None, text))
    }

    /// Returns how long a server takes at most until it reports a session to its leader.
    pub(crate) fn report_lag(&self) -> Duration {
        report_lag(self.tick)
    }

    /// Returns `true` if longer sessions would be counted on for a larger part.
    pub(crate) fn is_curtailed(&self) -> bool {
        self.valid < self.session / 2
    }
}

fn report_lag(tick: Option<Duration>) -> Duration {
    tick.unwrap_or(USUAL_TICK) / 2
}

/// The tick of servers that are not set up otherwise. Those that have a longer one give no session of
/// less than two of theirs, unless they are set up otherwise twice.
const USUAL_TICK: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(session: u64, tick: Option<u64>) -> Option<u64> {
        let tick = tick.map(Duration::from_millis);
        let valid = Validity::of(Duration::from_millis(session), tick).ok()?.valid;
        Some(u64::try_from(valid.as_millis()).unwrap())
    }

    #[test]
    fn short_sessions_are_counted_on_for_less_than_half() {
        assert_eq!(millis(30_000, Some(2000)), Some(15_000));
        assert_eq!(millis(4000, Some(2000)), Some(2000));
        assert_eq!(millis(3000, Some(2000)), Some(1250));
        assert_eq!(millis(2000, Some(2000)), Some(500));
        assert_eq!(millis(1900, Some(2000)), None);
        assert_eq!(millis(1000, Some(2000)), None);
        assert_eq!(millis(1000, Some(500)), Some(500));
        assert_eq!(millis(30_000, None), Some(15_000));
        assert_eq!(millis(3000, None), Some(1250), "a tick that is not known is the usual one");
        assert_eq!(millis(1000, None), None);
    }

    /// Assumes that the leader last heard of the session half a tick and one pause of the client before
    /// the renewal was agreed to.
    #[test]
    fn validity_ends_before_the_session_does() {
        for session in (1000..=60_000).step_by(125) {
            for tick in (100..=30_000).step_by(100) {
                let Some(valid) = millis(session, Some(tick)) else { continue };
                let heard_before = tick / 2 + session / 4;
                assert!(valid + heard_before <= session, "{session} ms with a tick of {tick} ms");
            }
        }
    }
}
