//! What monitoring and load balancers ask for.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::state::State;

/// Returns the routes of the probes.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new().route("/healthz", get(healthz))
}

/// Answers that the server is alive.
async fn healthz() -> &'static str {
    "ok\n"
}
