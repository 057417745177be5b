//! Releasing claims: one request each, all sent at once.

use leasehold_core::{Claim, Failure, Release};
use redis::Value;

use crate::backend::RedisBackend;
use crate::net::request::Request;
use crate::protocol::keys::Keys;
use crate::protocol::reply;
use crate::protocol::scripts;

impl RedisBackend {
    /// Releases a batch, with one answer for each claim.
    pub(super) async fn release_batch(&self, batch: &[&Claim]) -> Vec<Release> {
        let requests: Vec<Request> = batch.iter().map(|claim| self.release_request(claim)).collect();
        let answers = self.servers.run_all(&requests, self.config.timeout).await;
        answers.into_iter().map(outcome).collect()
    }

    /// Builds the request that ends one claim.
    pub(crate) fn release_request(&self, claim: &Claim) -> Request {
        let keys = Keys::of(&self.config.prefix, &claim.resource);
        Request {
            script: &scripts::RELEASE,
            keys: if self.names_all_keys() { keys.all().into() } else { vec![keys.held()] },
            args: vec![reply::member(claim), self.wake_scope().to_owned()],
            confirm: None,
        }
    }
}

/// Returns the outcome of a release, from the answer to its request.
pub(crate) fn outcome(answer: Result<Value, Failure>) -> Release {
    match answer.and_then(reply::existed) {
        Ok(true) => Release::Freed,
        Ok(false) => Release::Gone,
        Err(failure) => Release::Unknown(failure),
    }
}
