//! Elections whose leader is cut off, loses its lock or gives it up while others look: the value that it has
//! proclaimed is seen for as long as it leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{self, Store, ms};
use leasehold::layer::{Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, Election, ErrorKind, Owner, TokioClock, Tuning};
use leasehold_conformance::{Around, Wrapped};
use leasehold_core::{Backend, Failure, Note, Patience, Profile, Resource, Snapshot, SnapshotVersion};
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(9);
const LONGEST: Duration = Duration::from_secs(300);

async fn value(locks: &Client) -> Option<String> {
    locks.election("boss").leader().await.unwrap().map(|leader| leader.value)
}

/// Waits until nobody leads. Until then the value is the one that was proclaimed.
async fn seen_as_ready_to_its_end(locks: &Client, when: &str) {
    assert_eq!(value(locks).await.as_deref(), Some("ready"), "{when}");
    let began = Instant::now();
    while let Some(seen) = value(locks).await {
        assert_eq!(seen, "ready", "{when}, after {:?}", began.elapsed());
        assert!(began.elapsed() < LONGEST, "{when}: it leads for ever");
        tokio::time::sleep(ms(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn value_outlives_an_outage_that_its_leader_outlives() {
    for (renew_at, proclaimed_at) in [0.05, 1.0 / 3.0, 0.6]
        .into_iter()
        .flat_map(|at| [100, 800, 1_500, 2_900].map(|proclaimed_at| (at, ms(proclaimed_at))))
    {
        let store = Store::in_virtual_time();
        let ((locks, wire), (other, _)) = (store.tuned(Tuning::default().renew_at(renew_at)), store.client());
        let began = tokio::time::Instant::now();
        let leadership = locks.election("boss").ttl(TTL).campaign("starting").await.unwrap();
        tokio::time::sleep_until(began + proclaimed_at).await;
        leadership.proclaim("ready").await.unwrap();
        // The leader lock was renewed last within that time of the outage's beginning.
        tokio::time::sleep_until(began + TTL.mul_f64(renew_at) + ms(300)).await;
        wire.set(Verb::Renew, Mode::Refuse);
        while leadership.remaining() > ms(1_200) {
            tokio::time::sleep(ms(50)).await;
        }
        wire.set(Verb::Renew, Mode::Pass);
        tokio::time::sleep(TTL * 3).await;
        leadership.check().unwrap();
        let seen = value(&other).await;
        assert_eq!(seen.as_deref(), Some("ready"), "renewed at {renew_at}, proclaimed at {proclaimed_at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn dead_leader_is_seen_under_its_value_until_its_lease_ends() {
    for renew_at in [0.05, 1.0 / 3.0, 0.6] {
        let store = Store::in_virtual_time();
        let ((locks, wire), (other, _)) = (store.tuned(Tuning::default().renew_at(renew_at)), store.client());
        let leadership = locks.election("boss").ttl(TTL).campaign("starting").await.unwrap();
        tokio::time::sleep(TTL.mul_f64(renew_at) / 2).await;
        leadership.proclaim("ready").await.unwrap();
        tokio::time::sleep(TTL.mul_f64(renew_at) * 3 / 4).await;
        // Since the leader lock was renewed, nothing of this client reaches the store any more.
        wire.set_all(Mode::Hang);
        seen_as_ready_to_its_end(&other, &format!("renewed at {renew_at}")).await;
        drop(leadership);
    }
}

#[tokio::test(start_paused = true)]
async fn leader_is_seen_under_its_value_during_its_lock_delay() {
    for ending in ["dropped", "resigns", "stays"] {
        let store = Store::in_virtual_time();
        let ((locks, _), (other, _)) = (store.client(), store.client());
        let limits = |election: Election| {
            election.with(|lock| Ok(lock.ttl(TTL).max_hold(ms(1_000)).lock_delay(Duration::from_secs(30))))
        };
        let leadership = limits(locks.election("boss")).unwrap().campaign("starting").await.unwrap();
        leadership.proclaim("ready").await.unwrap();
        leadership.lost().await;
        let kept = match ending {
            "dropped" => {
                drop(leadership);
                None
            }
            "resigns" => {
                leadership.resign().await.unwrap_err();
                None
            }
            _ => Some(leadership),
        };
        seen_as_ready_to_its_end(&other, ending).await;
        drop(kept);
    }
}

#[tokio::test(start_paused = true)]
async fn observer_whose_answer_is_late_sees_no_older_value() {
    let store = Store::in_virtual_time();
    let ((locks, _), (other, wire)) = (store.client(), store.client());
    let election = other.election("boss");
    for observes in [false, true] {
        let leadership = locks.election("boss").campaign("starting").await.unwrap();
        leadership.proclaim("draining").await.unwrap();
        wire.set(Verb::Inspect, Mode::LateReply(ms(500)));
        let looking =
            async { if observes { election.observe().next().await } else { election.leader().await } };
        let resigning = async {
            tokio::time::sleep(ms(250)).await;
            leadership.resign().await.unwrap();
        };
        let (seen, ()) = tokio::join!(looking, resigning);
        let seen = seen.unwrap().map(|leader| leader.value);
        assert_ne!(seen.as_deref(), Some("starting"), "observes: {observes}");
        wire.set(Verb::Inspect, Mode::Pass);
    }
}

/// A store that shows nine bytes of a note, and promises none. It can let looks wait for ever.
#[derive(Debug)]
struct Narrow {
    memory: MemoryBackend,
    profile: Profile,
    hides: Arc<AtomicBool>,
}

impl Narrow {
    /// Opens one, and returns its client and what hides the locks.
    fn open() -> (Client, Arc<AtomicBool>) {
        let clock = Arc::new(TokioClock::new());
        let (memory, hides) = (MemoryBackend::with_clock(clock.clone()), Arc::new(AtomicBool::new(false)));
        let profile = memory.profile().clone().note_max(0);
        let narrow = Narrow { memory, profile, hides: hides.clone() };
        (Client::builder().clock(clock).over(Arc::new(Wrapped(narrow))).unwrap(), hides)
    }
}

#[async_trait::async_trait]
impl Around for Narrow {
    fn inner(&self) -> &dyn Backend {
        &self.memory
    }

    fn profile(&self) -> &Profile {
        &self.profile
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        if self.hides.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let mut snapshot = self.memory.inspect(resource, seen, patience).await?;
        for holder in &mut snapshot.holders {
            let short: String = holder.note.as_str().chars().take(9).collect();
            holder.note = Note::new(&short).unwrap();
        }
        Ok(snapshot)
    }
}

#[tokio::test]
async fn value_that_the_store_cuts_is_refused() {
    let (locks, _) = Narrow::open();
    // It is given up at once all the same.
    let election = locks.election("boss").with(|lock| Ok(lock.min_hold(LONGEST))).unwrap();
    let refused = |error: leasehold::Error| assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    refused(election.campaign("ten bytes.").await.map(drop).unwrap_err());
    common::settles(&locks, "boss").await;
    refused(election.try_campaign("ten bytes.").await.map(drop).unwrap_err());
    common::settles(&locks, "boss").await;
    refused(election.try_campaign_for("ten bytes.", ms(100)).await.map(drop).unwrap_err());
    common::settles(&locks, "boss").await;

    let leadership = locks.election("boss").campaign("nine byte").await.unwrap();
    assert_eq!(value(&locks).await.as_deref(), Some("nine byte"));
    refused(leadership.proclaim("").await.unwrap_err());
    assert_eq!(value(&locks).await.as_deref(), Some("nine byte"), "the tag of the leader does not fit");
    leadership.resign().await.unwrap();
}

/// Its minimum time would begin with the grant.
#[tokio::test(start_paused = true)]
async fn candidate_that_leaves_while_its_value_is_looked_at_is_withdrawn() {
    let (locks, hides) = Narrow::open();
    let election = locks.election("boss").with(|lock| Ok(lock.min_hold(LONGEST))).unwrap();
    hides.store(true, Ordering::SeqCst);
    tokio::time::timeout(ms(100), election.campaign("mine")).await.unwrap_err();
    hides.store(false, Ordering::SeqCst);
    let began = Instant::now();
    let next = locks.election("boss").campaign("next").await.unwrap();
    assert!(began.elapsed() < TTL, "{:?}", began.elapsed());
    next.resign().await.unwrap();
    // It begins when it leads.
    let leadership = election.campaign("mine").await.unwrap();
    let began = Instant::now();
    leadership.resign().await.unwrap();
    assert!(began.elapsed() >= LONGEST, "{:?}", began.elapsed());
}

/// The second candidate is the same claim, which has the value of the first.
#[tokio::test]
async fn owner_that_leads_already_leads_again() {
    let (locks, _) = Narrow::open();
    let owner = Owner::new();
    let election = locks.election("boss").with(|lock| Ok(lock.owner(&owner))).unwrap();
    let first = election.campaign("first").await.unwrap();
    let second = election.campaign("second").await.unwrap();
    assert_eq!(value(&locks).await.as_deref(), Some("first"));
    second.resign().await.unwrap();
    first.resign().await.unwrap();
}
