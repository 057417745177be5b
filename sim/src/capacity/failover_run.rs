//! One lease over a failover, event by event.
//!
//! It follows the renewer (`crates/leasehold/src/engine/renew/renewer_task.rs`) for the renewals of one claim, and
//! the connection of Redis (`backends/redis/src/net/command_conn.rs`, `connection.rs`) for how a client finds the
//! new server. It knows nothing of the formula in `failover.rs`.

use crate::capacity::dice::Dice;
use crate::capacity::events::EventHeap;
use crate::capacity::failover::{FailoverRules, Fault};
use crate::capacity::rules::{MS, OPEN_MAX, jittered, next_due, relied_on, retry_pause};

/// Returns `true` if a lease of this ttl outlives a failover of this length, which begins so long after the
/// request that was confirmed last.
pub fn outlives(
    rules: &FailoverRules,
    ttl: u64,
    fault: Fault,
    length: u64,
    begins: u64,
    dice: &mut Dice,
) -> bool {
    let begin = ttl + begins;
    let run = Run {
        rules,
        ttl,
        fault,
        away: (begin, begin + length),
        events: EventHeap::default(),
        dice,
        valid_until: 0,
        check: 0,
        requests: Vec::new(),
        awaited: false,
        failures: 0,
        link: Link::Up { is_old: true },
        waiting: Vec::new(),
        silences: 0,
        dials: 0,
        opens_at: 0,
    };
    run.outlives()
}

#[derive(Debug)]
enum Event {
    /// The old server ends.
    Fail,
    /// The lease is checked; only the check that was planned last counts.
    Check(u64),
    /// A request has waited for as long as it may.
    Limit(u64),
    Answer(u64),
    /// The pause before an attempt to connect is over, if it was not planned anew.
    Dial(u64),
    Dialled(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// To the old server or to the new one.
    Up {
        is_old: bool,
    },
    Down,
    /// A pause before an attempt.
    Pausing,
    Dialling,
}

struct Run<'a> {
    rules: &'a FailoverRules,
    ttl: u64,
    fault: Fault,
    away: (u64, u64),
    events: EventHeap<Event>,
    dice: &'a mut Dice,
    valid_until: u64,
    check: u64,
    /// The times at which open renewals were sent, which are their names.
    requests: Vec<u64>,
    awaited: bool,
    failures: u32,
    link: Link,
    /// Renewals that wait for a connection.
    waiting: Vec<u64>,
    silences: u32,
    /// Failed attempts to connect, in a row, and the end of the pause after the last.
    dials: u32,
    opens_at: u64,
}

impl Run<'_> {
    fn outlives(mut self) -> bool {
        // Confirmed just now, at the time `ttl`.
        self.valid_until = self.ttl + relied_on(self.ttl, self.rules.granularity);
        // A beat that rounds nothing down is the worst.
        self.plan_check(next_due(self.ttl, self.ttl, self.rules.renew_at, 0));
        self.events.plan(self.away.0, Event::Fail);
        while let Some(event) = self.events.take(u64::MAX) {
            let now = self.events.now();
            match event {
                Event::Fail => self.fail_old_server(),
                Event::Check(at) if at == self.check => {
                    if now >= self.valid_until {
                        return false;
                    }
                    self.renew();
                }
                Event::Limit(request) => self.give_up(request),
                Event::Answer(request) if self.requests.contains(&request) => {
                    if now >= self.valid_until {
                        return false;
                    }
                    self.confirm(request);
                    if now >= self.away.1 {
                        return true;
                    }
                }
                Event::Dial(at) if self.link == Link::Pausing && at == self.opens_at => self.dial(),
                Event::Dialled(worked) => self.dialled(worked),
                Event::Check(_) | Event::Answer(_) | Event::Dial(_) => {}
            }
        }
        false
    }

    fn plan_check(&mut self, at: u64) {
        self.check = at.min(self.valid_until);
        self.events.plan(self.check, Event::Check(self.check));
    }

    fn pause(&mut self) -> u64 {
        jittered(retry_pause(self.ttl, self.failures, self.requests.len()), self.dice)
    }

    /// Checks the lease, as `RenewerTask::check_claim`.
    fn renew(&mut self) {
        let now = self.events.now();
        self.failures += u32::from(self.awaited);
        if self.requests.len() < OPEN_MAX {
            self.requests.push(now);
            self.awaited = true;
            self.events.plan(now + self.rules.limit(self.ttl), Event::Limit(now));
            self.send(now);
        }
        let pause = self.pause();
        self.plan_check(now + pause);
    }

    fn confirm(&mut self, request: u64) {
        self.requests.retain(|open| *open > request);
        (self.awaited, self.failures, self.silences) = (false, 0, 0);
        self.valid_until = self.valid_until.max(request + relied_on(self.ttl, self.rules.granularity));
        self.plan_check(next_due(request, self.ttl, self.rules.renew_at, 0));
    }

    /// Takes a failure, as `RenewalRequests::fail` and `RenewerTask::apply_answers`.
    fn fail(&mut self, request: u64) {
        self.requests.retain(|open| *open != request);
        self.waiting.retain(|open| *open != request);
        if !self.awaited {
            return;
        }
        self.failures += 1;
        self.awaited = !self.requests.is_empty();
        let pause = self.pause();
        self.plan_check(self.events.now() + pause);
    }

    fn give_up(&mut self, request: u64) {
        if !self.requests.contains(&request) {
            return;
        }
        if !self.waiting.contains(&request) {
            self.silences += 1;
            // `MAX_SILENCES` in `connection.rs`.
            if self.silences >= 2 && self.link == (Link::Up { is_old: true }) {
                self.link = Link::Down;
            }
        }
        self.fail(request);
    }

    /// Sends a renewal, or lets it wait for a connection.
    fn send(&mut self, request: u64) {
        let now = self.events.now();
        match self.link {
            Link::Up { is_old: true } => {
                // Its answer has to come before the server ends.
                if now + self.rules.answer < self.away.0 {
                    self.events.plan(now + self.rules.answer, Event::Answer(request));
                }
            }
            Link::Up { is_old: false } => self.events.plan(now + self.rules.answer, Event::Answer(request)),
            Link::Down | Link::Pausing => {
                self.waiting.push(request);
                self.shorten_pause();
            }
            Link::Dialling => self.waiting.push(request),
        }
    }

    /// Begins a pause before the next attempt, or shortens it, as `Pause::shorten_for` in `net/outage.rs`.
    fn shorten_pause(&mut self) {
        let now = self.events.now();
        let latest = now + jittered(self.rules.limit(self.ttl) / 5, self.dice);
        let before = self.opens_at;
        self.opens_at = self.opens_at.max(now).min(latest);
        if self.link == Link::Down || self.opens_at != before {
            self.link = Link::Pausing;
            self.events.plan(self.opens_at, Event::Dial(self.opens_at));
        }
    }

    fn dial(&mut self) {
        let now = self.events.now();
        self.link = Link::Dialling;
        let works = now >= self.away.1;
        let takes = match self.fault {
            Fault::Vanishes if !works => self.rules.timeout,
            _ => MS,
        };
        self.events.plan(now + takes, Event::Dialled(works));
    }

    fn dialled(&mut self, works: bool) {
        let waiting = std::mem::take(&mut self.waiting);
        if works {
            (self.link, self.dials, self.silences) = (Link::Up { is_old: false }, 0, 0);
            waiting.into_iter().for_each(|request| self.send(request));
            return;
        }
        let pause = ((50 * MS) << self.dials.min(16)).min(self.rules.dial_pause);
        self.dials += 1;
        self.opens_at = self.events.now() + jittered(pause, self.dice);
        self.link = Link::Down;
        waiting.into_iter().for_each(|request| self.fail(request));
    }

    fn fail_old_server(&mut self) {
        if self.fault == Fault::Refuses {
            self.link = Link::Down;
            self.requests.clone().into_iter().for_each(|request| self.fail(request));
        }
    }
}
