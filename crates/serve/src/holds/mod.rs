//! The locks that are held for HTTP clients.
//!
//! ```text
//!  mod (what requests call) ─▶ hold_task ─▶ holding      a task for each id: the wait, then the hold
//!                        │                 └─▶ stream, proclaiming    its events to one client, a leader's new value
//!                        └───▶ table, command            ids, and what is asked of a task
//!                              request, shape, validity   values
//! ```
//!
//! Ground rules: a lock is a `Guard` of the library, which its task owns. An answer never calls a lock valid for
//! longer than the guard does, nor for longer than the task keeps it without a heartbeat.

mod command;
mod end;
mod hold_task;
mod holding;
mod proclaiming;
mod request;
mod shape;
mod stream;
mod table;
mod validity;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::backend::{Clock, Liveness};
use leasehold::{Client, Moment, SystemClock};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::config::Limits;
use crate::problem::{Code, Problem};
use command::{Ask, Command, Outlet, Party, Ticket};
use end::End;
use hold_task::{HoldTask, WAITING_PAUSE};
use table::{Found, Handle, Place, Table};

pub(crate) use request::{HoldRequest, duration};
pub(crate) use shape::{EndShape, EventShape, GrantShape};

/// The locks that are held for HTTP clients, and the requests that wait for one.
#[derive(Debug)]
pub(crate) struct Holds {
    client: Client,
    limits: Limits,
    table: Arc<Table>,
    streams: Arc<Semaphore>,
    /// The end of the grace time, once the server is about to end.
    closing: watch::Sender<Option<Moment>>,
}

/// The news that the other end of a connection has closed it, as far as this is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerEnd(Arc<AtomicBool>);

impl PeerEnd {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// When a request arrived, and over which connection.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Moment,
    pub(crate) peer: PeerEnd,
}

/// The events of one stream. Dropping it ends the stream.
#[derive(Debug)]
pub(crate) struct Events {
    /// The event that was read to see whether the stream begins.
    first: Option<EventShape>,
    // Dropped in this order: the task that the ticket wakes sees that the receiver is gone.
    receiver: mpsc::Receiver<EventShape>,
    _ticket: Ticket,
    _place: OwnedSemaphorePermit,
}

impl Events {
    /// Returns the next event; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<EventShape> {
        match self.first.take() {
            Some(first) => Some(first),
            None => self.receiver.recv().await,
        }
    }

    /// Waits for the first event; `None` if the task of the id has ended without one.
    ///
    /// # Errors
    /// The problem, if the stream ends before it begins.
    async fn begun(mut self) -> Result<Option<Events>, Problem> {
        self.first = self.receiver.recv().await;
        match &self.first {
            None => Ok(None),
            Some(EventShape { problem: Some(problem), .. }) => Err(problem.clone()),
            Some(_) => Ok(Some(self)),
        }
    }
}

/// An answer that is awaited. Dropping it leaves the wait.
struct Pending<T> {
    answer: oneshot::Receiver<T>,
    _ticket: Ticket,
}

impl Holds {
    pub(crate) fn new(client: Client, limits: Limits) -> Holds {
        let streams = Arc::new(Semaphore::new(limits.streams));
        Holds { client, limits, table: Arc::default(), streams, closing: watch::Sender::new(None) }
    }

    /// Returns `true` if locks of this store end with this process.
    pub(crate) fn is_bound_to_process(&self) -> bool {
        let profile = self.client.profile();
        match profile.liveness {
            Liveness::Session => true,
            // Databases whose connections hold the locks. A session of ZooKeeper outlives its connection.
            Liveness::Heartbeat { .. } => profile.name != "zk",
            _ => profile.name == "mem",
        }
    }

    /// Returns the numbers of locks that are held, and of those that are waited for.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.table.counts()
    }

    /// Takes a place among the open streams of holds.
    ///
    /// # Errors
    /// `too_many_streams`.
    fn stream_place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            let text = format!("{} streams are open, which is the limit: close some", self.limits.streams);
            Problem::new(Code::TooManyStreams, text)
        })
    }

    /// Returns the number of open streams.
    pub(crate) fn streams(&self) -> usize {
        self.limits.streams.saturating_sub(self.streams.available_permits())
    }

    /// Acquires a lock under this id, or joins the request that has it.
    ///
    /// # Errors
    /// `busy`, and each of the table and the store.
    pub(crate) async fn acquire(
        &self,
        id: &str,
        request: &HoldRequest,
        wait: Duration,
        arrival: &Arrival,
    ) -> Result<GrantShape, Problem> {
        let until = arrival.at.after(self.bounded(wait));
        for _ in 0..ATTEMPTS {
            let handle = self.enter(id, request)?;
            let (reply, answer) = oneshot::channel();
            let party = Party { arrival: arrival.clone(), until, outlet: Outlet::Reply(reply) };
            let pending = Pending { answer, _ticket: Ticket(handle.wake.clone()) };
            if let Some(answer) = asked(handle, Command::Join(party), pending).await {
                return answer;
            }
        }
        Err(stuck())
    }

    /// Acquires a lock as [`Holds::acquire`] does, and reports what happens to it.
    ///
    /// # Errors
    /// As [`Holds::acquire`], before the stream begins; later they are its last event.
    pub(crate) async fn stream(
        &self,
        id: &str,
        request: &HoldRequest,
        wait: Duration,
        arrival: &Arrival,
    ) -> Result<Events, Problem> {
        let until = arrival.at.after(self.bounded(wait));
        for _ in 0..ATTEMPTS {
            let handle = self.enter(id, request)?;
            if let Some(events) = self.attached(handle, until, arrival).await? {
                return Ok(events);
            }
        }
        Err(stuck())
    }

    /// Reports what happens to a lock that is held or waited for under this id.
    ///
    /// # Errors
    /// As [`Holds::renew`].
    pub(crate) async fn follow(&self, id: &str, arrival: &Arrival) -> Result<Events, Problem> {
        let until = arrival.at.after(self.limits.wait);
        for _ in 0..ATTEMPTS {
            let handle = self.find(id)?;
            if let Some(events) = self.attached(handle, until, arrival).await? {
                return Ok(events);
            }
        }
        Err(stuck())
    }

    /// Joins the task of an id; `None` if that has ended meanwhile, and the id has to be looked up again.
    async fn attached(
        &self,
        handle: Handle,
        until: Moment,
        arrival: &Arrival,
    ) -> Result<Option<Events>, Problem> {
        let place = self.stream_place()?;
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let party = Party { arrival: arrival.clone(), until, outlet: Outlet::Stream(events) };
        let events = Events { first: None, receiver, _ticket: Ticket(handle.wake.clone()), _place: place };
        match handle.send(Command::Join(party)).await {
            Some(()) => events.begun().await,
            None => Ok(None),
        }
    }

    /// Keeps a lock for another ttl.
    ///
    /// # Errors
    /// `unknown_hold`, `released`, `lost`, or `busy` before the grant.
    pub(crate) async fn renew(&self, id: &str, arrival: &Arrival) -> Result<GrantShape, Problem> {
        self.ask(id, arrival, Command::Renew).await
    }

    /// Returns the state of a lock. It does not count as a sign of life.
    ///
    /// # Errors
    /// As [`Holds::renew`].
    pub(crate) async fn look(&self, id: &str, arrival: &Arrival) -> Result<GrantShape, Problem> {
        self.ask(id, arrival, Command::Look).await
    }

    /// Changes what observers of an election see.
    ///
    /// # Errors
    /// As [`Holds::renew`], and those of the library.
    pub(crate) async fn proclaim(
        &self,
        id: &str,
        value: &str,
        arrival: &Arrival,
    ) -> Result<GrantShape, Problem> {
        self.ask(id, arrival, |ask| Command::Proclaim(ask, value.to_owned())).await
    }

    async fn ask(
        &self,
        id: &str,
        arrival: &Arrival,
        make: impl Fn(Ask) -> Command,
    ) -> Result<GrantShape, Problem> {
        for _ in 0..ATTEMPTS {
            let handle = self.find(id)?;
            let (reply, answer) = oneshot::channel();
            let command = make(Ask { received: arrival.at, reply });
            let pending = Pending { answer, _ticket: Ticket(handle.wake.clone()) };
            if let Some(answer) = asked(handle, command, pending).await {
                return answer;
            }
        }
        Err(stuck())
    }

    /// Releases a lock, or ends the wait for one. An id that is not known is taken as one whose request comes
    /// later: that request is refused. The answer says so, since an earlier server may have held a lock under it.
    ///
    /// # Errors
    /// `lost` if the lock was lost before, `outcome_unknown` if the store does not answer.
    pub(crate) async fn release(&self, id: &str) -> Result<EndShape, Problem> {
        let ended = |state| EndShape { id: id.to_owned(), state };
        for _ in 0..ATTEMPTS {
            let handle = match self.table.find(id) {
                Found::Live(handle) => handle,
                Found::Ended(End::Released) => return Ok(ended("released")),
                Found::Ended(end) => return Err(end.problem()),
                Found::Overtaken => return Ok(ended("unknown")),
                Found::Nothing => {
                    self.table.record(id, SystemClock.now());
                    continue;
                }
            };
            let (reply, answer) = oneshot::channel();
            let pending = Pending { answer, _ticket: Ticket(handle.wake.clone()) };
            let asked = asked(handle, Command::Release(reply), pending);
            match tokio::time::timeout(RELEASE_MAX, asked).await {
                Ok(Some(answer)) => return answer.map(|()| ended("released")),
                Ok(None) => {}
                Err(_) => {
                    let text = "the store did not confirm the release yet: it is repeated in the background, and the \
                                lock ends with its lease at the latest";
                    return Err(Problem::new(Code::OutcomeUnknown, text));
                }
            }
        }
        Err(stuck())
    }

    /// Tells all holders that the server ends, and waits until their locks are over: released, lost, or, if they
    /// end with this process, not called valid any more. Returns the number that the grace time has left over.
    pub(crate) async fn close(&self, grace: Duration) -> usize {
        let end = SystemClock.now().after(grace);
        self.closing.send_replace(Some(end));
        loop {
            let (held, waiting) = self.table.counts();
            let is_over = SystemClock.now() >= end && !self.is_bound_to_process();
            if held + waiting == 0 || is_over {
                return held;
            }
            tokio::time::sleep(CLOSING_LOOK).await;
        }
    }

    /// Returns `true` if the server is about to end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.borrow().is_some()
    }

    fn bounded(&self, wait: Duration) -> Duration {
        wait.min(self.limits.wait)
    }

    fn find(&self, id: &str) -> Result<Handle, Problem> {
        match self.table.find(id) {
            Found::Live(handle) => Ok(handle),
            Found::Ended(end) => Err(end.problem()),
            Found::Overtaken | Found::Nothing => {
                let text = "no lock is held under this id: it was never granted, it ended long ago, or the server was \
                            started again; treat a lock that was held as lost";
                Err(Problem::new(Code::UnknownHold, text))
            }
        }
    }

    fn enter(&self, id: &str, request: &HoldRequest) -> Result<Handle, Problem> {
        let begin = || {
            let (sender, commands) = mpsc::channel(COMMANDS_MAX);
            let (request, wake) = (Arc::new(request.clone()), Arc::new(Notify::new()));
            let task = HoldTask {
                place: Place::new(self.table.clone(), id),
                commands,
                wake: wake.clone(),
                client: self.client.clone(),
                ttl: request.ttl(self.client.profile(), &self.limits),
                request: request.clone(),
                closing: self.closing.subscribe(),
                is_bound_to_process: self.is_bound_to_process(),
                parties: Vec::new(),
                absent_until: None,
                next_waiting: SystemClock.now().after(WAITING_PAUSE),
            };
            tokio::spawn(task.run());
            Handle { request, commands: sender, wake }
        };
        self.table.enter(id, request, &self.limits, || self.is_closing(), begin)
    }
}

/// Sends a command and waits for its answer; `None` if the task ended before it.
async fn asked<T>(handle: Handle, command: Command, mut pending: Pending<T>) -> Option<T> {
    handle.send(command).await?;
    (&mut pending.answer).await.ok()
}

fn stuck() -> Problem {
    Problem::new(Code::Internal, "the task of this id ended again and again: report this, please")
}

/// An answer can be missed only if the task of an id ends meanwhile, which does not happen often in a row.
const ATTEMPTS: usize = 100;
const COMMANDS_MAX: usize = 16;
/// The events that wait for a slow client; with more of them its stream is broken.
const EVENTS_MAX: usize = 32;
/// The time for which a release waits for the answer of the store.
const RELEASE_MAX: Duration = Duration::from_secs(10);
const CLOSING_LOOK: Duration = Duration::from_millis(20);
