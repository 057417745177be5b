//! The web console.

use std::sync::Arc;

use axum::Router;

use crate::state::State;

/// Returns the pages of the console.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
}
