//! The time from the grant to the end: heartbeats, streams, losses, and the release.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::backend::Clock;
use leasehold::{FenceGrade, Guard, LossCause, Moment, State, SystemClock};
use leasehold_monitor::actions::reason_of_revoke;
use tokio::sync::{Notify, oneshot};

use super::command::{Answer, Ask, Command, Outlet, Party};
use super::end::End;
use super::hold_task::{HoldTask, pause_until};
use super::proclaiming::Proclaiming;
use super::request::{HeldLock, OnDisconnect};
use super::shape::{EventShape, GrantShape};
use super::stream::Stream;
use super::validity::{kept_for, millis, valid_for};
use crate::lately::count_loss;
use crate::problem::Problem;

/// The state of a lock while it is held.
struct Holding<'a> {
    task: &'a mut HoldTask,
    held: &'a HeldLock,
    streams: Vec<Stream>,
    /// When it ends without a heartbeat. The events of a stream are heartbeats too, see [`Stream::is_alive`].
    deadline: Moment,
    /// Until when an answer has called it valid.
    claimed: Moment,
    next_ping: Moment,
    seen: State,
    /// `true` if any request has received the grant.
    is_wanted: bool,
    /// `true` if a stream was open at the last look.
    was_streamed: bool,
    /// `true` if a stream broke that its client has not closed: the client may still rely on the lock.
    was_cut: bool,
    /// `true` if the end of the last stream ends it.
    is_left: bool,
    revoked: Option<String>,
    is_closing: bool,
    /// The new value of a leader that the store does not show yet. Other commands wait for its end.
    proclaiming: Option<Proclaiming<'a>>,
}

/// Why it ends, and who waits for the release.
struct Ending {
    end: End,
    reply: Option<oneshot::Sender<Result<(), Problem>>>,
    /// `true` if it is the end of the last stream, without a request to release.
    is_left: bool,
}

/// The knowledge of a client that closes its last stream: the end of this server, which ends the lock, is announced or
/// not. That end would wait for the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerEnd {
    Announced,
    NotAnnounced,
}

impl Ending {
    fn of(end: End) -> Ending {
        Ending { end, reply: None, is_left: false }
    }

    /// Returns the time for which the lock is kept after this end.
    fn kept_for(&self, ttl: Duration, delay: Duration, server: ServerEnd) -> Duration {
        match self.end {
            // Writes of a client that has died may be under way, as after any loss.
            End::Lost(HEARTBEAT_MISSED) => delay,
            End::Released if self.is_left && server == ServerEnd::NotAnnounced => delay,
            End::Lost(FAILED) => self.valid_for(ttl).saturating_add(delay),
            _ => Duration::ZERO,
        }
    }

    /// Returns the time for which an answer may call the lock valid after this end.
    fn valid_for(&self, ttl: Duration) -> Duration {
        match self.end {
            // No answer calls a lock valid for longer than its ttl.
            End::Lost(FAILED) => ttl,
            _ => Duration::ZERO,
        }
    }
}

/// The times until which a lock is kept after its end.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// The end of its delay.
    until: Moment,
    /// The time until which an answer may call it valid.
    valid: Moment,
}

impl Kept {
    /// Returns the end, with the end of the grace time if the lock ends with this process and that is about to end:
    /// no delay outlives the process.
    fn until(self, grace: Option<Moment>) -> Moment {
        grace.map_or(self.until, |grace| self.until.min(grace.max(self.valid)))
    }
}

impl HoldTask {
    /// Keeps the lock until it ends, and releases it.
    pub(super) async fn keep(&mut self, held: HeldLock) {
        let ending = survived(Box::pin(async { Holding::new(self, &held).run().await })).await;
        self.finish(held, ending).await;
    }

    /// Returns the time for which the lock is kept after this end.
    fn kept_after(&self, ending: &Ending) -> Duration {
        let is_announced = self.is_bound_to_process && self.closing.borrow().is_some();
        let server = if is_announced { ServerEnd::Announced } else { ServerEnd::NotAnnounced };
        ending.kept_for(self.ttl, self.request.lock_delay.unwrap_or_default(), server)
    }

    /// Counts a loss for which this server ends the lock. The library sees a release there; it counts the losses that
    /// it reports.
    fn count_loss(&self, held: &HeldLock, end: End) {
        let guard = held.guard();
        if let End::Lost(cause) = end
            && !matches!(guard.state(), State::Lost(_))
        {
            tracing::warn!(lock = %guard.resource(), tag = guard.tag(), cause, "the lock of a client is lost");
            count_loss(cause);
        }
    }

    /// Ends the claim at the store. Meanwhile the id answers that it has ended.
    async fn finish(&mut self, held: HeldLock, ending: Ending) {
        let mut end = ending.end;
        self.count_loss(&held, end);
        let now = SystemClock.now();
        let kept =
            Kept { until: now.after(self.kept_after(&ending)), valid: now.after(ending.valid_for(self.ttl)) };
        let (is_bound_to_process, mut closing) = (self.is_bound_to_process, self.closing.clone());
        let mut waiting: Vec<_> = ending.reply.into_iter().collect();
        let is_asked = Notify::new();
        let mut releasing = pin!(async {
            loop {
                let grace = (*closing.borrow()).filter(|_| is_bound_to_process);
                let until = kept.until(grace);
                if until <= SystemClock.now() {
                    break;
                }
                tokio::select! {
                    () = pause_until(until) => {}
                    () = is_asked.notified() => break,
                    Ok(()) = closing.changed() => {}
                }
            }
            held.release().await
        });
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut releasing => break outcome,
                command = self.commands.recv() => match command {
                    Some(Command::Release(reply)) if end == End::Released => {
                        // Its client lives, and says that its work is over.
                        is_asked.notify_one();
                        waiting.push(reply);
                    }
                    Some(command) => command.refuse(end),
                    None => {}
                },
            }
        };
        let answer = match (outcome, end) {
            (Ok(()), End::Released) => Ok(()),
            (Err(error), End::Released) => {
                if let leasehold::ErrorKind::Lost(cause) = error.kind() {
                    end = End::Lost(word(cause));
                    Err(end.problem())
                } else {
                    Err(Problem::from(error))
                }
            }
            (_, End::Lost(_)) => Err(end.problem()),
        };
        self.place.ended(end, SystemClock.now());
        waiting.into_iter().for_each(|reply| drop(reply.send(answer.clone())));
    }
}

/// Returns the end that the work finds; after a panic the lock is lost to its client, and is not dropped with the task.
async fn survived(work: impl Future<Output = Ending>) -> Ending {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| Ending::of(End::Lost(FAILED)))
}

impl<'a> Holding<'a> {
    fn new(task: &'a mut HoldTask, held: &'a HeldLock) -> Holding<'a> {
        let now = SystemClock.now();
        let deadline = now.after(task.ttl);
        let seen = held.guard().state();
        let mut holding = Holding {
            task,
            held,
            streams: Vec::new(),
            deadline,
            claimed: now,
            next_ping: now.after(PING_MAX),
            seen,
            is_wanted: false,
            was_streamed: false,
            was_cut: false,
            is_left: false,
            revoked: None,
            is_closing: false,
            proclaiming: None,
        };
        std::mem::take(&mut holding.task.parties).into_iter().for_each(|party| holding.welcome(party));
        holding
    }

    async fn run(mut self) -> Ending {
        let guard = self.held.guard();
        if !self.is_wanted && self.task.request.on_disconnect == OnDisconnect::Release {
            return Ending::of(End::Released);
        }
        let (mut listening, mut is_deaf) = (self.task.request.revocable, false);
        let mut revoked = pin!(guard.revoked());
        let mut closing = self.task.closing.clone();
        loop {
            if self.proclaiming.is_some() {
                // It is a sign of life, and those that come meanwhile wait for its end.
                self.extend();
            }
            if let Some(end) = self.over() {
                return self.tell_end(end);
            }
            self.ping();
            listening = (listening || !self.streams.is_empty()) && self.revoked.is_none() && !is_deaf;
            let pause = pause_until(self.next());
            tokio::select! {
                biased;
                _ = guard.changed(self.seen) => {}
                proclaimed = Proclaiming::over(&mut self.proclaiming) => self.answer_proclaimed(proclaimed),
                command = self.task.commands.recv(), if self.proclaiming.is_none() => {
                    let Some(command) = command else { return Ending::of(End::Released) };
                    if let Some(ending) = self.obey(command) {
                        return ending;
                    }
                }
                request = &mut revoked, if listening => match request {
                    Ok(request) => {
                        self.revoked = Some(reason_of_revoke(&request.reason).to_owned());
                        self.tell("revoked");
                    }
                    // The store keeps no such requests, or the lock is lost; either way it is over.
                    Err(_) => is_deaf = true,
                },
                () = async { drop(closing.wait_for(Option::is_some).await) }, if !self.is_closing => {
                    self.is_closing = true;
                    self.tell("closing");
                }
                () = self.task.wake.notified() => {}
                () = pause => {}
            }
        }
    }

    /// Returns the end, if there is one by now.
    fn over(&mut self) -> Option<End> {
        let state = self.held.guard().state();
        if let State::Lost(cause) = state {
            return Some(End::Lost(word(cause)));
        }
        let now = SystemClock.now();
        if self.was_streamed && !self.has_streams() {
            self.was_streamed = false;
            // Its client has closed the last stream, or has died. If the network is cut, it may still rely on the lock.
            if !self.was_cut && self.task.request.on_disconnect == OnDisconnect::Release {
                self.is_left = true;
                return Some(End::Released);
            }
            self.deadline = self.deadline.max(now.after(self.task.ttl));
        }
        if self.deadline <= now {
            return Some(End::Lost(HEARTBEAT_MISSED));
        }
        if let Some(grace) = *self.task.closing.borrow()
            && self.task.is_bound_to_process
            && grace.max(self.claimed) <= now
        {
            return Some(End::Lost(CLOSED));
        }
        if state != self.seen {
            self.seen = state;
            self.tell(if state == State::Suspect { "suspect" } else { "valid" });
        }
        None
    }

    /// Removes the streams that have broken. Returns `true` if any is left.
    fn has_streams(&mut self) -> bool {
        let was_cut = &mut self.was_cut;
        self.streams.retain(|stream| {
            *was_cut |= !stream.is_open() && !stream.is_left();
            stream.is_open()
        });
        !self.streams.is_empty()
    }

    fn next(&self) -> Moment {
        if self.is_closing && self.task.is_bound_to_process {
            return self.deadline.min(SystemClock.now().after(CLOSING_LOOK));
        }
        if self.streams.is_empty() { self.deadline } else { self.deadline.min(self.next_ping) }
    }

    /// Obeys a command. It reads the clock first: the command may have waited while the process was stopped.
    fn obey(&mut self, command: Command) -> Option<Ending> {
        if let Some(end) = self.over() {
            let ending = self.tell_end(end);
            return match command {
                Command::Release(reply) if end == End::Released => {
                    Some(Ending { reply: Some(reply), is_left: false, ..ending })
                }
                command => {
                    command.refuse(end);
                    Some(ending)
                }
            };
        }
        match command {
            Command::Join(party) => self.welcome(party),
            Command::Renew(ask) => {
                self.extend();
                self.answer(ask);
            }
            Command::Look(ask) => self.answer(ask),
            Command::Proclaim(ask, value) => {
                self.proclaiming = Some(Proclaiming::begin(self.held, ask, value));
            }
            Command::Release(reply) => {
                let ending = self.tell_end(End::Released);
                return Some(Ending { reply: Some(reply), ..ending });
            }
        }
        None
    }

    /// Takes in a request that waited for the grant, or asks for it again.
    fn welcome(&mut self, party: Party) {
        match party.outlet {
            Outlet::Reply(reply) => {
                self.extend();
                self.answer(Ask { received: party.arrival.at, reply });
            }
            Outlet::Stream(events) => {
                self.extend();
                let mut stream = Stream::new(party.arrival, events);
                let granted = EventShape::of("granted", self.grant(stream.received()));
                if stream.send(granted, SystemClock.now()) {
                    self.streams.push(stream);
                    (self.is_wanted, self.was_streamed, self.was_cut) = (true, true, false);
                    self.next_ping = SystemClock.now().after(self.ping_pause());
                }
            }
        }
    }

    fn extend(&mut self) {
        self.deadline = self.deadline.max(SystemClock.now().after(self.task.ttl));
    }

    fn answer(&mut self, ask: Ask) {
        let answer: Answer = Ok(self.grant(ask.received));
        // A client that has gone has not relied on it; unless it said otherwise, its ttl runs all the same.
        self.is_wanted |= ask.reply.send(answer).is_ok();
    }

    /// Answers the request for a new value.
    fn answer_proclaimed(&mut self, proclaimed: Result<(), Problem>) {
        let Some(Proclaiming { ask, .. }) = self.proclaiming.take() else { return };
        self.extend();
        match proclaimed {
            Ok(()) => self.answer(ask),
            Err(problem) => drop(ask.reply.send(Err(problem))),
        }
    }

    /// Returns the grant for a request that arrived then.
    fn grant(&mut self, received: Moment) -> GrantShape {
        let guard = self.held.guard();
        let now = SystemClock.now();
        let ttl = self.task.ttl;
        let mut left = guard.remaining().min(kept_for(now, self.deadline, ttl));
        if let Some(grace) = *self.task.closing.borrow()
            && self.task.is_bound_to_process
        {
            left = left.min(now.until(grace.max(self.claimed)));
        }
        self.claimed = self.claimed.max(now.after(left));
        GrantShape {
            id: self.task.place.id().to_owned(),
            name: guard.resource().clone(),
            state: if guard.state() == State::Valid { "valid" } else { "suspect" },
            valid_ms: if left.is_zero() { 0 } else { millis(valid_for(received, now, left)) },
            basis: if self.task.is_bound_to_process { "process" } else { "lease" },
            ttl_ms: millis(ttl),
            fence: guard.fence(),
            fence_grade: self.grade(guard),
            share: guard.share(),
            tag: guard.tag(),
            revoked: self.revoked.clone(),
            closing: self.is_closing,
        }
    }

    fn grade(&self, guard: &Guard) -> FenceGrade {
        let grade = self.task.client.profile().fencing;
        if guard.fence().is_some() { grade } else { FenceGrade::None }
    }

    /// Sends an event to all streams. One that does not take it has broken.
    fn tell(&mut self, event: &'static str) {
        if !self.has_streams() {
            return;
        }
        let now = SystemClock.now();
        if self.streams.iter().any(|stream| stream.is_alive(now)) {
            self.extend();
        }
        for mut stream in std::mem::take(&mut self.streams) {
            let shape = EventShape::of(event, self.grant(stream.received()));
            if stream.send(shape, now) {
                self.streams.push(stream);
            } else {
                self.was_cut |= !stream.is_left();
            }
        }
    }

    fn ping(&mut self) {
        if !self.streams.is_empty() && self.next_ping <= SystemClock.now() {
            self.tell("valid");
            self.next_ping = SystemClock.now().after(self.ping_pause());
        }
    }

    fn ping_pause(&self) -> Duration {
        (self.task.ttl / 3).min(PING_MAX)
    }

    /// Tells the streams how it ends, before anything is released.
    fn tell_end(&mut self, end: End) -> Ending {
        let now = SystemClock.now();
        for mut stream in self.streams.drain(..) {
            let event = match end {
                End::Released => EventShape::bare("released"),
                End::Lost(cause) => EventShape::lost(cause),
            };
            stream.send(event, now);
        }
        Ending { is_left: self.is_left, ..Ending::of(end) }
    }
}

fn word(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Expired => "expired",
        LossCause::Gone => "gone",
        LossCause::SessionEnded => "session-ended",
        LossCause::MaxHold => "max-hold",
        LossCause::Closed => CLOSED,
        LossCause::Forked => "forked",
        LossCause::Transferred => "transferred",
        LossCause::RenewalEnded => "renewal-ended",
        _ => "other",
    }
}

/// The cause of a loss: the client gave no sign of life for its ttl.
const HEARTBEAT_MISSED: &str = "heartbeat-missed";
/// The cause of a loss: the server ended.
const CLOSED: &str = "closed";
/// The cause of a loss: the task of the id panicked, which is a defect of the server.
const FAILED: &str = "internal";
/// The longest pause between two events of a stream, by which a client sees that it is still connected.
const PING_MAX: Duration = Duration::from_secs(10);
/// The pause between two looks at a lock that ends with this process.
const CLOSING_LOOK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_ends_the_hold_and_does_not_drop_the_lock() {
        let ending = survived(async { panic!("this is a test") }).now_or_never().unwrap();
        assert_eq!(ending.end, End::Lost(FAILED));
    }

    #[test]
    fn end_of_the_process_cuts_the_delay_and_no_promise() {
        let now = SystemClock.now();
        let at = |seconds| now.after(Duration::from_secs(seconds));
        let kept = |until, valid| Kept { until: at(until), valid: at(valid) };
        assert_eq!(kept(3600, 0).until(None), at(3600));
        assert_eq!(kept(3600, 0).until(Some(at(10))), at(10));
        assert_eq!(kept(5, 0).until(Some(at(10))), at(5));
        assert_eq!(kept(3600, 30).until(Some(at(10))), at(30), "an answer may have called it valid");
    }

    #[test]
    fn lock_is_kept_while_writes_of_its_client_may_be_under_way() {
        let (ttl, delay, none) = (Duration::from_secs(5), Duration::from_secs(2), Duration::ZERO);
        let (asked, left) = (|end| (end, false), |end| (end, true));
        for (ending, announced, not_announced) in [
            (asked(End::Released), none, none),
            (left(End::Released), none, delay),
            (asked(End::Lost(HEARTBEAT_MISSED)), delay, delay),
            (asked(End::Lost(FAILED)), ttl + delay, ttl + delay),
            (asked(End::Lost(CLOSED)), none, none),
            (asked(End::Lost(word(LossCause::Expired))), none, none),
            (asked(End::Lost(word(LossCause::Gone))), none, none),
            (asked(End::Lost(word(LossCause::MaxHold))), none, none),
        ] {
            let (end, is_left) = ending;
            let ending = Ending { is_left, ..Ending::of(end) };
            let kept = |server| ending.kept_for(ttl, delay, server);
            let seen = (kept(ServerEnd::Announced), kept(ServerEnd::NotAnnounced));
            assert_eq!(seen, (announced, not_announced), "{end:?}, left: {is_left}");
        }
    }
}
