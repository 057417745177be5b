//! A holder whose packets are dropped, in one direction or in both, by rules of the kernel.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Client, Fence};
use leasehold_testkit::Way;
use leasehold_testkit::peers::Peer;
use leasehold_tests::stores::{self, Store, Stores};
use leasehold_tests::{Partition, monotonic, opened};

const TTL: Duration = Duration::from_secs(2);

/// The session of the holder, on a store that has sessions: its lock is free for others soon after this.
const SESSION: Duration = Duration::from_secs(4);

/// After this the holder counts its locks as lost, where connections hold them.
const SILENCE: Duration = Duration::from_secs(10);

/// No step takes this long on any machine: the end of a lease, of a session, or a new connection.
const LIMIT: Duration = Duration::from_secs(120);

/// The ttl of the client that is not cut off: it renews within this, on however busy a machine.
const LIVING: Duration = Duration::from_secs(60);

const NAME: &str = "job";
/// The most by which a loss is reported after the last moment at which the lock was valid.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// A process that holds the lock, and can be cut off.
#[derive(Clone)]
struct Holder(Arc<Mutex<Peer>>);

impl Holder {
    fn start(mut command: Command, url: &str) -> Holder {
        command.args([url, NAME, &TTL.as_millis().to_string(), "/nonexistent"]);
        Holder(Arc::new(Mutex::new(Peer::start(command).unwrap())))
    }

    async fn ask(&self, order: &'static str) -> String {
        let peer = self.0.clone();
        let answer = tokio::task::spawn_blocking(move || peer.lock().unwrap().ask(order).unwrap());
        tokio::time::timeout(LIMIT, answer).await.unwrap_or_else(|_| panic!("{order} has no answer")).unwrap()
    }
}

/// A loss is reported before another client can be granted the lock, and the cut-off client works again afterwards.
async fn a_loss_is_reported_before_the_next_grant(partition: &Partition, store: &Store) {
    let url = store.cut_off(SESSION, SILENCE);
    let holder = Holder::start(partition.command(env!("CARGO_BIN_EXE_holder")), &url);
    let others = opened(&store.url).await;
    for way in [Way::ToServer, Way::ToClient, Way::Both] {
        let what = format!("{url}, {way:?}");
        let mut rounds = 0;
        // A holder that does not run for the whole lease sends nothing that could be dropped.
        while cut_off(partition, &holder, &others, way, &what).await == 0 {
            rounds += 1;
            assert!(rounds < 5, "{what}: no packet was dropped");
        }
    }
    others.close(Duration::from_secs(10)).await;
}

/// Cuts the holder off until another client is granted the lock. Returns how many packets were dropped.
async fn cut_off(partition: &Partition, holder: &Holder, others: &Client, way: Way, what: &str) -> u64 {
    let held = holder.ask("lock").await;
    let fence: Option<Fence> = held.strip_prefix("held ").unwrap().parse().ok();
    let next = others.mutex(NAME).ttl(LIVING);
    let next = tokio::spawn(async move {
        let guard = next.lock().await.unwrap();
        (monotonic(), guard)
    });
    partition.cut(way);
    let lost = holder.ask("lost").await;
    let (valid, reported) = lost.strip_prefix("lost ").unwrap().split_once(' ').unwrap();
    let [valid, reported] = [valid, reported].map(|nanos| Duration::from_nanos(nanos.parse().unwrap()));
    // The two are one moment, but for a machine that does not let the holder run.
    let is_in_time = valid.is_zero() || reported - valid < REPORTED_WITHIN;
    assert!(is_in_time, "{what}: reported {:?} after the end", reported - valid);
    let granted = tokio::time::timeout(LIMIT, next).await.unwrap_or_else(|_| panic!("{what}: no grant"));
    let (granted, guard) = granted.unwrap();
    println!("{what}: granted {:?} after the holder was valid", granted.saturating_sub(valid));
    assert!(valid <= granted, "{what}: granted {:?} before the loss", valid.saturating_sub(granted));
    assert!(guard.fence() > fence || fence.is_none(), "{what}: {guard:?} after {held}");
    let dropped = partition.heal();
    guard.release().await.unwrap();
    assert_eq!(holder.ask("release").await, "lost", "{what}");
    dropped
}

async fn on(stores: Option<Stores>, partition: &Partition) {
    let Some(stores) = stores else { return };
    for store in &stores.all {
        a_loss_is_reported_before_the_next_grant(partition, store).await;
    }
}

macro_rules! on_each {
    ($($store:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $store() {
            let test = concat!("partitions::", stringify!($store));
            let Some(partition) = Partition::inside(test) else { return };
            on(stores::$store().await, &partition).await;
        }
    )*};
}

on_each! { redis redis_sentinel redis_cluster redlock etcd zookeeper memcached postgres mysql }
