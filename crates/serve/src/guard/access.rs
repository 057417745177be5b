//! Access: the token, and the paths that need it.
//!
//! Ground rules: on a local address every change needs the token, and so does everything below `/v1/holds`.
//! On any other address everything needs it but what a probe or a login asks for. Programs send the token in a
//! header, and browsers a cookie, which they add by themselves to each request. So each path takes one of both.

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

/// The presence of a proof in a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presented {
    Right,
    Wrong,
    Nothing,
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
    let (path, headers) = (request.uri().path(), request.headers());
    let is_page = is_page(path);
    let presented = if is_page { by_cookie(state, headers) } else { by_header(state, headers) };
    let has_token = presented == Presented::Right;
    if presented == Presented::Wrong {
        return Err(Problem::new(Code::TokenRequired, format!("the token is wrong: {WHERE}")));
    }
    let needs = is_change || !peer.is_local || is_private(path);
    if needs && !has_token && !is_open(path) {
        let text = match is_page {
            true => {
                format!("sign in at /login; only paths below /v1 take `Authorization: Bearer TOKEN`; {WHERE}")
            }
            false => format!(
                "send `Authorization: Bearer TOKEN`, a cookie is not enough: changes need it, holds need it, and off \
                 this machine everything does; {WHERE}"
            ),
        };
        return Err(Problem::new(Code::TokenRequired, text));
    }
    // A browser adds a cookie by itself, also for the page of another site that it trusts by mistake.
    if is_change && is_page && has_token && !headers.contains_key(ORIGIN) {
        let text = "a change with a cookie needs an Origin header, which every browser sends";
        return Err(Problem::new(Code::OriginRefused, text));
    }
    Ok(Access { has_token })
}

/// Judges the token in the `Authorization` header.
fn by_header(state: &State, headers: &HeaderMap) -> Presented {
    let Some(value) = headers.get(AUTHORIZATION) else { return Presented::Nothing };
    let parts = value.to_str().ok().and_then(|text| text.split_once(' '));
    match parts {
        Some((scheme, sent)) if scheme.eq_ignore_ascii_case("Bearer") && state.token.matches(sent.trim()) => {
            Presented::Right
        }
        _ => Presented::Wrong,
    }
}

/// Judges the cookies of a login. Another server under the same host name can add some of the same name.
fn by_cookie(state: &State, headers: &HeaderMap) -> Presented {
    let lines = headers.get_all(COOKIE_HEADER).iter().filter_map(|value| value.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';'));
    let mut sent = pairs.filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    let now = leasehold_monitor::text::unix_ms_now() / 1000;
    // A cookie of an earlier token is not an attempt to guess: the browser keeps it until the next login.
    if sent.any(|sent| state.token.accepts_cookie(sent, now)) { Presented::Right } else { Presented::Nothing }
}

/// Returns `true` for the paths of the console; all others are for programs.
pub(crate) fn is_page(path: &str) -> bool {
    let below = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    !(below("/v1") || below("/leader") || matches!(path, "/v1" | "/leader" | "/metrics" | "/healthz"))
}

/// Returns `true` for paths that show what only the clients of the API should see.
fn is_private(path: &str) -> bool {
    path == "/v1/holds" || path.starts_with("/v1/holds/")
}

/// Returns `true` for paths that need no token anywhere.
fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/login") || path.starts_with("/assets/")
}

/// Says where the token is. Strangers read this too, so it names no path of this machine.
const WHERE: &str = "TOKEN is the line in the token file of the server, whose path it prints when it starts";
