//! The warnings that this library logs in the thread of a test.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry};

/// The warnings of this thread.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<String>>);

impl Warnings {
    /// Listens to the warnings of this thread until the second value is dropped.
    pub(crate) fn listen() -> (Warnings, DefaultGuard) {
        let warnings = Warnings::default();
        (warnings.clone(), tracing::subscriber::set_default(Registry::default().with(warnings)))
    }

    /// Returns how often these words were logged.
    pub(crate) fn count(&self, words: &str) -> usize {
        self.0.lock().unwrap().matches(words).count()
    }
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        writeln!(self.0.lock().unwrap(), "{field}={value:?}").unwrap();
    }
}

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == Level::WARN && event.metadata().target().starts_with("leasehold") {
            event.record(&mut self.clone());
        }
    }
}
