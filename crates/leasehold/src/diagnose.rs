//! Checks how well a store serves locks, by using it and by asking it.
//!
//! The checks that work through the `Backend` trait are here, once for all backends: the promises, and
//! a few real cycles of one lock. The findings that only a backend can make about its server follow,
//! from [`Backend::diagnose`].

use std::time::Duration;

use leasehold_core::{
    Durability, Fence, FenceGrade, Finding, Liveness, Profile, QueueOrder, Severity, WaitMode,
};

use crate::client::Client;
use crate::error::Error;
use crate::lock::hours;

impl Client {
    /// Checks everything in the configuration of the store that helps or hurts locks with leases of `ttl`.
    ///
    /// It acquires and releases the lock `leasehold-doctor` a few times, to see that this works and how
    /// long it takes, and changes nothing else. It does not fail: every problem is reported as a [`Finding`].
    ///
    /// It takes as long as these cycles and the questions to the server do. If the store does not answer, the cycles
    /// end after 4 s or, if that is longer, a little more than two ttl; the questions end after 30 s.
    ///
    /// # Does not promise
    /// A store without a finding is not a store without faults: only known problems that can be
    /// queried are checked.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::{Client, Severity};
    /// let locks = Client::open("mem:").await?;
    /// let findings = locks.diagnose(std::time::Duration::from_secs(30)).await;
    /// assert!(findings.iter().all(|finding| finding.severity < Severity::Risk));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock is released in the background.
    pub async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        let mut findings = promises(self.profile(), ttl);
        findings.extend(self.try_out(ttl).await);
        findings.extend(self.findings(ttl).await.unwrap_or_else(|error| {
            let finding = Finding::new("server", Severity::Broken, error.to_string());
            vec![finding.meaning("the findings of the server itself are not known")]
        }));
        findings
    }

    /// Runs real cycles of a real lock.
    async fn try_out(&self, ttl: Duration) -> Vec<Finding> {
        // A ttl that the store does not accept is a finding already, and the other findings are
        // useful all the same.
        let ttl = match self.profile().liveness {
            Liveness::Lease { min, max } => ttl.clamp(min, max),
            _ => ttl,
        };
        let mut cycles = Vec::new();
        for _ in 0..CYCLES {
            match self.cycle(ttl).await {
                Ok(cycle) => cycles.push(cycle),
                Err(error) => {
                    let finding = Finding::new("cycle", Severity::Broken, error.to_string());
                    let finding = finding.meaning("a lock cannot be acquired and released on this store");
                    return vec![finding.advice("fix what the error reports, then run this again")];
                }
            }
        }
        let fences: Vec<Fence> = cycles.iter().filter_map(|cycle| cycle.fence).collect();
        let slowest = cycles.iter().map(|cycle| cycle.took).max().unwrap_or_default();
        let fastest = cycles.iter().map(|cycle| cycle.took).min().unwrap_or_default();
        [Some(judge_speed(fastest, slowest, ttl)), judge_fences(&fences)].into_iter().flatten().collect()
    }

    async fn cycle(&self, ttl: Duration) -> Result<Cycle, Error> {
        let clock = self.clock();
        let begin = clock.now();
        let mutex = match self.profile().liveness {
            Liveness::Lease { .. } => self.mutex(NAME).ttl(ttl),
            _ => self.mutex(NAME),
        };
        let guard = mutex.lock_within(ttl.clamp(SHORTEST_WAIT, LONGEST_WAIT)).await?;
        let fence = guard.fence();
        guard.release().await?;
        Ok(Cycle { took: clock.now().since(begin), fence })
    }
}

struct Cycle {
    took: Duration,
    fence: Option<Fence>,
}

/// The lock of the cycles. Always the same one, because a name may stay behind as a fence for ever.
const NAME: &str = "leasehold-doctor";
/// Enough to see a fence rise and a first, slower cycle pass.
const CYCLES: usize = 5;
/// Another examination may run at the same time.
const SHORTEST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Judges the round trip: a first renewal is sent after a third of the ttl and has to be answered, with
/// a second chance, before the end.
fn judge_speed(fastest: Duration, slowest: Duration, ttl: Duration) -> Finding {
    let found = format!("acquire and release took {fastest:.1?} to {slowest:.1?}, with a ttl of {ttl:?}");
    let (severity, meaning) = if slowest >= ttl / 3 {
        (
            Severity::Broken,
            "a renewal that is sent after a third of the ttl is not answered in time: locks get lost",
        )
    } else if slowest >= ttl / 10 {
        (Severity::Risk, "if requests take a few times as long, a renewal comes too late: locks get lost")
    } else {
        (Severity::Good, "renewals have time enough")
    };
    let finding = Finding::new("round-trip", severity, found).meaning(meaning);
    if severity == Severity::Good { finding } else { finding.advice("take a longer ttl, or a nearer store") }
}

fn judge_fences(fences: &[Fence]) -> Option<Finding> {
    let (first, last) = (fences.first()?, fences.last()?);
    if fences.windows(2).all(|pair| pair[0] < pair[1]) {
        return Some(Finding::new("fences", Severity::Good, format!("they rose from {first} to {last}")));
    }
    let finding = Finding::new("fences", Severity::Broken, format!("they did not rise: {fences:?}"));
    let finding = finding.meaning("a resource that checks fences would let an old holder write");
    Some(
        finding
            .advice("do not use this store for fenced resources, and report a bug: this should not happen"),
    )
}

fn promises(profile: &Profile, ttl: Duration) -> Vec<Finding> {
    let good = |topic, found: String| Finding::new(topic, Severity::Good, found);
    let notice = |topic, found: String| Finding::new(topic, Severity::Notice, found);
    let durability = profile.durability.to_string();
    let durability = match profile.durability {
        Durability::Strict => good("durability", durability)
            .meaning("a grant is lost only by a failure beyond the server's documented durability"),
        Durability::LostOnFailover => notice("durability", durability)
            .meaning("a failover, or a restart without data, can grant it again while its holder still relies on it")
            .advice("check fences where a double grant must not do harm, or use a store that promises strict durability"),
        _ => Finding::new("durability", Severity::Risk, durability)
            .meaning("memory pressure in the server is enough to lose a grant")
            .advice("use it for work that may happen twice; see the notes on eviction"),
    };
    let fencing = profile.fencing.to_string();
    let fencing = match profile.fencing {
        FenceGrade::Strict => {
            good("fencing", fencing).meaning("they rise strictly as long as the store keeps its data")
        }
        FenceGrade::AcrossFailover => {
            good("fencing", fencing).meaning("they rise strictly, also over failovers")
        }
        FenceGrade::BestEffort => notice("fencing", fencing).meaning(
            "they rise as long as the store loses nothing; after a loss a fence can be granted again",
        ),
        FenceGrade::None => Finding::new("fencing", Severity::Risk, "there are no fences")
            .meaning("a resource cannot distinguish an old holder that wakes up late from the present one")
            .advice("use it only where two holders do no harm"),
        _ => notice("fencing", fencing),
    };
    let order = match profile.order {
        QueueOrder::Fifo => good("order", "first come, first served".to_owned()),
        _ => notice("order", "the first client to ask after a release".to_owned())
            .meaning("under load a waiter may be passed over many times"),
    };
    let waiting = match profile.waiting {
        WaitMode::Polls => notice("waiting", "a waiter polls".to_owned())
            .meaning("a hand-over takes as long as the pause between two polls"),
        WaitMode::Notifies => good("waiting", "a waiter is notified".to_owned()),
        _ => good("waiting", "a waiter sleeps in the server or the kernel until its turn".to_owned()),
    };
    [durability, fencing, order, waiting].into_iter().chain(judge_ttl(profile, ttl)).collect()
}

fn judge_ttl(profile: &Profile, ttl: Duration) -> Option<Finding> {
    match profile.liveness {
        Liveness::Lease { min, max } if !(min..=max).contains(&ttl) => {
            let (ttl, max) = (hours(ttl), hours(max));
            let found = format!("a ttl of {ttl} is outside what this store takes, {min:?} to {max}");
            Some(Finding::new("ttl", Severity::Broken, found).advice("choose a ttl in that range"))
        }
        Liveness::Heartbeat { valid } => {
            let found =
                format!("the session counts, not the ttl: a lock is good for {valid:?} without an answer");
            Some(
                Finding::new("ttl", Severity::Notice, found)
                    .advice("to change it, change the session's timeout"),
            )
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagnose_reports_how_slow_a_store_is() {
        let ttl = Duration::from_secs(3);
        let speed = |millis| judge_speed(Duration::ZERO, Duration::from_millis(millis), ttl).severity;
        assert_eq!((speed(5), speed(300), speed(1_000)), (Severity::Good, Severity::Risk, Severity::Broken));
    }

    #[test]
    fn no_finding_advises_the_store_itself() {
        let weak = Profile::new(
            "etcd",
            Liveness::Lease { min: Duration::from_secs(1), max: Duration::from_secs(60) },
        )
        .admission(leasehold_core::LockSupport::Counted)
        .order(QueueOrder::Fifo)
        .waiting(WaitMode::Notifies)
        .fencing(FenceGrade::BestEffort)
        .durability(Durability::LostOnFailover)
        .note_max(1);
        for finding in promises(&weak, Duration::from_secs(30)) {
            let text = format!("{finding:?}");
            for word in ["etcd", "ZooKeeper", "a clock takes over"] {
                assert!(!text.contains(word), "{text}");
            }
        }
    }

    #[test]
    fn fences_that_do_not_rise_are_found() {
        let fence = |seq| Fence::new(0, seq, 0);
        assert_eq!(judge_fences(&[]), None);
        assert_eq!(judge_fences(&[fence(1), fence(2)]).unwrap().severity, Severity::Good);
        assert_eq!(judge_fences(&[fence(1), fence(2), fence(2)]).unwrap().severity, Severity::Broken);
    }
}
