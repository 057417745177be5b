//! The shortest ttl with which a lock outlives a failover, by a formula.
//!
//! # The derivation
//!
//! A holder relies on a lease from when its last confirmed request was sent: on the ttl less drift, coarseness
//! and margin (`relied_on`). At worst the failover begins when the next renewal has just been sent. So these
//! times have to fit into it:
//!
//! 1. from one renewal to the next, with the answer that the failed one would have had,
//! 2. the failover: from the last request that the old server carries out to the first of the new one. If
//!    the old machine vanishes instead of refusing, an attempt to connect to it may just have begun, and
//!    hangs for the option `timeout`. The client also has to notice that its connection is dead, which takes
//!    two silent requests, and may take longer than the failover,
//! 3. the pause before the next attempt to connect,
//! 4. the pause before the next renewal, and its answer. If the old machine vanishes, the failure of a request
//!    that was sent before plans this pause anew, so it begins when the last of them has failed.
//!
//! `failover_run.rs` simulates one lease; tests compare the two.

use crate::capacity::rules::{MS, RENEW_AT, RETRY_MAX, RETRY_MIN, SECOND, relied_on};

/// The end of the old server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its process ends, or it gives up its role: connections end, and new ones are refused.
    Refuses,
    /// Its machine or its network disappears: nothing is answered, and no connection is refused.
    Vanishes,
}

/// The reaction of a client to a failover.
#[derive(Clone, Copy, Debug)]
pub struct FailoverRules {
    /// The part of the ttl after which a lease is renewed.
    pub renew_at: f64,
    /// The coarseness of the server's clock, in nanoseconds.
    pub granularity: u64,
    /// The longest time to an answer when all is well, in nanoseconds.
    pub answer: u64,
    /// The option `timeout`, in nanoseconds.
    pub timeout: u64,
    /// The longest pause between two attempts to connect, in nanoseconds.
    pub dial_pause: u64,
}

impl FailoverRules {
    /// The rules of Redis: `LAST_PAUSE` in `backends/redis/src/net/command_conn.rs`. An answer within a tenth of
    /// a second is an assumption about the network and the load.
    pub const DEFAULT: FailoverRules = FailoverRules {
        renew_at: RENEW_AT,
        granularity: 2 * MS,
        answer: MS * 100,
        timeout: 5 * SECOND,
        dial_pause: SECOND,
    };

    /// Returns how long a renewal waits for its answer: `renew_batch` in `backends/redis/src/backend/renew.rs`.
    pub fn limit(&self, ttl: u64) -> u64 {
        self.timeout.min((ttl / 3).max(MS * 100))
    }

    /// Returns the longest pause before an attempt to connect that a renewal waits for: `Pause::shorten_for` in
    /// `backends/redis/src/net/outage.rs`.
    pub fn longest_dial_pause(&self, ttl: u64) -> u64 {
        self.dial_pause.min(self.limit(ttl) / 5)
    }

    /// Returns the longest time between the sending of two renewals that are confirmed, over a failover of
    /// this length.
    pub fn longest_gap(&self, ttl: u64, length: u64, fault: Fault) -> u64 {
        let between = (ttl as f64 * self.renew_at) as u64 + self.answer;
        let away = match fault {
            Fault::Refuses => length,
            Fault::Vanishes => {
                let second = (ttl / 20).clamp(RETRY_MIN, RETRY_MAX);
                (length + self.timeout).max(self.limit(ttl) + second)
            }
        };
        let failing = if fault == Fault::Vanishes { self.limit(ttl) } else { 0 };
        let retry = failing + (ttl / 10).max(RETRY_MIN);
        between + away + self.longest_dial_pause(ttl) + retry + self.answer
    }

    /// Returns `true` if no lock of this ttl is lost by a failover of this length.
    pub fn survives(&self, ttl: u64, length: u64, fault: Fault) -> bool {
        self.longest_gap(ttl, length, fault) <= relied_on(ttl, self.granularity)
    }

    /// Returns the shortest ttl with which no lock is lost, in whole tenths of a second; `None` if a day is not
    /// enough.
    pub fn shortest_ttl(&self, length: u64, fault: Fault) -> Option<u64> {
        let (mut low, mut high) = (0, 24 * 36_000);
        if !self.survives(high * 100 * MS, length, fault) {
            return None;
        }
        while high - low > 1 {
            let middle = u64::midpoint(low, high);
            if self.survives(middle * 100 * MS, length, fault) { high = middle } else { low = middle }
        }
        Some(high * 100 * MS)
    }

    /// Returns the longest failover in which no lock of this ttl is lost, in whole tenths of a second; `None` if
    /// even the shortest loses some.
    pub fn longest_failover(&self, ttl: u64, fault: Fault) -> Option<u64> {
        let longest = relied_on(ttl, self.granularity) / (100 * MS);
        (0..=longest).rev().map(|tenths| tenths * 100 * MS).find(|length| self.survives(ttl, *length, fault))
    }
}
