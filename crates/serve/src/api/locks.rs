//! `/v1/locks`: what the store shows of locks, and what operators may do to them.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{StreamExt, unfold};
use leasehold::{Resource, ResourceSummary, Snapshots};
use leasehold_monitor::actions::{break_claims as break_all, reason_of_revoke};
use leasehold_monitor::{BrokenShape, LockShape, RevokedShape};
use serde::{Deserialize, Serialize};

use super::input::{Name, json, query};
use super::stream::Form;
use crate::problem::{Code, Problem, ProblemShape};
use crate::state::State;

/// The options of a listing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    limit: Option<usize>,
}

/// A page of a listing.
#[derive(Debug, Serialize)]
pub(super) struct ListShape {
    locks: Vec<ResourceSummary>,
    /// The value of `after` for the next page; nothing after the last one.
    next: Option<Resource>,
}

/// `GET /v1/locks`: the locks that are held or waited for.
pub(super) async fn list(Shared(state): Shared<Arc<State>>, uri: Uri) -> Result<Json<ListShape>, Problem> {
    let ListQuery { prefix, after, limit } = query(&uri)?;
    let limit = limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::invalid(format!("limit: a page has 1 to {PAGE_MAX} locks")));
    }
    let after = after.map(|name| resource(&name)).transpose()?;
    let locks = state.client.list(&prefix, after.as_ref(), limit).await?;
    let next = locks.last().filter(|_| locks.len() >= limit).map(|summary| summary.resource.clone());
    Ok(Json(ListShape { locks, next }))
}

/// `GET /v1/locks/{name}`: the holders and the queue.
pub(super) async fn inspect(
    Shared(state): Shared<Arc<State>>,
    Name(name): Name,
) -> Result<Response, Problem> {
    let snapshot = state.client.inspect(&name).await?;
    Ok(Json(LockShape::of(&snapshot)).into_response())
}

/// An event of a watch.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum WatchShape {
    State(serde_json::Value),
    Problem { problem: ProblemShape },
}

/// `GET /v1/locks/{name}/watch`: a stream of its states.
pub(super) async fn watch(
    Shared(state): Shared<Arc<State>>,
    Name(name): Name,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let place = state.watchers.place()?;
    let states = unfold((state.client.watch(&name), place), next_state);
    Ok(Form::accepted(&headers).unwrap_or(Form::Ndjson).respond(states))
}

type Watching = (Snapshots, tokio::sync::OwnedSemaphorePermit);

async fn next_state((mut states, place): Watching) -> Option<((&'static str, WatchShape), Watching)> {
    let event = match states.next().await? {
        Ok(snapshot) => {
            let shape = serde_json::to_value(LockShape::of_now(&snapshot)).unwrap_or_default();
            ("state", WatchShape::State(shape))
        }
        // The stream continues if the store may answer later, and ends otherwise.
        Err(error) => ("problem", WatchShape::Problem { problem: Problem::from(error).shape() }),
    };
    Some((event, (states, place)))
}

/// The reason of a request to release, and the claims that are meant, by the tags that an inspection shows: all
/// holders unless they are given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevokeBody {
    reason: String,
    tags: Option<Vec<String>>,
}

/// `POST /v1/locks/{name}/revoke`: asks the holders to release.
pub(super) async fn revoke(
    Shared(state): Shared<Arc<State>>,
    Name(name): Name,
    body: Body,
) -> Result<Response, Problem> {
    allow_actions(&state)?;
    let RevokeBody { reason, tags } = json(body).await?;
    let (name, reason) = (resource(&name)?, reason_of_revoke(&reason));
    let asked = match tags {
        None => state.client.revoke(&name, reason).await?,
        Some(tags) => {
            let mut holders = state.client.inspect(&name).await?.holders;
            holders.retain(|holder| tags.contains(&holder.id.tag()));
            state.client.revoke_claims(&name, &holders, reason).await?
        }
    };
    Ok(Json(RevokedShape::of(&name, &asked)).into_response())
}

/// The claims to break, by the tags that an inspection shows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BreakBody {
    tags: Vec<String>,
}

/// `POST /v1/locks/{name}/break`: ends claims by force.
pub(super) async fn break_claims(
    Shared(state): Shared<Arc<State>>,
    Name(name): Name,
    body: Body,
) -> Result<Response, Problem> {
    allow_actions(&state)?;
    let BreakBody { tags } = json(body).await?;
    let snapshot = state.client.inspect(&name).await?;
    // Waiters first, from the back: otherwise the end of a holder would grant the lock to one of them.
    let seen = snapshot.waiting.iter().rev().chain(&snapshot.holders);
    let claims: Vec<_> = seen.filter(|claim| tags.contains(&claim.id.tag())).cloned().collect();
    let broken = break_all(&state.client, &name, &claims).await;
    if let Some(failure) = broken.failure {
        let mut problem = Problem::from(failure);
        problem.detail =
            format!("{}; {} of {} were broken before", problem.detail, broken.claims.len(), claims.len());
        return Err(problem);
    }
    Ok(Json(BrokenShape::of(&snapshot.resource, &broken.claims, &broken.also_released)).into_response())
}

fn allow_actions(state: &State) -> Result<(), Problem> {
    if state.config.allow_actions {
        return Ok(());
    }
    let text = "this server does not revoke or break the locks of others: start it with --allow-actions";
    Err(Problem::new(Code::ActionsDisabled, text))
}

fn resource(name: &str) -> Result<Resource, Problem> {
    Resource::new(name).map_err(|error| Problem::invalid(format!("name: {error}")))
}

/// The locks of a page, unless the request says otherwise.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1000;
