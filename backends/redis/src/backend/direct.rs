//! Direct requests: what is sent over the connection that is there, and answered to the caller that polls.
//!
//! All dialects use these. A dialect differs in its requests, and in how it reads the answers.

use leasehold_core::{Claim, DirectAnswer, DirectRelease, DirectReply, Effect, Failure};
use redis::Value;

use crate::backend::RedisBackend;
use crate::backend::release::outcome;
use crate::net::request::Request;

impl RedisBackend {
    /// Sends the request for a claim, whose answer `read` reads; `None` if there is no connection.
    pub(crate) fn send_contend(
        &self,
        claim: &Claim,
        request: &Request,
        read: impl FnOnce(Value) -> Result<DirectReply, Failure> + Send + 'static,
    ) -> Option<DirectAnswer> {
        let asking = self.servers.ask_now(request, self.limit_for(claim.ttl))?;
        Some(Box::pin(async move {
            match asking.await.and_then(read) {
                Ok(reply) => reply,
                Err(failure) if failure.effect == Effect::None => DirectReply::Declined,
                Err(_) => DirectReply::Unknown,
            }
        }))
    }

    /// Sends the request that ends a claim, whose failure `explain` explains; `None` if there is no connection.
    pub(crate) fn send_release(
        &self,
        claim: &Claim,
        request: Request,
        explain: impl FnOnce(Failure) -> Failure + Send + 'static,
    ) -> Option<DirectRelease> {
        let released = self.servers.run_now(request, self.config.timeout)?;
        self.pollers.forget(claim.id);
        Some(Box::pin(async move { outcome(released.await.map_err(explain)) }))
    }
}
