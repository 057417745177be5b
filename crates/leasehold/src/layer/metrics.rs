//! An event subscriber for the facade of the `metrics` crate: names and labels.
//!
//! Ground rules: the names are an interface, listed in `docs/book/src/observability.md`. No label takes more
//! than a bounded number of values.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::metrics::{counter, gauge, histogram};
use leasehold_core::{LossCause, Resource};

use super::contention::{Contended, Table};
use crate::events::{Event, EventSubscriber};

/// An event subscriber that reports to the recorder of the `metrics` crate (feature `metrics`).
///
/// ```
/// use leasehold::layer::Metrics;
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let metrics = Arc::new(Metrics::new());
/// let locks = leasehold::Client::builder().subscriber(metrics.clone()).open("mem:").await?;
/// let guard = locks.mutex("job").lock().await?;
/// guard.release().await?;
/// assert_eq!(metrics.contended()[0].resource.as_str(), "job");
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// At most [`Metrics::resources`] locks are ever reported by name; all others are `(other)` together.
/// If no recorder is installed, numbers are discarded.
///
/// # Does not promise
/// The named locks may differ between processes: each process names those that it waits for longest.
#[derive(Debug)]
pub struct Metrics {
    contention: Mutex<Table>,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    /// Creates an event subscriber that reports up to 50 locks by name.
    pub fn new() -> Metrics {
        Metrics::resources(NAMES)
    }

    /// Creates an event subscriber that reports up to `names` locks by name: the first ones for which
    /// requests waited a tenth of a second. Four times as many are tracked for [`Metrics::contended`];
    /// with zero none is.
    pub fn resources(names: usize) -> Metrics {
        Metrics { contention: Mutex::new(Table::new(names)) }
    }

    /// Returns the locks that were waited for longest, the heaviest first.
    pub fn contended(&self) -> Vec<Contended> {
        self.contention.lock().unwrap_or_else(PoisonError::into_inner).heaviest()
    }

    fn ended(&self, event: &Event<'_>, resource: &Resource, waited: Duration) {
        gauge!(WAITING).decrement(1.0);
        histogram!(ACQUIRE, "outcome" => event.outcome()).record(waited);
        let is_named = self.contention.lock().unwrap_or_else(PoisonError::into_inner).count(resource, waited);
        let name = if is_named { resource.as_str().to_owned() } else { OTHER.to_owned() };
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        counter!(RESOURCE_ASKED, "resource" => name.clone()).increment(1);
        counter!(RESOURCE_WAITED, "resource" => name).increment(micros);
    }
}

impl EventSubscriber for Metrics {
    fn on_event(&self, event: &Event<'_>) {
        match *event {
            Event::AcquireStarted { .. } => gauge!(WAITING).increment(1.0),
            Event::Acquired { resource, waited, .. } | Event::AcquireFailed { resource, waited, .. } => {
                self.ended(event, resource, waited);
            }
            Event::Queued { ahead: Some(ahead), .. } => histogram!(AHEAD).record(f64::from(ahead)),
            Event::Released { held, .. } => histogram!(HOLD, "end" => "released").record(held),
            Event::Renewed { lag, took, .. } => {
                histogram!(RENEWAL_LAG).record(lag);
                histogram!(RENEWAL).record(took);
            }
            Event::RenewalFailed { .. } => counter!(RENEWAL_FAILURES).increment(1),
            Event::BecameSuspect { .. } => counter!(SUSPECTED).increment(1),
            Event::Recovered { suspect, .. } => histogram!(SUSPECT, "end" => "recovered").record(suspect),
            Event::Lost { cause, held, suspect, late, .. } => {
                counter!(LOST, "cause" => cause_label(cause)).increment(1);
                histogram!(HOLD, "end" => "lost").record(held);
                histogram!(LATE).record(late);
                if let Some(suspect) = suspect {
                    histogram!(SUSPECT, "end" => "lost").record(suspect);
                }
            }
            Event::LeaseStarted { .. } => gauge!(LEASES).increment(1.0),
            Event::LeaseEnded { .. } => gauge!(LEASES).decrement(1.0),
            Event::Queued { ahead: None, .. } => {}
        }
    }
}

fn cause_label(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Expired => "expired",
        LossCause::Gone => "gone",
        LossCause::SessionEnded => "session_ended",
        LossCause::MaxHold => "max_hold",
        LossCause::Closed => "closed",
        LossCause::Forked => "forked",
        LossCause::Transferred => "transferred",
        LossCause::RenewalEnded => "renewal_ended",
        _ => "other",
    }
}

const NAMES: usize = 50;
const OTHER: &str = "(other)";

const ACQUIRE: &str = "leasehold_acquire_seconds";
const WAITING: &str = "leasehold_waiting";
const AHEAD: &str = "leasehold_ahead";
const HOLD: &str = "leasehold_hold_seconds";
const LOST: &str = "leasehold_lost_total";
const LATE: &str = "leasehold_lost_late_seconds";
const SUSPECTED: &str = "leasehold_suspected_total";
const SUSPECT: &str = "leasehold_suspect_seconds";
const RENEWAL: &str = "leasehold_renewal_seconds";
const RENEWAL_LAG: &str = "leasehold_renewal_lag_seconds";
const RENEWAL_FAILURES: &str = "leasehold_renewal_failures_total";
const LEASES: &str = "leasehold_leases";
const RESOURCE_ASKED: &str = "leasehold_resource_asked_total";
const RESOURCE_WAITED: &str = "leasehold_resource_waited_microseconds_total";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_a_label_of_its_own() {
        let causes = [
            LossCause::Expired,
            LossCause::Gone,
            LossCause::SessionEnded,
            LossCause::MaxHold,
            LossCause::Closed,
            LossCause::Forked,
            LossCause::Transferred,
            LossCause::RenewalEnded,
        ];
        let labels: std::collections::HashSet<&str> = causes.into_iter().map(cause_label).collect();
        assert_eq!(labels.len(), causes.len());
        assert!(!labels.contains("other"), "that is for causes which are not known yet");
    }
}
