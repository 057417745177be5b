//! The lock of an outer `run` around this process, as the store shows it.
//!
//! Ground rules: the outer `run` acts on a loss for all that it finds, and does not find what has left its tree. So this
//! process looks at the claim itself, until the claim is gone. A store that does not answer has the claim for as long as
//! that lasts without a renewal; then it counts as lost.

use std::time::Duration;

use leasehold::backend::{Clock, Liveness, Moment};
use leasehold::{Client, Resource, SystemClock};
use tokio::sync::watch;

use crate::process::keeper_lines::Report;
use crate::process::section::Followed;
use crate::request::reentry::Outer;

/// Follows the claim of an outer `run`, which the store has shown to a request of that moment.
pub(crate) fn follow(locks: &Client, lock: &Resource, outer: &Outer, asked: Moment) -> Followed {
    let first = report(outer.remaining, locks.profile().liveness, asked);
    let (sender, reports) = watch::channel(first);
    let observing = observe(locks.clone(), lock.clone(), outer.tag.clone(), sender);
    Followed::of_run(lock, reports, tokio::spawn(observing).abort_handle())
}

async fn observe(locks: Client, lock: Resource, tag: String, sender: watch::Sender<Report>) {
    loop {
        let left = match &*sender.borrow() {
            Report::Until(end) => SystemClock.now().until(*end),
            _ => Duration::MAX,
        };
        // Once the lease is over, the command is being ended, and a store in trouble is not asked more often.
        let pause = if left.is_zero() { PAUSE_MAX } else { (left / 3).clamp(PAUSE_MIN, PAUSE_MAX) };
        tokio::time::sleep(pause).await;
        let asked = SystemClock.now();
        let Ok(snapshot) = locks.inspect(lock.as_str()).await else { continue };
        let Some(holder) = snapshot.holders.iter().find(|holder| holder.id.tag() == tag) else {
            sender.send_replace(Report::Lost(GONE.to_owned()));
            return;
        };
        sender.send_replace(report(holder.remaining, locks.profile().liveness, asked));
    }
}

/// Returns how long a claim lasts that the store has shown to a request of that moment.
fn report(remaining: Option<Duration>, liveness: Liveness, asked: Moment) -> Report {
    match remaining.or_else(|| liveness.valid_for(Duration::MAX)) {
        Some(remaining) => Report::Until(asked.after(remaining.max(REMAINING_MIN))),
        None => Report::Held,
    }
}

/// The bounds of the pause between two looks, which is a third of the time that the claim lasts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The rest of a claim's time, as the store shows it. Some stores count in seconds, and round down.
const REMAINING_MIN: Duration = Duration::from_secs(1);
const GONE: &str = "the outer run has released it, or has lost it";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold::backend::{Backend, Claim, ClaimId, Patience, Share, Step};
    use leasehold::layer::{Fault, Mode, Verb};
    use leasehold::local::MemoryBackend;

    use super::*;

    #[test]
    fn claim_lasts_from_the_request_on_for_as_long_as_the_store_says() {
        let asked = Moment::from_millis(5_000);
        let lease = Liveness::Lease { min: Duration::ZERO, max: Duration::MAX };
        let heartbeat = Liveness::Heartbeat { valid: Duration::from_secs(7) };
        let at = |millis| Report::Until(Moment::from_millis(millis));
        assert_eq!(report(Some(Duration::from_secs(9)), lease, asked), at(14_000));
        assert_eq!(report(Some(Duration::ZERO), lease, asked), at(6_000));
        assert_eq!(report(None, heartbeat, asked), at(12_000));
        assert_eq!(report(None, Liveness::Session, asked), Report::Held);
    }

    /// An answer is as old as the request, and a lease ends no later because the answer is late.
    #[tokio::test]
    async fn late_answer_does_not_make_the_lease_longer() {
        const TTL: Duration = Duration::from_secs(30);
        const LATE: Duration = Duration::from_secs(1);
        let memory = Arc::new(MemoryBackend::new());
        let late = Arc::new(Fault::over(memory.clone()));
        late.set(Verb::Inspect, Mode::LateReply(LATE));
        let locks = Client::builder().over(late).unwrap();
        let lock = Resource::new("job").unwrap();
        // Nobody renews it.
        let claim = Claim::new(ClaimId::from_bytes([7; 16]), lock.clone(), Share::MUTEX, TTL);
        let step = memory.contend(&claim, &Patience::none(Arc::new(SystemClock))).await.unwrap();
        assert!(matches!(step, Step::Granted(_)), "{step:?}");
        let over = SystemClock.now().after(TTL);
        let (sender, mut reports) = watch::channel(Report::Until(over));
        let observing = tokio::spawn(observe(locks, lock, claim.id.tag(), sender));
        for _ in 0..2 {
            reports.changed().await.unwrap();
            let Report::Until(end) = reports.borrow().clone() else { panic!("{reports:?}") };
            assert!(end <= over, "it is believed in until {end:?}, and ends at {over:?}");
        }
        observing.abort();
    }
}
