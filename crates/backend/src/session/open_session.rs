//! One open session under watch: its end is known at once where the session reports it, else at the next sign of
//! life, and within the time of silence at the latest.
//!
//! Ground rules: a session of which anything is in doubt is over, and what is over never becomes good
//! again. The time of silence is counted on the clock that counts suspend, from before the last request
//! that was answered, and in a new session from the end of its opening.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{Clock, Effect, Failure, Moment};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use crate::session::sessions::Session;

/// One open session. Closed when the last handle is dropped.
pub(crate) struct OpenSession<S> {
    pub(crate) number: u64,
    /// The session of the server.
    pub(crate) inner: Arc<S>,
    heartbeat: Arc<Heartbeat>,
    watch: JoinHandle<()>,
    /// The permit for one more session of this client, where they are counted.
    _permit: Option<OwnedSemaphorePermit>,
}

/// A session that was just opened, and has no lock yet.
pub(crate) struct NewSession<S> {
    pub(crate) number: u64,
    pub(crate) inner: S,
    /// The moment at which its opening had ended.
    pub(crate) opened_at: Moment,
    /// The permit for one more session of this client, where they are counted.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// The known state of a session's life.
struct Heartbeat {
    clock: Arc<dyn Clock>,
    silence: Duration,
    is_over: AtomicBool,
    /// `true` while a request waits in the server, so that no other can be answered.
    is_waiting: AtomicBool,
    /// The moment before the last request that was answered, or that of the opening, in nanoseconds of the clock.
    last_answer: AtomicU64,
}

impl<S: Session> OpenSession<S> {
    /// Watches a session. `lose` is called once, when it is over, with `true` if it fell silent.
    pub(crate) fn watch(
        new: NewSession<S>,
        clock: Arc<dyn Clock>,
        silence: Duration,
        lose: impl FnOnce(bool) + Send + 'static,
    ) -> OpenSession<S> {
        let NewSession { number, inner, opened_at, permit } = new;
        let inner = Arc::new(inner);
        let heartbeat = Arc::new(Heartbeat {
            clock,
            silence,
            is_over: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
            last_answer: AtomicU64::new(opened_at.as_nanos()),
        });
        let (watched, watched_heartbeat) = (inner.clone(), heartbeat.clone());
        let watch = leasehold_machine::spawn(async move {
            let fell_silent = watch_for_end(&*watched, &watched_heartbeat).await;
            watched_heartbeat.is_over.store(true, Ordering::SeqCst);
            lose(fell_silent);
        });
        OpenSession { number, inner, heartbeat, watch, _permit: permit }
    }

    /// Asks for a sign of life, and answers from when on it is known.
    pub(crate) async fn ping(&self) -> Result<Moment, Failure> {
        self.heartbeat.ping(&*self.inner).await
    }

    /// Returns `true` if it may be used.
    pub(crate) fn is_live(&self) -> bool {
        !self.heartbeat.is_over.load(Ordering::SeqCst) && self.inner.is_open()
    }

    /// Marks it as over. Its caller must also handle what it held.
    pub(crate) fn end(&self) {
        self.heartbeat.is_over.store(true, Ordering::SeqCst);
    }

    /// Notes that a request waits in the server now, or no longer.
    pub(crate) fn set_waiting(&self, waiting: bool) {
        if !waiting {
            // It was answered just now. What it gave is confirmed by a request of its own.
            self.heartbeat.record_answer(self.heartbeat.clock.now());
        }
        self.heartbeat.is_waiting.store(waiting, Ordering::SeqCst);
    }
}

impl<S> Drop for OpenSession<S> {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl<S: fmt::Debug> fmt::Debug for OpenSession<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenSession")
            .field("number", &self.number)
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl Heartbeat {
    async fn ping<S: Session>(&self, session: &S) -> Result<Moment, Failure> {
        let asked_at = self.clock.now();
        match tokio::time::timeout(self.silence, session.ping()).await {
            Ok(Ok(())) => {
                self.record_answer(asked_at);
                Ok(asked_at)
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::unanswered(format!("the server was silent for {:?}", self.silence))),
        }
    }

    fn record_answer(&self, moment: Moment) {
        self.last_answer.fetch_max(moment.as_nanos(), Ordering::SeqCst);
    }

    /// Returns what is left of the time of silence.
    fn left(&self) -> Duration {
        let last_answer = Moment::from_nanos(self.last_answer.load(Ordering::SeqCst));
        self.silence.saturating_sub(self.clock.now().since(last_answer))
    }
}

/// Returns when the session is over: `true` if it did not answer.
async fn watch_for_end<S: Session>(session: &S, heartbeat: &Heartbeat) -> bool {
    loop {
        tokio::select! {
            () = session.closed() => return false,
            () = tokio::time::sleep(heartbeat.silence / BEATS) => {}
        }
        if heartbeat.is_waiting.load(Ordering::SeqCst) {
            continue;
        }
        let answer = tokio::time::timeout(heartbeat.left(), heartbeat.ping(session)).await;
        match answer {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => {
                tracing::warn!(%failure, "a session that may hold locks ended");
                return failure.effect == Effect::Unknown;
            }
            // A request that began to wait meanwhile is answered first.
            Err(_) if heartbeat.is_waiting.load(Ordering::SeqCst) => {}
            Err(_) => {
                tracing::warn!(silence = ?heartbeat.silence, "a session that may hold locks fell silent");
                return true;
            }
        }
    }
}

/// Signs of life that are asked for in the time of silence, so that some may be late.
const BEATS: u32 = 5;
