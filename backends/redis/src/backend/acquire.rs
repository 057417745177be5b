//! Acquires a claim: looks, and waits for a notification, or looks again later.
//!
//! The server decides; a waiter only has to look at the right moments. It looks when it is called, when
//! the first of those ahead may have ended, and periodically for safety, which also keeps its place.
//! Each of these is bounded.

use std::time::Duration;

use leasehold_backend::changes::patience_ended;
use leasehold_core::{
    CallWatch, Claim, DirectAnswer, DirectReply, Effect, Failure, FailureKind, Grant, Hint, Moment, Patience,
    QueueOrder, Step, spread, stagger,
};

use crate::backend::RedisBackend;
use crate::config::Wait;
use crate::net::replicas::Unconfirmed;
use crate::net::request::Request;
use crate::net::subscriber::{Notification, Subscription};
use crate::net::timer;
use crate::protocol::keys::Keys;
use crate::protocol::reply::{self, ContendReply};
use crate::protocol::scripts;
use crate::topology::server_info::{MAX_TTL, MIN_TTL, PLACE_TTL, PLACE_TTL_MILLIS};
use crate::wait::keepalive::Watched;
use crate::wait::polling::{self, LAST_POLL, TICK, pause};

impl RedisBackend {
    /// Takes one step towards holding the claim.
    pub(crate) async fn contend_step(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        check_ttl(claim.ttl)?;
        let attempt = Attempt { backend: self, claim, keys: Keys::of(&self.config.prefix, &claim.resource) };
        if patience.is_ended() {
            self.pollers.forget(claim.id);
            return Ok(match attempt.look(patience, Place::None, Expected::Free).await? {
                Outcome::Granted(grant) => Step::Granted(grant),
                Outcome::Busy(queue) => Step::Busy(Hint { ask_again_in: None, ahead: Some(queue.ahead) }),
            });
        }
        match self.config.wait {
            Wait::Poll => attempt.poll(patience).await,
            Wait::Pubsub => {
                // Before the look, so that a release after it is not missed.
                let subscription = self.subscribers.join(&attempt.keys.channel(self.scope));
                match attempt.look(patience, Place::Kept, Expected::Free).await? {
                    Outcome::Granted(grant) => Ok(Step::Granted(grant)),
                    // Boxed, so that the future of a free lock stays small.
                    Outcome::Busy(queue) => Box::pin(attempt.wait(patience, subscription, queue)).await,
                }
            }
        }
    }
}

impl RedisBackend {
    /// Asks once, over the connection that is there, and keeps no place.
    pub(crate) fn ask_for(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        check_ttl(claim.ttl).ok()?;
        let attempt = Attempt { backend: self, claim, keys: Keys::of(&self.config.prefix, &claim.resource) };
        let request = attempt.request(Place::None, Expected::Free);
        self.send_contend(claim, &request, move |answer| {
            Ok(match reply::contend_reply(answer)? {
                ContendReply::Granted(fence) => DirectReply::Granted(Grant::new(asked_at).fence(Some(fence))),
                ContendReply::Busy { ahead, .. } => DirectReply::Busy { ahead: Some(ahead) },
                ContendReply::Full => DirectReply::Declined,
            })
        })
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

/// The state in which a look expects its resource. It is a matter of cost only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Nobody holds it.
    Free,
    /// Claims wait for it, perhaps this one.
    Queue,
}

struct Attempt<'a> {
    backend: &'a RedisBackend,
    claim: &'a Claim,
    keys: Keys,
}

/// The result of one look.
enum Outcome {
    Granted(Grant),
    Busy(QueueState),
}

/// The claims ahead of a waiter.
#[derive(Clone, Copy, Debug)]
struct QueueState {
    ahead: u32,
    first_end: Duration,
    /// The time until another look challenges a claim ahead, or calls more of the queue.
    check_in: Option<Duration>,
    /// The number of waiters among those ahead. Holders do not look, so no time is left for them.
    waiters_ahead: u32,
}

impl Attempt<'_> {
    /// Looks once and says when to look again.
    async fn poll(&self, patience: &Patience) -> Result<Step, Failure> {
        match self.look(patience, Place::Kept, Expected::Free).await? {
            Outcome::Granted(grant) => {
                self.backend.pollers.forget(self.claim.id);
                Ok(Step::Granted(grant))
            }
            Outcome::Busy(queue) if patience.is_ended() => self.leave(Some(queue.ahead)).await,
            Outcome::Busy(queue) => {
                let first_change =
                    queue.check_in.map_or(queue.first_end, |check_in| check_in.min(queue.first_end));
                let pause = pause(self.claim.id, self.backend.pollers.count(self.claim.id), first_change);
                Ok(Step::Busy(Hint { ask_again_in: Some(pause), ahead: Some(queue.ahead) }))
            }
        }
    }

    /// Waits in the queue until the claim is granted or patience ends, after a first look that was not granted.
    async fn wait(
        &self,
        patience: &Patience,
        mut subscription: Option<Subscription>,
        first: QueueState,
    ) -> Result<Step, Failure> {
        let channel = self.keys.channel(self.backend.scope);
        let mut seen = Some(first);
        let mut last_ahead = None;
        let mut calls = CallWatch::default();
        for round in 0.. {
            calls.checked();
            let queue = match seen.take() {
                Some(queue) => queue,
                None => match self.look(patience, Place::Kept, Expected::Queue).await? {
                    Outcome::Granted(grant) => return Ok(Step::Granted(grant)),
                    Outcome::Busy(queue) => queue,
                },
            };
            last_ahead = Some(queue.ahead);
            if patience.is_ended() {
                break;
            }
            let Some(events) = &mut subscription else {
                // A release between the look and the subscription would be missed: look again once
                // subscribed.
                let subscribed = self.backend.subscribers.subscribe(&channel);
                subscription = tokio::select! {
                    subscribed = subscribed => match subscribed {
                        Ok(subscribed) => Some(subscribed),
                        Err(failure) => return Err(self.give_up(failure).await),
                    },
                    () = patience_ended(patience) => break,
                };
                continue;
            };
            tokio::select! {
                () = self.wait_for_change(events, queue, patience, &mut calls, round) => {}
                () = patience_ended(patience) => break,
            }
            if !self.backend.subscribers.is_current(events, &channel) {
                subscription = None;
            }
        }
        self.leave(last_ahead).await
    }

    /// Waits until something may have changed for this claim.
    async fn wait_for_change(
        &self,
        events: &mut Subscription,
        queue: QueueState,
        patience: &Patience,
        calls: &mut CallWatch,
        round: u32,
    ) {
        let is_fifo = self.backend.config.order == QueueOrder::Fifo;
        let stagger = stagger(queue.waiters_ahead);
        let watched = Watched {
            keys: self.keys.queue_keys(),
            member: reply::member(self.claim),
            place: if is_fifo { PLACE_TTL } else { Duration::ZERO },
            at_least_every: self.spread(REFRESH, round),
            stagger,
        };
        let watch = self.backend.keepalive.watch(watched, queue.first_end);
        let check_at = queue.check_in.map(|check_in| timer::after(check_in + TICK + stagger));
        loop {
            let disconnected = (!events.is_active()).then(|| timer::after(self.spread(LAST_POLL, round)));
            let unanswered =
                calls.check_at().map(|at| timer::after(patience.now().until(at) + TICK + stagger));
            let next_check = [disconnected, check_at, unanswered].into_iter().flatten().min();
            let timer = async {
                match next_check {
                    Some(next_check) => tokio::time::sleep_until(next_check).await,
                    None => std::future::pending().await,
                }
            };
            let notification = tokio::select! {
                notification = events.recv() => notification,
                () = watch.should_look() => return,
                () = timer => return,
            };
            match notification {
                Notification::Changed => return,
                _ if !is_fifo => return,
                Notification::Called { called, .. } if called.contains(&self.address()) => return,
                // Others are first. If they are dead, the waiters call more of the queue.
                Notification::Called { called, answered, lease } => {
                    calls.record(&called, answered, patience.now());
                    lease.into_iter().for_each(|lease| watch.expect_end(lease));
                }
                Notification::Freed if queue.waiters_ahead > 0 => calls.freed(patience.now()),
                Notification::Freed => {}
            }
        }
    }

    /// Builds the request that asks once.
    fn request(&self, place: Place, expected: Expected) -> Request {
        let is_ordered = self.backend.config.order == QueueOrder::Fifo;
        Request {
            script: match expected {
                Expected::Free if self.keys.hashed_name.is_empty() => &scripts::ACQUIRE,
                Expected::Free | Expected::Queue => &scripts::CONTEND,
            },
            keys: if self.backend.names_all_keys() {
                let [held, queue, places, claims, fence] = self.keys.all();
                vec![held, fence, queue, places, claims]
            } else {
                vec![self.keys.held(), self.keys.fence()]
            },
            args: vec![
                reply::single_value(self.claim),
                reply::millis(self.claim.ttl),
                reply::contend_options(
                    match (is_ordered, place) {
                        // A claim that polls hears no message.
                        (false, Place::Kept) if self.backend.config.wait == Wait::Pubsub => "!-1",
                        (false, _) => "-1",
                        (true, Place::Kept) => PLACE_TTL_MILLIS,
                        (true, Place::None) => "0",
                    },
                    self.backend.wake_scope(),
                    &self.keys,
                ),
            ],
            confirm: self.backend.confirm(reply::is_grant),
        }
    }

    /// Asks the server once.
    async fn look(&self, patience: &Patience, place: Place, expected: Expected) -> Result<Outcome, Failure> {
        let request = self.request(place, expected);
        let asked_at = patience.now();
        let limit = self.backend.limit_for(self.claim.ttl);
        let answer = match self.backend.servers.run(&request, limit).await {
            Err(failure) if Unconfirmed::cause_of(&failure).is_some_and(|of| !reply::was_held(&of.value)) => {
                return Err(self.release_unconfirmed(failure).await);
            }
            // A claim that was held before is not ended for want of replicas: its client asks again, or
            // releases it.
            answer => answer?,
        };
        match reply::contend_reply(answer)? {
            ContendReply::Granted(fence) => Ok(Outcome::Granted(Grant::new(asked_at).fence(Some(fence)))),
            ContendReply::Busy { ahead, first_end, check_in, waiters_ahead } => {
                Ok(Outcome::Busy(QueueState { ahead, first_end, check_in, waiters_ahead }))
            }
            ContendReply::Full => Err(Failure::unavailable(format!(
                "{} claims are queued for {} already: try again later",
                leasehold_core::MAX_QUEUE,
                self.claim.resource
            ))),
        }
    }

    /// Ends a grant that too few replicas have.
    async fn release_unconfirmed(&self, unconfirmed: Failure) -> Failure {
        let request = self.backend.release_request(self.claim);
        match self.backend.servers.run(&request, self.backend.config.timeout).await {
            Ok(_) => Failure::unavailable(format!(
                "{} was granted and released again: {}",
                self.claim.resource,
                unconfirmed.detail()
            )),
            // A claim that cannot be ended may remain until its ttl ends, as after any failure of this
            // effect.
            Err(failure) if failure.effect == Effect::None => unconfirmed,
            Err(_) => unconfirmed.with_release_unanswered(),
        }
    }

    /// Gives up the place. Nothing of the claim remains.
    async fn leave(&self, ahead: Option<u32>) -> Result<Step, Failure> {
        self.backend.pollers.forget(self.claim.id);
        if self.backend.config.order == QueueOrder::Fifo {
            let request = self.backend.release_request(self.claim);
            let released = self.backend.servers.run(&request, self.backend.config.timeout).await;
            released.map_err(Failure::of_release)?;
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

    fn spread(&self, pause: Duration, round: u32) -> Duration {
        spread(self.claim.id, pause, round)
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
