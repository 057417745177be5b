//! Access: the token, and the paths that need it.
//!
//! Ground rules: on a local address every change needs the token, and so does everything below `/v1/holds`.
//! On any other address everything needs it but what a probe or a login asks for.

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, COOKIE as COOKIE_HEADER, ORIGIN};

use super::Peer;
use crate::problem::{Code, Problem};
use crate::state::State;

/// The rights of this request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// `true` if it brought the token.
    pub(crate) has_token: bool,
}

/// The cookie in which a browser keeps a proof of the token after a login.
pub(crate) const COOKIE: &str = "leasehold-token";

/// The ways to present the token.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presented {
    Header,
    Cookie,
    Nowhere,
}

/// Decides whether this request brought what it needs.
///
/// # Errors
/// `token_required`.
pub(super) fn check(
    state: &State,
    request: &Request,
    peer: &Peer,
    is_change: bool,
) -> Result<Access, Problem> {
    let path = request.uri().path();
    let (presented, is_right) = present(state, request.headers());
    if presented != Presented::Nowhere && !is_right {
        let text = format!("the token is wrong: it is the line in {}", state.token.path().display());
        return Err(Problem::new(Code::TokenRequired, text));
    }
    let needs = is_change || !peer.is_local || is_private(path);
    if needs && !is_right && !is_open(path) {
        let text = format!(
            "send `Authorization: Bearer TOKEN`: changes need it, holds need it, and off this machine everything \
             does; TOKEN is the line in {}",
            state.token.path().display()
        );
        return Err(Problem::new(Code::TokenRequired, text));
    }
    // A browser adds a cookie by itself, also for the page of another site that it trusts by mistake.
    if is_change && presented == Presented::Cookie && !request.headers().contains_key(ORIGIN) {
        let text = "a change with a cookie needs an Origin header, which every browser sends";
        return Err(Problem::new(Code::OriginRefused, text));
    }
    Ok(Access { has_token: is_right })
}

/// Returns how the token was presented, and whether it is the right one.
fn present(state: &State, headers: &HeaderMap) -> (Presented, bool) {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let sent = value.to_str().ok().and_then(|text| text.strip_prefix("Bearer "));
        return (Presented::Header, sent.is_some_and(|sent| state.token.matches(sent.trim())));
    }
    let mut cookies = headers.get_all(COOKIE_HEADER).iter().filter_map(|value| value.to_str().ok());
    let sent = cookies.find_map(|line| {
        line.split(';').find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
    });
    let now = leasehold_monitor::text::unix_ms_now() / 1000;
    match sent {
        // A cookie of an earlier token is no attempt to guess: the browser keeps it until the next login.
        Some(sent) if state.token.accepts_cookie(sent, now) => (Presented::Cookie, true),
        _ => (Presented::Nowhere, false),
    }
}

/// Returns `true` for paths that show what only the clients of the API should see.
fn is_private(path: &str) -> bool {
    path == "/v1/holds" || path.starts_with("/v1/holds/")
}

/// Returns `true` for paths that need no token anywhere.
fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/login") || path.starts_with("/assets/")
}
