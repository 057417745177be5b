//! The cost of being watched: the memory store, because nothing else hides it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::layer::Metrics;
use leasehold::{Client, Event, EventSubscriber};

use crate::Outcome;
use crate::load::Load;
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Unit};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let alone = Client::open("mem:").await?;
    let idle = watched_by(Arc::new(Idle)).await?;
    let metrics = watched_by(Arc::new(Metrics::new())).await?;
    let (mut unwatched, mut with_idle, mut with_metrics) =
        (Series::default(), Series::default(), Series::default());
    cycle(&alone, plan.round).await?;
    for _ in 0..plan.rounds {
        unwatched.push(cycle(&alone, plan.round).await?);
        with_idle.push(cycle(&idle, plan.round).await?);
        with_metrics.push(cycle(&metrics, plan.round).await?);
    }
    let measure = Measure { group: GROUP, what: "acquire and release", unit: Unit::Micros };
    report.compare(measure, &with_idle, "nobody listens", &unwatched, None);
    let what = "acquire and release, with Metrics and no recorder";
    report.compare(Measure { what, ..measure }, &with_metrics, "nobody listens", &unwatched, None);
    Ok(())
}

const GROUP: &str = "watched: memory, one task, with an event subscriber that does nothing";

async fn watched_by(subscriber: Arc<dyn EventSubscriber>) -> Outcome<Client> {
    Ok(Client::builder().subscriber(subscriber).open("mem:").await?)
}

/// Microseconds of one acquire and its release.
async fn cycle(locks: &Client, round: Duration) -> Outcome<f64> {
    let mutex = locks.mutex("watched");
    let load = Load::run(1, round / 3, move |_| {
        let mutex = mutex.clone();
        async move {
            mutex.lock().await?.release().await?;
            Ok(())
        }
    });
    Ok(load.await?.latency())
}

/// A recorder that does nothing with what it gets.
#[derive(Debug)]
struct Idle;

impl EventSubscriber for Idle {
    fn on_event(&self, event: &Event<'_>) {
        std::hint::black_box(event);
    }
}
