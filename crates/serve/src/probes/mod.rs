//! The answers for monitoring and load balancers.

mod leader;
mod metrics;

use std::sync::Arc;

use axum::Router;
use axum::extract::State as Shared;
use axum::routing::get;

use crate::problem::{Code, Problem};
use crate::state::State;

pub use metrics::subscriber;
pub(crate) use metrics::{count_request, tidy_up};

/// Returns the routes of the probes.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/leader/{name}", get(leader::leader))
        .route("/metrics", get(metrics::render))
}

/// Answers whether the server takes new locks. It does not ask the store: a store that is away for a while is no
/// reason to stop this server, which keeps trying to renew what it holds.
async fn healthz(Shared(state): Shared<Arc<State>>) -> Result<&'static str, Problem> {
    if state.holds.is_closing() {
        return Err(Problem::new(Code::Closing, "the server is about to end"));
    }
    Ok("ok\n")
}
