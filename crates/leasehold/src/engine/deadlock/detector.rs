//! Deadlock detection for one wait of an owner.
//!
//! Ground rules: only an owner that both holds and waits can be part of a deadlock, so no other owner
//! announces or reads anything. A wait is announced as a claim of its own. That claim is withdrawn before
//! the owner continues, whether or not the wait was granted, because otherwise the owner would still
//! count as waiting. One wait of each deadlock finds that it has to give up: all of them read the
//! same announcements. A wait that never gives up is announced all the same, and never ends for a reason
//! that is found here.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_core::deadlock::{Announced, Deadlock, DeadlockedWait, Places, Tag};
use leasehold_core::{ClaimId, Liveness, QueueOrder, Resource};

use crate::engine::DeadlockCheck;
use crate::engine::Engine;
use crate::engine::Wait;
use crate::engine::Want;
use crate::engine::Wanted;
use crate::engine::deadline::Deadline;
use crate::engine::hold::Hold;
use crate::engine::hold::handle::HoldHandle;
use crate::engine::hold::owner::Owner;
use crate::engine::lease::State;
use crate::engine::release::job::Released;
use crate::engine::retry::jittered;
use crate::error::{Error, ErrorKind, Result};
use crate::panics::logged;

/// Runs one acquisition of an owner. Once it has waited for `check.after`, it may end with `Deadlock`, where
/// it is the wait that has to give up.
pub(crate) async fn watched(
    engine: &Arc<Engine>,
    owner: &Owner,
    want: &Want,
    check: DeadlockCheck,
    acquiring: impl Future<Output = Result<Option<HoldHandle>>>,
) -> Result<Option<HoldHandle>> {
    let mut detector = DeadlockDetector {
        engine: engine.clone(),
        owner: owner.clone(),
        want: want.clone(),
        gives_up: check.gives_up,
        number: None,
        pending: None,
        current: None,
        withdrawal: None,
    };
    let outcome = tokio::select! {
        biased;
        outcome = acquiring => outcome,
        error = detector.run(check.after) => Err(error),
    };
    detector.end().await;
    // Withdrawing may have taken as long as a lease, so the lock may be lost by now.
    match &outcome {
        Ok(Some(hold)) => match hold.lease().state() {
            State::Lost(cause) => Err(Error::lost("lock", cause, &want.resource)),
            _ => outcome,
        },
        _ => outcome,
    }
}

/// The announcement of one wait. Each step is kept here while it is under way, so that none is lost when the
/// wait ends in the middle of it.
struct DeadlockDetector {
    engine: Arc<Engine>,
    owner: Owner,
    want: Want,
    /// `true` if a deadlock ends the wait, `false` if it is only logged.
    gives_up: bool,
    /// The number of the wait, once one was chosen. It stays when the wait is announced anew: another wait of
    /// the deadlock may have decided by it already, and be about to end.
    number: Option<u64>,
    pending: Option<(Announced, BoxFuture<'static, Result<Option<Hold>>>)>,
    current: Option<(Announced, Hold)>,
    withdrawal: Option<BoxFuture<'static, Released>>,
}

impl DeadlockDetector {
    /// Checks for deadlocks until this wait has to give up because of one, or until no check is possible.
    /// Returns the error with which the wait ends.
    async fn run(&mut self, after: Duration) -> Error {
        sleep(&self.engine, after).await;
        let mut pause = CHECK_FIRST;
        let mut is_logged = false;
        loop {
            match self.check().await {
                Ok(None) => is_logged = false,
                Ok(Some(deadlock)) if self.gives_up => return self.deadlock_error(&deadlock),
                Ok(Some(deadlock)) => {
                    if !is_logged {
                        logged!(warn, resource = %self.want.resource, "waiters wait for each other for ever: {deadlock}");
                    }
                    is_logged = true;
                }
                // The wait itself reports an outage, or the end of the client.
                Err(error) if is_passing(&error) => {
                    logged!(debug, resource = %self.want.resource, %error, "looking for a deadlock failed");
                }
                Err(error) if self.gives_up => return error.with_op("lock"),
                Err(error) => {
                    logged!(warn, resource = %self.want.resource, %error, "a wait cannot be announced");
                    return std::future::pending().await;
                }
            }
            sleep(&self.engine, jittered(pause)).await;
            pause = (pause * 2).min(CHECK_LAST);
        }
    }

    fn deadlock_error(&self, deadlock: &Deadlock) -> Error {
        let text = format!(
            "this wait ends because the waiters would wait for each other for ever: {deadlock}; release what you hold, \
             and try again"
        );
        Error::new(ErrorKind::Deadlock, "lock", text).on(&self.want.resource)
    }

    /// Checks once. Returns a deadlock if this wait is the one that has to give up; if it never does, any that
    /// it is part of.
    async fn check(&mut self) -> Result<Option<Deadlock>> {
        let holds = self.engine.owners.holds(&self.owner);
        // Where the store keeps no order, a claim further ahead in the queue does not block.
        let in_order = self.engine.profile().order == QueueOrder::Fifo;
        let asks = self.engine.queues.queued_claim(&self.want).filter(|_| in_order).map(Tag::of);
        let is_current = |(announced, hold): &(Announced, Hold)| {
            (&announced.holds, announced.asks) == (&holds, asks)
                && !matches!(hold.lease().state(), State::Lost(_))
        };
        if !self.current.as_ref().is_some_and(is_current) {
            self.end().await;
        }
        if holds.is_empty() {
            return Ok(None);
        }
        let mut waits = self.engine.announced().await?;
        if self.current.is_none() {
            self.announce(&waits, asks, holds).await?;
            waits = self.engine.announced().await?;
        }
        let Some((own, _)) = &self.current else {
            logged!(
                warn,
                resource = %self.want.resource,
                "a wait is not announced, because too many others are: a deadlock that it is part of is not found"
            );
            return Ok(None);
        };
        let is_own = |wait: &DeadlockedWait| wait.id == own.id;
        let is_ours = |deadlock: &Deadlock| match self.gives_up {
            true => deadlock.waits.first().is_some_and(is_own),
            false => deadlock.waits.iter().any(is_own),
        };
        Ok(self.engine.deadlocks_among(&waits, is_ours).await?.pop())
    }

    /// Announces the wait at one of the places that seem to be free.
    async fn announce(&mut self, waits: &[Announced], asks: Option<Tag>, holds: Vec<Tag>) -> Result<()> {
        let chosen = self.number.unwrap_or_else(|| number_after(waits));
        self.number = Some(chosen);
        // The greatest number gives up, so a wait that never does has the smallest.
        let number = if self.gives_up { chosen } else { 0 };
        let ttl = match self.engine.profile().liveness {
            Liveness::Lease { min, .. } => self.want.ttl.min(TTL_MAX).max(min),
            _ => self.want.ttl,
        };
        let places = Places::of(self.engine.profile())?;
        for place in free(&places, waits) {
            let announced = Announced {
                place: place.clone(),
                // Replaced by the id of the announcing claim once that is granted.
                id: ClaimId::from_bytes([0; 16]),
                number,
                resource: self.want.resource.clone(),
                share: self.want.share,
                asks,
                holds: holds.clone(),
                note: self.want.note.as_str().to_owned(),
            };
            let want = Want::of(Wanted {
                resource: place,
                share: places.share,
                ttl,
                lock_delay: Duration::ZERO,
                max_hold: None,
                linger: Duration::ZERO,
                note: announced.to_note(),
            });
            let engine = self.engine.clone();
            let request = async move {
                let now = Deadline::of(Wait::No, &engine);
                engine.acquire_unowned(want, now, 0).await
            };
            self.pending = Some((announced, Box::pin(request)));
            self.finish_pending().await?;
            if self.current.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Waits until the announcement under way is granted or refused.
    async fn finish_pending(&mut self) -> Result<()> {
        let Some((_, request)) = &mut self.pending else { return Ok(()) };
        let made = request.await;
        let Some((announced, _)) = self.pending.take() else { return Ok(()) };
        if let Some(hold) = made? {
            let id = hold.lease().claim.id;
            self.current = Some((Announced { id, ..announced }, hold));
        }
        Ok(())
    }

    /// Withdraws the announcement, and waits until that is confirmed or the announcement's lease is over.
    async fn end(&mut self) {
        // A refused announcement needs no withdrawal; one that may have been granted is released by
        // the engine.
        drop(self.finish_pending().await);
        if let Some((_, hold)) = self.current.take() {
            self.withdrawal = Some(Box::pin(hold.release().1));
        }
        if let Some(withdrawal) = &mut self.withdrawal {
            withdrawal.await;
        }
        self.withdrawal = None;
    }
}

/// Sleeps; never returns if the client closes, which ends the wait itself.
async fn sleep(engine: &Arc<Engine>, length: Duration) {
    if !engine.sleep(length).await {
        std::future::pending().await
    }
}

/// Returns a number that is greater than those of these waits. Two waits that see the same ones seldom get the
/// same number, which an announcement made anew would put in another order.
fn number_after(waits: &[Announced]) -> u64 {
    let greatest = waits.iter().map(|wait| wait.number).max().unwrap_or_default();
    let drawn = crate::random::u32().unwrap_or_default();
    greatest.saturating_add(1 + u64::from(drawn))
}

/// Returns a few places that are free as far as is known, in a random order so that two waits that check
/// at the same time seldom choose the same.
fn free(places: &Places, waits: &[Announced]) -> Vec<Resource> {
    if waits.len() >= places.most {
        return Vec::new();
    }
    let is_free =
        |place: &&Resource| places.names.len() == 1 || waits.iter().all(|wait| wait.place != **place);
    let first = crate::random::u32().unwrap_or_default() as usize % places.names.len();
    let (before, behind) = places.names.split_at(first);
    behind.iter().chain(before).filter(is_free).take(TRIES).cloned().collect()
}

fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown | ErrorKind::Closed)
}

const CHECK_FIRST: Duration = Duration::from_secs(1);
const CHECK_LAST: Duration = Duration::from_secs(5);
/// The number of places that one check tries.
const TRIES: usize = 4;
/// The maximum lease of an announcement: for this long a server that does not answer can delay the end of
/// a wait.
const TTL_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use leasehold_core::Share;

    use super::*;

    fn place(number: usize) -> Resource {
        Resource::new(&format!("place/{number}")).unwrap()
    }

    /// Returns a wait that is announced at that place.
    fn wait_at(number: usize) -> Announced {
        Announced {
            place: place(number),
            id: ClaimId::from_bytes([1; 16]),
            number: 1,
            resource: Resource::new("job").unwrap(),
            share: Share::MUTEX,
            asks: None,
            holds: Vec::new(),
            note: String::new(),
        }
    }

    #[test]
    fn wait_is_announced_where_there_is_room_for_it() {
        let shared = Places { names: vec![place(0)], share: Share::READER, most: 2 };
        assert_eq!(free(&shared, &[wait_at(0)]), [place(0)]);
        assert_eq!(free(&shared, &[wait_at(0), wait_at(0)]), []);
        let exclusive = Places { names: (0..8).map(place).collect(), share: Share::MUTEX, most: 8 };
        for _ in 0..20 {
            let found = free(&exclusive, &[wait_at(0), wait_at(3)]);
            assert_eq!(found.len(), TRIES);
            assert!(!found.contains(&place(0)) && !found.contains(&place(3)), "{found:?}");
        }
        let all: Vec<_> = (0..8).map(wait_at).collect();
        assert_eq!(free(&exclusive, &all[1..]), [place(0)]);
        assert_eq!(free(&exclusive, &all), []);
    }
}
