//! `/metrics`: the numbers of the library and of this server, in the text form of Prometheus.
//!
//! Ground rules: the names are an interface, listed in `docs/book/src/observability.md` and in
//! `docs/book/src/serve.md`; the dashboard in `docs/grafana` uses no others.

use std::sync::{Arc, OnceLock};

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use leasehold::layer::Metrics;
use leasehold::{Event, EventSubscriber};
use metrics::{counter, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::lately::{self, Lately};
use crate::state::State;

/// Returns the subscriber that a client needs for the numbers of its locks. The first call installs the recorder of
/// this process; if the program has installed another one before, `/metrics` shows nothing.
pub fn subscriber() -> Arc<dyn EventSubscriber> {
    handle();
    Arc::new(Both { metrics: Metrics::new(), lately: lately::of_this_process() })
}

/// The counts for `/metrics`, and those for the plots of the console.
#[derive(Debug)]
struct Both {
    metrics: Metrics,
    lately: Arc<Lately>,
}

impl EventSubscriber for Both {
    fn on_event(&self, event: &Event<'_>) {
        self.metrics.on_event(event);
        self.lately.on_event(event);
    }
}

fn handle() -> Option<&'static PrometheusHandle> {
    static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let install = || {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_ahead".to_owned()), CLAIMS));
        let installed = builder.and_then(PrometheusBuilder::install_recorder);
        installed.inspect_err(|error| tracing::warn!(%error, "the numbers cannot be collected")).ok()
    };
    HANDLE.get_or_init(install).as_ref()
}

/// `GET /metrics`.
pub(super) async fn render(Shared(state): Shared<Arc<State>>) -> impl IntoResponse {
    let (held, waiting) = state.holds.counts();
    let (streams, watchers) = (state.holds.streams(), state.watchers.open());
    for (name, count) in [(HOLDS, held), (WAITERS, waiting), (STREAMS, streams), (WATCHERS, watchers)] {
        gauge!(name).set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
    }
    let text = handle().map(PrometheusHandle::render).unwrap_or_default();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// Counts an answer, under its status.
pub(crate) fn count_request(status: StatusCode) {
    counter!(REQUESTS, "status" => status.as_str().to_owned()).increment(1);
}

/// Releases the memory of what was measured since the last call. To be called now and then.
pub(crate) fn tidy_up() {
    if let Some(handle) = handle() {
        handle.run_upkeep();
    }
}

const HOLDS: &str = "leasehold_serve_holds";
const WAITERS: &str = "leasehold_serve_waiters";
const STREAMS: &str = "leasehold_serve_streams";
const WATCHERS: &str = "leasehold_serve_watchers";
const REQUESTS: &str = "leasehold_serve_requests_total";
/// From a grant in memory to a wait of ten minutes.
const SECONDS: &[f64] = &[0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0];
const CLAIMS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 100.0, 500.0];
