//! The plain dialect: one item per lock, there while it is held, as many libraries do it by `add`.
//!
//! Ground rules: an item is changed or removed only under the number that it had when it was seen to be the
//! claim's own. So one that ran out and was taken by another client is never touched, by any late or
//! repeated request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{BATCH_MAX, check, pause};
use leasehold_backend::pollers::Pollers;
use leasehold_core::{
    Backend, Claim, ClaimId, Failure, Fence, Finding, Grant, Hint, LockSupport, Patience, Profile, Proof,
    QueueOrder, Release, Renew, Renewal, Resource, ResourceSummary, Snapshot, SnapshotVersion, Step,
};

use crate::backend::cells::{fence, profile};
use crate::backend::diagnose;
use crate::backend::list::Found;
use crate::compat::token::{PlainHolder, Token};
use crate::net::error;
use crate::net::link::Link;
use crate::net::servers::{Answer, Servers};
use crate::protocol::command::{Command, Life};
use crate::protocol::reply::Reply;

/// Plain locks on all servers.
#[derive(Debug)]
pub(crate) struct PlainBackend {
    pub(crate) servers: Servers,
    profile: Profile,
    pollers: Pollers,
    numbers: Mutex<HashMap<ClaimId, Numbered>>,
}

/// The item of a claim as this client left it, which spares a read before its release. A guess, proved or
/// refuted by the condition of the removal.
#[derive(Clone, Copy, Debug)]
struct Numbered {
    epoch: u64,
    number: u64,
}

impl PlainBackend {
    pub(crate) fn new(servers: Servers) -> PlainBackend {
        PlainBackend {
            servers,
            profile: profile(LockSupport::Exclusive, QueueOrder::Unordered, Duration::ZERO),
            pollers: Pollers::default(),
            numbers: Mutex::default(),
        }
    }

    /// Asks once: for the item, and for what is in its way.
    async fn try_take(&self, claim: &Claim) -> Result<Taken, Failure> {
        let (node, key) = (self.servers.node(&claim.resource), self.servers.key(&claim.resource)?);
        let link = node.link().await?;
        let value = owner(claim, None).to_value();
        let life = Life::of_lease(claim.ttl);
        let add = Command::Add { key: &key, life, value: &value };
        let replies = node.ask(&link, &[add, Command::Look { key: &key }]).await?;
        let [added, found] = &replies[..] else {
            return Err(node.unexpected(&Reply::Missing { mark: None }));
        };
        let Reply::Item { value, number, left, .. } = found else {
            return match (added, found) {
                // It ran out, or was removed, between the two.
                (Reply::Done { .. } | Reply::Differs { .. }, Reply::Missing { .. }) => Ok(Taken::Again),
                (refused, _) => Err(node.unexpected(refused)),
            };
        };
        let owner = match Token::read(value) {
            Token::Ours(owner) => owner,
            Token::Foreign(_) => return Ok(Taken::Busy(remaining(*left))),
        };
        if owner.resource != claim.resource {
            return Err(error::of_collision(&claim.resource, &owner.resource));
        }
        if owner.id != claim.id {
            return Ok(Taken::Busy(remaining(*left)));
        }
        let granted = owner.fence.unwrap_or_else(|| fence(&link, *number));
        if matches!(added, Reply::Done { .. }) {
            self.remember(claim.id, &link, *number);
            return Ok(Taken::Yes(granted));
        }
        // An attempt before this one took it. The lease begins anew, or the grant would promise more than
        // there is.
        let renewed = PlainHolder { fence: Some(granted), ..owner }.to_value();
        let replace =
            Command::Replace { key: &key, life: longer(life, *left), value: &renewed, number: *number };
        match node.ask(&link, &[replace]).await?.pop() {
            Some(Reply::Done { .. }) => Ok(Taken::Yes(granted)),
            Some(Reply::Differs { .. } | Reply::Missing { .. }) => Ok(Taken::Again),
            reply => Err(node.unexpected(&reply.unwrap_or(Reply::Missing { mark: None }))),
        }
    }

    /// Reads all of them, then extends those that are still their claims' own.
    async fn renew_batch(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let mut renewals = vec![Renewal::Lost; batch.len()];
        let mut open: Vec<usize> = Vec::with_capacity(batch.len());
        for (at, Renew { claim, .. }) in batch.iter().enumerate() {
            match check(&self.profile, claim) {
                Ok(()) => open.push(at),
                Err(failure) => renewals[at] = Renewal::Unknown(failure),
            }
        }
        for _ in 0..MAX_TRIES {
            if open.is_empty() {
                break;
            }
            let claims: Vec<&Claim> = open.iter().map(|at| batch[*at].claim).collect();
            let mut again = Vec::new();
            for (at, outcome) in open.into_iter().zip(self.extend(&claims).await) {
                match outcome {
                    Ok(Some(true)) => renewals[at] = Renewal::Renewed,
                    Ok(Some(false)) => renewals[at] = Renewal::Lost,
                    // Changed between look and write: by a repeated request of its own, or by its end.
                    Ok(None) => {
                        renewals[at] =
                            Renewal::Unknown(Failure::unavailable("it changed while it was renewed"));
                        again.push(at);
                    }
                    Err(failure) => renewals[at] = Renewal::Unknown(failure),
                }
            }
            open = again;
        }
        renewals
    }

    async fn extend(&self, claims: &[&Claim]) -> Vec<Result<Option<bool>, Failure>> {
        let owned = self.owned(claims).await;
        let values: Vec<Option<(Vec<u8>, Life)>> = owned
            .iter()
            .zip(claims)
            .map(|(owned, claim)| {
                let Own { granted, left, .. } = owned.as_ref().ok()?.as_ref()?;
                Some((owner(claim, Some(*granted)).to_value(), longer(Life::of_lease(claim.ttl), *left)))
            })
            .collect();
        let changes = owned.iter().zip(&values).map(|(owned, value)| {
            let ((value, life), own) = (value.as_ref()?, owned.as_ref().ok()?.as_ref()?);
            Some(Command::Replace { key: &own.key, life: *life, value, number: own.number })
        });
        for claim in claims {
            self.forget(claim.id);
        }
        self.apply(claims, &owned, changes.collect()).await
    }

    async fn release_batch(&self, batch: &[&Claim]) -> Vec<Release> {
        let mut releases: Vec<Option<Release>> = self.remove_known(batch).await;
        for _ in 0..MAX_TRIES {
            let open: Vec<usize> = (0..batch.len()).filter(|at| releases[*at].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let claims: Vec<&Claim> = open.iter().map(|at| batch[*at]).collect();
            let owned = self.owned(&claims).await;
            let removals = owned.iter().map(|owned| {
                let own = owned.as_ref().ok()?.as_ref()?;
                Some(Command::Remove { key: &own.key, number: own.number })
            });
            let outcomes = self.apply(&claims, &owned, removals.collect()).await;
            for (at, outcome) in open.into_iter().zip(outcomes) {
                releases[at] = match outcome {
                    Ok(Some(true)) => Some(Release::Freed),
                    Ok(Some(false)) => Some(Release::Gone),
                    Ok(None) => None,
                    Err(failure) => Some(Release::Unknown(failure)),
                };
            }
        }
        let busy = || Release::Unknown(Failure::unavailable("it changed while it was released"));
        releases.into_iter().map(|release| release.unwrap_or_else(busy)).collect()
    }

    /// Removes, without a read, the items that are as this client left them. The others get no answer here.
    async fn remove_known(&self, batch: &[&Claim]) -> Vec<Option<Release>> {
        let known: Vec<Option<Numbered>> = batch
            .iter()
            .map(|claim| {
                self.pollers.forget(claim.id);
                self.forget(claim.id)
            })
            .collect();
        if known.iter().all(Option::is_none) {
            return vec![None; batch.len()];
        }
        let at: Vec<&Resource> = batch.iter().map(|claim| &claim.resource).collect();
        let keys: Vec<_> = at.iter().map(|at| self.servers.key(at).ok()).collect();
        let command = |index: usize, link: &Link| {
            let Numbered { epoch, number } = known[index]?;
            let key = keys[index].as_ref()?;
            (link.facts.started == epoch).then_some(Command::Remove { key, number })
        };
        let answers = self.servers.scatter(&at, command, Reply::Differs { mark: None }).await;
        let read = |(answer, known): (Answer, Option<Numbered>)| match answer {
            Ok((_, Reply::Done { .. })) => Some(Release::Freed),
            Err(failure) if known.is_some() => Some(Release::Unknown(failure)),
            _ => None,
        };
        answers.into_iter().zip(known).map(read).collect()
    }

    /// Returns the items that are these claims' own, as they are now.
    async fn owned(&self, claims: &[&Claim]) -> Vec<Result<Option<Own>, Failure>> {
        let at: Vec<&Resource> = claims.iter().map(|claim| &claim.resource).collect();
        let answers = self.servers.look(&at).await.into_iter().zip(claims);
        answers
            .map(|(answer, claim)| {
                let (link, value, number, left) = match answer? {
                    (link, Reply::Item { value, number, left, .. }) => (link, value, number, left),
                    (_, Reply::Missing { .. }) => return Ok(None),
                    (_, reply) => return Err(self.servers.node(&claim.resource).unexpected(&reply)),
                };
                let token = Token::read(&value);
                if token.id() != claim.id {
                    return Ok(None);
                }
                let written = if let Token::Ours(owner) = token { owner.fence } else { None };
                let granted = written.unwrap_or_else(|| fence(&link, number));
                Ok(Some(Own { link, key: self.servers.key(&claim.resource)?, number, left, granted }))
            })
            .collect()
    }

    /// Changes each of these items under its number: `None` if it changed meanwhile, `false` if it no longer
    /// belongs to its claim.
    async fn apply(
        &self,
        claims: &[&Claim],
        owned: &[Result<Option<Own>, Failure>],
        changes: Vec<Option<Command<'_>>>,
    ) -> Vec<Result<Option<bool>, Failure>> {
        let at: Vec<&Resource> = claims.iter().map(|claim| &claim.resource).collect();
        let command = |index: usize, link: &Link| {
            let own = owned[index].as_ref().ok()?.as_ref()?;
            changes[index].clone().filter(|_| link.facts.started == own.link.facts.started)
        };
        let answers = self.servers.scatter(&at, command, Reply::Differs { mark: None }).await;
        let read = |(index, answer): (usize, Answer)| match &owned[index] {
            Err(failure) => Err(failure.clone()),
            Ok(None) => Ok(Some(false)),
            Ok(Some(_)) => match answer?.1 {
                Reply::Done { .. } => Ok(Some(true)),
                Reply::Missing { .. } => Ok(Some(false)),
                Reply::Differs { .. } => Ok(None),
                reply => Err(self.servers.node(at[index]).unexpected(&reply)),
            },
        };
        answers.into_iter().enumerate().map(read).collect()
    }

    fn remember(&self, id: ClaimId, link: &Link, number: u64) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if numbers.len() < MAX_NUMBERS {
            numbers.insert(id, Numbered { epoch: link.facts.started, number });
        }
    }

    fn forget(&self, id: ClaimId) -> Option<Numbered> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }
}

/// The item of a claim as it was seen.
struct Own {
    link: Arc<Link>,
    key: crate::protocol::command::Key,
    number: u64,
    left: Option<u64>,
    granted: Fence,
}

/// The outcome of one attempt.
enum Taken {
    Yes(Fence),
    /// Another claim holds it, for so long at most.
    Busy(Duration),
    /// The item changed in between.
    Again,
}

#[async_trait]
impl Backend for PlainBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn part(&self, claim: &Claim) -> u64 {
        self.servers.part(&claim.resource)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        check(&self.profile, claim)?;
        for _ in 0..MAX_TRIES {
            let asked_at = patience.now();
            match self.try_take(claim).await? {
                Taken::Again => {}
                Taken::Yes(fence) => {
                    self.pollers.forget(claim.id);
                    let (fence, proof) = (Some(fence), Proof::none());
                    return Ok(Step::Granted(Grant::new(asked_at).fence(fence).proof(proof)));
                }
                Taken::Busy(_) if patience.is_ended() => {
                    self.pollers.forget(claim.id);
                    return Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(1) }));
                }
                Taken::Busy(left) => {
                    let ask_again_in = Some(pause(claim, self.pollers.count(claim.id), left));
                    return Ok(Step::Busy(Hint { ask_again_in, ahead: Some(1) }));
                }
            }
        }
        // An item that was added on the way may still exist.
        Err(Failure::unanswered("it changed hands whenever it was asked for: try again"))
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(batch.len());
        for some in batch.chunks(BATCH_MAX) {
            renewals.extend(self.renew_batch(some).await);
        }
        renewals
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let mut releases = Vec::with_capacity(batch.len());
        for some in batch.chunks(BATCH_MAX) {
            releases.extend(self.release_batch(some).await);
        }
        releases
    }

    async fn inspect(
        &self,
        resource: &Resource,
        _seen: Option<&SnapshotVersion>,
        _patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.inspect_once(resource).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let name_in = |value: &[u8]| match Token::read(value) {
            Token::Ours(owner) => Some(owner.resource),
            Token::Foreign(_) => None,
        };
        let mut found = Found::in_all(&self.servers, prefix, after, name_in).await?.resources;
        found.truncate(limit);
        Ok(found.into_iter().map(|resource| ResourceSummary::new(resource, 1, 0)).collect())
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        diagnose::all(&self.servers, ttl).await
    }
}

fn owner(claim: &Claim, fence: Option<Fence>) -> PlainHolder {
    PlainHolder { id: claim.id, fence, resource: claim.resource.clone(), note: claim.note.clone() }
}

/// Returns what is left of an item's life, by which it is gone.
fn remaining(left: Option<u64>) -> Duration {
    left.map_or(Duration::MAX, Duration::from_secs)
}

/// Returns the longer life: a lease is never shortened.
fn longer(life: Life, left: Option<u64>) -> Life {
    left.map_or(life, |left| life.max(Life::of(Duration::from_secs(left))))
}

/// Tries of one change against others; every lost try is another's success.
const MAX_TRIES: u32 = 10;
/// Claims whose items are remembered.
const MAX_NUMBERS: usize = 200_000;
