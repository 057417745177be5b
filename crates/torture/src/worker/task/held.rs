//! A grant in the hands of a task: its validity, its renewals and its loss, each reported when it is seen.
//!
//! Ground rules: the end of the validity is one of the worker's clock, and is reported as one of the machine's. When
//! that clock was changed, it is reported anew before anything else of the grant.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Clock, ErrorKind, Guard};
use leasehold_history::{Event, FenceValue, Operation, Stage, Values};
use tokio::task::JoinHandle;

use super::Pace;
use crate::clock::{ValidityEnd, WorkerClock, validity};
use crate::worker::send_event;

/// A grant, and what was reported of it last.
pub(super) struct HeldLock<'t> {
    pub(super) guard: Arc<Guard>,
    /// Ends with the loss, where the holder learns of it by being told and never looks. A task of its own: a wait
    /// beside others would look at the clock whenever one of those is ready.
    pub(super) told: Option<JoinHandle<()>>,
    pub(super) key: String,
    pub(super) owner: String,
    pub(super) fence: Option<FenceValue>,
    /// The end of its validity, by the clock of the worker.
    until: Option<u64>,
    clock: Arc<WorkerClock>,
    /// The changes of that clock before the end was reported last.
    changes: usize,
    /// The logical process that holds it.
    pub(super) process: u64,
    pub(super) lost: bool,
    pub(super) ttl: Duration,
    pub(super) pace: &'t Pace,
}

impl<'t> HeldLock<'t> {
    pub(super) fn of(
        guard: Guard,
        (key, process): (String, u64),
        ttl: Duration,
        pace: &'t Pace,
        clock: Arc<WorkerClock>,
    ) -> HeldLock<'t> {
        let fence = guard.fence().map(|fence| FenceValue::new(fence.epoch, fence.seq, fence.sub));
        // A hand-off inside of the process continues the claim of the one before.
        let sub = fence.map_or(0, |fence| fence.sub);
        let owner = format!("{}.{sub}", guard.tag());
        let changes = clock.changes();
        let until = match validity(&guard, &clock) {
            // Everything that is reported of it later is after its end.
            ValidityEnd::Over => Some(clock.now().as_nanos()),
            known => known.end(),
        };
        let (guard, told, lost) = (Arc::new(guard), None, false);
        HeldLock { guard, told, key, owner, fence, until, clock, changes, process, lost, ttl, pace }
    }

    /// Learns of a loss only by being told from now on.
    pub(super) fn listen(&mut self) {
        let (guard, is_deaf) = (self.guard.clone(), self.pace.is_deaf);
        self.told = Some(tokio::spawn(async move {
            if is_deaf {
                std::future::pending::<()>().await;
            }
            guard.lost().await;
        }));
    }

    /// Returns when the lock is lost.
    pub(super) async fn loss(&mut self) -> io::Result<()> {
        match &mut self.told {
            // A panic ends the process before this.
            Some(told) => told.await.map_err(io::Error::other),
            None => {
                self.guard.lost().await;
                Ok(())
            }
        }
    }

    /// Waits until a holder that never looks is told of the end of its validity, if that has come. If nobody tells it,
    /// its release is late enough for a checker to see.
    pub(super) async fn hear_of_the_end(&mut self) -> io::Result<()> {
        if self.told.is_none() || self.lost || validity(&self.guard, &self.clock) != ValidityEnd::Over {
            return Ok(());
        }
        if let Ok(lost) = tokio::time::timeout(UNHEARD, self.loss()).await {
            lost?;
            self.notice()?;
        }
        Ok(())
    }

    /// Returns the end of the validity, by the clock of the machine.
    pub(super) fn end(&self) -> Option<u64> {
        self.until.map(|until| self.clock.machine_time(until))
    }

    /// Reports the end of the validity anew if the clock of the worker was changed since it was reported.
    fn restate(&mut self) -> io::Result<()> {
        let changes = self.clock.changes();
        if changes == self.changes || self.lost {
            return Ok(());
        }
        self.changes = changes;
        let Some(end) = self.end() else { return Ok(()) };
        let mut values = self.values();
        values.valid_until = Some(end);
        send_event(self.event(Stage::Ok, Operation::Restate).with(values))
    }

    pub(super) fn values(&self) -> Values {
        let mut values = Values::default();
        (values.owner, values.fence) = (Some(self.owner.clone()), self.fence);
        values
    }

    /// Waits, and reports renewals and the loss when they come.
    pub(super) async fn watch(&mut self, wait: Duration) -> io::Result<()> {
        let end = tokio::time::Instant::now() + wait;
        let often = (self.ttl / 20).clamp(Duration::from_millis(5), Duration::from_millis(100));
        loop {
            self.look()?;
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if self.lost {
                // It continues all the same: only the fence protects against such a holder.
                tokio::time::sleep(left).await;
                return Ok(());
            }
            tokio::select! {
                lost = self.loss() => {
                    lost?;
                    self.notice()?;
                }
                () = tokio::time::sleep(left.min(often)) => {}
            }
        }
    }

    /// Waits for an answer, and reports the loss when it comes: the history has the time at which the holder knew.
    pub(super) async fn noticing<T>(&mut self, answer: impl Future<Output = T>) -> io::Result<T> {
        let mut answer = pin!(answer);
        loop {
            tokio::select! {
                biased;
                lost = self.loss(), if !self.lost => {
                    lost?;
                    self.notice()?;
                }
                answer = &mut answer => return Ok(answer),
            }
        }
    }

    /// Reports what has changed since the last look.
    pub(super) fn look(&mut self) -> io::Result<()> {
        self.notice()?;
        if self.lost {
            return Ok(());
        }
        let changes = self.clock.changes();
        let until = validity(&self.guard, &self.clock).end();
        let has_risen = until.zip(self.until).is_some_and(|(now, before)| now > before + RENEWED);
        if has_risen {
            (self.until, self.changes) = (until, changes);
            let mut values = self.values();
            values.valid_until = self.end();
            send_event(self.event(Stage::Ok, Operation::Renew).with(values))?;
        }
        Ok(())
    }

    /// Reports the loss, once. A holder that never looks reports it when it was told.
    pub(super) fn notice(&mut self) -> io::Result<()> {
        if self.told.as_ref().is_some_and(|told| !told.is_finished()) {
            return self.restate();
        }
        let checked = self.guard.check();
        // What ended it may be a change of the clock, so this comes after the look.
        self.restate()?;
        let Err(error) = checked else { return Ok(()) };
        if self.lost {
            return Ok(());
        }
        self.lost = true;
        let cause = match error.kind() {
            ErrorKind::Lost(cause) => cause.to_string(),
            _ => error.to_string(),
        };
        let mut values = self.values();
        values.valid_until = self.end();
        send_event(self.event(Stage::Ok, Operation::Lost).with(values).because(cause))
    }

    fn event(&self, stage: Stage, operation: Operation) -> Event {
        Event::new(stage, operation).by(self.process).on(self.key.clone())
    }
}

/// Longer than any loss may be seen late.
const UNHEARD: Duration = Duration::from_secs(3);
/// A validity that rose by less than a millisecond was only read again.
const RENEWED: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use leasehold::Client;

    use super::*;
    use crate::plan::Plan;

    #[tokio::test]
    async fn loss_during_a_request_is_reported_before_its_answer() {
        let plan = Plan::new("mem:".to_owned());
        let pace = Pace::of(&plan, 0);
        let client = Client::open(&plan.url).await.unwrap();
        let holding = client.mutex("job").max_hold(Duration::from_millis(20)).lock().await;
        let clock = Arc::default();
        let mut held = HeldLock::of(holding.unwrap(), ("job".to_owned(), 0), plan.ttl, &pace, clock);
        let (sender, lost) = tokio::sync::oneshot::channel();
        // The holder knows before anyone else is granted the lock.
        let next = tokio::spawn(async move { sender.send(client.mutex("job").lock().await.is_ok()) });
        assert!(held.noticing(lost).await.unwrap().unwrap());
        assert!(held.lost);
        next.await.unwrap().unwrap();
    }
}
