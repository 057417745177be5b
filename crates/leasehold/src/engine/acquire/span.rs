//! Reporting of one acquisition: a `tracing` span, and the events at its beginning and its end.
//!
//! Ground rules: each beginning has exactly one end, however the acquisition ends, even if it is dropped.

use std::future::Future;
use std::sync::Arc;

use leasehold_core::{Claim, Moment, Resource, Share};
use tracing::{Span, field};

use crate::engine::Engine;
use crate::engine::Want;
use crate::engine::Wanted;
use crate::engine::hold::Hold;
use crate::engine::hold::handle::HoldHandle;
use crate::error::{Error, Result};
use crate::events::{AcquireFailure, AcquireSource, Event};
use crate::mutant::mutant;
use crate::panics::{contained, spanned};

type Outcome = Result<Option<HoldHandle>>;

/// Creates the span of one request for a claim.
pub(super) fn contend_span(claim: &Claim) -> Span {
    tracing::debug_span!("leasehold.contend", resource = %claim.resource, share = %claim.share)
}

/// An acquisition that an event subscriber or a `tracing` subscriber observes.
pub(crate) struct AcquireSpan {
    engine: Arc<Engine>,
    resource: Resource,
    share: Share,
    span: Span,
}

impl AcquireSpan {
    /// Returns the acquisition to report; `None` where neither an event subscriber nor a `tracing`
    /// subscriber listens, which then costs no more than this check.
    pub(crate) fn observed(engine: &Arc<Engine>, want: &Want) -> Option<AcquireSpan> {
        let Wanted { resource, share, .. } = &**want;
        let span = || {
            tracing::debug_span!(
                "leasehold.acquire",
                %resource,
                %share,
                outcome = field::Empty,
                fence = field::Empty
            )
        };
        let span = contained(span).unwrap_or_else(Span::none);
        if span.is_disabled() && !engine.events.has_subscriber() {
            return None;
        }
        Some(AcquireSpan { engine: engine.clone(), resource: resource.clone(), share: *share, span })
    }

    /// Runs the acquisition and reports it.
    pub(crate) async fn run(self, acquiring: impl Future<Output = Outcome>) -> Outcome {
        let AcquireSpan { engine, resource, share, span } = self;
        engine.events.emit(|| Event::AcquireStarted { resource: &resource, share });
        let began = engine.clock.now();
        let mut acquire = PendingAcquire {
            engine: &engine,
            resource: &resource,
            span: contained(|| span.clone()).unwrap_or_else(Span::none),
            began,
            is_reported: false,
        };
        let outcome = spanned(|| span, acquiring).await;
        acquire.report(&outcome, share);
        outcome
    }
}

/// Runs an acquisition that bypasses the local queue, and reports it like any other.
pub(crate) async fn run_reported(
    engine: &Arc<Engine>,
    want: &Want,
    acquiring: impl Future<Output = Result<Hold>>,
) -> Result<HoldHandle> {
    // Boxed, so that the caller's future stays small however many futures are around this one.
    let acquiring = Box::pin(async { acquiring.await.map(|hold| HoldHandle::new(Arc::new(hold))) });
    let observed = AcquireSpan::observed(engine, want).filter(|_| !mutant!("an upgrade is not reported"));
    let Some(observed) = observed else { return acquiring.await };
    let acquired = observed.run(async { acquiring.await.map(Some) }).await?;
    // Invariant: the acquisition was wrapped in `Some`, so the result is `Some`.
    acquired.ok_or_else(|| Error::closed("lock").on(&want.resource))
}

/// An acquisition under way.
struct PendingAcquire<'a> {
    engine: &'a Arc<Engine>,
    resource: &'a Resource,
    span: Span,
    began: Moment,
    is_reported: bool,
}

impl PendingAcquire<'_> {
    fn report(&mut self, outcome: &Outcome, share: Share) {
        self.is_reported = true;
        let resource = self.resource;
        let waited = self.engine.clock.now().since(self.began);
        let missed = |failure| Event::AcquireFailed { resource, waited, failure };
        let event = match outcome {
            Ok(Some(hold)) => {
                let source = match hold {
                    hold if hold.is_older_than(self.began) => AcquireSource::Reentrant,
                    hold if hold.was_passed_on() => AcquireSource::LocalQueue,
                    _ => AcquireSource::Server,
                };
                if let Some(fence) = hold.fence() {
                    contained(|| _ = self.span.record("fence", field::display(fence)));
                }
                Event::Acquired { resource, share, waited, source }
            }
            Ok(None) => missed(AcquireFailure::Busy),
            Err(error) => missed(AcquireFailure::Error(error.kind())),
        };
        contained(|| _ = self.span.record("outcome", event.outcome()));
        self.engine.events.emit(|| event);
        if let Ok(Some(hold)) = outcome {
            hold.mark_reported();
        }
    }
}

impl Drop for PendingAcquire<'_> {
    fn drop(&mut self) {
        if !self.is_reported {
            let (resource, waited) = (self.resource, self.engine.clock.now().since(self.began));
            let event = Event::AcquireFailed { resource, waited, failure: AcquireFailure::Cancelled };
            // A panic may be dropping it, and a second panic would end the process.
            contained(|| _ = self.span.record("outcome", event.outcome()));
            self.engine.events.emit(|| event);
        }
        if mutant!("a span ends as it likes") {
            return;
        }
        // Closing the span calls foreign code as well. A panic while the outcome is being returned would
        // leak what was granted.
        let span = std::mem::replace(&mut self.span, Span::none());
        contained(|| drop(span));
    }
}
