//! A subscriber of `tracing`, which may panic at each call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};

use crate::judge::Judge;

/// A subscriber that wants everything of the engine.
pub(crate) struct Listener {
    judge: Arc<Judge>,
    spans: AtomicU64,
}

impl Listener {
    pub(crate) fn new(judge: Arc<Judge>) -> Listener {
        Listener { judge, spans: AtomicU64::new(0) }
    }
}

impl Subscriber for Listener {
    // Asked by any thread, for all subscribers: so it is not a call of this run.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.judge.foreign();
        metadata.target().starts_with("simulated")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.judge.foreign();
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        self.judge.foreign();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.judge.foreign();
    }

    fn enter(&self, _: &Id) {
        self.judge.foreign();
    }

    fn exit(&self, _: &Id) {
        self.judge.foreign();
    }

    fn try_close(&self, _: Id) -> bool {
        self.judge.foreign();
        false
    }
}
