//! `/leader/{name}`: a health check by which a load balancer sends requests to the leader only.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::problem::Problem;
use crate::state::State;

/// The instance that the check is about.
#[derive(Debug, Deserialize)]
pub(super) struct LeaderQuery {
    /// The value that this instance has as a leader.
    value: Option<String>,
}

/// Answers 200 if the election has a leader with this value, or any if none is given, and 503 otherwise. The body is
/// the value of the leader.
pub(super) async fn leader(
    Shared(state): Shared<Arc<State>>,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<LeaderQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let refused = |_| Problem::invalid("the path is not percent-encoded UTF-8: write / in a name as %2F");
    let Path(name) = name.map_err(refused)?;
    let refused = |error| Problem::invalid(format!("the query is not valid: {error}"));
    let Query(LeaderQuery { value }) = query.map_err(refused)?;
    let leader = state.client.election(&name).leader().await?.map(|leader| leader.value);
    let leads = match (&leader, &value) {
        (Some(leader), Some(value)) => leader == value,
        (leader, None) => leader.is_some(),
        (None, Some(_)) => false,
    };
    let status = if leads { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, format!("{}\n", leader.unwrap_or_default())).into_response())
}
