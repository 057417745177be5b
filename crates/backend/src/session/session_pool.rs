//! The sessions of one client.
//!
//! Ground rules: one task opens a session while the others wait for it, and share its failure: a server that does not
//! answer is waited for once, and not by one task after another. Where each lock has a session of its own, one task at
//! a time opens one while the server does not answer. A session that is over is never handed out, and its end removes
//! what it held before any task learns of it in another way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{Claim, Clock, Failure, Liveness};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::session::claims::{ClaimTable, Entered, TakenLock};
use crate::session::open_session::{NewSession, OpenSession};
use crate::session::sessions::{Capacity, Session, Sessions};
use crate::session::showing::Showing;
use crate::sql::{ConnectionLimits, IdleConnections};

/// The sessions of one client.
#[derive(Debug)]
pub(crate) struct SessionPool<C: Sessions> {
    pub(crate) sessions: C,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) claims: Arc<ClaimTable<C::Session>>,
    pub(crate) showing: Arc<Showing<C::Session>>,
    /// The session that holds many locks.
    current: Arc<Current<C::Session>>,
    /// Sessions without a lock, where each holds one, and the attempts to open more.
    pub(crate) connections: Arc<IdleConnections<Arc<OpenSession<C::Session>>>>,
    permits: Arc<Semaphore>,
    next: AtomicU64,
}

impl<C: Sessions> SessionPool<C> {
    pub(crate) fn new(sessions: C, clock: Arc<dyn Clock>) -> Self {
        let permits = match sessions.capacity() {
            Capacity::Many => Semaphore::MAX_PERMITS,
            Capacity::One { sessions, .. } => sessions,
        };
        let claims = Arc::new(ClaimTable::new());
        let (timeout, endpoints) = (sessions.answer_limit(), sessions.endpoints());
        let limits = ConnectionLimits { timeout, endpoints, idle: IDLE_MAX };
        SessionPool {
            sessions,
            showing: Arc::new(Showing::new(claims.clone(), clock.clone())),
            clock,
            claims,
            current: Arc::new(Current::new()),
            connections: Arc::new(IdleConnections::new(limits, |session| session.is_live())),
            permits: Arc::new(Semaphore::new(permits)),
            next: AtomicU64::new(0),
        }
    }

    /// Returns the session that holds many locks; a new one where the last has ended.
    pub(crate) async fn shared(&self) -> Result<Arc<OpenSession<C::Session>>, Failure> {
        let failed_before = self.current.failed.load(Ordering::SeqCst);
        let mut place = self.current.place.lock().await;
        if let Some(session) = place.session.clone() {
            if session.is_live() {
                drop(place);
                // Ended meanwhile, it was left in its place.
                if !session.is_live() {
                    self.end(&session);
                }
                return Ok(session);
            }
            place.session = None;
            self.end(&session);
        }
        if self.current.failed.load(Ordering::SeqCst) != failed_before
            && let Some(failure) = &place.failure
        {
            // Another task has tried it while this one waited.
            return Err(failure.clone());
        }
        match self.open(None).await {
            Ok(session) => {
                *place = Place { session: Some(session.clone()), failure: None };
                Ok(session)
            }
            Err(failure) => {
                place.failure = Some(failure.clone());
                self.current.failed.fetch_add(1, Ordering::SeqCst);
                Err(failure)
            }
        }
    }

    /// Returns a session without a lock.
    pub(crate) async fn dedicated(&self) -> Result<Arc<OpenSession<C::Session>>, Failure> {
        if let Some(session) = self.connections.take() {
            return Ok(session);
        }
        match self.permits.clone().try_acquire_owned() {
            Ok(permit) => self.connections.connect(self.open(Some(permit))).await,
            Err(_) => Err(self.full()),
        }
    }

    /// Enters a lock that the server gave, and sees to it that its holder is shown to other clients.
    pub(crate) fn enter(
        &self,
        claim: &Claim,
        session: &Arc<OpenSession<C::Session>>,
        lock: TakenLock,
    ) -> Entered {
        let entered = self.claims.enter(claim, session, lock, self.clock.now());
        if !lock.is_shown {
            self.showing.wake();
        }
        entered
    }

    /// Ends a session, and with it every lock of it. Called for a session whose state is in doubt.
    pub(crate) fn end(&self, session: &OpenSession<C::Session>) {
        session.end();
        self.connections.record_silence();
        self.claims.lose(session.number);
        close(&self.current, session.number);
    }

    async fn open(
        &self,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Arc<OpenSession<C::Session>>, Failure> {
        let inner = self.sessions.open().await?;
        // Each of its locks is asked for later, so that the server keeps it for longer than its holders count on.
        // Opening takes many requests, and may have taken most of the time of silence.
        let opened_at = self.clock.now();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let silence = match self.sessions.profile().liveness {
            Liveness::Heartbeat { valid } => valid,
            _ => SILENCE_WITHOUT_HEARTBEAT,
        };
        let (claims, current) = (Arc::downgrade(&self.claims), Arc::downgrade(&self.current));
        let connections = Arc::downgrade(&self.connections);
        let lose = move |fell_silent: bool| {
            let connections = connections.upgrade();
            // Before its holders open others.
            if let Some(connections) = connections.as_ref().filter(|_| fell_silent) {
                connections.record_silence();
            }
            if let Some(claims) = claims.upgrade() {
                claims.lose(number);
            }
            if let Some(current) = current.upgrade() {
                close(&current, number);
            }
            if let Some(connections) = connections {
                connections.discard_closed();
            }
        };
        let new = NewSession { number, inner, opened_at, permit };
        Ok(Arc::new(OpenSession::watch(new, self.clock.clone(), silence, lose)))
    }

    fn full(&self) -> Failure {
        let Capacity::One { sessions, option } = self.sessions.capacity() else {
            return Failure::unavailable("all sessions are in use: release a lock, or try again later");
        };
        Failure::unavailable(format!(
            "all {sessions} connections that may hold or wait for a lock are in use: release some, or raise {option} of \
             the URL"
        ))
    }
}

/// The session that holds many locks, which one task at a time may open.
#[derive(Debug)]
struct Current<S> {
    place: tokio::sync::Mutex<Place<S>>,
    /// The number of openings that failed.
    failed: AtomicU64,
}

/// The outcome of the last opening.
#[derive(Debug)]
struct Place<S> {
    /// The session, until it is over.
    session: Option<Arc<OpenSession<S>>>,
    failure: Option<Failure>,
}

impl<S> Current<S> {
    fn new() -> Current<S> {
        let place = tokio::sync::Mutex::new(Place { session: None, failure: None });
        Current { place, failed: AtomicU64::new(0) }
    }
}

/// Closes the session that holds many locks, if it is the one with this number: what the server still has for it would
/// stay until the server notices its silence.
fn close<S: Session>(current: &Current<S>, number: u64) {
    // A task that has the place now looks at the session itself.
    if let Ok(mut place) = current.place.try_lock() {
        drop(place.session.take_if(|session| session.number == number));
    }
}

/// The time of silence where the profile promises no heartbeat: no holder counts on it, so any time is right, and this
/// one asks for few signs of life.
const SILENCE_WITHOUT_HEARTBEAT: Duration = Duration::from_secs(60);

/// The sessions without a lock that are kept for the next caller.
const IDLE_MAX: usize = 8;

/// Returns `true` if a failure leaves the session in doubt.
pub(crate) fn is_doubtful<S: Session>(session: &OpenSession<S>, failure: &Failure) -> bool {
    failure.effect == leasehold_core::Effect::Unknown || !session.is_live()
}
