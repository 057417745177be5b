//! The other dialects, against the libraries that they are of, in both directions and through a crash.

mod fixture;
mod semaphores;

use std::time::Duration;

use crate::common::{claim, endless, eventually, hold, no_patience, release};
use fixture::{CURATOR, Fixture, KAZOO, Library, SOON, client, waits, within};
use leasehold::backend::{Backend, ClaimId, FailureKind, Note, Release, Share, Step};
use leasehold_testkit::ZooKeeperEnsemble;

/// Each in turn, each waiting for the other; then each dies while it holds.
async fn mutexes_exclude_each_other(library: &'static Library) {
    let Some(fixture) = Fixture::open(library).await else { return };
    let (peer, other) = (fixture.peer().await, client(&fixture.servers, library).await);
    for name in ["jobs/nightly", "jobs", "büro 7", "jobs/a%2Fb"] {
        let path = format!("/{}", name.replace(' ', "\u{a0}"));
        let name = path.trim_start_matches('/');
        let (first, second) = (claim(name, Share::MUTEX), claim(name, Share::MUTEX));
        let grant = hold(&fixture.ours, &first).await;
        assert_eq!(peer.ask(&format!("mutex {path} 200")).await, "busy");
        fixture.wait_for_claims(name, 1, 0).await;
        peer.send_line(&format!("mutex {path} 30000")).await;
        fixture.wait_for_claims(name, 1, 1).await;
        let waiting = waits(&other, &second);
        fixture.wait_for_claims(name, 1, 2).await;
        assert!(peer.is_silent().await, "the peer holds beside us");
        assert!(matches!(release(&fixture.ours, &first).await, Release::Freed));
        assert_eq!(peer.answer().await, "held");
        fixture.wait_for_claims(name, 1, 1).await;
        assert!(!waiting.is_finished(), "we hold beside the peer");
        let (holders, _) = fixture.seen(name).await;
        assert_eq!(holders, [Share::MUTEX]);
        let listed = fixture.ours.list(name, None, 10).await.unwrap();
        assert_eq!((listed[0].resource.as_str(), listed[0].holders, listed[0].waiting), (name, 1, 1));
        assert_eq!(peer.ask(&format!("free mutex {path}")).await, "free");
        let next = within(SOON, waiting).await;
        assert!(next.fence > grant.fence, "{next:?} after {grant:?}");
        assert!(matches!(release(&other, &second).await, Release::Freed));
        fixture.wait_for_claims(name, 0, 0).await;
    }

    // The peer dies: its session ends, and the queue moves on.
    assert_eq!(peer.ask("mutex /job 1000").await, "held");
    let second = claim("job", Share::MUTEX);
    let waiting = waits(&fixture.ours, &second);
    fixture.wait_for_claims("job", 1, 1).await;
    peer.kill().await;
    within(SOON, waiting).await;

    // And ours: a client that ends silently, as a process that dies.
    assert!(matches!(release(&fixture.ours, &second).await, Release::Freed));
    let doomed = client(&fixture.servers, library).await;
    hold(&doomed, &claim("job", Share::MUTEX)).await;
    let peer = fixture.peer().await;
    peer.send_line("mutex /job 30000").await;
    fixture.wait_for_claims("job", 1, 1).await;
    drop(doomed);
    assert_eq!(peer.answer().await, "held");
}

/// Readers hold together and exclude writers, those of either library.
async fn readers_and_writers_mix(library: &'static Library) {
    let Some(fixture) = Fixture::open(library).await else { return };
    let peer = fixture.peer().await;
    let (reader, writer) = (claim("book", Share::READER), claim("book", Share::WRITER));
    hold(&fixture.ours, &reader).await;
    assert_eq!(peer.ask("read /book 1000").await, "held", "two readers");
    fixture.wait_for_claims("book", 2, 0).await;
    assert!(fixture.seen("book").await.0.iter().all(|share| *share == Share::READER));
    assert_eq!(peer.ask("free read /book").await, "free");
    assert_eq!(peer.ask("write /book 200").await, "busy", "a writer beside our reader");
    peer.send_line("write /book 30000").await;
    fixture.wait_for_claims("book", 1, 1).await;
    // It came later than a writer that waits, so it waits as well.
    let second = claim("book", Share::READER);
    let waiting = waits(&fixture.ours, &second);
    fixture.wait_for_claims("book", 1, 2).await;
    assert!(matches!(release(&fixture.ours, &reader).await, Release::Freed));
    assert_eq!(peer.answer().await, "held");
    assert!(!waiting.is_finished(), "our reader holds beside a writer");
    let step = fixture.ours.contend(&writer, &no_patience()).await.unwrap();
    assert!(matches!(step, Step::Busy(_)));
    assert_eq!(peer.ask("free write /book").await, "free");
    within(SOON, waiting).await;
    assert!(matches!(release(&fixture.ours, &second).await, Release::Freed));

    hold(&fixture.ours, &writer).await;
    for kind in ["read", "write"] {
        assert_eq!(peer.ask(&format!("{kind} /book 200")).await, "busy", "{kind} beside our writer");
    }
    assert!(matches!(release(&fixture.ours, &writer).await, Release::Freed));
    fixture.wait_for_claims("book", 0, 0).await;
}

/// The leader of an election is the holder of a mutex, and what it proclaims is the note.
#[tokio::test(flavor = "multi_thread")]
async fn candidates_of_kazoo_and_ours_are_in_one_election() {
    let Some(fixture) = Fixture::open(&KAZOO).await else { return };
    let peer = fixture.peer().await;
    let ours = claim("chair", Share::MUTEX).note(Note::new("host-7").unwrap());
    hold(&fixture.ours, &ours).await;
    assert_eq!(peer.ask("lead /chair host-9").await, "host-7");
    fixture.wait_for_claims("chair", 1, 1).await;
    assert!(peer.is_silent().await, "the peer leads beside us");
    assert!(matches!(release(&fixture.ours, &ours).await, Release::Freed));
    assert_eq!(peer.answer().await, "leads");
    let seen = fixture.ours.inspect(&ours.resource, None, &no_patience()).await.unwrap();
    assert_eq!(seen.holders[0].note.as_str(), "host-9");
    assert_eq!(peer.ask("resign").await, "resigned");
    fixture.wait_for_claims("chair", 0, 0).await;
}

/// A peer's lock can be broken, and nothing else touches it.
async fn a_peers_lock_can_be_broken(library: &'static Library) {
    let Some(fixture) = Fixture::open(library).await else { return };
    let peer = fixture.peer().await;
    assert_eq!(peer.ask("mutex /chair 1000").await, "held");
    let mine = claim("chair", Share::MUTEX);
    assert!(matches!(release(&fixture.ours, &mine).await, Release::Gone));
    let seen = fixture.ours.inspect(&mine.resource, None, &no_patience()).await.unwrap();
    let broken = mine.clone().id(seen.holders[0].id);
    assert!(seen.holders[0].fence.is_some() && broken.id != ClaimId::from_bytes([0; 16]));
    assert!(matches!(release(&fixture.ours, &broken).await, Release::Freed));
    hold(&fixture.ours, &mine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curators_mutexes_and_ours_exclude_each_other() {
    mutexes_exclude_each_other(&CURATOR).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoos_locks_and_ours_exclude_each_other() {
    mutexes_exclude_each_other(&KAZOO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curators_readers_and_writers_mix_with_ours() {
    readers_and_writers_mix(&CURATOR).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoos_readers_and_writers_mix_with_ours() {
    readers_and_writers_mix(&KAZOO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_curator_holds_can_be_broken() {
    a_peers_lock_can_be_broken(&CURATOR).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kazoo_holds_can_be_broken() {
    a_peers_lock_can_be_broken(&KAZOO).await;
}

/// Curator lets a writer read as well, and keep reading when it has stopped writing. In the version of
/// Debian the reader's place is an ordinary one, so until then it looks as if it waited.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_curators_becomes_a_reader_without_a_gap() {
    let Some(fixture) = Fixture::open(&CURATOR).await else { return };
    let peer = fixture.peer().await;
    assert_eq!(peer.ask("write /book 1000").await, "held");
    assert_eq!(peer.ask("read /book 1000").await, "held");
    fixture.wait_for_claims("book", 1, 1).await;
    let (reader, writer) = (claim("book", Share::READER), claim("book", Share::WRITER));
    let reads = waits(&fixture.ours, &reader);
    fixture.wait_for_claims("book", 1, 2).await;
    let writes = waits(&fixture.ours, &writer);
    fixture.wait_for_claims("book", 1, 3).await;
    assert_eq!(peer.ask("free write /book").await, "free");
    within(SOON, reads).await;
    fixture.wait_for_claims("book", 2, 1).await;
    assert!(matches!(release(&fixture.ours, &reader).await, Release::Freed));
    assert!(!writes.is_finished(), "we write while the peer reads");
    assert_eq!(peer.ask("free read /book").await, "free");
    within(SOON, writes).await;
}

/// Names of one dialect in the queue of another would be ignored by half of the clients in it.
#[tokio::test(flavor = "multi_thread")]
async fn queue_of_another_library_is_refused() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let (curator, kazoo) = (client(&servers, &CURATOR).await, client(&servers, &KAZOO).await);
    let held = claim("mixed", Share::MUTEX);
    hold(&curator, &held).await;
    let failure = kazoo.contend(&claim("mixed", Share::MUTEX), &endless()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
    assert!(failure.detail().contains("dialect"), "{failure}");
    assert!(matches!(release(&curator, &held).await, Release::Freed));
}

/// Containers of Curator's go when they are empty. kazoo makes its parents once, and would fail without them.
#[tokio::test(flavor = "multi_thread")]
async fn empty_parents_go_unless_kazoo_counts_on_them() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let nodes = async || servers.metric(0, "zk_znode_count").await.unwrap();
    let before = nodes().await;
    for (library, stay) in [(&CURATOR, 0.0), (&KAZOO, 3.0)] {
        let ours = client(&servers, library).await;
        let held = claim("a/deep/path", Share::MUTEX);
        hold(&ours, &held).await;
        assert_eq!(nodes().await, before + 4.0);
        assert!(matches!(release(&ours, &held).await, Release::Freed));
        eventually(async || nodes().await <= before + stay).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(nodes().await, before + 3.0);
}
