//! One open session under watch: its end is known at once where it is reported, and within the time of
//! silence where it is not.
//!
//! Ground rules: a session of which anything is in doubt is over, and what is over never becomes good
//! again. The time of silence is counted on the clock that counts suspend, from before the last question
//! that was answered.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{Clock, Failure, Moment};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use crate::session::sessions::Session;

/// One open session. Closed when the last handle is dropped.
pub(crate) struct Open<S> {
    pub(crate) number: u64,
    pub(crate) session: Arc<S>,
    pulse: Arc<Pulse>,
    watch: JoinHandle<()>,
    /// Its place among the sessions of this client, where they are counted.
    _place: Option<OwnedSemaphorePermit>,
}

/// The known state of a session's life.
struct Pulse {
    clock: Arc<dyn Clock>,
    silence: Duration,
    is_over: AtomicBool,
    /// `true` while a question waits in the server, so that no other can be answered.
    is_waiting: AtomicBool,
    /// The moment before the last question that was answered, in nanoseconds of the clock.
    heard: AtomicU64,
}

impl<S: Session> Open<S> {
    /// Watches a session that was opened after `asked_at`. `lose` is called once, when it is over.
    pub(crate) fn watch(
        number: u64,
        session: S,
        (clock, asked_at): (Arc<dyn Clock>, Moment),
        silence: Duration,
        place: Option<OwnedSemaphorePermit>,
        lose: impl FnOnce() + Send + 'static,
    ) -> Open<S> {
        let session = Arc::new(session);
        let pulse = Arc::new(Pulse {
            clock,
            silence,
            is_over: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
            heard: AtomicU64::new(asked_at.as_nanos()),
        });
        let (watched, its_pulse) = (session.clone(), pulse.clone());
        let watch = leasehold_machine::spawn(async move {
            listen(&*watched, &its_pulse).await;
            its_pulse.is_over.store(true, Ordering::SeqCst);
            lose();
        });
        Open { number, session, pulse, watch, _place: place }
    }

    /// Asks for a sign of life, and answers from when on it is known.
    pub(crate) async fn ping(&self) -> Result<Moment, Failure> {
        self.pulse.ping(&*self.session).await
    }

    /// Returns `true` if it may be used.
    pub(crate) fn is_live(&self) -> bool {
        !self.pulse.is_over.load(Ordering::SeqCst) && self.session.is_open()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.pulse.is_over.load(Ordering::SeqCst)
    }

    /// Marks it as over. Its caller must also handle what it held.
    pub(crate) fn end(&self) {
        self.pulse.is_over.store(true, Ordering::SeqCst);
        self.watch.abort();
    }

    /// Notes that a question waits in the server now, or no longer.
    pub(crate) fn set_waiting(&self, waiting: bool) {
        if !waiting {
            // It was answered just now. What it gave is confirmed by a question of its own.
            self.pulse.heard_since(self.pulse.clock.now());
        }
        self.pulse.is_waiting.store(waiting, Ordering::SeqCst);
    }
}

impl<S> Drop for Open<S> {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl<S: fmt::Debug> fmt::Debug for Open<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("number", &self.number)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl Pulse {
    async fn ping<S: Session>(&self, session: &S) -> Result<Moment, Failure> {
        let asked_at = self.clock.now();
        match tokio::time::timeout(self.silence, session.ping()).await {
            Ok(Ok(())) => {
                self.heard_since(asked_at);
                Ok(asked_at)
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::unanswered(format!("the server was silent for {:?}", self.silence))),
        }
    }

    fn heard_since(&self, moment: Moment) {
        self.heard.fetch_max(moment.as_nanos(), Ordering::SeqCst);
    }

    /// Returns what is left of the time of silence.
    fn left(&self) -> Duration {
        let heard = Moment::from_nanos(self.heard.load(Ordering::SeqCst));
        self.silence.saturating_sub(self.clock.now().since(heard))
    }
}

/// Comes back when the session is over.
async fn listen<S: Session>(session: &S, pulse: &Pulse) {
    loop {
        tokio::select! {
            () = session.closed() => return,
            () = tokio::time::sleep(pulse.silence / BEATS) => {}
        }
        if pulse.is_waiting.load(Ordering::SeqCst) {
            continue;
        }
        let answer = tokio::time::timeout(pulse.left(), pulse.ping(session)).await;
        match answer {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => {
                tracing::warn!(%failure, "a session that may hold locks ended");
                return;
            }
            // A question that began to wait meanwhile is answered first.
            Err(_) if pulse.is_waiting.load(Ordering::SeqCst) => {}
            Err(_) => {
                tracing::warn!(silence = ?pulse.silence, "a session that may hold locks fell silent");
                return;
            }
        }
    }
}

/// Signs of life that are asked for in the time of silence, so that some may be late.
const BEATS: u32 = 5;
