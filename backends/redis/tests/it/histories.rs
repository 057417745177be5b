//! Random histories of calls: the scripts must answer as the ledger does, which is the admission rule itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::common::*;
use futures_util::future::join_all;
use leasehold_core::{
    Ask, Backend, Claim, ClaimId, Failure, FailureKind, Fence, Ledger, Moment, Note, Patience, Release,
    Renewal, Resource, Share, Step, Verdict, Wait,
};
use leasehold_redis::RedisBackend;
use leasehold_testkit::RedisServer;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// One call in a history; claims are numbered.
#[derive(Clone, Copy, Debug)]
enum Call {
    Contend(u8, Share, Way),
    Renew(u8, Share),
    Release(u8, Share),
    /// Longer than a lease of this test and than the grace of a call, which is also what is followed by
    /// a challenge.
    Pass,
    /// Longer than a call may be unanswered before more are called, and with a stretch before and behind
    /// it shorter than the grace of a call. Two of them are longer.
    Breathe,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Stand,
    Look,
    Barge,
}

const PASS: Duration = Duration::from_millis(2_100);
const BREATH: Duration = Duration::from_millis(600);
/// It neither ends in a breath with a stretch before and behind it, nor lasts for two.
const SHORT_LEASE: Duration = Duration::from_millis(1_000);
/// Time must not decide anything between two passes: a history that is slower than this says nothing.
const STRETCH: Duration = Duration::from_millis(180);
/// The server counts in milliseconds. What comes first must do so for it, too.
const APART: Duration = Duration::from_millis(2);

fn shares() -> impl Strategy<Value = Share> {
    prop_oneof![
        3 => Just(Share::MUTEX),
        2 => Just(Share::READER),
        1 => Just(Share::WRITER),
        4 => (1u32..4, 3u32..5).prop_map(|(k, n)| Share::permits(k.min(n), n).unwrap()),
    ]
}

fn histories(passes: u32, length: usize) -> impl Strategy<Value = Vec<Call>> {
    let way = prop_oneof![6 => Just(Way::Stand), 2 => Just(Way::Look), 1 => Just(Way::Barge)];
    let call = prop_oneof![
        20 => (0u8..7, shares(), way).prop_map(|(n, share, way)| Call::Contend(n, share, way)),
        5 => (0u8..7, shares()).prop_map(|(n, share)| Call::Renew(n, share)),
        12 => (0u8..7, shares()).prop_map(|(n, share)| Call::Release(n, share)),
        passes => Just(Call::Pass),
        passes => Just(Call::Breathe),
    ];
    proptest::collection::vec(call, 1..length)
}

/// Runs one history on both sides, on a resource of its own.
struct Run<'a> {
    fifo: &'a RedisBackend,
    unordered: &'a RedisBackend,
    resource: Resource,
    lease: Duration,
    endless: Patience,
    salt: [u8; 15],
    ledger: Ledger,
    fences: BTreeMap<Fence, Fence>,
    begun: Instant,
    stretch: Instant,
    is_slow: bool,
}

impl Run<'_> {
    fn now(&self) -> Moment {
        Moment::from_millis(1).after(self.begun.elapsed())
    }

    fn id(&self, n: u8) -> ClaimId {
        let mut bytes = [n; 16];
        bytes[1..].copy_from_slice(&self.salt);
        ClaimId::from_bytes(bytes)
    }

    fn claim(&self, n: u8, share: Share) -> Claim {
        let note = Note::new(&format!("claim {n}")).unwrap();
        Claim::new(self.id(n), self.resource.clone(), share, self.lease).note(note)
    }

    /// Both sides answered the same, or time came in between.
    fn agree<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, server: &T, rule: &T) {
        self.is_slow |= self.stretch.elapsed() > STRETCH;
        assert!(self.is_slow || server == rule, "{what}: the rule says {rule:?}, the server {server:?}");
    }

    /// Records that the server did not answer in time: there is nothing to compare.
    fn answered_late(&mut self, failure: &Failure) {
        let is_slow = self.stretch.elapsed() > STRETCH;
        assert!(is_slow && failure.kind == FailureKind::Unavailable, "{failure}");
        self.is_slow = true;
    }

    async fn contend(&mut self, n: u8, share: Share, way: Way) {
        let claim = self.claim(n, share);
        let wait = match way {
            Way::Stand => Wait::Queued(Duration::from_secs(60)),
            Way::Look => Wait::No,
            Way::Barge => Wait::Barging,
        };
        let ask = Ask { id: claim.id, share, lease: self.lease, wait, note: claim.note.clone() };
        let expected = self.ledger.contend(&ask, self.now());
        let step = match way {
            Way::Stand => self.fifo.contend(&claim, &self.endless).await,
            Way::Look => self.fifo.contend(&claim, &no_patience()).await,
            Way::Barge => self.unordered.contend(&claim, &self.endless).await,
        };
        let step = match step {
            Ok(step) => step,
            Err(failure) => return self.answered_late(&failure),
        };
        let granted = matches!(step, Step::Granted(_));
        self.agree(&format!("{n} {share} {way:?}"), &granted, &matches!(expected, Verdict::Granted(_)));
        if let (Verdict::Granted(expected), Step::Granted(grant), false) = (expected, step, self.is_slow) {
            let fence = grant.fence.unwrap();
            let same = *self.fences.entry(expected).or_insert(fence);
            assert_eq!(same, fence, "one grant has one fence");
            let rising: Vec<_> = self.fences.values().collect();
            assert!(rising.windows(2).all(|pair| pair[0] < pair[1]), "fences rise: {rising:?}");
        }
    }

    async fn call(&mut self, call: Call) {
        match call {
            Call::Contend(n, share, way) => self.contend(n, share, way).await,
            Call::Renew(n, share) => {
                let expected = self.ledger.renew(self.id(n), self.lease, self.now());
                match renew(self.fifo, &self.claim(n, share)).await {
                    Renewal::Unknown(failure) => self.answered_late(&failure),
                    Renewal::Renewed => self.agree(&format!("{call:?}"), &true, &expected),
                    Renewal::Lost => self.agree(&format!("{call:?}"), &false, &expected),
                    other => panic!("{other:?}"),
                }
            }
            Call::Release(n, share) => self.release(n, share).await,
            Call::Pass => self.pass(PASS).await,
            Call::Breathe => self.pass(BREATH).await,
        }
        if self.lease == SHORT_LEASE {
            tokio::time::sleep(APART).await;
        }
    }

    async fn pass(&mut self, time: Duration) {
        let begun = Instant::now();
        tokio::time::sleep(time).await;
        self.is_slow |= begun.elapsed() > time + APART * 10;
        self.stretch = Instant::now();
        // Both sides notice what time has ended when somebody asks.
        self.contend(99, Share::WRITER, Way::Look).await;
        self.release(99, Share::WRITER).await;
    }

    async fn release(&mut self, n: u8, share: Share) {
        let expected = self.ledger.release(self.id(n), self.now());
        match release(self.fifo, &self.claim(n, share)).await {
            Release::Unknown(failure) => self.answered_late(&failure),
            known => self.agree(&format!("release of {n}"), &matches!(known, Release::Freed), &expected),
        }
    }

    /// The same claims hold, and the same claims wait in the same order.
    async fn compare(&mut self) {
        let seen = match self.fifo.inspect(&self.resource, None, &no_patience()).await {
            Ok(seen) => seen,
            Err(failure) => return self.answered_late(&failure),
        };
        let mut ledger = self.ledger.clone();
        ledger.expire(self.now());
        let (holders, waiting): (Vec<_>, Vec<_>) =
            ledger.entries().iter().partition(|entry| entry.granted.is_some());
        let expected: BTreeSet<_> = holders.iter().map(|entry| (entry.id, entry.share.to_string())).collect();
        let actual: BTreeSet<_> = seen.holders.iter().map(|held| (held.id, held.share.to_string())).collect();
        self.agree("holders", &actual, &expected);
        let expected: Vec<_> = waiting.iter().map(|entry| (entry.id, entry.share)).collect();
        let actual: Vec<_> = seen.waiting.iter().map(|info| (info.id, info.share)).collect();
        self.agree("the line", &actual, &expected);
    }

    /// `false` where the machine was too slow for the history to mean anything.
    async fn run(mut self, history: &[Call]) -> bool {
        for call in history {
            self.call(*call).await;
            self.compare().await;
            if self.is_slow {
                return false;
            }
        }
        true
    }
}

async fn run(
    fifo: &RedisBackend,
    unordered: &RedisBackend,
    name: &str,
    lease: Duration,
    history: &[Call],
) -> bool {
    let mut salt = [0; 15];
    salt.copy_from_slice(&random_id().as_bytes()[..15]);
    let run = Run {
        fifo,
        unordered,
        resource: resource(name),
        lease,
        endless: endless(),
        salt,
        ledger: Ledger::new(Fence::default()),
        fences: BTreeMap::new(),
        begun: Instant::now(),
        stretch: Instant::now(),
        is_slow: false,
    };
    run.run(history).await
}

async fn backends(server: &RedisServer) -> (RedisBackend, RedisBackend) {
    let url = server.url();
    (connect(&format!("{url}?wait=poll")).await, connect(&format!("{url}?wait=poll&order=unordered")).await)
}

#[test]
fn any_history_is_answered_as_the_rule_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let Some(server) = runtime.block_on(RedisServer::start_or_skip()) else { return };
    let (fifo, unordered) = runtime.block_on(backends(&server));
    let slow = std::cell::Cell::new(0);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) };
    proptest!(config, |(history in histories(0, 60))| {
        let name = format!("history {:?}", random_id().to_hex());
        if !runtime.block_on(run(&fifo, &unordered, &name, TTL, &history)) {
            slow.set(slow.get() + 1);
        }
    });
    // Each history that was fast enough was compared, up to where another one was too slow.
    println!("the machine was too slow for {} of 400 histories", slow.get());
    assert!(slow.get() < 400, "no history was compared as a whole");
}

#[tokio::test]
async fn ends_of_leases_and_places_are_those_of_the_rule() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let (fifo, unordered) = backends(&server).await;
    let mut runner = TestRunner::default();
    let strategy = histories(6, 16);
    let mut kept = 0;
    // Other histories where the machine was too slow for nearly all of them.
    for round in 0..5 {
        let histories: Vec<Vec<Call>> =
            (0..48).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
        // They sleep most of the time, so they run side by side.
        let runs = histories.iter().enumerate().map(async |(n, history)| {
            let name = format!("history {round} {n}");
            run(&fifo, &unordered, &name, SHORT_LEASE, history).await
        });
        kept += join_all(runs).await.into_iter().filter(|kept| *kept).count();
        println!("{kept} histories were fast enough after round {round} of 48");
        if kept >= 4 {
            return;
        }
    }
    assert!(kept > 0, "no history was compared as a whole");
}
