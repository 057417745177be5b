//! The plain dialect and OpenStack's tooz, both ways on one memcached.

use std::path::Path;

use crate::common::*;
use leasehold_core::{Effect, FailureKind, Note, Release, Renewal};
use leasehold_testkit::peers::{Peer, python};
use leasehold_testkit::{MemcachedServer, require};

/// tooz with a lock of this name and so many seconds of lease, where its packages can be had.
fn tooz(server: &MemcachedServer, name: &str, lease: u64) -> Option<Peer> {
    let mut command = require::or_skip("tooz", python(&["tooz", "pymemcache"]))?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/tooz_lock.py");
    command.arg(script).arg(server.addr().to_string()).arg(name).arg(lease.to_string());
    let peer = Peer::start(command).unwrap();
    assert_eq!(peer.answer().unwrap(), "ready");
    Some(peer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tooz_and_we_exclude_each_other() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    let Some(mut peer) = tooz(&server, "job", 30) else { return };
    let backend = connect(&format!("{}?dialect=plain&prefix=__TOOZ_LOCK_", server.url())).await;

    let ours = mutex("job");
    assert_eq!(peer.ask("acquire").unwrap(), "held");
    assert!(try_take(&*backend, &ours).await.unwrap().is_none(), "it is tooz's");
    let seen = backend.inspect(&ours.resource, None, &no_patience()).await.unwrap();
    assert_eq!(seen.holders[0].note, Note::clipped("held through another library"));
    assert!(matches!(renew(&*backend, &ours).await, Renewal::Lost));
    assert!(matches!(release(&*backend, &ours).await, Release::Gone), "it is not ours");
    assert_eq!(peer.ask("heartbeat").unwrap(), "kept", "nobody touched it");
    assert_eq!(peer.ask("release").unwrap(), "released");

    hold(&*backend, &ours).await;
    assert_eq!(peer.ask("acquire").unwrap(), "busy", "it is ours");
    assert_ne!(peer.ask("wait 1").unwrap(), "held");
    assert_eq!(peer.ask("release").unwrap(), "refused");
    assert!(matches!(renew(&*backend, &ours).await, Renewal::Renewed), "nobody touched it");
    peer.send_line("wait 30").unwrap();
    assert!(freed(&*backend, &ours).await);
    assert_eq!(peer.answer().unwrap(), "held", "one that waits gets what we release");

    // And the other way round, with a wait of ours.
    let next = mutex("job");
    let waiting = {
        let (backend, next) = (backend.clone(), next.clone());
        tokio::spawn(async move { take(&*backend, &next).await })
    };
    assert_eq!(peer.ask("release").unwrap(), "released");
    waiting.await.unwrap();
    assert!(freed(&*backend, &next).await);
    let seen = backend.inspect(&next.resource, None, &no_patience()).await.unwrap();
    assert!(seen.holders.is_empty(), "{seen:?}");
}

/// A key is the name byte for byte, as tooz writes it. A name that this cannot be true of is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_is_written_as_tooz_writes_it_or_refused() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?dialect=plain&prefix=__TOOZ_LOCK_", server.url())).await;
    for name in ["a b".to_owned(), "büro".to_owned(), "x".repeat(250)] {
        let failure = try_take(&*backend, &mutex(&name)).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Invalid, Effect::None), "{failure}");
        assert!(failure.detail().contains("dialect=native"), "{failure}");
        assert!(backend.inspect(&mutex(&name).resource, None, &no_patience()).await.is_err());
        // A release of such a claim, which holds nothing, concerns no other in its batch.
        let good = mutex("good");
        hold(&*backend, &good).await;
        assert!(matches!(renewed_at_last(&*backend, &good).await, Renewal::Renewed));
        let released = backend.release(&[&mutex(&name), &good]).await;
        assert!(matches!(released.as_slice(), [Release::Unknown(_), Release::Freed]), "{name}: {released:?}");
    }
    for name in ["50%", "a%2Fb", "a~b", "~"] {
        let Some(mut peer) = tooz(&server, name, 30) else { return };
        assert_eq!(peer.ask("acquire").unwrap(), "held");
        let ours = mutex(name);
        assert!(try_take(&*backend, &ours).await.unwrap().is_none(), "{name} is tooz's");
        let listed = backend.list("", None, 10).await.unwrap();
        assert_eq!(listed.iter().map(|row| row.resource.as_str()).collect::<Vec<_>>(), [name]);
        assert_eq!(peer.ask("release").unwrap(), "released");
        hold(&*backend, &ours).await;
        assert_eq!(peer.ask("acquire").unwrap(), "busy", "{name} is ours");
        assert!(freed(&*backend, &ours).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_of_a_killed_tooz_process_ends_with_its_lease() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    let Some(mut peer) = tooz(&server, "job", 12) else { return };
    let backend = connect(&format!("{}?dialect=plain&prefix=__TOOZ_LOCK_", server.url())).await;
    assert_eq!(peer.ask("acquire").unwrap(), "held");
    peer.kill().unwrap();
    assert!(try_take(&*backend, &mutex("job")).await.unwrap().is_none(), "its lease continues");
    let began = std::time::Instant::now();
    take(&*backend, &mutex("job")).await;
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}
