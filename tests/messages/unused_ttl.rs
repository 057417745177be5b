//! A ttl that the store does not use: it is reported once, and what counts instead can be asked for.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Client;
use leasehold::backend::Liveness;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry};

const TTL: Duration = Duration::from_secs(6);

/// The warnings of this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

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

impl Warnings {
    fn of_a_ttl(&self) -> usize {
        self.0.lock().unwrap().matches("has no effect").count()
    }
}

pub(crate) async fn is_reported_once(url: &str) {
    let warnings = Warnings::default();
    let _listening = tracing::subscriber::set_default(Registry::default().with(warnings.clone()));
    let locks = Client::open(url).await.unwrap();
    let mutex = || locks.mutex("messages/ttl");
    let (effective, reports) = match locks.profile().liveness {
        Liveness::Lease { .. } => (Some(TTL), 0),
        Liveness::Heartbeat { valid } => (Some(valid), 1),
        _ => (None, 0),
    };
    assert_eq!(mutex().ttl(TTL).effective_ttl(), effective, "{url}");
    mutex().lock().await.unwrap().release().await.unwrap();
    assert_eq!(warnings.of_a_ttl(), 0, "nobody has set a ttl for {url}");
    for _ in 0..2 {
        mutex().ttl(TTL).lock().await.unwrap().release().await.unwrap();
        assert_eq!(warnings.of_a_ttl(), reports, "{url}: {warnings:?}", warnings = warnings.0);
    }
    if let Some(ttl) = effective {
        let quiet = Client::open(url).await.unwrap();
        quiet.mutex("messages/ttl").ttl(ttl).lock().await.unwrap().release().await.unwrap();
        assert_eq!(warnings.of_a_ttl(), reports, "{url} keeps it for exactly {ttl:?}");
    }
    // `doctor` sets a ttl of its own accord.
    let quiet = Client::open(url).await.unwrap();
    quiet.diagnose(TTL).await;
    assert_eq!(warnings.of_a_ttl(), reports, "{url}");
}
