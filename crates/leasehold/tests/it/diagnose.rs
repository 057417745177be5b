//! Findings about a store that does not answer.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Finding};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, Severity, TokioClock};
use leasehold_conformance::{Around, Wrapped};
use tokio::time::Instant;

/// A store that answers no question about its server.
#[derive(Debug)]
struct Silent(MemoryBackend);

#[async_trait::async_trait]
impl Around for Silent {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn diagnose(&self, _: Duration) -> Vec<Finding> {
        pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn diagnosis_of_a_store_that_does_not_answer_ends() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(Wrapped(Silent(MemoryBackend::with_clock(clock.clone()))));
    for (mode, is_granted) in [(Mode::Pass, true), (Mode::Hang, false)] {
        let wire = Arc::new(Fault::over(store.clone()));
        let locks = Client::builder().clock(clock.clone()).over(wire.clone()).unwrap();
        wire.set(Verb::Contend, mode);
        let began = Instant::now();
        let findings = locks.diagnose(Duration::from_millis(500)).await;
        let limit = Duration::from_secs(if is_granted { 30 } else { 34 });
        assert!(began.elapsed() <= limit + Duration::from_millis(10), "{:?}", began.elapsed());
        let broken = |topic: &str| {
            findings.iter().any(|finding| finding.topic == topic && finding.severity == Severity::Broken)
        };
        assert!(broken("server") && broken("cycle") != is_granted, "{findings:?}");
    }
}
