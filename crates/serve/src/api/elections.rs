//! `/v1/elections`: who leads.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Shared;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::stream::unfold;
use leasehold::{Fence, Leader, Observer};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::input::Name;
use super::stream::Form;
use crate::problem::{Problem, ProblemShape};
use crate::state::State;

/// The state of an election.
#[derive(Debug, Serialize)]
pub(super) struct ElectionShape {
    name: String,
    leader: Option<LeaderShape>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemShape>,
}

/// A leader.
#[derive(Debug, Serialize)]
struct LeaderShape {
    value: String,
    fence: Option<Fence>,
}

impl ElectionShape {
    fn of(name: &str, leader: Option<Leader>) -> ElectionShape {
        let leader = leader.map(|leader| LeaderShape { value: leader.value, fence: leader.fence });
        ElectionShape { name: name.to_owned(), leader, problem: None }
    }
}

/// `GET /v1/elections/{name}`: the present leader.
pub(super) async fn leader(
    Shared(state): Shared<Arc<State>>,
    Name(name): Name,
) -> Result<Json<ElectionShape>, Problem> {
    let leader = state.client.election(&name).leader().await?;
    Ok(Json(ElectionShape::of(&name, leader)))
}

/// The parts of a watch of an election.
struct Watching {
    name: String,
    observer: Observer,
    is_over: bool,
    _place: OwnedSemaphorePermit,
}

/// `GET /v1/elections/{name}/watch`: a stream of leaders.
pub(super) async fn watch(
    Shared(state): Shared<Arc<State>>,
    Name(name): Name,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let place = state.watchers.place()?;
    let observer = state.client.election(&name).observe();
    let watching = Watching { name, observer, is_over: false, _place: place };
    Ok(Form::accepted(&headers).unwrap_or(Form::Ndjson).respond(unfold(watching, next_leader)))
}

async fn next_leader(mut watching: Watching) -> Option<((&'static str, ElectionShape), Watching)> {
    if watching.is_over {
        return None;
    }
    match watching.observer.next().await {
        Ok(leader) => Some((("leader", ElectionShape::of(&watching.name, leader)), watching)),
        Err(error) => {
            watching.is_over = true;
            let shape = ElectionShape::of(&watching.name, None);
            Some((
                ("problem", ElectionShape { problem: Some(Problem::from(error).shape()), ..shape }),
                watching,
            ))
        }
    }
}
