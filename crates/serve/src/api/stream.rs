//! Streams of events: NDJSON, or server-sent events.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use futures_util::stream::StreamExt;
use serde::Serialize;

/// The form of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One object a line.
    Ndjson,
    /// Server-sent events.
    Sse,
}

impl Form {
    /// Returns the form that the client accepts; `None` if it names neither.
    pub(super) fn accepted(headers: &HeaderMap) -> Option<Form> {
        let named = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut named = named.flat_map(|value| value.split(','));
        named.find_map(|one| match one.split(';').next().unwrap_or_default().trim() {
            "application/x-ndjson" => Some(Form::Ndjson),
            "text/event-stream" => Some(Form::Sse),
            _ => None,
        })
    }

    /// Encodes one event with its name.
    fn encode(self, name: &str, event: &impl Serialize) -> Bytes {
        // Objects of texts and numbers always have a form, without a line break in it.
        let json = serde_json::to_string(event).unwrap_or_default();
        match self {
            Form::Ndjson => format!("{json}\n").into(),
            Form::Sse => format!("event: {name}\ndata: {json}\n\n").into(),
        }
    }

    /// Answers with a stream of named events.
    pub(super) fn respond<E: Serialize>(
        self,
        events: impl Stream<Item = (&'static str, E)> + Send + 'static,
    ) -> Response {
        let body =
            events.map(move |(name, event)| Ok::<_, std::convert::Infallible>(self.encode(name, &event)));
        let mut response = Body::from_stream(body).into_response();
        let kind = match self {
            Form::Ndjson => "application/x-ndjson",
            Form::Sse => "text/event-stream",
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        // Proxies that collect answers before they pass them on would hold back the events.
        headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        response
    }
}

/// Returns a stream that ends after the first item for which `is_last` is true.
pub(super) fn until_last<E>(
    events: impl Stream<Item = E> + Send + 'static,
    is_last: impl Fn(&E) -> bool + Send + Sync + 'static,
) -> impl Stream<Item = E> + Send + 'static
where
    E: Send + 'static,
{
    let is_last = Arc::new(is_last);
    events.scan(false, move |is_over, event| {
        let next = (!*is_over).then_some(event);
        *is_over = *is_over || next.as_ref().is_some_and(|event| is_last(event));
        std::future::ready(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_is_the_one_that_the_client_accepts() {
        let accepted = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(value));
            Form::accepted(&headers)
        };
        assert_eq!(accepted("text/event-stream"), Some(Form::Sse));
        assert_eq!(accepted("text/html, application/x-ndjson;q=0.9"), Some(Form::Ndjson));
        assert_eq!(accepted("application/json"), None);
        assert_eq!(Form::accepted(&HeaderMap::new()), None);
    }

    #[test]
    fn event_cannot_be_split_by_what_a_holder_wrote() {
        let note = "a\n\nevent: lost\rdata: x";
        let text = Form::Sse.encode("granted", &serde_json::json!({ "note": note }));
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 3);
        assert!(!text.contains(&b'\r'));
        let text = Form::Ndjson.encode("granted", &serde_json::json!({ "note": note }));
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 1);
    }
}
