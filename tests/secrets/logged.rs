//! All events of leasehold in `tracing`, at every level.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry};

static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Listens from now on, in all threads of this process.
pub(crate) fn listen() {
    // The tests of one process listen together.
    _ = tracing::subscriber::set_global_default(Registry::default().with(Listener));
}

/// Returns all messages since the tests began.
pub(crate) fn so_far() -> BTreeSet<String> {
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

struct Listener;

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

fn record_line(target: &str, record: impl FnOnce(&mut Line)) {
    // What the clients of the servers say is theirs, and off unless it is asked for.
    if target.starts_with("leasehold") {
        let mut line = Line(target.to_owned());
        record(&mut line);
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).insert(line.0);
    }
}

impl<S: Subscriber> Layer<S> for Listener {
    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        record_line(span.metadata().target(), |line| span.record(line));
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        record_line("leasehold", |line| values.record(line));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        record_line(event.metadata().target(), |line| event.record(line));
    }
}

#[test]
fn recorder_sees_events_and_spans() {
    listen();
    tracing::trace!(target: "leasehold::here", id = "of-an-event");
    drop(tracing::info_span!(target: "leasehold::here", "span", id = ?Some("of-a-span")));
    let record_text = Vec::from_iter(so_far()).concat();
    assert!(record_text.contains("of-an-event") && record_text.contains("of-a-span"), "{record_text}");
}
