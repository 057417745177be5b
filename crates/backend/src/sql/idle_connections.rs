//! Connections to a database that may be too busy to answer: those that are idle, and how more are opened.
//!
//! A client closes a connection whose statement was not answered in time. If each of its tasks then dials at once, and
//! so do those of a hundred clients, a busy server is kept busy by new connections alone, and no client gets one in
//! time: that lasts after its cause is over. So a client dials one connection at a time until a statement is answered.
//! A busy server accepts connections in the order in which they came, also those that were given up by then. So the
//! pauses between two dials grow beyond the time that a dial may take: until the server accepts one in time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Effect, Failure, doubled, jittered};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::random;
use crate::sql::connections::is_silent;

/// The idle connections of one client, and its attempts to open more.
#[derive(Debug)]
pub struct IdleConnections<T> {
    limits: ConnectionLimits,
    is_open: fn(&T) -> bool,
    state: Mutex<State<T>>,
    /// Wakes those who wait when a connection was returned, or a statement was answered.
    changed: Notify,
    /// Held by the only one that dials while the server does not answer.
    turn: tokio::sync::Mutex<()>,
}

/// The limits of the connections of one client.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// The time in which one endpoint answers, or counts as silent.
    pub timeout: Duration,
    /// The number of endpoints that are dialled one after the other.
    pub endpoints: usize,
    /// The most connections that are kept idle.
    pub idle: usize,
}

#[derive(Debug)]
struct State<T> {
    idle: Vec<T>,
    /// None while the server answers.
    silence: Option<Silence>,
}

/// A time in which the server does not answer.
#[derive(Clone, Copy, Debug)]
struct Silence {
    /// The dials in a row that led to no answer.
    in_vain: u32,
    /// `true` if a dial has not led to anything yet.
    is_tried: bool,
    /// The end of the pause before the next dial.
    next_dial: Instant,
}

impl Silence {
    fn after(in_vain: u32, timeout: Duration) -> Silence {
        let longest = (timeout * TIMEOUTS_IN_A_PAUSE).min(LONGEST_PAUSE);
        let pause = jittered(doubled(FIRST_PAUSE, longest, in_vain), random::chance());
        Silence { in_vain, is_tried: false, next_dial: Instant::now() + pause }
    }
}

impl<T> IdleConnections<T> {
    /// Creates a set without connections. It drops those that are not open any more by `is_open`.
    pub fn new(limits: ConnectionLimits, is_open: fn(&T) -> bool) -> IdleConnections<T> {
        let state = Mutex::new(State { idle: Vec::new(), silence: None });
        IdleConnections {
            limits,
            is_open,
            state,
            changed: Notify::new(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Takes the idle connection that was used last, so that those which are not needed grow old.
    pub fn take(&self) -> Option<T> {
        self.discard_closed();
        self.state().idle.pop()
    }

    /// Takes a connection back whose statement was answered.
    pub fn give_back(&self, connection: T) {
        if (self.is_open)(&connection) {
            let mut state = self.state();
            if state.idle.len() < self.limits.idle {
                state.idle.push(connection);
            }
            drop(state);
            self.record_answer();
        }
    }

    /// Drops the idle connections that are not open any more.
    pub fn discard_closed(&self) {
        self.discard(|connection| !(self.is_open)(connection));
    }

    /// Drops all idle connections.
    pub fn clear(&self) {
        self.discard(|_| true);
    }

    /// Records a statement that failed. Returns `true` if it was not answered, as far as is known.
    pub fn record(&self, failure: &Failure) -> bool {
        let is_unanswered = failure.effect == Effect::Unknown;
        match is_unanswered {
            true => self.record_silence(),
            false => self.record_answer(),
        }
        is_unanswered
    }

    /// Records that something was not answered. The next pause grows once for each dial, and not for each of the
    /// connections that end together, as in a restart of the server.
    pub fn record_silence(&self) {
        let (timeout, silence) = (self.limits.timeout, &mut self.state().silence);
        match silence {
            None => *silence = Some(Silence::after(0, timeout)),
            Some(Silence { in_vain, is_tried: true, .. }) => {
                *silence = Some(Silence::after(*in_vain + 1, timeout))
            }
            Some(_) => {}
        }
    }

    /// Records that a statement was answered: connections are dialled side by side again.
    pub fn record_answer(&self) {
        self.state().silence = None;
        self.changed.notify_waiters();
    }

    /// Returns an idle connection, or the one that `dial` opens. While the server does not answer, one caller dials at
    /// a time, with pauses in between that grow to ten timeouts and five seconds at most. Each waits for as long as a
    /// dial may take: for its turn, for the end of the pause, for a connection that is returned, or for an answer.
    ///
    /// # Errors
    /// The failure of `dial`, and `Unavailable` if others dialled, or the pause lasted, for so long.
    ///
    /// # Cancel safety
    /// Dropping the future drops `dial`, and the turn passes on. No idle connection is lost.
    pub async fn connect(&self, dial: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let turn = tokio::select! {
            biased;
            idle = self.idle_or_answer() => match idle {
                Some(connection) => return Ok(connection),
                None => None,
            },
            turn = self.turn() => Some(turn?),
        };
        let dialled = dial.await;
        let was_silent = dialled.as_ref().is_err_and(is_silent);
        if turn.is_some() && (was_silent || dialled.is_ok()) {
            self.record_dial();
        }
        if was_silent {
            self.record_silence();
        }
        drop(turn);
        dialled.or_else(|failure| self.take().ok_or(failure))
    }

    /// Waits until a connection is idle, or returns `None` when the server answers.
    async fn idle_or_answer(&self) -> Option<T> {
        loop {
            // Before the look, so that no change is missed.
            let changed = self.changed.notified();
            match self.take() {
                Some(connection) => return Some(connection),
                None if self.state().silence.is_none() => return None,
                None => changed.await,
            }
        }
    }

    /// Waits for the turn to dial, and for the end of the pause before it.
    async fn turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Failure> {
        let ConnectionLimits { timeout, endpoints, .. } = self.limits;
        let limit = timeout * u32::try_from(endpoints).unwrap_or(1);
        let paused = async {
            let turn = self.turn.lock().await;
            while let Some(next_dial) = self.pause_end() {
                tokio::time::sleep_until(next_dial).await;
            }
            turn
        };
        tokio::time::timeout(limit, paused).await.map_err(|_| {
            let again = self.pause_end().map(|next_dial| {
                format!(", and is asked again in {:.1?}", next_dial.saturating_duration_since(Instant::now()))
            });
            Failure::unavailable(format!(
                "the server does not answer{}: no connection was free within {limit:?}",
                again.unwrap_or_default()
            ))
        })
    }

    /// Returns the end of the pause before the next dial, if it is still to come.
    fn pause_end(&self) -> Option<Instant> {
        let next_dial = self.state().silence?.next_dial;
        (next_dial > Instant::now()).then_some(next_dial)
    }

    fn record_dial(&self) {
        if let Some(silence) = &mut self.state().silence {
            silence.is_tried = true;
        }
    }

    fn discard(&self, is_unwanted: impl Fn(&T) -> bool) {
        let unwanted: Vec<T> =
            self.state().idle.extract_if(.., |connection| is_unwanted(connection)).collect();
        // Without the lock.
        drop(unwanted);
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Every change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// A short pause is of no use to a hundred clients of a server that needs seconds for a connection of each.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Short timeouts belong to short leases.
const TIMEOUTS_IN_A_PAUSE: u32 = 10;

#[cfg(test)]
mod tests;
