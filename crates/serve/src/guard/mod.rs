//! The checks before a handler sees a request: size, host, rate, origin, token and body.
//!
//! ```text
//!  protect ─▶ access, trust (who may do what) ─▶ rate ─▶ origin (Host, Origin) ─▶ body ─▶ headers
//! ```
//!
//! Ground rules: a refusal is a problem with a code, and says what to do. Every request that is not a plain read is a change.

mod access;
mod headers;
mod origin;
mod rate;
mod trust;

use std::net::IpAddr;
use std::sync::Arc;

use leasehold::SystemClock;
use leasehold::backend::Clock;

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

pub(crate) use access::{Access, COOKIE, is_page};
use origin::Hosts;
use rate::Rates;
pub(crate) use trust::Trust;

use crate::config::{BODY_MAX, CLAIMS_MAX, URI_MAX};
use crate::holds::{Arrival, PeerEnd};
use crate::probes::count_request;
use crate::problem::{Code, Problem};
use crate::state::State;

/// The facts about the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The address; `None` on a Unix socket.
    pub(crate) ip: Option<IpAddr>,
    /// `true` if only programs of this machine can connect at this address of the server.
    pub(crate) is_local: bool,
    /// `true` if the connection is encrypted.
    pub(crate) is_tls: bool,
    /// `true` if the other end has closed it.
    pub(crate) end: PeerEnd,
    /// The trust that it has earned by the token.
    pub(crate) trust: Trust,
}

/// The data of the checks.
#[derive(Debug)]
struct Gate {
    state: Arc<State>,
    /// The names under which the server may be called.
    hosts: Hosts,
    /// The requests of each address, without the token and with it: strangers must not use up what holders need.
    rates: [Rates; 2],
}

/// Puts the checks around all routes.
pub(crate) fn protect(routes: Router<Arc<State>>, state: &Arc<State>) -> Router {
    let hosts = Hosts::new(&state.config.allow_hosts);
    let rates = [(); 2].map(|()| Rates::new(state.config.limits.rate));
    let gate = Arc::new(Gate { state: state.clone(), hosts, rates });
    routes.layer(from_fn_with_state(gate, check)).with_state(state.clone())
}

async fn check(
    axum::extract::State(gate): axum::extract::State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let at = SystemClock.now();
    let path = request.uri().path().to_owned();
    let mut response = match judge(&gate, &request) {
        Ok(access) => {
            let peer = request.extensions().get::<Peer>().map(|peer| peer.end.clone()).unwrap_or_default();
            request.extensions_mut().insert(Arrival { at, peer });
            request.extensions_mut().insert(access);
            // The handlers of the console and of the API get a body that has arrived.
            match with_whole_body(request).await {
                Ok(request) => next.run(request).await,
                Err(problem) => problem.into_response(),
            }
        }
        Err(problem) => problem.into_response(),
    };
    headers::add(&path, response.headers_mut());
    count_request(response.status());
    response
}

/// Reads the body of a change.
async fn with_whole_body(request: Request) -> Result<Request, Problem> {
    if !is_change(request.method()) {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let most = if names_claims(parts.uri.path()) { CLAIMS_MAX } else { BODY_MAX };
    Ok(Request::from_parts(parts, crate::body::read(body, most).await?.into()))
}

/// Returns `true` if the form of this path names the holders of a lock, which can be many. It needs the token.
fn names_claims(path: &str) -> bool {
    matches!(path, "/lock/revoke" | "/lock/break")
}

/// Decides whether the request is served.
fn judge(gate: &Gate, request: &Request) -> Result<Access, Problem> {
    let Some(peer) = request.extensions().get::<Peer>() else {
        return Err(Problem::new(Code::Internal, "the connection is not known"));
    };
    let is_change = is_change(request.method());
    let access = access::check(&gate.state, request, peer, is_change);
    let has_token = access.as_ref().is_ok_and(|access| access.has_token);
    if has_token {
        peer.trust.earn();
    }
    // First of all, so that what is refused is counted too.
    gate.rates[usize::from(has_token)].count(peer.ip)?;
    if request.uri().path_and_query().is_some_and(|uri| uri.as_str().len() > URI_MAX) {
        let text = format!(
            "path and query together may have {URI_MAX} bytes: encode less, or ask for fewer at once"
        );
        return Err(Problem::new(Code::UriTooLong, text));
    }
    let site = gate.hosts.check(request.uri(), request.headers())?;
    origin::check(&site, request.headers(), is_change, peer.is_tls)?;
    access
}

/// Returns `true` for every method but those that only read.
pub(crate) fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}
