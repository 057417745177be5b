//! Claims that many observers judge, each by its own clock, on a real server: all of them see that a
//! holder lives, also where the holder never saw its own claim before. Clocks are moved by hand, so
//! nothing here depends on how long it takes.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use leasehold_core::{
    Ask, Backend, Claim, Clock, Effect, FailureKind, Fence, Grant, Ledger, ManualClock, Moment, Patience,
    Renewal, Share, Step, Verdict, Wait,
};
use leasehold_memcached::MemcachedConfig;
use leasehold_testkit::{MemcachedServer, Proxy};

/// Length of each lease; a guard relies on less, as the engine takes off more.
const LEASE: Duration = Duration::from_secs(30);

/// Clients of one server whose clocks go alike.
struct World {
    server: MemcachedServer,
    clock: Arc<ManualClock>,
}

impl World {
    async fn new() -> Option<World> {
        let server = MemcachedServer::start_or_skip().await?;
        Some(World { server, clock: Arc::new(ManualClock::new()) })
    }

    async fn client(&self) -> Client {
        self.client_at(&self.server.url()).await
    }

    async fn client_at(&self, url: &str) -> Client {
        let config = MemcachedConfig::parse(url).unwrap();
        let backend = leasehold_memcached::connect(config, self.clock.clone()).await.unwrap();
        Client { backend, clock: self.clock.clone() }
    }

    /// Moves all clocks to so many milliseconds after the beginning.
    fn at(&self, millis: u64) {
        let now = self.clock.now().since(Moment::START);
        self.clock.advance(Duration::from_millis(millis).checked_sub(now).unwrap());
    }
}

struct Client {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
}

impl Client {
    async fn tries(&self, claim: &Claim) -> Option<Grant> {
        match self.backend.contend(claim, &Patience::none(self.clock.clone())).await.unwrap() {
            Step::Granted(grant) => Some(grant),
            Step::Busy(_) => None,
        }
    }

    /// Takes a place in the line, or the lock.
    async fn waits(&self, claim: &Claim) -> Option<Grant> {
        match self.backend.contend(claim, &Patience::unlimited(self.clock.clone())).await.unwrap() {
            Step::Granted(grant) => Some(grant),
            Step::Busy(_) => None,
        }
    }

    async fn renews(&self, claim: &Claim) {
        let renewal = renew(&*self.backend, claim).await;
        assert!(matches!(renewal, Renewal::Renewed), "{renewal:?}");
    }
}

fn job() -> Claim {
    mutex("job").ttl(LEASE)
}

/// Makes a holder that was granted in its turn, so that it never saw its own claim, and an observer that
/// has watched it since.
async fn granted_in_line(world: &World) -> (Client, Claim, Client) {
    let (first, holder, observer) = (world.client().await, world.client().await, world.client().await);
    let (before, claim) = (job(), job());
    assert!(first.tries(&before).await.is_some());
    assert!(holder.waits(&claim).await.is_none());
    assert!(freed(&*first.backend, &before).await);
    assert!(holder.waits(&claim).await.is_some());
    world.at(400);
    assert!(observer.tries(&job()).await.is_none());
    (holder, claim, observer)
}

#[tokio::test]
async fn first_renewal_of_a_former_waiter_is_seen() {
    let Some(world) = World::new().await else { return };
    let (holder, claim, observer) = granted_in_line(&world).await;
    world.at(10_000);
    holder.renews(&claim).await;
    // Here the span ends that the observer counts from the grant on.
    world.at(30_500);
    assert!(observer.tries(&job()).await.is_none(), "two hold: the renewal was not seen");
    // Nothing is heard of the holder for a whole span, while it is watched.
    world.at(60_499);
    assert!(observer.tries(&job()).await.is_none());
    world.at(60_501);
    assert!(observer.tries(&job()).await.is_some());
}

#[tokio::test]
async fn renewals_far_apart_are_each_seen() {
    let Some(world) = World::new().await else { return };
    let (holder, claim, observer) = granted_in_line(&world).await;
    for round in 1..=8 {
        // Six tenths of the lease: the latest that may be chosen.
        world.at(round * 18_000);
        holder.renews(&claim).await;
        world.at(round * 18_000 + 12_600);
        assert!(observer.tries(&job()).await.is_none(), "two hold after renewal {round}");
    }
}

#[tokio::test]
async fn adoption_is_seen_by_earlier_observers() {
    let Some(world) = World::new().await else { return };
    let (holder, heir, observer) = (world.client().await, world.client().await, world.client().await);
    let claim = job();
    assert!(holder.tries(&claim).await.is_some());
    world.at(400);
    assert!(observer.tries(&job()).await.is_none());
    // From here on the heir relies on it for a whole lease.
    world.at(25_000);
    assert!(heir.tries(&claim).await.is_some());
    for (look, now) in [(1, 30_500), (2, 54_999)] {
        world.at(now);
        assert!(observer.tries(&job()).await.is_none(), "two hold at look {look}");
    }
    world.at(60_501);
    assert!(observer.tries(&job()).await.is_some());
}

#[tokio::test]
async fn a_repeated_grant_whose_first_answer_was_lost_is_seen() {
    let Some(world) = World::new().await else { return };
    let proxy = Proxy::start(world.server.addr()).await.unwrap();
    let (holder, observer) =
        (world.client_at(&world.server.url_at(proxy.addr())).await, world.client().await);
    let claim = job();
    proxy.cut_after_request(1);
    let unanswered = holder.backend.contend(&claim, &Patience::none(holder.clock.clone())).await;
    assert_eq!(unanswered.unwrap_err().effect, Effect::Unknown);
    proxy.heal().unwrap();
    world.at(400);
    assert!(observer.tries(&job()).await.is_none(), "the request was lost, and not only its answer");
    // The grant counts from the repeated request on.
    world.at(20_000);
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        match holder.backend.contend(&claim, &Patience::none(holder.clock.clone())).await {
            Ok(Step::Granted(_)) => break,
            Err(failure) if failure.is_transient() && std::time::Instant::now() < limit => {}
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for now in [30_500, 49_999] {
        world.at(now);
        assert!(observer.tries(&job()).await.is_none(), "two hold");
    }
    world.at(60_501);
    assert!(observer.tries(&job()).await.is_some());
}

#[tokio::test]
async fn refreshed_queue_place_is_seen_by_the_next_waiter() {
    let Some(world) = World::new().await else { return };
    let (holder, first, second) = (world.client().await, world.client().await, world.client().await);
    let (held, ahead, behind) = (mutex("job").ttl(LEASE * 20), job(), job());
    assert!(holder.tries(&held).await.is_some());
    assert!(first.waits(&ahead).await.is_none() && second.waits(&behind).await.is_none());
    // It looks again in time, for an hour.
    for round in 1..=20 {
        world.at(round * 25_000);
        assert!(first.waits(&ahead).await.is_none() && second.waits(&behind).await.is_none());
    }
    assert!(freed(&*holder.backend, &held).await);
    assert!(second.waits(&behind).await.is_none(), "one that waits was passed over");
    assert!(first.waits(&ahead).await.is_some());
}

#[tokio::test]
async fn dead_holder_is_passed_over_by_short_visits() {
    let Some(world) = World::new().await else { return };
    assert!(world.client().await.tries(&job()).await.is_some());
    // Each waits for a third of the lease, and its process ends.
    for round in 0..3 {
        let (waiter, claim) = (world.client().await, job());
        world.at(round * 10_100);
        assert!(waiter.waits(&claim).await.is_none(), "two hold in round {round}");
        world.at(round * 10_100 + 10_050);
        assert!(freed(&*waiter.backend, &claim).await);
    }
    world.at(30_300);
    assert!(world.client().await.waits(&job()).await.is_some(), "the dead holder stays");
}

#[tokio::test]
async fn dead_permit_is_passed_over_by_short_jobs() {
    let Some(world) = World::new().await else { return };
    let one_of_two = || job().share(Share::permits(1, 2).unwrap());
    assert!(world.client().await.tries(&one_of_two()).await.is_some());
    // Each works for a third of the lease, and its process ends.
    for round in 0..3 {
        let (worker, claim) = (world.client().await, one_of_two());
        world.at(round * 10_100);
        assert!(worker.tries(&claim).await.is_some());
        let third = world.client().await;
        assert!(third.tries(&one_of_two()).await.is_none(), "three hold in round {round}");
        world.at(round * 10_100 + 10_050);
        assert!(freed(&*worker.backend, &claim).await);
    }
    let (first, second) = (one_of_two(), one_of_two());
    let late = world.client().await;
    assert!(late.tries(&first).await.is_some());
    assert!(late.tries(&second).await.is_some(), "the permit of the dead holder stays");
}

#[tokio::test]
async fn living_holder_is_not_passed_over_by_short_visits() {
    let Some(world) = World::new().await else { return };
    let (holder, claim, observer) = granted_in_line(&world).await;
    for round in 1..=4 {
        let renewed = round * 20_000;
        // Visits of different lengths come one after the other, between two renewals and while a client stays.
        for visit in 0..6 {
            let (waiter, claim) = (world.client().await, job());
            let began = renewed - 19_600 + visit * 3_200;
            world.at(began);
            assert!(waiter.waits(&claim).await.is_none(), "two hold in visit {visit} of round {round}");
            world.at(began + 500 * (visit + 1));
            assert!(observer.tries(&job()).await.is_none(), "two hold in visit {visit} of round {round}");
            assert!(freed(&*waiter.backend, &claim).await);
        }
        world.at(renewed);
        holder.renews(&claim).await;
    }
    // It relies on the last renewal until 110 s.
    for visit in 0..4 {
        let (waiter, claim) = (world.client().await, job());
        world.at(80_001 + visit * 4_990);
        assert!(waiter.waits(&claim).await.is_none(), "two hold in visit {visit}");
        world.at(80_001 + visit * 4_990 + 4_980);
        assert!(freed(&*waiter.backend, &claim).await);
        assert!(observer.tries(&job()).await.is_none(), "two hold after visit {visit}");
    }
    world.at(109_990);
    assert!(observer.tries(&job()).await.is_none(), "two hold");
    world.at(110_500);
    assert!(observer.tries(&job()).await.is_some());
}

/// Makes an item as an older release wrote it: a claim without a count of its signs of life.
fn old_item() -> String {
    let claim = job();
    let ask = Ask { id: claim.id, share: claim.share, lease: LEASE, wait: Wait::No, note: claim.note };
    let mut ledger = Ledger::new(Fence::new(7, 1, 0));
    assert!(matches!(ledger.contend(&ask, Moment::START), Verdict::Granted(_)));
    ledger.to_text("job")
}

#[tokio::test]
async fn an_item_of_an_older_release_is_refused_and_left_alone() {
    let Some(world) = World::new().await else { return };
    let old = old_item();
    let set = format!("set lh:job 0 60 {}\r\n{old}", old.len());
    world.server.ask(&set, "STORED\r\n").await.unwrap();
    let client = world.client().await;
    for patience in [Patience::none(client.clock.clone()), Patience::unlimited(client.clock.clone())] {
        let failure = client.backend.contend(&job(), &patience).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Foreign, Effect::None), "{failure}");
    }
    let stays = world.server.ask("get lh:job", "END\r\n").await.unwrap();
    assert!(stays.contains(&old), "{stays}");
}

#[tokio::test]
async fn an_older_release_refuses_the_item_of_this_one() {
    let Some(world) = World::new().await else { return };
    let client = world.client().await;
    assert!(client.tries(&job()).await.is_some());
    let answer = world.server.ask("get lh:job", "END\r\n").await.unwrap();
    let (_, value) = answer.split_once("\r\n").unwrap();
    let text = value.strip_suffix("\r\nEND\r\n").unwrap();
    assert!(Ledger::from_span_text(text.as_bytes()).is_ok(), "{text}");
    // An older release reads by this function alone, and takes nothing that it cannot read.
    assert!(Ledger::from_text(text.as_bytes()).is_err(), "{text}");
}
