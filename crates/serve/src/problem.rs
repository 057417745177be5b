//! The errors of the API: JSON problem objects with stable codes.
//!
//! Ground rules: a code never changes its meaning or its status. Texts are for people, and may change.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use leasehold::{Error, ErrorKind};
use serde::{Serialize, Serializer};

/// An error that a client sees.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    pub(crate) detail: String,
}

/// The form of a problem on the wire.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProblemShape {
    code: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
}

macro_rules! codes {
    ($($name:ident $code:literal $status:literal $title:literal,)*) => {
        /// The codes of all problems.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code { $($name,)* }

        impl Code {
            /// All codes.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// Returns the code, its status and its title.
            pub(crate) fn parts(self) -> (&'static str, u16, &'static str) {
                match self { $(Code::$name => ($code, $status, $title),)* }
            }
        }
    };
}

codes! {
    InvalidRequest "invalid_request" 400 "The request is not valid",
    TokenRequired "token_required" 401 "The token is missing or wrong",
    OriginRefused "origin_refused" 403 "The request comes from another web site",
    ActionsDisabled "actions_disabled" 403 "The server runs without --allow-actions",
    Denied "denied" 403 "The store refuses the request",
    NotFound "not_found" 404 "There is nothing at this path",
    UnknownHold "unknown_hold" 404 "No hold has this id",
    MethodNotAllowed "method_not_allowed" 405 "The path does not take this method",
    IdReused "id_reused" 409 "The id belongs to another request",
    Released "released" 410 "The hold was released",
    Lost "lost" 410 "The lock is lost",
    TooLarge "too_large" 413 "The body is too large",
    UriTooLong "uri_too_long" 414 "The path or the query is too long",
    HostRefused "host_refused" 421 "The server is not called by this name",
    Unsupported "unsupported" 422 "The store does not support the request",
    Busy "busy" 423 "Another client holds the lock",
    TooManyRequests "too_many_requests" 429 "The client sends too many requests",
    Internal "internal" 500 "The server failed",
    Foreign "foreign" 502 "The store has data of another program, or was replaced",
    TooManyConnections "too_many_connections" 503 "Too many connections are open",
    TooManyHolds "too_many_holds" 503 "The server holds too many locks",
    TooManyWaiters "too_many_waiters" 503 "Too many requests wait for locks",
    TooManyStreams "too_many_streams" 503 "Too many streams are open",
    TooManyWatchers "too_many_watchers" 503 "Too many watches are open",
    Closing "closing" 503 "The server is about to end",
    StoreUnavailable "store_unavailable" 503 "The store does not answer",
    OutcomeUnknown "outcome_unknown" 504 "The request may have taken effect",
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem { code, detail: detail.into() }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(Code::InvalidRequest, detail)
    }

    /// Returns its form on the wire.
    pub(crate) fn shape(&self) -> ProblemShape {
        let (code, status, title) = self.code.parts();
        ProblemShape { code, title, status, detail: self.detail.clone() }
    }

    /// Returns its form on the wire, as text.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        // A struct of texts and numbers always has a form.
        serde_json::to_vec(&self.shape()).unwrap_or_default()
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.shape().serialize(serializer)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (_, status, _) = self.code.parts();
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.to_json()).into_response();
        // For a browser it is drawn as a page.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.code {
            Code::TokenRequired => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Code::TooManyRequests
            | Code::TooManyHolds
            | Code::TooManyWaiters
            | Code::TooManyStreams
            | Code::TooManyWatchers
            | Code::StoreUnavailable => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let code = match error.kind() {
            ErrorKind::Lost(_) => Code::Lost,
            ErrorKind::Unavailable => Code::StoreUnavailable,
            ErrorKind::OutcomeUnknown => Code::OutcomeUnknown,
            ErrorKind::Unsupported => Code::Unsupported,
            // Not a mistake of the client.
            ErrorKind::Invalid if error.is_foreign() => Code::Foreign,
            ErrorKind::Invalid => Code::InvalidRequest,
            ErrorKind::Denied => Code::Denied,
            ErrorKind::Closed => Code::Closing,
            ErrorKind::Timeout => Code::Busy,
            _ => Code::Internal,
        };
        Problem::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_have_a_status_of_an_error() {
        let mut seen = std::collections::HashSet::new();
        for code in Code::ALL {
            let (name, status, title) = code.parts();
            assert!(seen.insert(name), "{name} is written twice");
            assert!((400..600).contains(&status) && !title.is_empty(), "{name}");
        }
    }
}
