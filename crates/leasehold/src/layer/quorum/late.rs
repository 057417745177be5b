//! Locks that late answers leave behind.
//!
//! A majority decides without the rest, so requests for a lock may still be under way to some members when
//! its claim is withdrawn or released. Such a request can reach its member after the release. The lock that
//! it leaves holds nothing, but is in the way of others for a whole ttl, and with the loss of one more member
//! it can block a majority.
//!
//! A renewal is an attempt as well: it locks members that have forgotten the claim.
//!
//! Ground rules: the end of a claim marks its attempts as ended before anything is sent. A request that is answered
//! after that ends its own lock, by its stamp, so that a lock of a later attempt stays. A release waits for some
//! milliseconds until a member has answered all requests of its claim, because it then ends what they have locked,
//! and they need not. Not
//! covered is a request without an answer that its server carries out later, from an older connection: the
//! lock that it leaves ends with its ttl.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use leasehold_core::ClaimId;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The attempts with requests that are not answered yet, by claim.
#[derive(Clone, Debug, Default)]
pub(super) struct Unanswered(Arc<Mutex<HashMap<ClaimId, Vec<Weak<Requests>>>>>);

/// One attempt, shared by its requests; the last of them removes it.
#[derive(Debug)]
pub(super) struct AttemptMark {
    claim: ClaimId,
    requests: Arc<Requests>,
    unanswered: Unanswered,
}

/// The requests of one attempt.
#[derive(Debug, Default)]
struct Requests {
    state: Mutex<State>,
    /// Notified of each answer.
    answered: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// `true` once late locks are not wanted.
    is_ended: bool,
    /// The members that have not answered, one entry for each request.
    unanswered: Vec<usize>,
    /// The members to which a release follows once they have answered.
    released: Vec<usize>,
}

/// A request to a member, until it is answered.
#[derive(Debug)]
pub(super) struct OpenRequest {
    mark: Arc<AttemptMark>,
    member: usize,
    is_answered: bool,
}

impl Unanswered {
    /// Adds an attempt of a claim.
    pub(super) fn attempt(&self, claim: ClaimId) -> Arc<AttemptMark> {
        let requests = Arc::new(Requests::default());
        self.attempts().entry(claim).or_default().push(Arc::downgrade(&requests));
        Arc::new(AttemptMark { claim, requests, unanswered: self.clone() })
    }

    /// Marks all attempts of a claim as ended.
    pub(super) fn end(&self, claim: &ClaimId) {
        for requests in self.attempts().get(claim).into_iter().flatten().filter_map(Weak::upgrade) {
            requests.state().is_ended = true;
        }
    }

    /// Waits until the member has answered all requests of the claim, or the time is over. The caller releases the
    /// claim there after that. So requests that are answered in time leave their locks to it.
    pub(super) fn before_release(
        &self,
        claim: &ClaimId,
        member: usize,
        until: Instant,
    ) -> impl Future<Output = ()> + use<> {
        let attempts = self.attempts();
        let attempts: Vec<_> = attempts.get(claim).into_iter().flatten().filter_map(Weak::upgrade).collect();
        let late: Vec<_> =
            attempts.into_iter().filter(|requests| requests.leave_to_release(member)).collect();
        async move {
            for requests in late {
                if tokio::time::timeout_at(until, requests.answered_by(member)).await.is_err() {
                    requests.state().released.retain(|released| *released != member);
                }
            }
        }
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<ClaimId, Vec<Weak<Requests>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    /// Leaves the locks of late answers of the member to a release. Returns `true` if an answer is missing.
    fn leave_to_release(&self, member: usize) -> bool {
        let mut state = self.state();
        let is_late = state.unanswered.contains(&member);
        if is_late && !state.released.contains(&member) {
            state.released.push(member);
        }
        is_late
    }

    /// Waits until the member has answered.
    async fn answered_by(&self, member: usize) {
        loop {
            // It is woken by each answer from here on.
            let answered = self.answered.notified();
            if !self.state().unanswered.contains(&member) {
                return;
            }
            answered.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttemptMark {
    /// Adds a request to a member.
    pub(super) fn request(self: &Arc<Self>, member: usize) -> OpenRequest {
        self.requests.state().unanswered.push(member);
        OpenRequest { mark: self.clone(), member, is_answered: false }
    }

    /// Returns `true` if locks are not wanted any more.
    pub(super) fn is_ended(&self) -> bool {
        self.requests.state().is_ended
    }

    /// Marks the attempt as ended: its late locks are not wanted.
    pub(super) fn end(&self) {
        self.requests.state().is_ended = true;
    }
}

impl Drop for AttemptMark {
    fn drop(&mut self) {
        let mut attempts = self.unanswered.attempts();
        if let Some(of_claim) = attempts.get_mut(&self.claim) {
            of_claim.retain(|attempt| attempt.as_ptr() != Arc::as_ptr(&self.requests));
            if of_claim.is_empty() {
                attempts.remove(&self.claim);
            }
        }
    }
}

impl OpenRequest {
    /// Records the answer. Returns `true` if the lock that it may have brought is not wanted, and nothing else ends it.
    pub(super) fn answered(mut self) -> bool {
        self.close()
    }

    fn close(&mut self) -> bool {
        self.is_answered = true;
        let mut state = self.mark.requests.state();
        if let Some(position) = state.unanswered.iter().position(|member| *member == self.member) {
            state.unanswered.swap_remove(position);
        }
        let is_unwanted = state.is_ended && !state.released.contains(&self.member);
        drop(state);
        self.mark.requests.answered.notify_waiters();
        is_unwanted
    }
}

impl Drop for OpenRequest {
    /// Ends one that is never answered, since its task ends.
    fn drop(&mut self) {
        if !self.is_answered {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_are_over_take_no_memory() {
        let (unanswered, claim) = (Unanswered::default(), ClaimId::from_bytes([1; 16]));
        let (first, second) = (unanswered.attempt(claim), unanswered.attempt(claim));
        drop(first);
        assert_eq!(unanswered.attempts()[&claim].len(), 1);
        unanswered.end(&claim);
        assert!(second.is_ended());
        drop(second);
        assert!(unanswered.attempts().is_empty());
    }

    #[test]
    fn each_request_is_closed_once_whether_it_is_answered_or_dropped() {
        let mark = Unanswered::default().attempt(ClaimId::from_bytes([1; 16]));
        let [answered, dropped, _open] = [0; 3].map(|member| mark.request(member));
        answered.answered();
        assert_eq!(mark.requests.state().unanswered.len(), 2);
        drop(dropped);
        assert_eq!(mark.requests.state().unanswered.len(), 1);
    }
}
