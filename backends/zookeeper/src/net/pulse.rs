//! Notices that this process did not run for so long that the ensemble may be about to end its session.
//!
//! The leader counts the timeout of a session from when it last heard of the session. The server that the client is
//! connected to reports that twice a tick; a request that it passes on does not count. So a client that was stopped
//! can be answered on a session that ends a moment later.
//!
//! Ground rules: a pause is noticed by the clock that counts suspend. A task notes it regularly, and each use notes it,
//! too, so that nothing depends on which of them runs first. After a pause the session is settled once a request was
//! answered that was sent after the pause, and the server has had the time to report that.

use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_machine::since_boot;
use tokio::time::sleep;

/// The knowledge whether this process has run all the time.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// The longest time between two notes that is not a pause.
    rest: Duration,
    state: Mutex<State>,
}

/// The state of a pulse. All times are times since the start of the machine.
#[derive(Debug)]
struct State {
    noted_at: Duration,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    /// There was a pause, up to this time; no request was answered since.
    Resumed(Duration),
    /// A request that was sent after the pause was answered at this time.
    Answered(Duration),
}

/// The part that is missing until a session can be relied on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Missing {
    Nothing,
    /// The answer to a request.
    Answer,
    /// So much time.
    Time(Duration),
}

impl Pulse {
    /// Returns the pulse of a session of this length, from now on.
    pub(crate) fn of(session: Duration) -> Pulse {
        Pulse::beginning(session, since_boot())
    }

    fn beginning(session: Duration, now: Duration) -> Pulse {
        Pulse { rest: session / RESTS, state: Mutex::new(State { noted_at: now, phase: Phase::Running }) }
    }

    /// Notes regularly that this process runs, without end.
    pub(crate) async fn beat(&self) -> Infallible {
        loop {
            self.note(since_boot());
            sleep(self.rest / BEATS).await;
        }
    }

    /// Returns what is missing now, where a server takes up to `lag` to report what it has heard.
    pub(crate) fn missing(&self, lag: Duration) -> Missing {
        self.missing_at(since_boot(), lag)
    }

    fn missing_at(&self, now: Duration, lag: Duration) -> Missing {
        match self.noted(now).phase {
            Phase::Running => Missing::Nothing,
            Phase::Resumed(_) => Missing::Answer,
            Phase::Answered(at) => match lag.saturating_sub(now.saturating_sub(at)) {
                Duration::ZERO => Missing::Nothing,
                left => Missing::Time(left),
            },
        }
    }

    /// Records the answer to a request that was sent after this time since the start of the machine.
    pub(crate) fn answered(&self, sent: Duration) {
        self.answered_at(sent, since_boot());
    }

    fn answered_at(&self, sent: Duration, now: Duration) {
        let mut state = self.noted(now);
        if let Phase::Resumed(resumed) = state.phase
            && sent >= resumed
        {
            state.phase = Phase::Answered(now);
        }
    }

    fn note(&self, now: Duration) {
        drop(self.noted(now));
    }

    /// Notes that this process runs now, and returns what follows.
    fn noted(&self, now: Duration) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(state.noted_at) > self.rest {
            state.phase = Phase::Resumed(now);
        }
        // Another thread may have read the clock earlier and noted it later.
        state.noted_at = state.noted_at.max(now);
        state
    }
}

/// The part of the session's timeout that is a pause. The client pings more often than every twelfth of it, so
/// without a pause it is never silent for the quarter that validity allows for.
const RESTS: u32 = 6;
/// The number of notes in that time.
const BEATS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const LAG: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(100_000 + millis)
    }

    fn pulse() -> Pulse {
        Pulse::beginning(Duration::from_secs(12), at(0))
    }

    #[test]
    fn a_process_that_runs_misses_nothing() {
        let pulse = pulse();
        for second in 1..100 {
            assert_eq!(pulse.missing_at(at(second * 2000), LAG), Missing::Nothing);
        }
    }

    #[test]
    fn after_a_pause_an_answer_and_the_time_to_report_it_are_missing() {
        let pulse = pulse();
        assert_eq!(pulse.missing_at(at(2001), LAG), Missing::Answer, "also if the task has not run yet");
        pulse.note(at(2002));
        // It was sent before the pause, and may have been answered then.
        pulse.answered_at(at(1999), at(2003));
        assert_eq!(pulse.missing_at(at(3500), LAG), Missing::Answer);
        pulse.answered_at(at(3500), at(3600));
        assert_eq!(pulse.missing_at(at(3600), LAG), Missing::Time(LAG));
        // A later answer does not begin the time anew.
        pulse.answered_at(at(3700), at(4000));
        assert_eq!(pulse.missing_at(at(4500), LAG), Missing::Time(Duration::from_millis(100)));
        assert_eq!(pulse.missing_at(at(4600), LAG), Missing::Nothing);
    }

    #[test]
    fn a_second_pause_counts_as_the_first() {
        let pulse = pulse();
        pulse.note(at(5000));
        pulse.answered_at(at(5000), at(5100));
        assert_eq!(pulse.missing_at(at(9000), LAG), Missing::Answer);
        // The answer arrives after the pause, to a request from before.
        pulse.answered_at(at(5100), at(9100));
        assert_eq!(pulse.missing_at(at(10_500), LAG), Missing::Answer);
    }

    #[test]
    fn notes_that_arrive_out_of_order_are_no_pause() {
        let pulse = pulse();
        pulse.note(at(1500));
        pulse.note(at(500));
        assert_eq!(pulse.missing_at(at(3000), LAG), Missing::Nothing);
    }
}
