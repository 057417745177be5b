//! Release, and the check whether what is held is still held.
//!
//! Ground rules: a server that denies what it has given is not to be believed in anything else: the session
//! is closed.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use leasehold_core::{BreakOutcome, Claim, Effect, Failure, FailureKind, LossCause, Release, Renew, Renewal};

use crate::session::backend::SessionBackend;
use crate::session::claims::Removed;
use crate::session::open_session::OpenSession;
use crate::session::sessions::{Capacity, Session, Sessions};
use crate::session::showing::{shown_holders, until_shown};

impl<C: Sessions> SessionBackend<C> {
    /// Releases each claim.
    pub(crate) async fn release_batch(&self, batch: &[&Claim]) -> Vec<Release> {
        let mut answers = Vec::with_capacity(batch.len());
        for some in batch.chunks(CONCURRENT_MAX) {
            answers.extend(join_all(some.iter().map(|claim| self.release_one(claim, EndedBy::Holder))).await);
        }
        answers.into_iter().map(for_good).collect()
    }

    async fn release_one(&self, claim: &Claim, by: EndedBy) -> Release {
        self.pollers.forget(claim.id);
        if self.pool.claims.end_wait(claim.id) {
            return Release::Freed;
        }
        let is_shared = self.pool.sessions.capacity() == Capacity::Many;
        // A reader that arrives while the last one leaves must not find a lock that is half released.
        let _guard = if is_shared { Some(self.per_resource.lock(&claim.resource).await) } else { None };
        let key = self.pool.sessions.key(&claim.resource);
        let (session, sharing, is_shown, lost, _ending) = loop {
            match self.pool.claims.remove(claim, &key) {
                Removed::Held { session, sharing, is_shown, lost, ending } => {
                    break (session, sharing, is_shown, lost, ending);
                }
                // What is written for it must not outlive it.
                Removed::BeingShown => self.pool.showing.until_written().await,
                Removed::Gone => return Release::Gone,
            }
        };
        // Before anyone else can be granted the lock.
        if by == EndedBy::Other {
            lost.fire(LossCause::Gone);
        }
        match session.inner.unlock(claim, sharing, is_shown).await {
            Ok(true) => {
                self.pool.claims.give_up(&key, session.number);
                if !is_shared {
                    self.pool.connections.give_back(session);
                }
                Release::Freed
            }
            Ok(false) => {
                tracing::error!(resource = %claim.resource, "the server did not have a lock any more that it had given");
                self.pool.end(&session);
                Release::Gone
            }
            Err(failure) => {
                self.pool.end(&session);
                Release::Unknown(failure)
            }
        }
    }

    /// Ends a claim of any client. A claim of this client is released after its holder was notified, and its session
    /// stays.
    pub(crate) async fn break_one(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        match self.release_one(claim, EndedBy::Other).await {
            Release::Freed => return Ok(BreakOutcome::Ended { also_released: Vec::new() }),
            Release::Unknown(failure) => return Err(failure),
            Release::Gone => {}
        }
        // The server would end the connection of a release that this client has begun.
        self.pool.claims.until_ended(claim.id).await;
        // So that it can name what else ends.
        let sessions = &self.pool.sessions;
        until_shown(sessions).await?;
        let mut evicted = sessions.evict(claim).await?;
        if evicted.is_none() {
            // It may have been granted a moment ago, and is shown when this has returned.
            shown_holders(sessions, &claim.resource).await?;
            evicted = sessions.evict(claim).await?;
        }
        Ok(evicted.map_or(BreakOutcome::Gone, |also_released| BreakOutcome::Ended { also_released }))
    }

    /// Asks each session of these claims once for a sign of life.
    pub(crate) async fn renew_batch(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let mut sessions: HashMap<u64, Arc<OpenSession<C::Session>>> = HashMap::new();
        let mut numbers = Vec::with_capacity(batch.len());
        for Renew { claim, .. } in batch {
            let session = self.pool.claims.find(claim);
            numbers.push(session.as_ref().map(|session| session.number));
            if let Some(session) = session {
                sessions.entry(session.number).or_insert(session);
            }
        }
        let asked = sessions.values().map(|session| async {
            let failure = session.ping().await.err();
            if failure.is_some() {
                self.pool.end(session);
            }
            (session.number, failure)
        });
        let silent: HashMap<u64, Option<Failure>> = join_all(asked).await.into_iter().collect();
        let answer = |(Renew { claim, .. }, number): (&Renew<'_>, Option<u64>)| {
            // What ended meanwhile is gone for good.
            if self.pool.claims.find(claim).is_none() {
                return Renewal::Lost;
            }
            match number.and_then(|number| silent.get(&number)) {
                Some(None) => Renewal::Alive,
                Some(Some(failure)) => Renewal::Unknown(failure.clone()),
                None => Renewal::Unknown(Failure::unavailable("it was granted while it was asked for")),
            }
        };
        batch.iter().zip(numbers).map(answer).collect()
    }
}

/// The party that ends a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedBy {
    Holder,
    /// Another client or an operator; the holder has not asked for it.
    Other,
}

/// Lets a release that failed be final. Its session was closed, so asking again would only find the claim gone, and
/// nobody knows whether the server had ended the session before.
fn for_good(release: Release) -> Release {
    let Release::Unknown(failure) = release else { return release };
    let text = format!(
        "the connection that held the lock ended before its release was confirmed, so the lock may have been lost \
         before: {}",
        failure.detail()
    );
    Release::Unknown(Failure::new(FailureKind::Closed, Effect::Unknown, text).because(failure))
}

/// Releases that are under way at the same time.
const CONCURRENT_MAX: usize = 100;
