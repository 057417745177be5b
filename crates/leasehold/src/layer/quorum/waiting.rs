//! How a claim comes to be held: try, and wait for news, or try again later.
//!
//! Waiters have no common line. When a holder leaves, all hear of it, and each waits a part of a moment by chance, the
//! longer the more they are; whoever asks first is granted, and that is heard by the others, who need not
//! ask. Where two ask at once, each takes all of its locks back and tries again after another part of a moment.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::quorum::{Member, News};
use leasehold_core::{Claim, Failure, Hint, Patience, Resource, Step};
use leasehold_machine::Unforked;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Quorum;
use super::attempt::Outcome;
use super::seats::{at, some_of};
use super::timer::after;

/// How many of this client wait for each resource, and how long a try takes.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd(Arc<Mutex<HashMap<Resource, u32>>>, Arc<AtomicU64>);

/// One of them.
struct Present {
    crowd: Crowd,
    resource: Resource,
}

impl Crowd {
    fn enter(&self, resource: &Resource) -> Present {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(resource.clone()).or_default() += 1;
        Present { crowd: self.clone(), resource: resource.clone() }
    }

    /// Learns how long a try has taken.
    fn took(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 8);
        let before = self.1.load(Ordering::Relaxed);
        // Whatever is lost where two learn at once is learned from the next.
        self.1.store(before - before / 8 + micros.min(SPREAD_MAX.as_micros() as u64) / 8, Ordering::Relaxed);
    }

    /// How far apart those who wait are to try: about as long as a try takes, so that the others hear of the one who was first.
    fn slot(&self) -> Duration {
        Duration::from_micros(self.1.load(Ordering::Relaxed)).max(SLOT)
    }
}

impl Present {
    fn count(&self) -> u32 {
        let counts = self.crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&self.resource).copied().unwrap_or(1)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut counts = self.crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.resource) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.resource);
            }
        }
    }
}

impl Quorum {
    /// One step towards holding: it waits until the claim is granted or patience ends.
    pub(super) async fn step(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let claim = Arc::new(claim.clone());
        let present = self.crowd.enter(&claim.resource);
        let mut ears: Option<Ears> = None;
        let mut splits = 0;
        loop {
            // A release that is heard of during the attempt is one that it may have missed.
            let began = patience.now();
            let outcome = self.attempt(&claim, patience).await;
            self.crowd.took(patience.now().since(began));
            let slot = self.crowd.slot();
            let ended = patience.is_ended();
            match outcome {
                Outcome::Granted(grant) => return Ok(Step::Granted(grant)),
                Outcome::Failed(failure) => return Err(failure),
                Outcome::Split if ended && splits >= LOOKS => return Ok(Step::Busy(Hint::default())),
                Outcome::Split => {
                    let ceiling = (slot * 2).saturating_mul(1 << splits.min(6)).min(LAST_PAUSE);
                    splits += 1;
                    tokio::time::sleep(some_of(ceiling)).await;
                }
                Outcome::Busy { .. } if ended => {
                    return Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(1) }));
                }
                Outcome::Busy { free_in, listeners } => {
                    splits = 0;
                    let crowd = listeners.max(1).saturating_mul(present.count());
                    let Some(ears) = &mut ears else {
                        // What is released between the attempt and the listening would go unheard: try again.
                        ears = tokio::select! {
                            listening = self.listen(&claim.resource) => Some(listening),
                            () = over(patience) => None,
                        };
                        if ears.is_none() {
                            return Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(1) }));
                        }
                        continue;
                    };
                    tokio::select! {
                        () = ears.until_worth_a_try(free_in, spread(crowd, slot)) => {}
                        () = over(patience) => {
                            return Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(1) }));
                        }
                    }
                }
            }
        }
    }

    /// Listens to all members, and comes back when a majority is heard or the rest is late.
    async fn listen(&self, resource: &Resource) -> Ears {
        let (sender, inbox) = mpsc::channel(BACKLOG);
        let (ready, mut readies) = mpsc::channel(self.seats.count().max(1));
        let mut tasks = JoinSet::new();
        for number in 0..self.seats.count() {
            let Some(member) = self.seats.member(number) else { continue };
            let listening = listen_to(number, member, resource.clone(), sender.clone(), ready.clone());
            tasks.spawn(Unforked::new(listening));
        }
        drop(ready);
        let mut hearing = HashSet::new();
        let end = after(LISTEN_LIMIT);
        while hearing.len() < self.seats.majority() {
            tokio::select! {
                number = readies.recv() => match number {
                    Some(number) => _ = hearing.insert(number),
                    None => break,
                },
                () = at(Some(end)) => break,
            }
        }
        // A minority that comes later is heard as well; what it might have told meanwhile, the majority told.
        Ears { inbox, hearing, majority: self.seats.majority(), _tasks: tasks }
    }
}

/// Hears all members on one resource. Dropping it ends the listening.
struct Ears {
    inbox: mpsc::Receiver<(usize, News, bool)>,
    /// The members that can be heard at present.
    hearing: HashSet<usize>,
    majority: usize,
    _tasks: JoinSet<()>,
}

impl Ears {
    /// Comes back when something may have changed for whoever waits.
    ///
    /// # Cancel safety
    /// Dropping the future may lose news: the caller is about to leave.
    async fn until_worth_a_try(&mut self, free_in: Duration, spread: Duration) {
        // The lease ahead is looked after now and then also where it is long: word may have been lost.
        let mut look_at = after((free_in + TICK).min(REFRESH) + some_of(spread));
        if self.hearing.len() < self.majority {
            look_at = look_at.min(after(DEAF_PAUSE / 2 + some_of(DEAF_PAUSE)));
        }
        let mut freed = HashSet::new();
        let mut soon: Option<Instant> = None;
        loop {
            let next = soon.map_or(look_at, |soon| soon.min(look_at));
            let told = tokio::select! {
                told = self.inbox.recv() => told,
                () = at(Some(next)) => return,
            };
            let Some((number, news, hearing)) = told else { return at(Some(next)).await };
            if hearing {
                self.hearing.insert(number)
            } else {
                self.hearing.remove(&number)
            };
            match news {
                News::Freed => {
                    freed.insert(number);
                    // A try before a majority has let go would find it held.
                    let settled = freed.len() >= self.majority;
                    let then = after(some_of(spread) + if settled { Duration::ZERO } else { SETTLE });
                    soon = Some(soon.map_or(then, |soon| if settled { soon.min(then) } else { soon }));
                }
                // Another was faster. Its end will be told as well.
                News::Taken => {
                    freed.clear();
                    soon = None;
                }
                News::Unknown => {
                    let then = after(some_of(spread.max(SETTLE)));
                    soon = Some(soon.map_or(then, |soon| soon.min(then)));
                }
            }
        }
    }
}

/// Passes the news of one member on, for as long as somebody wants them.
async fn listen_to(
    number: usize,
    member: Arc<dyn Member>,
    resource: Resource,
    sender: mpsc::Sender<(usize, News, bool)>,
    ready: mpsc::Sender<usize>,
) {
    let mut ear = loop {
        match member.listen(&resource).await {
            Ok(ear) => break ear,
            Err(failure) => {
                tracing::debug!(%failure, "a server of the quorum cannot be listened to");
                tokio::time::sleep(REFRESH).await;
            }
        }
    };
    if ear.is_hearing() {
        // Whoever listens may have enough already.
        let _ = ready.send(number).await;
    }
    drop(ready);
    loop {
        let news = ear.hear().await;
        if sender.send((number, news, ear.is_hearing())).await.is_err() {
            return;
        }
    }
}

/// By how much so many waiters are to be spread.
fn spread(crowd: u32, slot: Duration) -> Duration {
    slot.saturating_mul(crowd.saturating_sub(1)).min(SPREAD_MAX)
}

/// Comes back when patience has ended, by word or by the clock.
pub(super) async fn over(patience: &Patience) {
    let left = patience.left();
    if left == Duration::MAX {
        return patience.ended().await;
    }
    tokio::select! {
        () = patience.ended() => {}
        () = tokio::time::sleep(left) => {}
    }
}

/// How often one that may only look tries again where nobody has a majority.
const LOOKS: u32 = 3;
/// The longest pause after an attempt of several at once.
const LAST_PAUSE: Duration = Duration::from_millis(250);
/// How far apart waiters are to try at least.
const SLOT: Duration = Duration::from_millis(2);
const SPREAD_MAX: Duration = Duration::from_millis(400);
/// How long after the first word of a release the majority is waited for.
const SETTLE: Duration = Duration::from_millis(5);
/// The server counts in milliseconds; a try in the very millisecond of an end is one too early.
const TICK: Duration = Duration::from_millis(2);
/// The longest time between two tries, and between two attempts to listen to a member.
const REFRESH: Duration = Duration::from_secs(20);
/// About how often one tries that cannot hear a majority.
const DEAF_PAUSE: Duration = Duration::from_millis(500);
const LISTEN_LIMIT: Duration = Duration::from_millis(500);
/// News that may be unread; those who send wait.
const BACKLOG: usize = 64;
