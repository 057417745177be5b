//! Inspection of a resource: its present state, its next change, or all changes as a stream.
//!
//! The backend's future runs in a task of the engine, as all of them do. A caller that is dropped ends
//! its patience.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{Stream, unfold};
use leasehold_core::{Effect, Patience, Resource, Snapshot, SnapshotVersion};

use super::Engine;
use super::retry::RetryState;
use crate::error::{Error, ErrorKind, Result, resource_for};
use crate::panics::spanned;

impl Engine {
    /// Returns the state of a resource. With `seen`, waits up to `limit` until its version is another one.
    ///
    /// # Errors
    /// Those of the store; with `seen`, `Closed` where the client is closed before the version is another one.
    pub(crate) async fn inspect(
        self: &Arc<Self>,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        limit: Duration,
    ) -> Result<Snapshot> {
        let end = self.clock.now().after(limit);
        let patience = Patience::until(self.clock.clone(), end);
        let leaving = EndOnDrop(patience.clone());
        let waits = seen.is_some();
        let (backend, sought, seen) = (self.backend.clone(), resource.clone(), seen.cloned());
        let request = async move {
            loop {
                let snapshot = backend.inspect(&sought, seen.as_ref(), &patience).await?;
                if seen.as_ref() != Some(&snapshot.version) || patience.is_ended() {
                    return Ok(snapshot);
                }
                tokio::select! {
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                    () = patience.ended() => {}
                }
            }
        };
        let about = resource.clone();
        let span = move || tracing::debug_span!("leasehold.inspect", resource = %about);
        let mut request = std::pin::pin!(self.run_read(spanned(span, request)));
        let outcome = tokio::select! {
            biased;
            outcome = &mut request => outcome,
            is_open = self.sleep_until(end) => {
                // A caller that asks again after an unchanged state would do so without a pause.
                if waits && !is_open {
                    return Err(Error::closed("inspect").on(resource));
                }
                // The request is not dropped: the end of patience makes the backend answer at once.
                leaving.0.end();
                request.await
            }
        };
        outcome.map_err(|failure| Error::failed("inspect", failure).on(resource))
    }

    /// Returns the state of a resource now. Retries through an outage of the store.
    ///
    /// # Errors
    /// Those of the store, once an outage has lasted longer than the client tolerates; `Closed` when the client
    /// is closed.
    pub(crate) async fn inspect_through_outage(
        self: &Arc<Self>,
        resource: &Resource,
        op: &'static str,
    ) -> Result<Snapshot> {
        let mut retries = RetryState::none();
        loop {
            let (backend, sought) = (self.backend.clone(), resource.clone());
            let patience = Patience::until(self.clock.clone(), self.clock.now());
            let request = self.run_read(async move { backend.inspect(&sought, None, &patience).await });
            let failure = match request.await {
                Ok(snapshot) => return Ok(snapshot),
                Err(failure) => failure,
            };
            let Some(pause) = retries.next_pause(self, &failure) else {
                // A look changes nothing.
                return Err(Error::failed(op, failure.with_effect(Effect::None)).on(resource));
            };
            if !self.sleep(pause).await {
                return Err(Error::closed(op).on(resource));
            }
        }
    }
}

/// The position of a stream of snapshots.
enum Next {
    /// To look at once; the version that was returned last, if any.
    Look(Option<SnapshotVersion>),
    /// To look after a pause, because the last look failed.
    Retry(Option<SnapshotVersion>),
    /// Nothing follows.
    End,
}

/// The states of a resource, as a stream: see [`Client::watch`](crate::Client::watch).
pub struct Snapshots {
    stream: Pin<Box<dyn Stream<Item = Result<Snapshot>> + Send>>,
}

impl Stream for Snapshots {
    type Item = Result<Snapshot>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.as_mut().poll_next(context)
    }
}

impl fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshots").finish_non_exhaustive()
    }
}

/// Returns the present state of a resource, and then each that differs from the one before.
pub(crate) fn snapshots(engine: Arc<Engine>, name: &str) -> Snapshots {
    let resource = resource_for("watch", name);
    let stream = unfold(Next::Look(None), move |next| {
        let (engine, resource) = (engine.clone(), resource.clone());
        async move {
            let seen = match next {
                Next::Look(seen) => seen,
                Next::Retry(seen) => {
                    engine.sleep(RETRY_PAUSE).await;
                    seen
                }
                Next::End => return None,
            };
            let looked = match &resource {
                Ok(resource) => look(&engine, resource, seen.as_ref()).await,
                Err(error) => Err(error.clone()),
            };
            let next = match &looked {
                Ok(snapshot) => Next::Look(Some(snapshot.version.clone())),
                Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Closed) => Next::End,
                Err(_) => Next::Retry(seen),
            };
            Some((looked, next))
        }
    });
    Snapshots { stream: Box::pin(stream) }
}

/// Waits for another state than `seen`.
async fn look(engine: &Arc<Engine>, resource: &Resource, seen: Option<&SnapshotVersion>) -> Result<Snapshot> {
    loop {
        // A client that is closed answers a first look, but its stream has ended.
        engine.check_open("watch").map_err(|error| error.on(resource))?;
        let snapshot = engine.inspect(resource, seen, LOOK).await?;
        if seen != Some(&snapshot.version) {
            return Ok(snapshot);
        }
    }
}

/// A guard that ends the patience when the caller no longer waits for the answer.
pub(super) struct EndOnDrop(pub(super) Patience);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Time between two polls of a store that does not report changes.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// The time for which one request of a stream waits for a change.
const LOOK: Duration = Duration::from_secs(30);
/// The pause of a stream after a request that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
