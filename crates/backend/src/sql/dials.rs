//! Opening connections to a database that may be too busy to answer.
//!
//! A client closes a connection whose statement was not answered in time. If each of its tasks then dials at once, and
//! so do those of a hundred clients, a busy server is kept busy by new connections alone, and no client gets one in
//! time: that lasts after its cause is over. So a client dials one connection at a time until a statement is answered.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::{Effect, Failure, doubled, jittered};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::random;

/// The attempts of one client to open connections.
#[derive(Debug, Default)]
pub struct Dials {
    /// The statements and attempts in a row that were not answered.
    unanswered: AtomicU32,
    /// Held by the only one that dials while the server does not answer.
    turn: Mutex<()>,
}

impl Dials {
    /// Records the end of a statement, by its failure if it failed. Returns `true` if it was not answered, as far as is
    /// known: after any other end connections are dialled side by side again.
    pub fn record(&self, failure: Option<&Failure>) -> bool {
        let is_unanswered = failure.is_some_and(|failure| failure.effect == Effect::Unknown);
        match is_unanswered {
            true => self.add_unanswered(),
            false => self.unanswered.store(0, Ordering::Relaxed),
        }
        is_unanswered
    }

    fn add_unanswered(&self) {
        // It wraps after years.
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// Dials, which takes `limit` at most for each endpoint. While the server does not answer, one caller dials at a
    /// time, with pauses in between that grow up to a fifth of `limit` and a second. The others wait for `limit` at
    /// most, and take a connection that `idle` has for them before they dial or give up.
    ///
    /// # Errors
    /// The failure of `dial`, and `Unavailable` if others dialled for as long as `limit`.
    pub async fn connect<T>(
        &self,
        limit: Duration,
        idle: impl Fn() -> Option<T>,
        dial: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        if self.unanswered.load(Ordering::Relaxed) == 0 {
            return self.recorded(limit, dial).await;
        }
        let Ok(turn) = tokio::time::timeout(limit, self.turn.lock()).await else {
            let text = format!("the server does not answer, and no connection was free within {limit:?}");
            return idle().ok_or_else(|| Failure::unavailable(text));
        };
        if let Some(connection) = idle() {
            return Ok(connection);
        }
        let Some(before) = self.unanswered.load(Ordering::Relaxed).checked_sub(1) else {
            // It has answered meanwhile.
            drop(turn);
            return self.recorded(limit, dial).await;
        };
        let longest = (limit / PAUSES_IN_A_LIMIT).min(LONGEST_PAUSE);
        tokio::time::sleep(jittered(doubled(FIRST_PAUSE, longest, before), random::chance())).await;
        match idle() {
            Some(connection) => Ok(connection),
            None => self.recorded(limit, dial).await,
        }
    }

    /// Awaits an attempt, and records one that used up its time. A server that refuses is not a busy one.
    async fn recorded<T>(
        &self,
        limit: Duration,
        dial: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let dialled = dial.await;
        if dialled.is_err() && began.elapsed() >= limit {
            self.add_unanswered();
        }
        dialled
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const PAUSES_IN_A_LIMIT: u32 = 5;

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use leasehold_core::FailureKind;

    use super::*;

    fn lose_an_answer(dials: &Dials) {
        let lost = Failure::new(FailureKind::Unavailable, Effect::Unknown, "no answer");
        assert!(dials.record(Some(&lost)));
    }

    const LIMIT: Duration = Duration::from_secs(5);

    /// A server that answers an attempt after so long, and counts them.
    #[derive(Default)]
    struct Server {
        takes: Cell<Duration>,
        now: Cell<u32>,
        most: Cell<u32>,
        all: Cell<u32>,
        idle: RefCell<Vec<u32>>,
    }

    impl Server {
        async fn dial(&self) -> Result<u32, Failure> {
            self.now.set(self.now.get() + 1);
            self.most.set(self.most.get().max(self.now.get()));
            self.all.set(self.all.get() + 1);
            let answered = tokio::time::timeout(LIMIT, tokio::time::sleep(self.takes.get())).await;
            self.now.set(self.now.get() - 1);
            answered.map(|()| self.all.get()).map_err(|_| Failure::unavailable("silent"))
        }

        async fn connect(&self, dials: &Dials) -> Result<u32, Failure> {
            dials.connect(LIMIT, || self.idle.borrow_mut().pop(), self.dial()).await
        }

        /// Connects four times side by side, and returns how many attempts there were at one time.
        async fn connect_four(&self, dials: &Dials) -> u32 {
            self.most.set(0);
            let _ = tokio::join!(
                self.connect(dials),
                self.connect(dials),
                self.connect(dials),
                self.connect(dials)
            );
            self.most.get()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_dials_while_the_server_does_not_answer() {
        let (server, dials) = (Server::default(), Dials::default());
        server.takes.set(Duration::from_millis(1));
        assert_eq!(server.connect_four(&dials).await, 4);
        server.takes.set(Duration::from_secs(60));
        assert_eq!(server.connect_four(&dials).await, 4, "nothing was unanswered before");
        assert_eq!(server.connect_four(&dials).await, 1);
        server.takes.set(Duration::from_millis(1));
        assert_eq!(server.connect_four(&dials).await, 1, "a connection alone shows little");
        assert!(!dials.record(None));
        assert_eq!(server.connect_four(&dials).await, 4);
        lose_an_answer(&dials);
        assert_eq!(server.connect_four(&dials).await, 1, "of a statement");
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_gets_a_returned_connection_or_the_limit() {
        let (server, dials) = (Server::default(), Dials::default());
        lose_an_answer(&dials);
        server.takes.set(Duration::from_secs(2));
        let (first, second, ()) = tokio::join!(server.connect(&dials), server.connect(&dials), async {
            // The first one dials by now.
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.idle.borrow_mut().push(7);
        });
        assert_eq!((first.unwrap(), second.unwrap(), server.all.get()), (1, 7, 1));

        server.takes.set(Duration::from_secs(60));
        let began = Instant::now();
        let (first, second) = tokio::join!(server.connect(&dials), server.connect(&dials));
        assert_eq!(first.unwrap_err().detail(), "silent");
        let second = second.unwrap_err();
        assert_eq!((second.kind, second.effect), (FailureKind::Unavailable, Effect::None));
        assert!(second.detail().contains("does not answer"), "{second}");
        assert!(began.elapsed() < LIMIT + LONGEST_PAUSE * 2, "{:?}", began.elapsed());
    }

    #[test]
    fn statement_that_was_refused_was_answered() {
        let dials = Dials::default();
        lose_an_answer(&dials);
        assert!(!dials.record(Some(&Failure::unavailable("read-only"))));
        assert_eq!(dials.unanswered.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_dial_side_by_side_after_an_answer() {
        let (server, dials) = (Server::default(), Dials::default());
        lose_an_answer(&dials);
        server.takes.set(Duration::from_secs(1));
        let first = async {
            server.connect(&dials).await.unwrap();
            assert!(!dials.record(None));
        };
        let others = async {
            tokio::task::yield_now().await;
            server.connect_four(&dials).await
        };
        let ((), most) = tokio::join!(first, others);
        assert_eq!(most, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_is_returned_during_the_pause_is_taken() {
        let (server, dials) = (Server::default(), Dials::default());
        lose_an_answer(&dials);
        let (taken, ()) = tokio::join!(server.connect(&dials), async {
            tokio::time::sleep(FIRST_PAUSE / 4).await;
            server.idle.borrow_mut().push(7);
        });
        assert_eq!((taken.unwrap(), server.all.get()), (7, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_part_of_the_limit_and_a_refusal_causes_none() {
        let dials = Dials::default();
        let refuse = async || {
            let began = Instant::now();
            let refused = async { Err::<u32, _>(Failure::unavailable("nothing listens there")) };
            dials.connect(LIMIT, || None, refused).await.unwrap_err();
            began.elapsed()
        };
        for _ in 0..3 {
            assert_eq!(refuse().await, Duration::ZERO);
        }
        lose_an_answer(&dials);
        assert!(refuse().await <= FIRST_PAUSE);
        for _ in 0..20 {
            lose_an_answer(&dials);
        }
        let longest = refuse().await;
        assert!(longest >= LONGEST_PAUSE / 2 && longest <= LONGEST_PAUSE, "{longest:?}");
    }
}
