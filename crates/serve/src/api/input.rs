//! The input of requests: bodies, queries and parts of paths, with errors that say what to do.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use leasehold::Resource;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::holds::duration;
use crate::problem::Problem;

/// The id of a hold, as a client chose it.
#[derive(Clone, Debug)]
pub(super) struct HoldId(pub(super) String);

/// The name of a lock in a path.
#[derive(Clone, Debug)]
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for HoldId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<HoldId, Problem> {
        let id = part_of_path(parts, state).await?;
        let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if !is_plain || !(ID_MIN..=ID_MAX).contains(&id.len()) {
            let text = format!(
                "the id has to have {ID_MIN} to {ID_MAX} letters, digits, - and _: choose a random one for each \
                 request, such as a UUID, because whoever uses the same id shares the hold"
            );
            return Err(Problem::invalid(text));
        }
        Ok(HoldId(id))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Name, Problem> {
        let name = part_of_path(parts, state).await?;
        // A stream could say so only after it has begun.
        Resource::new(&name).map_err(|error| Problem::invalid(format!("name: {error}")))?;
        Ok(Name(name))
    }
}

/// Returns the part of the path that its route leaves open, decoded.
async fn part_of_path<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, Problem> {
    let part = Path::<String>::from_request_parts(parts, state).await;
    let refused = |_| Problem::invalid("the path is not percent-encoded UTF-8: write / in a name as %2F");
    Ok(part.map_err(refused)?.0)
}

/// The options of a request for a lock.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireQuery {
    wait: Option<String>,
}

impl AcquireQuery {
    /// Returns the time to wait; zero unless given.
    ///
    /// # Errors
    /// `invalid_request`.
    pub(super) fn wait(&self) -> Result<Duration, Problem> {
        let Some(text) = &self.wait else { return Ok(Duration::ZERO) };
        duration(text).map_err(|error| Problem::invalid(format!("wait: {error}")))
    }
}

/// Reads the query.
///
/// # Errors
/// `invalid_request`.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    match Query::try_from_uri(uri) {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(Problem::invalid(format!("the query is not valid: {rejection}"))),
    }
}

/// Reads a body of JSON.
///
/// # Errors
/// `too_large`, `invalid_request`.
pub(super) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, Problem> {
    let bytes = crate::body::read(body, crate::config::BODY_MAX).await?;
    let shown = |error| Problem::invalid(format!("the body is not the expected JSON object: {error}"));
    serde_json::from_slice(&bytes).map_err(shown)
}

/// The shortest id: enough for 80 random bits.
const ID_MIN: usize = 16;
const ID_MAX: usize = 64;
