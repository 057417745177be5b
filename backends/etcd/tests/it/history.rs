//! A cluster that is wiped, or restored from a backup, under the same ids: what it answers is no news of the
//! cluster that an open client knows.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use leasehold_conformance::patience_for;
use leasehold_core::{
    Backend, Claim, Failure, FailureKind, Grant, Patience, Put, Registered, Registers, Release, Renewal,
    Resource, Share,
};
use leasehold_etcd::EtcdBackend;
use leasehold_testkit::{EtcdCluster, require};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(240);

#[tokio::test(flavor = "multi_thread")]
async fn wiped_cluster_wakes_its_observers_and_grants_no_lower_fence() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let backend = connect(&format!("{}/?timeout=20s", server.url())).await;
    let grant = refused_after(&server, &backend, || server.wipe(0).unwrap()).await;
    // A client that is opened now uses the new cluster.
    let anew = connect(&server.url()).await;
    assert!(take(&anew, &mutex("other"), LONG).await.unwrap().fence < grant.fence);
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_cluster_is_not_the_one_that_an_open_client_knows() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    if require::or_skip("etcdctl", require::program("etcdctl", "etcd-client")).is_none() {
        return;
    }
    let backend = connect(&format!("{}/?timeout=20s", server.url())).await;
    // Its lease is in the snapshot, so the server takes keys under it afterwards.
    hold(&backend, "early").await;
    let snapshot = server.log_path(0).with_file_name("snapshot.db");
    server.etcdctl(&["snapshot", "save", &snapshot.display().to_string()]).unwrap();
    refused_after(&server, &backend, || server.restore(&snapshot).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_is_down_does_not_hide_a_wiped_cluster() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    // The client begins with the first, and nothing listens on the second.
    let url = format!("{},127.0.0.1:1/?servers=given&timeout=20s", server.url());
    let backend = connect(&url).await;
    write(&backend, 60).await;
    server.kill(0).unwrap();
    server.wipe(0).unwrap();
    server.restart(0).await.unwrap();
    went_back(backend.contend(&mutex("job"), &Patience::none(clock())).await.unwrap_err());
}

/// Lets a client hold a lock and observe a register, replaces the data of its server, and checks that the client
/// refuses all that the server answers then. Returns the grant from before.
async fn refused_after(server: &EtcdCluster, backend: &Arc<EtcdBackend>, replace: impl FnOnce()) -> Grant {
    let id = cluster_id(server);
    write(backend, 60).await;
    let (held, grant) = hold(backend, "held").await;
    let observer = observer(server, backend).await;
    server.kill(0).unwrap();
    replace();
    server.restart(0).await.unwrap();
    assert_eq!(cluster_id(server), id, "the id shows it, and this test nothing");

    went_back(observer.await.unwrap().unwrap_err());
    let refused = mutex("job");
    went_back(backend.contend(&refused, &Patience::none(clock())).await.unwrap_err());
    let renewal = renew(backend, &held, &grant).await;
    assert!(matches!(renewal, Renewal::Unknown(_)), "{renewal:?}");
    // What the server may have done before its answer was refused is undone.
    let released = release(backend, &refused).await;
    assert!(!matches!(released, Release::Unknown(_)), "{released:?}");
    assert!(
        try_take(&*connect(&server.url()).await, &mutex("job")).await.is_some(),
        "the refused claim is left"
    );
    grant
}

/// Makes the cluster's history longer than what one that begins anew reaches in this test.
async fn write(backend: &EtcdBackend, changes: u32) {
    let at = Resource::new("counter").unwrap();
    let mut seen = backend.read(&at).await.unwrap().stamp;
    for n in 0..changes {
        let put = Put { value: Some(n.to_string().into_bytes()), keep: None };
        seen = backend.swap(&at, &seen, &put).await.unwrap().unwrap();
    }
}

async fn hold(backend: &EtcdBackend, name: &str) -> (Claim, Grant) {
    let claim = claim_of(name, Share::MUTEX, LONG);
    let grant = try_take(backend, &claim).await.unwrap();
    (claim, grant)
}

/// Starts a wait for a change that never comes, on the stream of watches.
async fn observer(
    server: &EtcdCluster,
    backend: &Arc<EtcdBackend>,
) -> JoinHandle<Result<Registered, Failure>> {
    let at = Resource::new("word").unwrap();
    let (seen, waits) = (backend.read(&at).await.unwrap().stamp, backend.clone());
    let observer =
        tokio::spawn(async move { waits.changed(&at, &seen, &patience_for(&clock(), LONG)).await });
    let limit = clock().now().after(LONG);
    while server.requests(0, "Watch").await.unwrap() == 0 {
        assert!(clock().now() < limit, "no watch was opened");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    observer
}

fn went_back(failure: Failure) {
    assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
    assert!(failure.detail().contains("open the store anew"), "{failure}");
}

fn cluster_id(server: &EtcdCluster) -> String {
    let status = server.etcdctl(&["endpoint", "status", "--write-out=json"]).unwrap();
    let (_, id) = status.split_once("\"cluster_id\":").unwrap();
    id.split(',').next().unwrap().to_owned()
}
