//! Semaphores: leases of ours and of the other libraries', of the same semaphore.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::backend::{Backend, ClaimId, FailureKind, Release, Share, Step};
use leasehold_testkit::peers::Peer;

use super::fixture::{CURATOR, Fixture, KAZOO, Library, SOON, Shared, client, waits, within};
use crate::common::{backend, claim, endless, eventually, hold, no_patience, release, take};

fn one_of(permits: u32) -> Share {
    Share::permits(1, permits).unwrap()
}

/// With one peer, one after the other, since it takes long to start.
async fn leases_mix(library: &'static Library) {
    let Some(fixture) = Fixture::open(library).await else { return };
    let peer = fixture.peer().await;
    leases_are_counted_together(&fixture, &peer).await;
    a_peers_lease_can_be_broken(&fixture, &peer).await;
    a_mutex_may_be_a_semaphore(&fixture, &peer).await;
}

/// Each waits for the other, also first in the queue with a lease in hand; no client gets a lease too many.
async fn leases_are_counted_together(fixture: &Fixture, peer: &Shared) {
    let name = "pools/encode";
    let (first, second) = (claim(name, one_of(2)), claim(name, one_of(2)));
    // The peer has all of them, and we wait.
    for _ in 0..2 {
        assert_eq!(peer.ask("permit/2 /pools/encode 1000").await, "held");
    }
    fixture.wait_for_claims(name, 2, 0).await;
    assert!(matches!(fixture.ours.contend(&first, &no_patience()).await.unwrap(), Step::Busy(_)));
    fixture.wait_for_claims(name, 2, 0).await;
    let waiting = waits(&fixture.ours, &first);
    fixture.wait_for_claims(name, 2, 1).await;
    assert!(!waiting.is_finished(), "a third lease of two");
    assert_eq!(peer.ask("free permit/2 /pools/encode").await, "free");
    let grant = within(SOON, waiting).await;
    fixture.wait_for_claims(name, 2, 0).await;
    // One each, and both wait: first we, then the peer.
    let waiting = waits(&fixture.ours, &second);
    fixture.wait_for_claims(name, 2, 1).await;
    peer.send_line("permit/2 /pools/encode 30000").await;
    fixture.wait_for_claims(name, 2, 2).await;
    assert!(matches!(release(&fixture.ours, &first).await, Release::Freed));
    let next = within(SOON, waiting).await;
    assert!(next.fence > grant.fence, "{next:?} after {grant:?}");
    // The peer is the first in the queue now, Curator with a lease that does not count yet.
    fixture.wait_for_claims(name, 2, 1).await;
    assert!(peer.is_silent().await, "the peer has a lease too many");
    let third = claim(name, one_of(2));
    let waiting = waits(&fixture.ours, &third);
    fixture.wait_for_claims(name, 2, 2).await;
    let listed = fixture.ours.list("pools/", None, 10).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|one| (one.resource.as_str(), one.holders, one.waiting)).collect();
    assert_eq!(listed, [(name, 2, 2)]);
    assert!(matches!(release(&fixture.ours, &second).await, Release::Freed));
    assert_eq!(peer.answer().await, "held");
    fixture.wait_for_claims(name, 2, 1).await;
    assert!(!waiting.is_finished(), "we have a lease too many");
    assert_eq!(peer.ask("free permit/2 /pools/encode").await, "free");
    let last = within(SOON, waiting).await;
    assert!(last.fence > next.fence, "{last:?} after {next:?}");
    assert!(matches!(release(&fixture.ours, &third).await, Release::Freed));
    assert_eq!(peer.ask("free permit/2 /pools/encode").await, "free");
    fixture.wait_for_claims(name, 0, 0).await;
    assert!(fixture.ours.list("pools/", None, 10).await.unwrap().is_empty());
}

/// A client dies, with a lease, first in the queue for one, or behind: the others continue.
async fn the_dead_leave_their_leases(library: &'static Library) {
    let Some(fixture) = Fixture::open(library).await else { return };
    let name = "job";
    let (doomed, holder, waiter) = tokio::join!(fixture.peer(), fixture.peer(), fixture.peer());
    assert_eq!(doomed.ask("permit/2 /job 1000").await, "held");
    assert_eq!(holder.ask("permit/2 /job 1000").await, "held");
    waiter.send_line("permit/2 /job 60000").await;
    fixture.wait_for_claims(name, 2, 1).await;
    let first = claim(name, one_of(2));
    let waiting = waits(&fixture.ours, &first);
    fixture.wait_for_claims(name, 2, 2).await;
    // The one ahead of us in the queue, which Curator leaves with a lease in hand, and a holder.
    assert!(!waiting.is_finished(), "we have a lease too many");
    tokio::join!(waiter.kill(), doomed.kill());
    within(SOON, waiting).await;
    fixture.wait_for_claims(name, 2, 0).await;

    // A process of ours: with the other lease, it is what a peer waits for.
    assert_eq!(holder.ask("free permit/2 /job").await, "free");
    let url = format!("{}?session=8s&dialect={}", fixture.servers.url(), library.dialect);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["interop::semaphores::a_process_of_ours", "--exact", "--nocapture"]).env(HOLDS, url);
    let ours = Shared::over(Peer::start(command).unwrap());
    while !ours.answer().await.ends_with("held") {}
    fixture.wait_for_claims(name, 2, 0).await;
    holder.send_line("permit/2 /job 30000").await;
    fixture.wait_for_claims(name, 2, 1).await;
    assert!(holder.is_silent().await, "the peer has a lease too many");
    ours.kill().await;
    assert_eq!(holder.answer().await, "held");
    fixture.wait_for_claims(name, 2, 0).await;
}

/// Many clients of both libraries acquire and release for a while: never do more of them hold than
/// leases exist.
async fn a_crowd_never_has_one_too_many(library: &'static Library) {
    let Some(fixture) = Fixture::open(library).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().display().to_string();
    let peers: [Shared; 2] = tokio::join!(fixture.peer(), fixture.peer()).into();
    for peer in &peers {
        peer.send_line(&format!("crowd permit/2 /crowd {ROUNDS} {inside}")).await;
    }
    let mut crowd = Vec::new();
    for _ in 0..OURS {
        let (ours, folder) = (client(&fixture.servers, library).await, folder.path().to_owned());
        crowd.push(tokio::spawn(async move {
            let mut most = 0;
            for round in 0..ROUNDS {
                let mine = claim("crowd", one_of(2));
                let grant = take(&ours, &mine).await;
                let file = folder.join(format!("{:?}-{round}", grant.fence));
                std::fs::File::create_new(&file).unwrap();
                most = most.max(holders_in(&folder));
                // Long enough that all leases are out while others try to have one.
                tokio::time::sleep(Duration::from_millis(10)).await;
                most = most.max(holders_in(&folder));
                std::fs::remove_file(&file).unwrap();
                assert!(matches!(release(&ours, &mine).await, Release::Freed));
            }
            most
        }));
    }
    for one in crowd {
        let most = one.await.unwrap();
        assert!((1..=2).contains(&most), "{most} held two leases");
    }
    for peer in peers {
        let most = peer.answer().await;
        assert!(["1", "2"].contains(&most.as_str()), "{most} held two leases");
    }
    fixture.wait_for_claims("crowd", 0, 0).await;
}

fn holders_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// A peer's lease can be broken, and is distinguished from ours.
async fn a_peers_lease_can_be_broken(fixture: &Fixture, peer: &Shared) {
    let (mine, next) = (claim("chair", one_of(2)), claim("chair", one_of(2)));
    hold(&fixture.ours, &mine).await;
    assert_eq!(peer.ask("permit/2 /chair 1000").await, "held");
    assert!(matches!(release(&fixture.ours, &next).await, Release::Gone));
    let seen = fixture.ours.inspect(&mine.resource, None, &no_patience()).await.unwrap();
    let holders = &seen.holders;
    assert_eq!((holders.len(), holders[0].id, holders[0].share), (2, mine.id, one_of(2)));
    assert_eq!(holders[0].note.as_str(), "a test");
    assert!(holders[0].fence < holders[1].fence && seen.fence == holders[1].fence);
    // Nobody says of how many a lease of Curator's is.
    let told = fixture.library.dialect == KAZOO.dialect;
    assert_eq!(holders[1].share, if told { one_of(2) } else { one_of(u32::MAX - 1) });
    // As the command does, without the share.
    let broken = mine.clone().id(holders[1].id).share(Share::MUTEX);
    assert!(broken.id != ClaimId::from_bytes([0; 16]) && broken.id != mine.id);
    assert!(matches!(release(&fixture.ours, &broken).await, Release::Freed));
    hold(&fixture.ours, &next).await;
}

/// A semaphore of one lease, which is a mutex of its own kind.
async fn a_mutex_may_be_a_semaphore(fixture: &Fixture, peer: &Shared) {
    let url =
        format!("{}?session=20s&dialect={}&mutex=semaphore", fixture.servers.url(), fixture.library.dialect);
    let ours = backend(&url).await;
    let mine = claim("single", Share::MUTEX);
    assert_eq!(peer.ask("permit/1 /single 1000").await, "held");
    assert!(matches!(ours.contend(&mine, &no_patience()).await.unwrap(), Step::Busy(_)));
    assert_eq!(peer.ask("free permit/1 /single").await, "free");
    hold(&ours, &mine).await;
    assert_eq!(peer.ask("permit/1 /single 200").await, "busy");
    eventually(async || {
        let seen = ours.inspect(&mine.resource, None, &no_patience()).await.unwrap();
        seen.holders.iter().map(|one| one.share).eq([Share::MUTEX]) && seen.waiting.is_empty()
    })
    .await;
    assert!(matches!(release(&ours, &mine).await, Release::Freed));
    assert_eq!(peer.ask("permit/1 /single 1000").await, "held");
}

/// Not a test of its own: the process that another test kills while it holds.
#[tokio::test]
async fn a_process_of_ours() {
    let Ok(url) = std::env::var(HOLDS) else { return };
    let ours = backend(&url).await;
    hold(&ours, &claim("job", one_of(2))).await;
    println!("held");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curators_leases_mix_with_ours() {
    leases_mix(&CURATOR).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoos_leases_mix_with_ours() {
    leases_mix(&KAZOO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_curator_clients_free_their_semaphore_leases() {
    the_dead_leave_their_leases(&CURATOR).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_kazoo_clients_free_their_semaphore_leases() {
    the_dead_leave_their_leases(&KAZOO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_curator_and_own_claims_never_exceed_capacity() {
    a_crowd_never_has_one_too_many(&CURATOR).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_kazoo_and_own_claims_never_exceed_capacity() {
    a_crowd_never_has_one_too_many(&KAZOO).await;
}

/// kazoo writes the number of leases to a node, and a client that requests another number is refused: by
/// kazoo, and by us.
#[tokio::test(flavor = "multi_thread")]
async fn kazoos_and_ours_refuse_another_number_of_leases() {
    let Some(fixture) = Fixture::open(&KAZOO).await else { return };
    let peer = fixture.peer().await;
    let mine = claim("by-us", one_of(3));
    hold(&fixture.ours, &mine).await;
    assert_eq!(peer.ask("permit/4 /by-us 1000").await, "refused");
    assert_eq!(peer.ask("permit/3 /by-us 1000").await, "held");
    assert_eq!(peer.ask("permit/4 /by-kazoo 1000").await, "held");
    // Before anybody is kept waiting, and with nothing left behind.
    let failure = fixture.ours.contend(&claim("by-kazoo", one_of(3)), &endless()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Invalid, "{failure}");
    assert!(failure.detail().contains("semaphore of 4 permits"), "{failure}");
    fixture.wait_for_claims("by-kazoo", 1, 0).await;
    hold(&fixture.ours, &claim("by-kazoo", one_of(4))).await;
    assert!(matches!(release(&fixture.ours, &mine).await, Release::Freed));
    fixture.wait_for_claims("by-us", 1, 0).await;
}

/// Several permits at once are refused before anything is sent, with what to do.
#[tokio::test(flavor = "multi_thread")]
async fn several_leases_at_once_are_refused() {
    let Some(servers) = leasehold_testkit::ZooKeeperEnsemble::start_or_skip(1).await else { return };
    for library in [&CURATOR, &KAZOO] {
        let locks = leasehold::Client::builder().over(client(&servers, library).await).unwrap();
        let semaphore = locks.semaphore("pool", 3);
        for permits in [2, 3] {
            let refusal = semaphore.acquire_many(permits).await.unwrap_err().to_string();
            assert!(refusal.contains("one lease at a time"), "{refusal}");
        }
        let held = [semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap()];
        assert!(held[0].fence() < held[1].fence());
    }
}

/// Tells the process of ours where to hold a lease.
const HOLDS: &str = "LEASEHOLD_TEST_HOLDS";
/// The number of times that each client acquires and releases, and the number of our clients.
const ROUNDS: usize = 20;
const OURS: usize = 3;
