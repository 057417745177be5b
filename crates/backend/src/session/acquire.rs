//! Acquisition of a claim: requested in the session that all share, or in one of its own, where it may wait.
//!
//! Ground rules: a task that leaves while a request is under way leaves a session of which it is not known
//! what it holds; it is closed, so that no lock stays granted without a holder.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::cell::{check, pause};
use crate::changes::patience_ended;
use leasehold_core::{Claim, Effect, Failure, FailureKind, Grant, Hint, Moment, Patience, Step, WaitMode};
use tokio_util::sync::CancellationToken;

use crate::session::backend::SessionBackend;
use crate::session::claims::{Entered, Reserved, TakenLock};
use crate::session::open_session::OpenSession;
use crate::session::session_pool::{SessionPool, is_doubtful};
use crate::session::sessions::{Answer, Capacity, LONGEST_WAIT, Session, SessionRequest, Sessions, Sharing};

impl<C: Sessions> SessionBackend<C> {
    /// Takes one step towards holding the claim.
    pub(crate) async fn contend_step(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        check(self.pool.sessions.profile(), claim)?;
        let granted = match self.again(claim).await? {
            Some(grant) => Some(grant),
            None => match self.pool.sessions.capacity() {
                Capacity::Many => self.take_shared(claim, patience).await?,
                Capacity::One { .. } => self.take_alone(claim, patience).await?,
            },
        };
        if let Some(grant) = granted {
            self.pollers.forget(claim.id);
            return Ok(Step::Granted(grant));
        }
        if patience.is_ended() || self.waits() {
            self.pollers.forget(claim.id);
            return Ok(Step::Busy(Hint::default()));
        }
        let ask_again_in = Some(pause(claim, self.pollers.count(claim.id), Duration::MAX));
        Ok(Step::Busy(Hint { ask_again_in, ahead: None }))
    }

    /// Returns the grant of a claim that is held already, once its session has given a sign of life.
    async fn again(&self, claim: &Claim) -> Result<Option<Grant>, Failure> {
        let Some(session) = self.pool.claims.find(claim) else { return Ok(None) };
        match session.ping().await {
            Ok(asked_at) => Ok(self.pool.claims.grant(claim, asked_at)),
            Err(failure) => {
                self.pool.end(&session);
                Err(failure)
            }
        }
    }

    /// Asks once, in the session that all share.
    async fn take_shared(&self, claim: &Claim, patience: &Patience) -> Result<Option<Grant>, Failure> {
        let _guard = match patience.is_ended() {
            true => self.per_resource.lock_to_try(&claim.resource).await?,
            false => self.per_resource.lock(&claim.resource).await,
        };
        let session = self.pool.shared().await?;
        let key = self.pool.sessions.key(&claim.resource);
        let sharing = match self.pool.claims.reserve(&key, &claim.resource, claim.share, session.number)? {
            Reserved::Free(sharing) => sharing,
            Reserved::Busy => return Ok(None),
        };
        let pending = PendingRequest { pool: &self.pool, session: &session, is_settled: false };
        let asked_at = patience.now();
        let answer = session.inner.lock(&SessionRequest { claim, wait: Duration::ZERO, sharing }).await;
        pending.settle();
        match answer {
            Ok(Answer::Taken { fence, is_shown }) => {
                match self.pool.enter(claim, &session, TakenLock { fence, is_shown, asked_at }) {
                    Entered::Held(grant) => Ok(Some(grant)),
                    // It never waited, so no task can have released it.
                    Entered::Released | Entered::Ended => {
                        // The session may have ended before the name was reserved, and then nothing else frees it.
                        self.pool.claims.give_up(&key, session.number);
                        Err(session_ended())
                    }
                }
            }
            Ok(Answer::Busy) => {
                self.pool.claims.give_up(&key, session.number);
                Ok(None)
            }
            Err(failure) => {
                self.pool.claims.give_up(&key, session.number);
                if is_doubtful(&session, &failure) {
                    self.pool.end(&session);
                }
                Err(failure)
            }
        }
    }

    /// Asks in a session of its own, and waits there where the server lets it.
    async fn take_alone(&self, claim: &Claim, patience: &Patience) -> Result<Option<Grant>, Failure> {
        let wait = self.pool.claims.begin_to_wait(claim.id);
        let session = self.pool.dedicated().await?;
        let pending = PendingRequest { pool: &self.pool, session: &session, is_settled: false };
        let taken = self.request_on(&session, claim, patience, &wait.released).await;
        pending.settle();
        match taken {
            Ok(Some(grant)) => Ok(Some(grant)),
            Ok(None) => {
                self.pool.connections.give_back(session);
                Ok(None)
            }
            Err(failure) => {
                if is_doubtful(&session, &failure) {
                    self.pool.end(&session);
                } else {
                    self.pool.connections.give_back(session);
                }
                Err(failure)
            }
        }
    }

    /// Asks in this session until it is granted, or patience has ended, or the claim is released.
    async fn request_on(
        &self,
        session: &Arc<OpenSession<C::Session>>,
        claim: &Claim,
        patience: &Patience,
        released: &CancellationToken,
    ) -> Result<Option<Grant>, Failure> {
        for round in 0u32.. {
            let waits = self.waits() && !patience.is_ended();
            let wait =
                if waits { patience.left().clamp(SHORTEST_WAIT, LONGEST_WAIT) } else { Duration::ZERO };
            let asked_at = patience.now();
            let limit = self.pool.sessions.answer_limit();
            let answer = wait_on(&**session, claim, wait, limit, patience, released).await?;
            // A wait that was cancelled may have ended without one.
            if session.is_live() {
                self.pool.connections.record_answer();
            }
            if let Answer::Taken { fence, is_shown } = answer {
                let asked_at = if waits { self.confirm_late(session).await? } else { asked_at };
                return match self.pool.enter(claim, session, TakenLock { fence, is_shown, asked_at }) {
                    Entered::Held(grant) => Ok(Some(grant)),
                    Entered::Ended => Err(session_ended()),
                    Entered::Released => self.undo(session, claim).await.map(|()| None),
                };
            }
            if !waits || patience.is_ended() || released.is_cancelled() {
                return Ok(None);
            }
            if patience.now().since(asked_at) < wait / 2 {
                // It was not worth the wait, for instance because of a deadlock with another transaction.
                let before_next = pause(claim, round, Duration::MAX);
                tokio::select! {
                    () = tokio::time::sleep(before_next) => {}
                    () = until_over(patience, released) => {}
                }
            }
        }
        Ok(None)
    }

    /// Returns the moment from which a lock counts that was given after a wait: before a request that was
    /// answered afterwards.
    async fn confirm_late(&self, session: &Arc<OpenSession<C::Session>>) -> Result<Moment, Failure> {
        let confirmed = session.ping().await;
        // Without an answer it is not known whether the session, which has a lock now, still lives.
        confirmed.inspect_err(|_| self.pool.end(session))
    }

    /// Releases a lock whose claim was released while it waited.
    async fn undo(&self, session: &Arc<OpenSession<C::Session>>, claim: &Claim) -> Result<(), Failure> {
        if !matches!(session.inner.unlock(claim, Sharing::None, true).await, Ok(true)) {
            self.pool.end(session);
        }
        Ok(())
    }

    /// Returns `true` if a claim waits in the server.
    fn waits(&self) -> bool {
        self.pool.sessions.profile().waiting == WaitMode::Blocks
    }
}

/// Sends the request once. A request that is no longer needed is cancelled in the server, which has `limit`
/// for it; a lock that it already got is returned all the same.
async fn wait_on<S: Session>(
    session: &OpenSession<S>,
    claim: &Claim,
    wait: Duration,
    limit: Duration,
    patience: &Patience,
    released: &CancellationToken,
) -> Result<Answer, Failure> {
    let request = SessionRequest { claim, wait, sharing: Sharing::None };
    if wait.is_zero() {
        return session.inner.lock(&request).await;
    }
    session.set_waiting(true);
    let mut locking = pin!(session.inner.lock(&request));
    let answer = tokio::select! {
        // The request is sent first: one that has not begun cannot be cancelled.
        biased;
        answer = &mut locking => answer,
        () = until_over(patience, released) => {
            let cancelled = async {
                let ((), answer) = tokio::join!(session.inner.cancel(), &mut locking);
                answer
            };
            tokio::time::timeout(limit, cancelled).await.unwrap_or_else(|_| {
                Err(Failure::unanswered(format!("a wait that was called back did not end within {limit:?}")))
            })
        }
    };
    session.set_waiting(false);
    answer
}

async fn until_over(patience: &Patience, released: &CancellationToken) {
    tokio::select! {
        () = patience_ended(patience) => {}
        () = released.cancelled() => {}
    }
}

/// A request under way. Dropped before it is settled, it ends the session.
struct PendingRequest<'a, C: Sessions> {
    pool: &'a SessionPool<C>,
    session: &'a Arc<OpenSession<C::Session>>,
    is_settled: bool,
}

impl<C: Sessions> PendingRequest<'_, C> {
    fn settle(mut self) {
        self.is_settled = true;
    }
}

impl<C: Sessions> Drop for PendingRequest<'_, C> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.pool.end(self.session);
        }
    }
}

fn session_ended() -> Failure {
    Failure::new(
        FailureKind::Unavailable,
        Effect::None,
        "the session ended while it was asked, and all its locks with it",
    )
}

/// A shorter wait would be none for some servers.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);
