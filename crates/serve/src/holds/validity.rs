//! For how long a client may rely on a lock, in a form that needs neither its wall clock nor ours.
//!
//! An answer says `valid_ms`, and the client counts it on its own monotonic clock from the moment before it sent
//! the request. That moment lies before the one at which this server received it, so the client stops before the
//! server's own count is over, no matter how long the answer, or the client, was delayed.

use std::time::Duration;

use leasehold::Moment;

/// Returns the time that a client may count from when it sent a request.
///
/// `received` is when the request arrived, and `left` is the time for which the lock is safe from `now` on. The
/// client has counted since `received` at least. A part of both times is taken off, in case that its clock is slow.
pub(super) fn valid_for(received: Moment, now: Moment, left: Duration) -> Duration {
    let spent = now.since(received);
    spent.saturating_sub(drift_of(spent)).saturating_add(left.saturating_sub(drift_of(left)))
}

/// Returns the time from `now` for which the server keeps a lock without another sign of life of its client.
pub(super) fn kept_for(now: Moment, deadline: Moment, ttl: Duration) -> Duration {
    now.until(deadline).saturating_sub(drift_of(ttl))
}

/// Returns the most by which the clocks of client and server differ over this time: each may differ by one hundredth
/// from that of the store, as in the library.
fn drift_of(time: Duration) -> Duration {
    time / 50
}

/// Returns whole milliseconds, rounded down.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }
    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn client_stops_before_the_server_whatever_the_delays() {
        // The client sends at 0. Its clock shows 0.99 t after t seconds of the store, and that of the server 1.01 t.
        for (received, now, left) in [(0, 0, 30), (5, 5, 30), (5, 300, 30), (0, 3600, 30), (20, 20, 0)] {
            let valid = valid_for(at(received), at(now), seconds(left)).as_secs_f64();
            let stops = valid / 0.99;
            // The server itself ends the lock, by its clock.
            let end = (now + left) as f64 / 1.01;
            assert!(stops <= end + 1e-6, "{received} {now} {left}: stops at {stops}, the lock ends at {end}");
        }
    }

    #[test]
    fn wait_is_part_of_what_the_client_has_counted() {
        assert_eq!(valid_for(at(10), at(110), seconds(30)), Duration::from_millis(127_400));
        assert_eq!(valid_for(at(10), at(10), seconds(30)), Duration::from_millis(29_400));
    }

    #[test]
    fn nothing_is_left_after_the_deadline() {
        assert_eq!(kept_for(at(10), at(40), seconds(30)), Duration::from_millis(29_400));
        assert_eq!(kept_for(at(50), at(40), seconds(30)), Duration::ZERO);
        assert_eq!(millis(Duration::from_micros(1999)), 1);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
