//! The failures of a request that was sent over the command connection.

use leasehold_core::Failure;
use redis::RedisError;

use crate::net::connection::Link;
use crate::protocol::error::{self, Redirect};

/// The failure of a request, for a sender that may know another server.
#[derive(Clone, Debug)]
pub(crate) enum SendError {
    /// The server was not reached; nothing was sent.
    Unreached(Failure),
    /// Another server is to be asked, or the same one later; nothing was done.
    Redirect(Redirect, Failure),
    /// Anything else.
    Failed(Failure),
}

impl SendError {
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            SendError::Unreached(failure) | SendError::Redirect(_, failure) | SendError::Failed(failure) => {
                failure
            }
        }
    }
}

/// The cause of a failure where some keys of a request have moved to another server, and some have not.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("some of the keys have moved to another server, and some have not")]
pub(crate) struct HalfMoved;

impl HalfMoved {
    /// Returns `true` if `failure` has this cause.
    pub(crate) fn caused(failure: &Failure) -> bool {
        failure.cause().is_some_and(|cause| cause.is::<HalfMoved>())
    }
}

/// The error that came instead of an answer.
#[derive(Clone, Debug)]
pub(crate) enum ReplyError {
    UnknownScript,
    /// The server is not, or no longer, the primary. It changed nothing.
    NotPrimary(RedisError),
    Refused(RedisError),
    Failed(Failure),
}

impl From<RedisError> for ReplyError {
    fn from(error: RedisError) -> ReplyError {
        if error::is_unknown_script(&error) {
            ReplyError::UnknownScript
        } else if error::is_not_primary(&error) {
            ReplyError::NotPrimary(error)
        } else {
            ReplyError::Refused(error)
        }
    }
}

pub(super) fn failure(error: ReplyError, link: &Link) -> Failure {
    let address = link.target().endpoint.to_string();
    match error {
        ReplyError::Failed(failure) => failure,
        ReplyError::Refused(error) | ReplyError::NotPrimary(error) => error::of_request(&error, &address),
        ReplyError::UnknownScript => error::of_answer("NOSCRIPT forgotten", &address),
    }
}

pub(super) fn send_error(error: ReplyError, link: &Link) -> SendError {
    let redirect = match &error {
        ReplyError::NotPrimary(error) | ReplyError::Refused(error) => error::redirect_of(error),
        ReplyError::UnknownScript | ReplyError::Failed(_) => None,
    };
    let failure = failure(error, link);
    match redirect {
        Some(redirect) => SendError::Redirect(redirect, failure),
        None => SendError::Failed(failure),
    }
}
