//! The bodies of requests: how long they may be, and how long they may take.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::LengthLimitError;

use crate::problem::{Code, Problem};

/// Reads a whole body of at most so many bytes.
///
/// # Errors
/// `too_large`; `invalid_request`, if it does not arrive in time, or is not valid HTTP.
pub(crate) async fn read(body: Body, most: usize) -> Result<Bytes, Problem> {
    match tokio::time::timeout(READ_MAX, axum::body::to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error))
            if std::error::Error::source(&error).is_some_and(|cause| cause.is::<LengthLimitError>()) =>
        {
            Err(Problem::new(Code::TooLarge, format!("this body may have {most} bytes at most")))
        }
        Ok(Err(_)) => Err(Problem::invalid("the body is not valid HTTP, or it ended early")),
        Err(_) => Err(Problem::invalid("the body did not arrive in time")),
    }
}

/// The time that a body may take to arrive.
const READ_MAX: Duration = Duration::from_secs(10);
