//! Ten thousand acquisitions dropped at random points leave no key, file, row, item, session lock, task
//! or connection behind.
//!
//! In databases and on memcached it is some hundreds for each way, or as many as `LEASEHOLD_CANCELLED` says.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::{MariaDbServer, MemcachedServer, PostgresServer, Reply};
use leasehold_tests::{Store, settled};

const DROPPED: u32 = 10_000;
const NAMES: u32 = 50;
/// The number of acquisitions at the same time; the second, if each may need a connection.
const CONCURRENCY: u32 = 500;
const LOW_CONCURRENCY: u32 = 50;
/// Everything that is left behind is gone within this, on however busy a machine.
const LIMIT: Duration = Duration::from_secs(60);
/// One in so many waits for a mutex without an end.
const ENDLESS: u32 = 40;

/// Drops acquisitions of all kinds at random points, a crowd at the same time, while others come
/// through: how many.
async fn cancel_at_random(clients: &[Client], dropped: u32, concurrency: u32) -> u32 {
    let mut acquired = 0;
    for round in 0..dropped.div_ceil(concurrency) {
        let tasks: Vec<_> = (0..concurrency)
            .map(|n| tokio::spawn(one(clients[n as usize % clients.len()].clone(), round + n)))
            .collect();
        for task in tasks {
            acquired += u32::from(task.await.unwrap());
        }
    }
    acquired
}

async fn one(locks: Client, n: u32) -> bool {
    let chance = getrandom::u32().unwrap();
    let name = format!("job/{}", chance % NAMES);
    // Some wait until they are granted the lock, so that a dropped acquisition also has waiters behind it.
    let patience = match n % ENDLESS {
        0 => Duration::MAX,
        _ => Duration::from_micros(u64::from(chance >> 8) % 30_000),
    };
    let acquire = async {
        match n % 4 {
            0 => locks.mutex(&name).lock().await.map(Some),
            1 => locks.rwlock(&name).read().await.map(Some),
            2 => locks.semaphore(&name, 3).try_acquire_for(Duration::from_millis(10)).await.or(Ok(None)),
            _ => locks.rwlock(&name).try_write().await,
        }
    };
    let Ok(Ok(Some(guard))) = tokio::time::timeout(patience, acquire).await else { return false };
    tokio::time::sleep(Duration::from_micros(u64::from(chance >> 20))).await;
    drop(guard);
    true
}

/// Waits until as many tasks live as before.
async fn tasks_end(before: usize) {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let began = Instant::now();
    while alive() > before {
        assert!(began.elapsed() < LIMIT, "{} tasks live, {before} did before", alive());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The signs of life of claims, which are FIFOs.
fn fifos(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(fifos(&entry.path()));
        } else if kind.is_fifo() {
            found.push(entry.path());
        }
    }
    found
}

/// One test for all stores: what a process has open is counted, so nothing else may run in it meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_dropped_acquisitions_leave_nothing() {
    let file = Store::file();
    // An open client keeps the files of some names that it uses again.
    closed_client_leaves_nothing(&file.url(), DROPPED, CONCURRENCY).await;
    let Store::File(dir) = &file else { unreachable!() };
    let held = file.client().await.mutex("one").lock().await.unwrap();
    assert_eq!(fifos(dir.path()).len(), 1, "what is counted is what a claim makes");
    held.release().await.unwrap();
    assert_eq!(fifos(dir.path()), Vec::<PathBuf>::new());

    let Some(redis) = Store::redis().await else { return };
    leaves_nothing(&redis).await;
    let Store::Redis(server) = &redis else { unreachable!() };
    let keys = server.command(&["KEYS", "*"]).await.unwrap();
    let Reply::Many(keys) = keys else { panic!("{keys:?}") };
    let fences =
        keys.iter().filter(|key| matches!(key, Reply::Bytes(key) if key.ends_with(b":fence"))).count();
    assert_eq!(fences, keys.len(), "only fences may stay: {keys:?}");
    assert!(fences <= NAMES as usize + 1);
    // Its own descriptors would be counted.
    drop(redis);

    in_postgres().await;
    in_mariadb().await;
    in_sqlite().await;
    on_memcached().await;
}

async fn in_postgres() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for method in ["row", "advisory", "for-update"] {
        leaves_nothing_when_it_is_closed(&format!("{}?method={method}", server.url())).await;
        for (question, what) in [
            ("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'", "connections"),
            ("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", "advisory locks"),
        ] {
            wait_until_zero(what, async || number(&server.sql(question).await.unwrap())).await;
        }
    }
    let claims = server.sql("SELECT count(*) FROM leasehold WHERE claims <> ''").await.unwrap();
    assert_eq!(number(&claims), 0, "claims are left in rows");
}

async fn in_mariadb() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    for method in ["row", "get-lock", "for-update"] {
        leaves_nothing_when_it_is_closed(&format!("{}?method={method}", server.url())).await;
        // A named lock and a transaction end with their connection. The kit asks over the socket.
        let open =
            "SELECT COUNT(*) FROM information_schema.processlist WHERE host <> 'localhost' AND user = 'root'";
        wait_until_zero("connections", async || number(&server.sql(open).await.unwrap())).await;
    }
    let claims = server.sql("SELECT COUNT(*) FROM leasehold WHERE claims <> ''").await.unwrap();
    assert_eq!(number(&claims), 0, "claims are left in rows");
}

async fn in_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.db");
    leaves_nothing_when_it_is_closed(&format!("sqlite:{}", file.display())).await;
    let database = rusqlite::Connection::open(&file).unwrap();
    let claims = "SELECT count(*) FROM leasehold WHERE claims <> ''";
    assert_eq!(database.query_row(claims, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

async fn on_memcached() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    for dialect in ["native", "plain"] {
        leaves_nothing_when_it_is_closed(&format!("{}?dialect={dialect}", server.url())).await;
        wait_until_zero("items", async || server.stat("curr_items").await.unwrap()).await;
    }
}

/// As [`leaves_nothing`], for clients that keep connections until they are closed.
async fn leaves_nothing_when_it_is_closed(url: &str) {
    let dropped = std::env::var("LEASEHOLD_CANCELLED").map_or(500, |dropped| dropped.parse().unwrap());
    closed_client_leaves_nothing(url, dropped, LOW_CONCURRENCY).await;
}

async fn closed_client_leaves_nothing(url: &str, dropped: u32, concurrency: u32) {
    let (tasks, open) = (tokio::runtime::Handle::current().metrics().num_alive_tasks(), descriptors());
    let client = async || Client::open(url).await.unwrap();
    let clients = [client().await, client().await, client().await];
    let began = Instant::now();
    let acquired = cancel_at_random(&clients[..2], dropped, concurrency).await;
    settled(&clients[2]).await;
    println!("{url}: {acquired} of {dropped} came through, in {:?}", began.elapsed());
    assert!(acquired > 0 && acquired < dropped, "{url}: {acquired} of {dropped}");
    for client in &clients {
        assert!(client.close(LIMIT).await, "{url}: a claim was not released");
    }
    drop(clients);
    tasks_end(tasks).await;
    wait_until_zero("descriptors", async || (descriptors() as u64).saturating_sub(open as u64)).await;
}

/// Waits until what is left of it is none.
async fn wait_until_zero(what: &str, count: impl AsyncFn() -> u64) {
    let began = Instant::now();
    loop {
        let left = count().await;
        if left == 0 {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{left} {what} are left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn number(answer: &str) -> u64 {
    answer.trim().parse().unwrap()
}

async fn leaves_nothing(store: &Store) {
    let clients = [store.client().await, store.client().await];
    // The first wait of a client opens what it needs for waiting, which stays.
    let third = store.client().await;
    let held = third.mutex("warm").lock().await.unwrap();
    for locks in &clients {
        assert!(locks.mutex("warm").try_lock_for(Duration::from_millis(50)).await.unwrap().is_none());
    }
    held.release().await.unwrap();
    settled(&third).await;
    let (tasks, open) = (tokio::runtime::Handle::current().metrics().num_alive_tasks(), descriptors());
    cancel_at_random(&clients, DROPPED, CONCURRENCY).await;
    settled(&third).await;
    tasks_end(tasks).await;
    assert!(descriptors() <= open, "{} descriptors are open, {open} were before", descriptors());
}
