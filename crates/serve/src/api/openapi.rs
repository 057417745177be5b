//! The document of the API.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

/// `GET /v1/openapi.json`.
pub(super) async fn document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT)
}

const DOCUMENT: &str = include_str!("openapi.json");
