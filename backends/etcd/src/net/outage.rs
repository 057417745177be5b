//! The knowledge that the requests of one client share about a cluster that does not answer.
//!
//! Ground rules: a request that every server failed to answer, while no other request was answered
//! either, begins an outage. From then on one request at a time asks, after pauses that double and are
//! jittered, and all others wait for its outcome. Any answer ends the outage. So what a
//! client sends during an election does not grow with what it wants.
//!
//! A lease may end while its renewal waits for the others. So keep-alives ask independently of them, one
//! request at a time in a fixed part of the time that it has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_backend::random;
use leasehold_core::{Backoff, Effect, Failure};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The state of the cluster as this client knows it.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// The number of requests that were answered so far.
    answers: AtomicU64,
    down: Mutex<Option<Down>>,
    /// Notified when the outage has ended, or no request is asking any more.
    changed: Notify,
}

#[derive(Debug)]
struct Down {
    backoff: Backoff,
    /// The pause that the next request takes before it asks.
    pause: Duration,
    /// The number of the request whose turn it is.
    turn: u64,
    /// `true` if that request pauses or asks.
    is_taken: bool,
    /// The time at which a request that keeps leases last began to ask.
    keepalive_asked_at: Option<Instant>,
    failure: Failure,
}

/// The right to ask during an outage. Dropping it lets another request ask.
#[derive(Debug)]
pub(crate) struct Probe<'a>(Option<(&'a Outage, u64)>);

/// The part of a request during an outage.
enum Role {
    /// Pause for so long, and ask.
    Ask(u64, Duration),
    /// Wait for the one whose turn it is.
    Wait(u64),
}

impl Outage {
    /// Returns how many requests were answered so far, for [`Outage::failed`].
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Acquire)
    }

    /// Records that a server answered.
    pub(crate) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::AcqRel);
        if self.down().take().is_some() {
            self.changed.notify_waiters();
        }
    }

    /// Records that all servers failed to answer a request that began when `since` requests had been
    /// answered. Only the one whose turn it was makes the next pause longer.
    pub(crate) fn failed(&self, since: u64, failure: &Failure, probe: Option<&Probe<'_>>) {
        let mut down = self.down();
        // An answer takes the lock after it is counted, so none is overlooked here.
        if self.answers() != since {
            return;
        }
        let failure = failure.clone().with_effect(Effect::None);
        let asked = probe.and_then(|probe| probe.0).map(|(_, turn)| turn);
        let (mut backoff, turn, is_taken, keepalive_asked_at) = match down.take() {
            Some(present) if asked != Some(present.turn) => {
                *down = Some(Down { failure, ..present });
                return;
            }
            Some(present) => (present.backoff, present.turn, present.is_taken, present.keepalive_asked_at),
            // A request that failed has just asked.
            None => (Backoff::new(FIRST_PAUSE, MAX_PAUSE), 0, false, Some(Instant::now())),
        };
        let pause = backoff.failed(random::chance());
        *down = Some(Down { backoff, pause, turn, is_taken, keepalive_asked_at, failure });
    }

    /// Returns why the cluster counts as down; `None` while it does not.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.down().as_ref().map(|down| down.failure.clone())
    }

    /// Waits until the cluster answers again, or until it is this request's turn to ask.
    ///
    /// # Cancel safety
    /// A request that is dropped while it waits loses no turn.
    pub(crate) async fn turn(&self) -> Probe<'_> {
        let mut overdue = None;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that no change is missed in between.
            changed.as_mut().enable();
            match self.role(overdue.take()) {
                None => return Probe(None),
                Some(Role::Ask(turn, pause)) => {
                    // It is released on every way out.
                    let probe = Probe(Some((self, turn)));
                    tokio::select! {
                        () = self.end() => {}
                        () = sleep(pause) => {}
                    }
                    return probe;
                }
                Some(Role::Wait(turn)) => {
                    if timeout(MAX_PAUSE + PROBE_LIMIT, changed).await.is_err() {
                        overdue = Some(turn);
                    }
                }
            }
        }
    }

    /// As [`Outage::turn`], for a request that keeps leases: it asks once none of its kind has begun to
    /// ask for `pace`.
    ///
    /// # Cancel safety
    /// A request that is dropped while it waits loses no turn.
    pub(crate) async fn keepalive_turn(&self, pace: Duration) -> Probe<'_> {
        while let Some(opens_at) = self.try_keepalive_turn(pace) {
            tokio::select! {
                () = self.end() => {}
                () = sleep_until(opens_at) => {}
            }
        }
        Probe(None)
    }

    /// Records that a keep-alive asks now, or returns when one may. Returns `None` also without an outage.
    fn try_keepalive_turn(&self, pace: Duration) -> Option<Instant> {
        let mut down = self.down();
        let down = down.as_mut()?;
        let now = Instant::now();
        let opens_at = down.keepalive_asked_at.map(|at| at + pace).filter(|opens_at| *opens_at > now);
        if opens_at.is_none() {
            down.keepalive_asked_at = Some(now);
        }
        opens_at
    }

    /// Takes the turn where it is free, or where the request that is `overdue` still has it. Returns
    /// `None` without an outage.
    fn role(&self, overdue: Option<u64>) -> Option<Role> {
        let mut down = self.down();
        let down = down.as_mut()?;
        let hangs = overdue == Some(down.turn);
        if down.is_taken && !hangs {
            return Some(Role::Wait(down.turn));
        }
        (down.turn, down.is_taken) = (down.turn + 1, true);
        // A request that waited for one that hangs has paused long enough.
        let pause = if hangs { Duration::ZERO } else { down.pause };
        Some(Role::Ask(down.turn, pause))
    }

    /// Waits for the end of the outage.
    async fn end(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.down().is_none() {
                return;
            }
            changed.await;
        }
    }

    fn down(&self) -> MutexGuard<'_, Option<Down>> {
        // It is replaced as a whole.
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        let Some((outage, turn)) = self.0 else { return };
        if let Some(down) = outage.down().as_mut().filter(|down| down.turn == turn) {
            down.is_taken = false;
        }
        outage.changed.notify_waiters();
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause. An election takes about a second.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The time for which one request that asks keeps the others waiting: its own time limit may be minutes.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn down() -> Outage {
        let outage = Outage::default();
        outage.failed(0, &Failure::unanswered("refused"), None);
        outage
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_and_the_others_wait_for_what_it_learns() {
        let outage = down();
        assert_eq!(outage.failure().map(|failure| failure.effect), Some(Effect::None));
        let first = outage.turn().await;
        let mut others: Vec<_> = (0..100).map(|_| Box::pin(outage.turn())).collect();
        assert!(others.iter_mut().all(|other| other.as_mut().now_or_never().is_none()));
        outage.answered();
        assert!(others.iter_mut().all(|other| other.as_mut().now_or_never().is_some()));
        drop(first);
        assert!(outage.failure().is_none() && outage.turn().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_whatever_the_number_of_requests() {
        let outage = down();
        // Those that were under way when it began fail together, and lengthen no pause.
        (0..100).for_each(|_| outage.failed(0, &Failure::unanswered("refused"), None));
        assert!(outage.down().as_ref().is_some_and(|down| down.pause <= FIRST_PAUSE));
        let began = Instant::now();
        let asked = AtomicU64::new(0);
        let asks = (0..200).map(|_| async {
            while began.elapsed() < Duration::from_secs(20) {
                let since = outage.answers();
                let probe = outage.turn().await;
                asked.fetch_add(1, Ordering::Relaxed);
                outage.failed(since, &Failure::unanswered("refused"), Some(&probe));
                drop(probe);
            }
        });
        futures_util::future::join_all(asks).await;
        let asked = asked.into_inner();
        // After the first pauses one a second, or two where chance cuts all of them in half; each
        // request ends with one of its own.
        assert!((20..=48 + 200).contains(&asked), "asked {asked} times in 20 s");
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_or_hung_probe_does_not_block_other_requests() {
        let outage = down();
        let began = Instant::now();
        drop(outage.turn().await);
        let hangs = outage.turn().await;
        assert!(began.elapsed() <= MAX_PAUSE, "the next one takes the turn at once");
        let asked = Instant::now();
        drop(outage.turn().await);
        assert!(asked.elapsed() >= PROBE_LIMIT);
        drop(hangs);
    }

    /// Lets the request whose turn it is hang: renewals ask all the same, as often for any number of them.
    #[tokio::test(start_paused = true)]
    async fn renewals_ask_at_a_fixed_pace_beside_one_that_hangs() {
        let outage = down();
        let began = Instant::now();
        let hangs = outage.turn().await;
        let pace = Duration::from_millis(200);
        let asked = AtomicU64::new(0);
        let renewals = (0..100).map(|_| async {
            while began.elapsed() < Duration::from_secs(20) {
                let since = outage.answers();
                let probe = outage.keepalive_turn(pace).await;
                asked.fetch_add(1, Ordering::Relaxed);
                outage.failed(since, &Failure::unanswered("refused"), Some(&probe));
            }
        });
        futures_util::future::join_all(renewals).await;
        // Five a second, and each of them ends with one of its own.
        let asked = asked.into_inner();
        assert!((95..=101 + 100).contains(&asked), "asked {asked} times in 20 s");
        assert!(
            outage.down().as_ref().is_some_and(|down| down.pause <= FIRST_PAUSE),
            "the pauses are the others'"
        );
        drop(hangs);
        outage.answered();
        let answered = Instant::now();
        drop(outage.keepalive_turn(pace).await);
        assert_eq!(answered.elapsed(), Duration::ZERO, "after the outage nobody waits");
    }

    #[test]
    fn failed_request_beside_answered_ones_is_not_an_outage() {
        let outage = Outage::default();
        let since = outage.answers();
        outage.answered();
        outage.failed(since, &Failure::unanswered("late"), None);
        assert!(outage.failure().is_none());
    }
}
