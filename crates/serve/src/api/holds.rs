//! `/v1/holds`: acquire, renew, follow and release.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State as Shared};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde::Deserialize;

use super::input::{AcquireQuery, HoldId, json, query};
use super::stream::{Form, until_last};
use crate::holds::{Arrival, EndShape, EventShape, Events, GrantShape, HoldRequest};
use crate::problem::Problem;
use crate::state::State;

/// `PUT /v1/holds/{id}`: acquires a lock, or answers again.
pub(super) async fn acquire(
    Shared(state): Shared<Arc<State>>,
    Extension(arrival): Extension<Arrival>,
    HoldId(id): HoldId,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let wait = query::<AcquireQuery>(&uri)?.wait()?;
    let request: HoldRequest = json(body).await?;
    request.check(&state.config.limits)?;
    match Form::accepted(&headers) {
        Some(form) => Ok(streamed(form, state.holds.stream(&id, &request, wait, &arrival).await?)),
        None => Ok(Json(state.holds.acquire(&id, &request, wait, &arrival).await?).into_response()),
    }
}

/// `POST /v1/holds/{id}/renew`: a heartbeat.
pub(super) async fn renew(
    Shared(state): Shared<Arc<State>>,
    Extension(arrival): Extension<Arrival>,
    HoldId(id): HoldId,
) -> Result<Json<GrantShape>, Problem> {
    state.holds.renew(&id, &arrival).await.map(Json)
}

/// `GET /v1/holds/{id}`: the state, without a heartbeat.
pub(super) async fn look(
    Shared(state): Shared<Arc<State>>,
    Extension(arrival): Extension<Arrival>,
    HoldId(id): HoldId,
) -> Result<Json<GrantShape>, Problem> {
    state.holds.look(&id, &arrival).await.map(Json)
}

/// `GET /v1/holds/{id}/events`: a stream, which counts as a sign of life until the client's time is used up.
pub(super) async fn events(
    Shared(state): Shared<Arc<State>>,
    Extension(arrival): Extension<Arrival>,
    HoldId(id): HoldId,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let events = state.holds.follow(&id, &arrival).await?;
    Ok(streamed(Form::accepted(&headers).unwrap_or(Form::Ndjson), events))
}

/// The new value of a leader.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ValueBody {
    value: String,
}

/// `PUT /v1/holds/{id}/value`: what observers of an election see.
pub(super) async fn proclaim(
    Shared(state): Shared<Arc<State>>,
    Extension(arrival): Extension<Arrival>,
    HoldId(id): HoldId,
    body: Body,
) -> Result<Json<GrantShape>, Problem> {
    let ValueBody { value } = json(body).await?;
    state.holds.proclaim(&id, &value, &arrival).await.map(Json)
}

/// `DELETE /v1/holds/{id}`: releases, also once more.
pub(super) async fn release(
    Shared(state): Shared<Arc<State>>,
    HoldId(id): HoldId,
) -> Result<Json<EndShape>, Problem> {
    state.holds.release(&id).await.map(Json)
}

fn streamed(form: Form, events: Events) -> Response {
    let events = unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some(((event.event, event), events))
    });
    form.respond(until_last(events, |(_, event): &(&'static str, EventShape)| event.is_last()))
}
