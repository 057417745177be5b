//! Connections: each is served by a task of its own, and their number is limited.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use super::noticing::Noticing;
use super::sockets::{Accepted, Socket};
use super::strangers::{Stranger, Strangers};
use crate::guard::Peer;
use crate::problem::{Code, Problem};

/// The parts that serve the connections of one socket.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) routes: Router,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) places: Arc<Semaphore>,
    /// The connections that make room if there is no place.
    pub(super) strangers: Arc<Strangers>,
    /// Connections that look for a place, or are answered that there are too many.
    pub(super) refusals: Arc<Semaphore>,
    pub(super) closing: watch::Receiver<bool>,
}

/// Accepts connections for ever.
pub(super) async fn accept(socket: Socket, serving: Serving) {
    loop {
        match socket.accept(serving.tls.is_some()).await {
            Ok(accepted) => admit(accepted, &serving),
            // Most often there are too many open files: others have to end first.
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Finds a place for a connection, or a reason against it.
///
/// In the order in which connections come: one that looks for a place counts among the strangers at once, so no later
/// connection makes an earlier one leave as long as there is an older one.
fn admit(accepted: Accepted, serving: &Serving) {
    if let Ok(place) = serving.places.clone().try_acquire_owned() {
        let stranger = serving.strangers.enter(accepted.peer().trust.clone());
        tokio::spawn(begin(accepted, serving.clone(), place, stranger));
        return;
    }
    // A connection that comes while many look for a place, or are refused, gets no answer.
    let Ok(turn) = serving.refusals.clone().try_acquire_owned() else { return };
    let is_expected = serving.strangers.make_room();
    let stranger = is_expected.then(|| serving.strangers.enter(accepted.peer().trust.clone()));
    let serving = serving.clone();
    tokio::spawn(async move {
        if let Some(stranger) = stranger {
            let place = tokio::time::timeout(REFUSAL_MAX, serving.places.clone().acquire_owned());
            let place = tokio::select! {
                biased;
                // The place that this one waits for goes to the one that took its turn.
                () = stranger.leaves() => return,
                place = place => place,
            };
            if let Ok(Ok(place)) = place {
                drop(turn);
                return begin(accepted, serving, place, stranger).await;
            }
        }
        let answering = async {
            match accepted {
                Accepted::Tcp(stream, Peer { is_tls: false, .. }) => refuse(stream).await,
                Accepted::Unix(stream, _) => refuse(stream).await,
                Accepted::Tcp(..) => Ok(()),
            }
        };
        drop(tokio::time::timeout(REFUSAL_MAX, answering).await);
        drop(turn);
    });
}

/// Serves a connection until it ends, or has to make room for another one.
async fn begin(accepted: Accepted, serving: Serving, place: OwnedSemaphorePermit, stranger: Stranger) {
    tokio::select! {
        () = serve_accepted(accepted, &serving) => {}
        () = stranger.leaves() => tracing::debug!("a connection without the token made room for another one"),
    }
    drop(place);
}

async fn serve_accepted(accepted: Accepted, serving: &Serving) {
    match (accepted, &serving.tls) {
        (Accepted::Tcp(stream, peer), Some(tls)) => {
            let stream = Noticing::new(stream, peer.end.clone());
            if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_MAX, tls.accept(stream)).await {
                // The end of TLS is an end, too: nothing is read from the network behind it.
                serve(Noticing::new(stream, peer.end.clone()), peer, serving).await;
            }
        }
        (Accepted::Tcp(stream, peer), None) => {
            serve(Noticing::new(stream, peer.end.clone()), peer, serving).await;
        }
        (Accepted::Unix(stream, peer), _) => {
            serve(Noticing::new(stream, peer.end.clone()), peer, serving).await;
        }
    }
}

/// Answers that there are too many connections, without reading the request.
async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let body = Problem::new(Code::TooManyConnections, "try again later").to_json();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let answer = [head.into_bytes(), body].concat();
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    // With bytes that were not read, the end of the connection would take the answer away.
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

async fn serve<S>(stream: S, peer: Peer, serving: &Serving)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let routes = serving.routes.clone();
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let (mut routes, peer) = (routes.clone(), peer.clone());
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            let Ok(response) = routes.call(request).await;
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(BUFFER_MAX)
        .max_headers(HEADERS_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut closing = serving.closing.clone();
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = async { drop(closing.wait_for(|is_closing| *is_closing).await) } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The time that a client has for the head of a request, and for the handshake of TLS.
const HEAD_MAX: Duration = Duration::from_secs(20);
/// The time in which a connection gets a place, and the one in which it is answered that there are too many.
const REFUSAL_MAX: Duration = Duration::from_secs(2);
/// The memory for what is read and not yet understood, and for what is written and not yet sent.
const BUFFER_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// The pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
