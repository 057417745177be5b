//! The task of one id: it waits for the lock, holds it, and ends it.
//!
//! Ground rules: one task decides everything about one id, one step after the other, so no two requests race. It
//! reads the clock before each answer: after a pause of the process a deadline that has passed counts, whatever is
//! waiting to be read. It records an end, and reports it to its streams, before the lock is released.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Clock;
use leasehold::{Client, Moment, SystemClock};
use tokio::sync::{Notify, mpsc, watch};

use super::command::{Command, Outlet, Party, busy};
use super::end::End;
use super::request::{HeldLock, HoldRequest, OnDisconnect};
use super::table::Place;
use crate::problem::{Code, Problem};

/// The task of one id. The place is dropped before the commands, so an id whose task does not answer is not in
/// the table.
pub(super) struct HoldTask {
    pub(super) place: Place,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) wake: Arc<Notify>,
    pub(super) client: Client,
    pub(super) request: Arc<HoldRequest>,
    pub(super) ttl: Duration,
    /// The end of the grace time, once the server is about to end.
    pub(super) closing: watch::Receiver<Option<Moment>>,
    pub(super) is_bound_to_process: bool,
    pub(super) parties: Vec<Party>,
    /// When the wait of an absent client is given up.
    pub(super) absent_until: Option<Moment>,
    /// When the streams get the next event that they wait.
    pub(super) next_waiting: Moment,
}

/// The end of a wait.
enum Waited {
    Granted(Box<HeldLock>),
    Over,
}

/// The consequence of one look or wait at the store.
enum Step {
    Granted(Box<HeldLock>),
    /// Others wait longer than the ones that just looked.
    Again,
    Over,
}

impl HoldTask {
    /// Runs until the id has ended.
    pub(super) async fn run(mut self) {
        if let Waited::Granted(held) = self.wait().await {
            self.place.granted();
            self.keep(*held).await;
        }
    }

    async fn wait(&mut self) -> Waited {
        // It begins with the request that started it, unless that has gone at once.
        match tokio::time::timeout(FIRST_MAX, self.commands.recv()).await {
            Ok(Some(Command::Join(party))) => self.join(party),
            _ => return Waited::Over,
        }
        loop {
            match self.attempt().await {
                Step::Granted(held) => return Waited::Granted(held),
                Step::Again => {}
                Step::Over => return Waited::Over,
            }
        }
    }

    /// Asks the store once: with a wait if any request wants one.
    async fn attempt(&mut self) -> Step {
        let (client, request) = (self.client.clone(), self.request.clone());
        let now = SystemClock.now();
        let waits = self.parties.iter().any(|party| party.until > now);
        let mut acquiring = std::pin::pin!(request.acquire(&client, self.ttl, waits));
        let mut closing = self.closing.clone();
        loop {
            if self.is_abandoned() || (waits && self.refuse_late() && self.parties.is_empty()) {
                return Step::Over;
            }
            self.send_waiting();
            let pause = pause_until(self.next_in_wait(waits));
            tokio::select! {
                biased;
                outcome = &mut acquiring => return self.outcome(outcome),
                command = self.commands.recv() => match command {
                    Some(command) => {
                        if self.obey_in_wait(command) {
                            return Step::Over;
                        }
                    }
                    None => return Step::Over,
                },
                () = async { drop(closing.wait_for(Option::is_some).await) } => {
                    self.refuse_all(&Problem::new(Code::Closing, "the server is about to end: try again later"));
                    return Step::Over;
                }
                () = self.wake.notified() => {}
                () = pause => {}
            }
        }
    }

    fn outcome(&mut self, outcome: Result<Option<HeldLock>, leasehold::Error>) -> Step {
        match outcome {
            Ok(Some(held)) => Step::Granted(Box::new(held)),
            // It only looked. Those that came meanwhile and want to wait do so now.
            Ok(None) => {
                self.refuse_late();
                if self.parties.is_empty() { Step::Over } else { Step::Again }
            }
            Err(error) => {
                self.refuse_all(&Problem::from(error));
                Step::Over
            }
        }
    }

    /// Removes the clients that have gone. Returns `true` if the wait is for nobody any more.
    fn is_abandoned(&mut self) -> bool {
        let before = self.parties.len();
        self.parties.retain(|party| !party.is_gone());
        if !self.parties.is_empty() {
            self.absent_until = None;
            return false;
        }
        if before > 0 && self.request.on_disconnect == OnDisconnect::Release {
            // Nothing is granted yet, so nobody relies on anything.
            return true;
        }
        let now = SystemClock.now();
        let until = *self.absent_until.get_or_insert_with(|| now.after(self.ttl.min(ABSENT_MAX)));
        until <= now
    }

    /// Refuses the requests whose wait is over. Returns `true` if there were any.
    fn refuse_late(&mut self) -> bool {
        let now = SystemClock.now();
        let (over, waiting) = std::mem::take(&mut self.parties).into_iter().partition(|one| one.until <= now);
        self.parties = waiting;
        let over: Vec<Party> = over;
        let some_ended = !over.is_empty();
        let problem = busy(!self.parties.is_empty());
        over.into_iter().for_each(|party| party.refuse(problem.clone()));
        some_ended
    }

    fn next_in_wait(&self, waits: bool) -> Moment {
        let limits = self.parties.iter().filter(|_| waits).map(|party| party.until);
        let has_stream = self.parties.iter().any(|party| matches!(party.outlet, Outlet::Stream(_)));
        let event = has_stream.then_some(self.next_waiting);
        limits.chain(self.absent_until).chain(event).min().unwrap_or(Moment::NEVER)
    }

    /// Sends the streams an event from time to time, so that their clients see that they are still connected.
    fn send_waiting(&mut self) {
        let now = SystemClock.now();
        if self.next_waiting <= now {
            self.parties.iter().for_each(Party::send_waiting);
            self.next_waiting = now.after(WAITING_PAUSE);
        }
    }

    /// Obeys a command before the grant. Returns `true` if the wait is over.
    fn obey_in_wait(&mut self, command: Command) -> bool {
        match command {
            Command::Join(party) => self.join(party),
            Command::Renew(ask) | Command::Look(ask) | Command::Proclaim(ask, _) => {
                drop(
                    ask.reply.send(Err(Problem::new(
                        Code::Busy,
                        "the lock is not granted yet: the request waits",
                    ))),
                );
            }
            Command::Release(reply) => {
                self.place.ended(End::Released, SystemClock.now());
                self.refuse_all(&End::Released.problem());
                drop(reply.send(Ok(())));
                return true;
            }
        }
        false
    }

    fn join(&mut self, party: Party) {
        if self.parties.len() >= PARTIES_MAX {
            let text = format!("{PARTIES_MAX} requests with this id wait already");
            return party.refuse(Problem::new(Code::TooManyWaiters, text));
        }
        party.send_waiting();
        self.parties.push(party);
    }

    pub(super) fn refuse_all(&mut self, problem: &Problem) {
        self.parties.drain(..).for_each(|party| party.refuse(problem.clone()));
    }
}

/// Sleeps until this moment, or for a while. The timer does not count while the machine is suspended, so the clock is
/// read afterwards.
pub(super) async fn pause_until(moment: Moment) {
    match SystemClock.now().until(moment) {
        Duration::MAX => std::future::pending().await,
        pause => tokio::time::sleep(pause.min(PAUSE_MAX)).await,
    }
}

const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The longest time for which the place of an absent client in the queue is kept.
const ABSENT_MAX: Duration = Duration::from_secs(10);
/// The pause between two events of a stream that waits.
pub(super) const WAITING_PAUSE: Duration = Duration::from_secs(5);
/// The time in which the first request of an id has to arrive at its task.
const FIRST_MAX: Duration = Duration::from_secs(5);
/// The most requests and streams of one id.
const PARTIES_MAX: usize = 16;
