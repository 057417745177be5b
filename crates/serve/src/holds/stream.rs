//! The stream of events to one client of a hold, and for how long it counts as a sign of life.
//!
//! Ground rules: a stream says nothing of its client but that its machine takes what is sent. So it keeps a lock for
//! as long as its events leave the client time to rely on it, by the client's own count, and no longer. From then
//! on it is silence: a heartbeat or another stream has to come, as without it.

use std::time::Duration;

use leasehold::Moment;
use tokio::sync::mpsc;

use super::Arrival;
use super::shape::EventShape;

/// A stream of events to one client.
#[derive(Debug)]
pub(super) struct Stream {
    arrival: Arrival,
    events: mpsc::Sender<EventShape>,
    /// The moment until which its client relies on the lock by its events, if both clocks run alike.
    relied_on: Moment,
}

impl Stream {
    /// Begins a stream that its client does not rely on yet.
    pub(super) fn new(arrival: Arrival, events: mpsc::Sender<EventShape>) -> Stream {
        Stream { arrival, events, relied_on: Moment::NEVER }
    }

    /// Returns when it was requested.
    pub(super) fn received(&self) -> Moment {
        self.arrival.at
    }

    pub(super) fn is_open(&self) -> bool {
        !self.events.is_closed()
    }

    /// Returns `true` if its client has closed it, or has died.
    pub(super) fn is_left(&self) -> bool {
        self.arrival.peer.is_set()
    }

    /// Returns `true` if it counts as a sign of life of its client.
    pub(super) fn is_alive(&self, now: Moment) -> bool {
        now < self.relied_on
    }

    /// Sends an event. Returns `false` if the client does not take it.
    pub(super) fn send(&mut self, event: EventShape, now: Moment) -> bool {
        // A client whose time was over has lost the lock; a later event does not give it back.
        if let Some(grant) = event.grant.as_deref()
            && self.is_alive(now)
        {
            self.relied_on = self.arrival.at.after(Duration::from_millis(grant.valid_ms));
        }
        self.events.try_send(event).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::GrantShape;
    use super::super::validity::{kept_for, millis, valid_for};
    use super::*;
    use leasehold::{FenceGrade, Resource, Share};

    fn valid(valid_ms: u64) -> EventShape {
        let grant = GrantShape {
            id: "0123456789abcdef".to_owned(),
            name: Resource::new("a").unwrap(),
            state: "valid",
            valid_ms,
            basis: "lease",
            ttl_ms: 30_000,
            fence: None,
            fence_grade: FenceGrade::None,
            share: Share::MUTEX,
            tag: String::new(),
            revoked: None,
            closing: false,
        };
        EventShape::of("valid", grant)
    }

    /// Returns the number of ttls for which the events of a stream alone keep a lock with this ttl.
    fn kept(ttl: Duration, heartbeats: bool) -> Option<u32> {
        let begin = Moment::from_millis(1_000_000);
        let arrival = Arrival { at: begin, peer: Default::default() };
        let (events, mut received) = mpsc::channel(4);
        let mut stream = Stream::new(arrival, events);
        let (mut now, mut deadline) = (begin, begin.after(ttl));
        for round in 0..300 {
            if stream.is_alive(now) || heartbeats {
                deadline = now.after(ttl);
            }
            if deadline <= now {
                return Some(round / 3);
            }
            let left = kept_for(now, deadline, ttl);
            assert!(stream.send(valid(millis(valid_for(begin, now, left))), now));
            received.try_recv().unwrap();
            now = now.after(ttl / 3);
        }
        None
    }

    #[test]
    fn events_alone_keep_a_lock_for_some_ttls_only() {
        for ttl in [Duration::from_millis(500), Duration::from_secs(30)] {
            assert!(kept(ttl, false).is_some_and(|ttls| (15..50).contains(&ttls)), "{:?}", kept(ttl, false));
            assert_eq!(kept(ttl, true), None);
        }
    }

    #[test]
    fn time_that_was_over_does_not_come_back() {
        let at = |seconds: u64| Moment::from_millis(seconds * 1_000);
        let (events, _received) = mpsc::channel(4);
        let mut stream = Stream::new(Arrival { at: at(10), peer: Default::default() }, events);
        assert!(stream.send(valid(20_000), at(10)) && stream.is_alive(at(29)));
        assert!(!stream.is_alive(at(30)));
        assert!(stream.send(valid(60_000), at(31)), "it still gets its events");
        assert!(!stream.is_alive(at(32)));
    }
}
