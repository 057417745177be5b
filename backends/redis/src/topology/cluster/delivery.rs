//! The way of a request to the server of a cluster that serves its slot.
//!
//! A request is sent again only where it is known that nothing was done: the server refused it because
//! another one is to be asked, or was not reached. A request that was sent and not answered is reported
//! as such, also where its server was replaced meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_backend::random;
use leasehold_core::{Failure, FailureKind, doubled, jittered};
use redis::Value;
use tokio::time::Instant;

use crate::net::failures::{HalfMoved, SendError};
use crate::net::request::Request;
use crate::net::sent::RequestRole;
use crate::net::timer::{self, Limit};
use crate::protocol::error::Redirect;
use crate::protocol::slots::slot_of;
use crate::topology::cluster::{Cluster, Member};

/// The treatment of a request with several keys, of which some have moved and some have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfMovedKeys {
    Wait,
    GiveUp,
}

/// A request on its way.
struct OpenRequest {
    position: usize,
    slot: u16,
    /// The server to which the owner has sent it, for once.
    referred: Option<(String, u16)>,
    last: Option<LastFailure>,
}

/// The reason why a request failed the last time.
struct LastFailure {
    failure: Failure,
    is_outdated: bool,
}

/// The outcome of a round of requests.
#[derive(Default)]
struct RoundResult {
    stale: bool,
    first: Option<(String, u16)>,
    wait: bool,
}

impl Cluster {
    /// Runs scripts, each on the server that serves its slot. A server that does not answer delays its
    /// own requests only.
    pub(crate) async fn run_on_slots(
        &self,
        requests: &[&Request],
        limit: Duration,
        half_moved: HalfMovedKeys,
    ) -> Vec<Result<Value, Failure>> {
        let limit = Limit::of(limit);
        let mut parts: HashMap<u64, Vec<OpenRequest>> = HashMap::new();
        for (position, request) in requests.iter().enumerate() {
            let slot = request.keys.first().map_or(0, |key| slot_of(key));
            let open = OpenRequest { position, slot, referred: None, last: None };
            parts.entry(self.part(slot)).or_default().push(open);
        }
        let parts = parts.into_values().map(|open| self.run_part(open, requests, limit, half_moved));
        let mut outcomes: Vec<_> = join_all(parts).await.into_iter().flatten().collect();
        outcomes.sort_by_key(|(position, _)| *position);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// Follows requests from server to server until each has its outcome.
    async fn run_part(
        &self,
        mut open: Vec<OpenRequest>,
        requests: &[&Request],
        limit: Limit,
        half_moved: HalfMovedKeys,
    ) -> Vec<(usize, Result<Value, Failure>)> {
        let mut outcomes = Vec::with_capacity(open.len());
        for round in 0_u32.. {
            let mut result = RoundResult::default();
            let mut left = Vec::new();
            for (mut request, outcome) in self.send(open, requests, limit).await {
                let position = request.position;
                match outcome {
                    Ok(value) => outcomes.push((position, Ok(value))),
                    Err(SendError::Failed(failure)) => outcomes.push((position, Err(failure))),
                    Err(SendError::Unreached(failure)) if failure.kind != FailureKind::Unavailable => {
                        outcomes.push((position, Err(failure)));
                    }
                    Err(SendError::Unreached(failure)) => {
                        result.stale = true;
                        result.wait = true;
                        request.referred = None;
                        request.last = Some(LastFailure { failure, is_outdated: false });
                        left.push(request);
                    }
                    Err(SendError::Redirect(Redirect::Migrating, failure))
                        if half_moved == HalfMovedKeys::GiveUp && requests[position].keys.len() > 1 =>
                    {
                        outcomes.push((position, Err(failure.because(HalfMoved))));
                    }
                    Err(SendError::Redirect(redirect, failure)) => {
                        request.last =
                            Some(LastFailure { failure, is_outdated: redirect == Redirect::Outdated });
                        request.follow(redirect, &mut result);
                        left.push(request);
                    }
                }
            }
            open = left;
            if open.is_empty() {
                break;
            }
            self.learn_and_wait(&result, round, limit.end()).await;
            // A request that is sent at the end could not be answered any more, and its effect would
            // stay unknown.
            if limit.left().is_zero() {
                break;
            }
        }
        outcomes.extend(open.into_iter().map(|request| (request.position, Err(request.given_up()))));
        outcomes
    }

    /// Sends each request where it belongs, all at once.
    async fn send(
        &self,
        open: Vec<OpenRequest>,
        requests: &[&Request],
        limit: Limit,
    ) -> Vec<(OpenRequest, Result<Value, SendError>)> {
        let mut outcomes = Vec::with_capacity(open.len());
        let mut groups: HashMap<(String, RequestRole), (Arc<Member>, Vec<OpenRequest>)> = HashMap::new();
        for mut request in open {
            let (member, role) = match request.referred.take() {
                Some((host, port)) => match self.at(&host, port) {
                    Some(importer) => (Some(importer), RequestRole::Referred),
                    None => {
                        // It knows itself, and is asked which server serves what. Then the owner says
                        // again where to send the request.
                        let text =
                            format!("{host}:{port} is not known yet, and slot {} moves there", request.slot);
                        let unknown_server = Redirect::Moved { host, port };
                        outcomes.push((
                            request,
                            Err(SendError::Redirect(unknown_server, Failure::unavailable(text))),
                        ));
                        continue;
                    }
                },
                None => (self.owner(request.slot), RequestRole::Known),
            };
            match member {
                Some(member) => {
                    let group = groups.entry((member.id.clone(), role));
                    group.or_insert_with(|| (member, Vec::new())).1.push(request);
                }
                None => {
                    let failure = unserved(request.slot);
                    outcomes.push((request, Err(SendError::Redirect(Redirect::Unserved, failure))));
                }
            }
        }
        let sending = groups.into_iter().map(|((_, role), (member, group))| async move {
            let wanted: Vec<&Request> = group.iter().map(|open| requests[open.position]).collect();
            let slot = group.first().map_or(0, |open| open.slot);
            let answers = self.send_to(&member, slot, &wanted, role, limit).await;
            let answers =
                answers.into_iter().map(|answer| answer.map_err(|error| self.with_host(error, &member)));
            group.into_iter().zip(answers).collect::<Vec<_>>()
        });
        outcomes.extend(join_all(sending).await.into_iter().flatten());
        outcomes
    }

    /// Sends requests to one server. Until there is a connection nothing is sent, so that they may go to its successor.
    async fn send_to(
        &self,
        member: &Member,
        slot: u16,
        requests: &[&Request],
        role: RequestRole,
        limit: Limit,
    ) -> Vec<Result<Value, SendError>> {
        let connected = tokio::select! {
            biased;
            connected = member.conn.connect_within(limit) => connected,
            () = self.replaced(member, slot), if role == RequestRole::Known => Err(Failure::unavailable(format!(
                "{} accepted no connection, and was replaced as a primary meanwhile",
                member.conn.address()
            ))),
        };
        if let Err(failure) = connected {
            return vec![Err(SendError::Unreached(failure)); requests.len()];
        }
        tokio::select! {
            answers = member.conn.attempt(requests, role, limit) => answers,
            () = self.replaced(member, slot), if role == RequestRole::Known => {
                vec![Err(SendError::Failed(replaced(member))); requests.len()]
            }
        }
    }

    /// Fills in the host of a redirection that leaves it out: that of the server which gave it.
    fn with_host(&self, error: SendError, by: &Member) -> SendError {
        let own = || self.view().node(&by.id).map(|node| node.host.clone()).unwrap_or_default();
        let fill = |host: String| if host.is_empty() || host == "?" { own() } else { host };
        match error {
            SendError::Redirect(Redirect::Moved { host, port }, failure) => {
                SendError::Redirect(Redirect::Moved { host: fill(host), port }, failure)
            }
            SendError::Redirect(Redirect::Referred { host, port }, failure) => {
                SendError::Redirect(Redirect::Referred { host: fill(host), port }, failure)
            }
            other => other,
        }
    }

    /// Waits until another server serves the slots of a silent one.
    async fn replaced(&self, silent: &Member, slot: u16) {
        loop {
            tokio::time::sleep(SILENCE).await;
            // The lack of an answer says nothing about the server that is waited for.
            let _ = self.refresh(None).await;
            if self.owner(slot).is_some_and(|owner| owner.id != silent.id) {
                return;
            }
        }
    }

    async fn learn_and_wait(&self, result: &RoundResult, round: u32, deadline: Instant) {
        if result.stale {
            let first = result.first.as_ref().map(|(host, port)| self.endpoint_of(host, *port));
            // Without an answer, the view that is known has to do.
            _ = tokio::time::timeout_at(deadline, self.refresh(first)).await;
        }
        if result.wait || round >= EAGER_ROUNDS {
            let pause = doubled(FIRST_PAUSE, LAST_PAUSE, round);
            tokio::time::sleep_until(timer::after(jittered(pause, random::chance())).min(deadline)).await;
        }
    }
}

impl OpenRequest {
    /// Follows the refusal to where the request goes next.
    fn follow(&mut self, redirect: Redirect, result: &mut RoundResult) {
        self.referred = None;
        match redirect {
            Redirect::Moved { host, port } => {
                result.stale = true;
                // The server that serves the slot knows that best.
                result.first = Some((host, port)).filter(|(host, _)| !host.is_empty());
            }
            Redirect::Referred { host, port } => self.referred = Some((host, port)),
            Redirect::Migrating => result.wait = true,
            Redirect::Unserved => {
                result.stale = true;
                result.wait = true;
            }
            Redirect::Deposed | Redirect::Outdated => result.stale = true,
        }
    }

    fn given_up(self) -> Failure {
        if let Some(LastFailure { failure, is_outdated: true }) = self.last {
            return failure;
        }
        let last = self.last.map_or_else(String::new, |last| format!(" ({})", last.failure.detail()));
        Failure::unavailable(format!(
            "slot {} of the cluster had no server within the time limit{last}: check for a primary that is down without a \
             replica, and for a slot that was left half moved",
            self.slot
        ))
    }
}

fn replaced(silent: &Member) -> Failure {
    Failure::unanswered(format!(
        "{} did not answer, and was replaced as a primary meanwhile",
        silent.conn.address()
    ))
}

pub(crate) fn unserved(slot: u16) -> Failure {
    Failure::unavailable(format!(
        "slot {slot} is served by no server of the cluster: bring back the primary that had it, or assign it"
    ))
}

/// The first rounds follow each other at once: two servers that know different things agree by then.
const EAGER_ROUNDS: u32 = 3;

/// Pauses between later rounds. They bound how many of them fit into the limit of a request.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(160);

/// After this silence the other servers are asked whether another server serves the slot by now.
const SILENCE: Duration = Duration::from_millis(500);
