//! The warnings and errors that a library logs in the thread of a test.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Event, Level, Metadata, Subscriber};

/// The warnings and errors of one library in one thread.
#[derive(Clone, Debug)]
pub struct Warnings {
    /// The beginning of the targets of its events.
    library: &'static str,
    text: Arc<Mutex<String>>,
}

impl Warnings {
    /// Listens to the warnings and errors of a library in this thread, until the second value is dropped.
    pub fn listen(library: &'static str) -> (Warnings, DefaultGuard) {
        let warnings = Warnings { library, text: Arc::default() };
        (warnings.clone(), subscribe(warnings))
    }

    /// Returns how often these words were logged.
    pub fn count(&self, words: &str) -> usize {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).matches(words).count()
    }
}

/// Sets the subscriber of this thread, until the returned value is dropped. Other tests may run at the same time.
pub fn subscribe(subscriber: impl Subscriber + Send + Sync) -> DefaultGuard {
    static GLOBAL: Once = Once::new();
    // As long as there is only one subscriber, an event is turned off for all threads if a thread without a subscriber
    // reaches it first. So there is always another one.
    GLOBAL.call_once(|| {
        // The program may have one of its own.
        _ = tracing::subscriber::set_global_default(NoSubscriber::new());
    });
    tracing::subscriber::set_default(subscriber)
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with(self.library)
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    // No span is enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing into a String does not fail.
        _ = writeln!(text, "{field}={value:?}");
    }
}
