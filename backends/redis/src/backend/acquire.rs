//! The way of a claim to being held: look, and wait for news, or look again later.
//!
//! The server decides; a waiter only has to look at the right moments. It looks when its turn is
//! called, when the first of those ahead may have ended, and now and then for safety, which also keeps
//! its place. Each of these is bounded.

use std::time::Duration;

use leasehold_core::{
    CallWatch, Claim, Effect, Failure, FailureKind, Grant, Hint, Patience, Proof, QueueOrder, Step, stagger,
};

use crate::backend::RedisBackend;
use crate::config::Wait;
use crate::net::command_conn::Request;
use crate::net::replicas::Unconfirmed;
use crate::net::subscriber::{Ear, News};
use crate::net::timer;
use crate::protocol::keys::Keys;
use crate::protocol::reply::{self, Look};
use crate::protocol::scripts;
use crate::topology::server::{MAX_TTL, MIN_TTL, PLACE_TTL};
use crate::wait::keepalive::Watched;
use crate::wait::polling::{self, LAST_POLL, TICK};

impl RedisBackend {
    /// Takes one step towards holding the claim.
    pub(crate) async fn step(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        check_ttl(claim.ttl)?;
        let asking = Asking { backend: self, claim, keys: Keys::of(&self.config.prefix, &claim.resource) };
        if patience.is_ended() {
            self.pollers.forget(claim.id);
            return Ok(match asking.look(patience, Place::None).await? {
                Seen::Granted(grant) => Step::Granted(grant),
                Seen::Busy(line) => Step::Busy(Hint { ask_again_in: None, ahead: Some(line.ahead) }),
            });
        }
        match self.config.wait {
            Wait::Poll => asking.poll(patience).await,
            Wait::Pubsub => asking.wait(patience).await,
        }
    }
}

/// Longest time between two looks of a waiter: a third of what its place is kept, so that two may fail.
const REFRESH: Duration = Duration::from_secs(PLACE_TTL.as_secs() / 3);

/// The server's treatment of a claim that is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It keeps a place in the queue, or none where waiters have no order.
    Kept,
    /// It goes away.
    None,
}

struct Asking<'a> {
    backend: &'a RedisBackend,
    claim: &'a Claim,
    keys: Keys,
}

/// The result of one look.
enum Seen {
    Granted(Grant),
    Busy(Line),
}

/// The claims ahead of a waiter.
#[derive(Clone, Copy, Debug)]
struct Line {
    ahead: u32,
    first_end: Duration,
    /// The time until another look challenges a claim ahead, or calls more of the queue.
    look_in: Option<Duration>,
    /// The number of those ahead that wait, too. Holders do not look, so they are left no time for it.
    behind: u32,
}

impl Asking<'_> {
    /// Looks once and says when to look again.
    async fn poll(&self, patience: &Patience) -> Result<Step, Failure> {
        match self.look(patience, Place::Kept).await? {
            Seen::Granted(grant) => {
                self.backend.pollers.forget(self.claim.id);
                Ok(Step::Granted(grant))
            }
            Seen::Busy(line) if patience.is_ended() => self.leave(Some(line.ahead)).await,
            Seen::Busy(line) => {
                let worth_it = line.look_in.map_or(line.first_end, |look_in| look_in.min(line.first_end));
                let pause = self.backend.pollers.pause(self.claim.id, worth_it);
                Ok(Step::Busy(Hint { ask_again_in: Some(pause), ahead: Some(line.ahead) }))
            }
        }
    }

    /// Waits in the queue until the claim is granted or patience ends.
    async fn wait(&self, patience: &Patience) -> Result<Step, Failure> {
        let channel = self.keys.channel(self.backend.reach);
        let mut heard = self.backend.listening.overhear(&channel);
        let mut last_ahead = None;
        let mut calls = CallWatch::default();
        for round in 0.. {
            calls.look();
            let line = match self.look(patience, Place::Kept).await? {
                Seen::Granted(grant) => return Ok(Step::Granted(grant)),
                Seen::Busy(line) => line,
            };
            last_ahead = Some(line.ahead);
            if patience.is_ended() {
                break;
            }
            let Some(ear) = &mut heard else {
                // A release between the look and the subscription would go unheard: look again once
                // subscribed.
                let listening = self.backend.listening.listen(&channel);
                heard = tokio::select! {
                    listening = listening => match listening {
                        Ok(listening) => Some(listening),
                        Err(failure) => return Err(self.give_up(failure).await),
                    },
                    () = ended(patience) => break,
                };
                continue;
            };
            tokio::select! {
                () = self.until_worth_a_look(ear, line, (patience, &mut calls), round) => {}
                () = ended(patience) => break,
            }
            if !self.backend.listening.is_right(ear, &channel) {
                heard = None;
            }
        }
        self.leave(last_ahead).await
    }

    /// Comes back when something may have changed for this claim.
    async fn until_worth_a_look(
        &self,
        ear: &mut Ear,
        line: Line,
        (patience, calls): (&Patience, &mut CallWatch),
        round: u32,
    ) {
        let in_line = self.backend.config.order == QueueOrder::Fifo;
        let stagger = stagger(line.behind);
        let watched = Watched {
            keys: self.keys.line(),
            member: reply::member(self.claim),
            place: if in_line { PLACE_TTL } else { Duration::ZERO },
            at_least_every: self.jittered(REFRESH, round),
            stagger,
        };
        let watch = self.backend.keepalive.watch(watched, line.first_end);
        let silent = line.look_in.map(|look_in| timer::after(look_in + TICK + stagger));
        loop {
            let deaf = (!ear.is_hearing()).then(|| timer::after(self.jittered(LAST_POLL, round)));
            let unanswered =
                calls.look_at().map(|at| timer::after(patience.now().until(at) + TICK + stagger));
            let look_at = [deaf, silent, unanswered].into_iter().flatten().min();
            let timer = async {
                match look_at {
                    Some(look_at) => tokio::time::sleep_until(look_at).await,
                    None => std::future::pending().await,
                }
            };
            let news = tokio::select! {
                news = ear.hear() => news,
                () = watch.should_look() => return,
                () = timer => return,
            };
            match news {
                News::Everyone => return,
                _ if !in_line => return,
                News::Called { called, .. } if called.contains(&self.address()) => return,
                // Others are first. If they are dead, the waiters call more of the queue.
                News::Called { called, answered } => {
                    calls.hear(&called, answered, patience.now());
                }
                News::Freed if line.behind > 0 => calls.freed(patience.now()),
                News::Freed => {}
            }
        }
    }

    /// Asks the server once.
    async fn look(&self, patience: &Patience, place: Place) -> Result<Seen, Failure> {
        let wait = match (self.backend.config.order, place) {
            (QueueOrder::Unordered, _) => -1,
            (_, Place::None) => 0,
            (_, Place::Kept) => i64::try_from(PLACE_TTL.as_millis()).unwrap_or(i64::MAX),
        };
        let request = Request {
            script: &scripts::CONTEND,
            keys: self.keys.all().into(),
            args: vec![
                reply::member(self.claim),
                reply::millis(self.claim.ttl),
                wait.to_string(),
                self.claim.note.as_str().to_owned(),
                self.keys.hashed_name.clone(),
                self.backend.told_on(&self.keys),
                self.keys.floor(),
            ],
            confirm: self.backend.confirm(reply::is_grant),
        };
        let asked_at = patience.now();
        let limit = self.backend.limit_for(self.claim.ttl);
        let answer = match self.backend.wire.run(&request, limit).await {
            Err(failure) if Unconfirmed::behind(&failure).is_some_and(|of| !reply::was_held(&of.value)) => {
                return Err(self.give_back(failure).await);
            }
            // A claim that was held before is not ended for want of replicas: its client asks again, or
            // releases it.
            answer => answer?,
        };
        match reply::look(answer)? {
            Look::Granted(fence) => {
                Ok(Seen::Granted(Grant { asked_at, fence: Some(fence), lost: None, proof: Proof::none() }))
            }
            Look::Busy { ahead, first_end, look_in, behind } => {
                Ok(Seen::Busy(Line { ahead, first_end, look_in, behind }))
            }
            Look::Full => Err(Failure::unavailable(format!(
                "{} claims are queued for {} already: try again later",
                leasehold_core::MAX_LINE,
                self.claim.resource
            ))),
        }
    }

    /// Ends a grant that too few replicas have.
    async fn give_back(&self, unconfirmed: Failure) -> Failure {
        let request = self.backend.release_request(self.claim);
        match self.backend.wire.run(&request, self.backend.config.timeout).await {
            Ok(_) => Failure::unavailable(format!(
                "{} was granted and released again: {}",
                self.claim.resource,
                unconfirmed.detail()
            )),
            // A claim that cannot be ended may remain until its ttl ends, as after any failure of this
            // effect.
            Err(_) => unconfirmed,
        }
    }

    /// Gives up the place. Nothing of the claim remains.
    async fn leave(&self, ahead: Option<u32>) -> Result<Step, Failure> {
        self.backend.pollers.forget(self.claim.id);
        if self.backend.config.order == QueueOrder::Fifo {
            let request = self.backend.release_request(self.claim);
            self.backend.wire.run(&request, self.backend.config.timeout).await?;
        }
        Ok(Step::Busy(Hint { ask_again_in: None, ahead }))
    }

    /// Leaves the queue because of a permanent failure. What is left of the claim expires.
    async fn give_up(&self, failure: Failure) -> Failure {
        match self.leave(None).await {
            Ok(_) => failure,
            Err(unfinished) => unfinished,
        }
    }

    /// Returns the address by which this claim is called.
    fn address(&self) -> u32 {
        polling::address(self.claim.id)
    }

    fn jittered(&self, pause: Duration, round: u32) -> Duration {
        polling::jittered(self.claim.id, pause, round)
    }
}

/// Refuses a ttl that cannot be kept.
pub(crate) fn check_ttl(ttl: Duration) -> Result<(), Failure> {
    if (MIN_TTL..=MAX_TTL).contains(&ttl) {
        return Ok(());
    }
    let shown = humantime::format_duration;
    Err(Failure::new(
        FailureKind::Invalid,
        Effect::None,
        format!("a ttl of {} cannot be kept: choose {} to {}", shown(ttl), shown(MIN_TTL), shown(MAX_TTL)),
    ))
}

/// Comes back when patience has ended, by word or by the clock.
pub(crate) async fn ended(patience: &Patience) {
    let left = patience.left();
    if left == Duration::MAX {
        return patience.ended().await;
    }
    tokio::select! {
        () = patience.ended() => {}
        () = tokio::time::sleep(left) => {}
    }
}
