//! Locks that late answers leave behind.
//!
//! A majority decides without the rest, so requests for a lock may still be under way to some members when
//! its claim is withdrawn or released. Such a request can reach its member after the release. The lock that
//! it leaves holds nothing, but is in the way of others for a whole ttl, and with the loss of one more member
//! it can block a majority.
//!
//! Ground rules: the end of a claim marks its attempts as ended before the release is sent. A request that
//! is answered after that ends its own lock, by its stamp, so that a lock of a later attempt stays. Not
//! covered is a request without an answer that its server carries out later, from an older connection: the
//! lock that it leaves ends with its ttl.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use leasehold_core::ClaimId;

/// The attempts with requests that are not answered yet, by claim.
#[derive(Clone, Debug, Default)]
pub(super) struct Unanswered(Arc<Mutex<HashMap<ClaimId, Vec<Weak<AtomicBool>>>>>);

/// One attempt, shared by its requests; the last of them removes it.
#[derive(Debug)]
pub(super) struct AttemptMark {
    claim: ClaimId,
    is_ended: Arc<AtomicBool>,
    unanswered: Unanswered,
}

impl Unanswered {
    /// Adds an attempt of a claim.
    pub(super) fn attempt(&self, claim: ClaimId) -> Arc<AttemptMark> {
        let is_ended = Arc::new(AtomicBool::new(false));
        self.attempts().entry(claim).or_default().push(Arc::downgrade(&is_ended));
        Arc::new(AttemptMark { claim, is_ended, unanswered: self.clone() })
    }

    /// Marks all attempts of a claim as ended.
    pub(super) fn end(&self, claim: &ClaimId) {
        for attempt in self.attempts().get(claim).into_iter().flatten().filter_map(Weak::upgrade) {
            attempt.store(true, Ordering::SeqCst);
        }
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<ClaimId, Vec<Weak<AtomicBool>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttemptMark {
    /// Marks the attempt as ended: its late locks are not wanted.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }
}

impl Drop for AttemptMark {
    fn drop(&mut self) {
        let mut attempts = self.unanswered.attempts();
        if let Some(of_claim) = attempts.get_mut(&self.claim) {
            of_claim.retain(|attempt| attempt.as_ptr() != Arc::as_ptr(&self.is_ended));
            if of_claim.is_empty() {
                attempts.remove(&self.claim);
            }
        }
    }
}
