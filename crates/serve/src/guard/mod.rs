//! What every request passes before a handler sees it: size, host, rate, origin and token.
//!
//! ```text
//!  protect ─▶ origin (Host, Origin) ─▶ access (who may do what) ─▶ rate ─▶ headers
//! ```
//!
//! Ground rules: a refusal is a problem with a code, and says what to do. Whatever is not a plain read is a change.

mod access;
mod headers;
mod origin;
mod rate;

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

pub(crate) use access::{Access, COOKIE};
pub(crate) use origin::{Hosts, Site};
pub(crate) use rate::Rates;

use crate::config::URI_MAX;
use crate::problem::{Code, Problem};
use crate::state::State;

/// What a connection tells about its other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The address; `None` on a Unix socket.
    pub(crate) ip: Option<IpAddr>,
    /// Whether only programs of this machine can connect at this address of the server.
    pub(crate) is_local: bool,
    /// Whether the connection is encrypted.
    pub(crate) is_tls: bool,
}

/// Puts the checks around all routes.
pub(crate) fn protect(routes: Router<Arc<State>>, state: &Arc<State>) -> Router {
    routes.layer(from_fn_with_state(state.clone(), check)).with_state(state.clone())
}

async fn check(
    axum::extract::State(state): axum::extract::State<Arc<State>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    let mut response = match judge(&state, &request) {
        Ok(access) => {
            request.extensions_mut().insert(access);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    headers::add(&path, response.headers_mut());
    response
}

/// Decides whether the request is served.
fn judge(state: &State, request: &Request) -> Result<Access, Problem> {
    let peer = request.extensions().get::<Peer>().copied();
    let Some(peer) = peer else {
        return Err(Problem::new(Code::Internal, "the connection is not known"));
    };
    if request.uri().path_and_query().is_some_and(|uri| uri.as_str().len() > URI_MAX) {
        let text = format!("path and query together may have {URI_MAX} bytes: encode less, or ask for fewer at once");
        return Err(Problem::new(Code::UriTooLong, text));
    }
    let site = state.hosts.check(request.uri(), request.headers())?;
    state.rates.count(peer.ip)?;
    let is_change = is_change(request.method());
    origin::check(&site, request.headers(), is_change, peer.is_tls)?;
    access::check(state, request, peer, is_change)
}

/// Returns `true` for every method but those that only read.
pub(crate) fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}
