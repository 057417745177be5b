//! One acquisition as others see it: a span, and the events at its beginning and its end.
//!
//! Ground rules: whatever way it ends, also by being dropped, one end is told for each beginning.

use std::future::Future;
use std::sync::Arc;

use leasehold_core::{Moment, Resource, Share};
use tracing::{Instrument, Span, field};

use super::Engine;
use super::hold::Hold;
use crate::error::Result;
use crate::witness::{Event, Miss, Way};

type Outcome = Result<Option<Arc<Hold>>>;

/// Runs one acquisition and tells of it.
pub(super) async fn told(
    engine: &Arc<Engine>,
    resource: &Resource,
    share: Share,
    acquiring: impl Future<Output = Outcome>,
) -> Outcome {
    let span = tracing::debug_span!(
        "leasehold.acquire",
        %resource,
        %share,
        outcome = field::Empty,
        fence = field::Empty
    );
    // Where neither a witness nor a subscriber listens, this is all that is spent on them.
    if span.is_disabled() && !engine.telling.is_heard() {
        return acquiring.await;
    }
    engine.telling.tell(|| Event::Asked { resource, share });
    let mut asking =
        Asking { engine, resource, span: span.clone(), began: engine.clock.now(), is_told: false };
    let outcome = acquiring.instrument(span).await;
    asking.tell(&outcome, share);
    outcome
}

/// An acquisition under way.
struct Asking<'a> {
    engine: &'a Arc<Engine>,
    resource: &'a Resource,
    span: Span,
    began: Moment,
    is_told: bool,
}

impl Asking<'_> {
    fn tell(&mut self, outcome: &Outcome, share: Share) {
        self.is_told = true;
        let resource = self.resource;
        let waited = self.engine.clock.now().since(self.began);
        let missed = |miss| Event::Missed { resource, waited, miss };
        let event = match outcome {
            Ok(Some(hold)) => {
                let way = match hold {
                    hold if hold.is_older_than(self.began) => Way::Reentered,
                    hold if hold.was_handed_over() => Way::HandedOver,
                    _ => Way::Granted,
                };
                if let Some(fence) = hold.fence() {
                    self.span.record("fence", field::display(fence));
                }
                Event::Acquired { resource, share, waited, way }
            }
            Ok(None) => missed(Miss::Busy),
            Err(error) => missed(Miss::Failed(error.kind())),
        };
        self.span.record("outcome", event.outcome());
        self.engine.telling.tell(|| event);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_told {
            let (resource, waited) = (self.resource, self.engine.clock.now().since(self.began));
            let event = Event::Missed { resource, waited, miss: Miss::Left };
            self.span.record("outcome", event.outcome());
            self.engine.telling.tell(|| event);
        }
    }
}
