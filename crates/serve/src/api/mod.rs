//! The HTTP API, version 1.
//!
//! Ground rules: a path, a field and a code never change their meaning; `docs/book/src/serve.md` describes them,
//! and `openapi.json` lists them for programs. Handlers parse and answer; what is true of a lock is decided in
//! `holds`.

mod elections;
mod holds;
mod input;
mod locks;
mod openapi;
mod stream;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use axum::routing::{get, post, put};

use crate::problem::{Code, Problem};
use crate::state::State;

/// Returns the routes of the API.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/v1/holds/{id}", put(holds::acquire).get(holds::look).delete(holds::release))
        .route("/v1/holds/{id}/renew", post(holds::renew))
        // A `HEAD` would open a stream and break it at once, which can release the lock.
        .route("/v1/holds/{id}/events", get(holds::events).head(method_not_allowed))
        .route("/v1/holds/{id}/value", put(holds::proclaim))
        .route("/v1/locks", get(locks::list))
        .route("/v1/locks/{name}", get(locks::inspect))
        .route("/v1/locks/{name}/watch", get(locks::watch).head(method_not_allowed))
        .route("/v1/locks/{name}/revoke", post(locks::revoke))
        .route("/v1/locks/{name}/break", post(locks::break_claims))
        .route("/v1/elections/{name}", get(elections::leader))
        .route("/v1/elections/{name}/watch", get(elections::watch).head(method_not_allowed))
        .route("/v1/openapi.json", get(openapi::document))
}

/// Answers a path that does not exist.
pub(crate) async fn not_found(uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(80).collect();
    Problem::new(Code::NotFound, format!("there is nothing at {path:?}: /v1/openapi.json lists the paths"))
}

/// Answers a method that a path does not take.
pub(crate) async fn method_not_allowed(method: Method) -> Problem {
    Problem::new(Code::MethodNotAllowed, format!("{method} is not possible here: see /v1/openapi.json"))
}
