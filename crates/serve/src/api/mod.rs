//! The HTTP API, version 1.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};

use crate::problem::{Code, Problem};
use crate::state::State;

/// Returns the routes of the API.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
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
