//! Metrics, events and spans of locks: the values that a recorder and a subscriber get, while the store
//! misbehaves.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod common;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use common::ms;
use leasehold::backend::LossCause;
use leasehold::layer::{Fault, Metrics, Mode, Verb};
use leasehold::{AcquireFailure, AcquireSource, Client, Event, EventSubscriber, Owner, State};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The values that a recorder got, by name and labels; histograms as their values.
struct RecordedMetrics(HashMap<String, DebugValue>);

impl RecordedMetrics {
    fn by(snapshotter: &Snapshotter) -> RecordedMetrics {
        let entries = snapshotter.snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
            (format!("{}{{{}}}", key.key().name(), labels.join(",")), value)
        });
        RecordedMetrics(entries.collect())
    }

    fn values(&self, name: &str) -> Vec<f64> {
        match self.0.get(name) {
            Some(DebugValue::Histogram(values)) => values.iter().map(|value| value.into_inner()).collect(),
            other => panic!("{name}: {other:?} among {:?}", self.0.keys()),
        }
    }

    fn count(&self, name: &str) -> u64 {
        match self.0.get(name) {
            Some(DebugValue::Counter(count)) => *count,
            other => panic!("{name}: {other:?} among {:?}", self.0.keys()),
        }
    }

    fn gauge(&self, name: &str) -> f64 {
        match self.0.get(name) {
            Some(DebugValue::Gauge(value)) => value.into_inner(),
            other => panic!("{name}: {other:?} among {:?}", self.0.keys()),
        }
    }
}

/// Opens a client in the time of the runtime, so that a busy machine changes no time that is measured.
fn client(subscriber: Arc<dyn EventSubscriber>) -> (Client, Arc<Fault>) {
    common::Store::in_virtual_time().observed(subscriber)
}

/// One thread runs everything, so the recorder of this thread gets all of it.
#[tokio::test(start_paused = true)]
async fn times_and_losses_reach_the_recorder() {
    Spans::install();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let (locks, wire) = client(Arc::new(Metrics::new()));
    let mutex = locks.mutex("job").ttl(ms(600));

    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await.unwrap() }
    });
    tokio::time::sleep(ms(60)).await;
    let before = RecordedMetrics::by(&snapshotter);
    assert_eq!(before.gauge("leasehold_waiting{}"), 1.0);
    assert_eq!(before.gauge("leasehold_leases{}"), 1.0);
    guard.release().await.unwrap();
    let second = waiter.await.unwrap();

    // A renewal that is not answered, and one that is.
    wire.set(Verb::Renew, Mode::LoseRequest);
    assert_eq!(second.changed(State::Valid).await, State::Suspect);
    tokio::time::sleep(ms(50)).await;
    wire.set(Verb::Renew, Mode::Pass);
    assert_eq!(second.changed(State::Suspect).await, State::Valid);
    // And none any more.
    wire.set(Verb::Renew, Mode::LoseRequest);
    assert_eq!(second.lost().await, LossCause::Expired);
    assert!(second.release().await.unwrap_err().is_lost());
    assert!(mutex.try_lock_for(ms(1)).await.unwrap().is_some());
    common::settles(&locks, "job").await;

    let recorded = RecordedMetrics::by(&snapshotter);
    // A snapshot has the values since the last one.
    let acquired: Vec<_> = ["granted", "busy"]
        .map(|outcome| format!("leasehold_acquire_seconds{{outcome={outcome}}}"))
        .iter()
        .map(|name| before.values(name).len())
        .collect();
    assert_eq!(acquired, [1, 1]);
    let waited = recorded.values("leasehold_acquire_seconds{outcome=local_queue}");
    assert!(waited.len() == 1 && (0.05..1.0).contains(&waited[0]), "{waited:?}");
    let held = recorded.values("leasehold_hold_seconds{end=released}");
    assert!(held[0] >= 0.06 && held.len() == 2, "{held:?}");
    let suspect = recorded.values("leasehold_suspect_seconds{end=recovered}");
    assert!(suspect.len() == 1 && (0.05..0.6).contains(&suspect[0]), "{suspect:?}");
    let suspect = recorded.values("leasehold_suspect_seconds{end=lost}");
    assert!(suspect.len() == 1 && (0.05..0.6).contains(&suspect[0]), "{suspect:?}");
    assert_eq!(recorded.count("leasehold_lost_total{cause=expired}"), 1);
    let late = recorded.values("leasehold_lost_late_seconds{}");
    assert!(late.len() == 1 && late[0] < 0.5, "{late:?}");
    assert!(recorded.count("leasehold_renewal_failures_total{}") >= 2);
    assert_eq!(recorded.count("leasehold_suspected_total{}"), 2);
    let lag = recorded.values("leasehold_renewal_lag_seconds{}");
    assert!(lag.iter().any(|lag| *lag >= 0.04), "one was late by the outage: {lag:?}");
    for gauge in ["leasehold_waiting{}", "leasehold_leases{}"] {
        assert_eq!(before.gauge(gauge) + recorded.gauge(gauge), 0.0, "{gauge}");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_name_only_a_limited_number_of_locks() {
    Spans::install();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let subscriber = Arc::new(Metrics::resources(2));
    let (locks, _) = client(subscriber.clone());
    for number in 0..40 {
        drop(locks.mutex(format!("quiet/{number}")).lock().await.unwrap());
    }
    for name in ["a", "b", "c"] {
        let guard = locks.mutex(name).lock().await.unwrap();
        assert!(locks.mutex(name).try_lock_for(ms(150)).await.unwrap().is_none());
        drop(guard);
    }
    let recorded = RecordedMetrics::by(&snapshotter);
    let named: Vec<_> =
        recorded.0.keys().filter(|name| name.starts_with("leasehold_resource_asked")).collect();
    assert_eq!(named.len(), 3, "two names and the others: {named:?}");
    assert!(recorded.count("leasehold_resource_waited_microseconds_total{resource=a}") >= 140_000);
    assert!(recorded.count("leasehold_resource_waited_microseconds_total{resource=b}") >= 140_000);
    assert!(recorded.count("leasehold_resource_waited_microseconds_total{resource=(other)}") >= 140_000);
    let top: Vec<_> =
        subscriber.contended().iter().take(3).map(|row| row.resource.as_str().to_owned()).collect();
    assert_eq!(top.iter().map(String::as_str).filter(|name| ["a", "b", "c"].contains(name)).count(), 3);
}

/// Keeps the words of the events that it gets.
#[derive(Debug, Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl EventSubscriber for Log {
    fn on_event(&self, event: &Event<'_>) {
        let text = match event {
            Event::AcquireStarted { .. } => "asked".to_owned(),
            Event::Acquired { source, .. } => format!("{source:?}"),
            Event::AcquireFailed { failure, .. } => format!("{failure:?}"),
            Event::Lost { cause, .. } => format!("lost {cause:?}"),
            _ => return,
        };
        self.0.lock().unwrap().push(text);
    }
}

/// Each beginning has one end, of any kind.
#[tokio::test(start_paused = true)]
async fn each_acquire_event_has_exactly_one_end_event() {
    Spans::install();
    let log = Arc::new(Log::default());
    let (locks, wire) = client(log.clone());
    let (mutex, owner) = (locks.mutex("job"), Owner::new());
    let guard = mutex.clone().owner(&owner).lock().await.unwrap();
    // It is reentrant by its age.
    tokio::time::sleep(ms(1)).await;
    let again = mutex.clone().owner(&owner).lock().await.unwrap();
    assert_eq!(log.take(), ["asked", "Server", "asked", "Reentrant"]);
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(mutex.try_lock_for(ms(5)).await.unwrap().is_none());
    assert!(tokio::time::timeout(ms(5), mutex.lock()).await.is_err());
    let busy = format!("{:?}", AcquireFailure::Busy);
    let (timeout, left) = ("Error(Timeout)".to_owned(), "Cancelled".to_owned());
    let asked = || "asked".to_owned();
    assert_eq!(log.take(), [asked(), busy, asked(), timeout, asked(), left]);
    let next = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await.unwrap() }
    });
    tokio::task::yield_now().await;
    drop((guard, again));
    let next = next.await.unwrap();
    assert_eq!(log.take(), [asked(), format!("{:?}", AcquireSource::LocalQueue)]);
    wire.set(Verb::Contend, Mode::LoseReply);
    assert!(locks.mutex("other").try_lock().await.is_err());
    assert_eq!(log.take(), [asked(), "Error(OutcomeUnknown)".to_owned()]);
    assert!(locks.close(ms(2000)).await);
    assert_eq!(next.state(), State::Lost(LossCause::Closed));
    assert_eq!(log.take(), ["lost Closed"]);
}

/// The spans that were closed, of each test's thread.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<HashMap<ThreadId, Vec<Closed>>>>);

/// Name, name of the parent, fields.
type Closed = (String, Option<String>, String);

impl Spans {
    /// One for the whole program: the wanted spans are remembered for each place in it, on all threads.
    fn install() -> Spans {
        static SPANS: LazyLock<Spans> = LazyLock::new(|| {
            let spans = Spans::default();
            tracing::subscriber::set_global_default(tracing_subscriber::registry().with(spans.clone()))
                .unwrap();
            spans
        });
        SPANS.clone()
    }
}

struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?};"));
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Spans {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        id: &tracing::span::Id,
        ctx: Context<'_, S>,
    ) {
        let mut fields = Fields(String::new());
        attributes.record(&mut fields);
        ctx.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &tracing::span::Id, values: &tracing::span::Record<'_>, ctx: Context<'_, S>) {
        let span = ctx.span(id).unwrap();
        let mut extensions = span.extensions_mut();
        values.record(extensions.get_mut::<Fields>().unwrap());
    }

    fn on_close(&self, id: tracing::span::Id, ctx: Context<'_, S>) {
        let span = ctx.span(&id).unwrap();
        let parent = span.parent().map(|parent| parent.name().to_owned());
        let fields = span.extensions().get::<Fields>().unwrap().0.clone();
        let recorded = (span.name().to_owned(), parent, fields);
        self.0.lock().unwrap().entry(std::thread::current().id()).or_default().push(recorded);
    }
}

#[tokio::test(start_paused = true)]
async fn spans_show_each_request_under_its_acquisition() {
    let spans = Spans::install();
    let (locks, _) = common::Store::in_virtual_time().client();
    let guard = locks.mutex("job").ttl(ms(150)).lock().await.unwrap();
    let fence = guard.fence().unwrap();
    tokio::time::sleep(Duration::from_millis(120)).await;
    guard.release().await.unwrap();
    locks.inspect("job").await.unwrap();
    let seen = spans.0.lock().unwrap()[&std::thread::current().id()].clone();
    let of =
        |name: &str| seen.iter().find(|span| span.0 == name).unwrap_or_else(|| panic!("{name}: {seen:?}"));
    let acquire = of("leasehold.acquire");
    for field in ["resource=job;", "share=mutex;", "outcome=\"granted\";", &format!("fence={fence};")] {
        assert!(acquire.2.contains(field), "{field}: {acquire:?}");
    }
    assert_eq!(of("leasehold.contend").1.as_deref(), Some("leasehold.acquire"));
    assert_eq!(of("leasehold.renew").2, "claims=1;");
    assert_eq!(of("leasehold.release").2, "claims=1;");
    assert_eq!(of("leasehold.inspect").2, "resource=job;");
}
