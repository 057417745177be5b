//! Fenced resources of every kind refuse a holder that was stopped past its lease, even if its successor
//! has only opened the resource and written nothing yet.
//!
//! The old holder is a process: this test program, started again as the test `player`. It locks, opens,
//! reads, is stopped, and writes after its successor has read. On purpose, it never checks whether it
//! still holds the lock.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod columns;
mod place;
mod web;

use std::process::Command;
use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::peers::Peer;
use leasehold_testkit::{
    Directory, EtcdCluster, MariaDbServer, PostgresServer, RedisServer, ZooKeeperEnsemble, require,
};

use columns::At;
use place::{Place, Refused};
use web::Web;

/// The variable that makes the test program the player: the store of the lock, and the place of the resource.
const PLAYER: &str = "LEASEHOLD_TEST_PLAYER";
const TTL: Duration = Duration::from_secs(2);
const NAME: &str = "ledger";

/// Plays the old holder if this program was started as one; otherwise does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn player() {
    let Ok(orders) = std::env::var(PLAYER) else { return };
    let (url, place) = orders.split_once(' ').unwrap();
    let locks = Client::open(url).await.unwrap();
    let guard = locks.mutex(NAME).ttl(TTL).lock().await.unwrap();
    let mut resource = Place::parse(place).open(&guard).await.unwrap();
    let seen = resource.read().await.unwrap();
    // The harness leaves an unfinished line behind.
    println!("\nplayer: read {seen}");
    for _ in std::io::stdin().lines() {
        match resource.write(seen + 1).await {
            Ok(()) => println!("player: written"),
            Err(Refused) => println!("player: refused"),
        }
    }
}

/// Returns the next line of the player.
fn answer(player: &Peer) -> String {
    loop {
        if let Some(line) = player.answer().unwrap().strip_prefix("player: ") {
            return line.to_owned();
        }
    }
}

/// Lets a process hold the lock in `url` and read the resource, stops it past its lease, and continues
/// in its place. The suffix of the process's own URL lets the store notice its absence soon.
async fn refuses_a_stopped_holder(url: &str, mortal: &str, place: &Place) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["player", "--exact", "--nocapture"]).env(PLAYER, format!("{url}{mortal} {place}"));
    let player = tokio::task::spawn_blocking(move || {
        let player = Peer::start(command).unwrap();
        assert_eq!(answer(&player), "read 5");
        player.stop().unwrap();
        player
    });
    let mut player = player.await.unwrap();
    let locks = Client::open(url).await.unwrap();
    let guard = locks.mutex(NAME).ttl(Duration::from_secs(30)).try_lock_for(Duration::from_secs(40)).await;
    let guard = guard.unwrap().expect("what a stopped process held ends with its lease");
    let mut resource = place.open(&guard).await.unwrap();
    assert_eq!(resource.read().await.unwrap(), 5);
    // Its successor has read and not written: a resource that checks only writes lets this one in.
    let (line, mut player) = tokio::task::spawn_blocking(move || {
        player.resume().unwrap();
        player.send_line("write").unwrap();
        (answer(&player), player)
    })
    .await
    .unwrap();
    assert_eq!(line, "refused", "{place}");
    resource.write(6).await.unwrap();
    assert_eq!(resource.read().await.unwrap(), 6, "{place}");
    let line = tokio::task::spawn_blocking(move || {
        player.send_line("write").unwrap();
        answer(&player)
    });
    assert_eq!(line.await.unwrap(), "refused", "{place}");
    assert_eq!(resource.read().await.unwrap(), 6, "{place}");
    guard.release().await.unwrap();
}

/// A store of locks whose leases end while their holder is stopped, without a server.
fn leases() -> (Directory, String) {
    // A shared disk sometimes takes seconds to sync, and the leases are short.
    let dir = Directory::create_in_memory("sqlite").unwrap();
    let url = format!("sqlite:{}", dir.path().join("locks.db").display());
    (dir, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file() {
    let (dir, url) = leases();
    let path = dir.path().join("counter");
    std::fs::write(&path, "5").unwrap();
    refuses_a_stopped_holder(&url, "", &Place::File(path)).await;
}

/// A row, beside locks in another store.
async fn a_row(at: At) {
    let (_dir, url) = leases();
    columns::prepare(&at).await;
    refuses_a_stopped_holder(&url, "", &Place::Row(at)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    a_row(At::Sqlite(dir.path().join("shop.db"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_postgres() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    a_row(At::Postgres(server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_mariadb() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    a_row(At::MySql(server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_redis() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let (_dir, url) = leases();
    server.command(&["SET", "counter", "5"]).await.unwrap();
    refuses_a_stopped_holder(&url, "", &Place::Redis(server.url())).await;
    place::redis_that_forgets(&server).await;
}

/// Here etcd keeps the resource only; where it keeps the lock as well, there is `EtcdProof`, whose test
/// is its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_etcd() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    if require::or_skip("etcd", require::program("etcdctl", "etcd-client")).is_none() {
        return;
    }
    let (_dir, url) = leases();
    server.etcdctl(&["put", "counter", "5"]).unwrap();
    refuses_a_stopped_holder(&url, "", &Place::Etcd(server.addr(0))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_zookeeper() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let place = Place::ZooKeeper(servers.addr(0));
    place::prepare_zookeeper(servers.addr(0)).await;
    refuses_a_stopped_holder(&servers.url(), "?session=2s", &place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_behind_http() {
    let (_dir, url) = leases();
    let web = Web::start(5).await;
    refuses_a_stopped_holder(&url, "", &Place::Http(web.addr())).await;
    assert_eq!(web::get(web.addr(), "/counter", &[]).await.status, 428, "a request without a fence");
    let refused = web::get(web.addr(), "/counter", &[("leasehold-fence", "34")]).await;
    assert_eq!(refused.status, 400, "{}", String::from_utf8_lossy(&refused.body));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_with_entity_tags() {
    let (_dir, url) = leases();
    let web = Web::start(5).await;
    refuses_a_stopped_holder(&url, "", &Place::Object(web.addr())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_with_generations() {
    let (_dir, url) = leases();
    let web = Web::start(5).await;
    refuses_a_stopped_holder(&url, "", &Place::Generation(web.addr())).await;
}
