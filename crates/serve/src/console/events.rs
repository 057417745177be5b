//! The stream that notifies a page of another picture.
//!
//! Ground rules: a stream carries a name of the picture and no content, so an idle one costs a task that
//! sleeps. The page then asks for itself again. A reader that is slow skips pictures, and none are stored for
//! it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use leasehold::Resource;
use leasehold_monitor::Followed;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, timeout_at};

use super::Console;
use super::lock::{Named, picture};
use crate::problem::Problem;

/// The state of one stream.
struct Following {
    console: Arc<Console>,
    pictures: watch::Receiver<u64>,
    /// The lock of a page of one lock.
    lock: Option<Followed>,
    /// The picture that was announced last.
    announced: String,
    /// Its place among the open streams.
    _place: OwnedSemaphorePermit,
}

/// `GET /events`
pub(super) async fn get(State(console): State<Arc<Console>>, Query(named): Query<Named>) -> Response {
    let place = match console.state.watchers.place() {
        Ok(place) => place,
        Err(problem) => return problem.into_response(),
    };
    let lock = match named.name.as_str() {
        "" => None,
        name => match Resource::new(name) {
            Ok(name) => Some(console.follows.follow(&name)),
            Err(error) => return Problem::invalid(error.to_string()).into_response(),
        },
    };
    let pictures = console.watcher.pictures();
    let following = Following { console, pictures, lock, announced: String::new(), _place: place };
    let events = stream::unfold(following, |mut following| async move {
        let event = following.next().await?;
        Some((Ok::<Bytes, Infallible>(event), following))
    });
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Some proxies collect an answer before they pass it on.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

impl Following {
    /// Waits for another picture; says now and then that the stream lives, by an event that the script sees.
    async fn next(&mut self) -> Option<Bytes> {
        let silent = Instant::now() + SILENCE;
        loop {
            let picture = self.picture();
            if picture != self.announced {
                let event = format!("retry: {RETRY_MS}\nevent: picture\ndata: {picture}\n\n");
                self.announced = picture;
                return Some(Bytes::from(event));
            }
            match timeout_at(silent, self.changed()).await {
                Ok(true) => {}
                // The server ends.
                Ok(false) => return None,
                Err(_) => return Some(Bytes::from_static(b"event: alive\ndata:\n\n")),
            }
        }
    }

    /// Waits until something may have changed; `false` if nothing ever will.
    async fn changed(&mut self) -> bool {
        let Some(lock) = &mut self.lock else { return self.pictures.changed().await.is_ok() };
        tokio::select! {
            _ = lock.changed() => true,
            is_open = self.pictures.changed() => is_open.is_ok(),
        }
    }

    fn picture(&mut self) -> String {
        let number = *self.pictures.borrow_and_update();
        match &self.lock {
            None => number.to_string(),
            Some(lock) => picture(&lock.current(), &self.console.watcher.present()),
        }
    }
}

/// The time after which a stream without news shows that it lives: less than proxies wait, and less than half of the
/// silence after which the script takes the stream as cut.
const SILENCE: Duration = Duration::from_secs(15);
/// The time after which a browser opens a stream again that has ended.
const RETRY_MS: u32 = 2_000;
