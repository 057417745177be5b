//! The constants of the capacity model: what a held lock, a renewal, a cycle and a waiter cost a server.
//!
//! `capacity_constants STORE…`, with the stores of [`STORES`]. Processor time and memory of a server are those
//! of all processes that this one has started, so no other load on the machine is counted. What an idle server
//! uses is measured first, and subtracted. `docs/book/src/capacity.md` has the results.

use std::collections::HashSet;
use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use leasehold::{Client, Guard, State};
use leasehold_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisServer, ZooKeeperEnsemble,
};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    println!("| store | what | value |\n|---|---|---|");
    for store in std::env::args().skip(1) {
        match store.as_str() {
            "redis" => {
                let server = RedisServer::start().await?;
                measure(&store, &server.url(), &server.url()).await?;
            }
            "etcd" => {
                let server = EtcdCluster::builder().start().await?;
                measure(&store, &server.url(), &server.url()).await?;
            }
            "zookeeper" => {
                let server = ZooKeeperEnsemble::start(1).await?;
                measure(&store, &server.url(), &with(&server.url(), "session=4s")).await?;
            }
            "postgres" => {
                let server = PostgresServer::builder().setting("fsync", "on").start().await?;
                measure(&store, &server.url(), &with(&server.url(), "connections=1")).await?;
            }
            "mariadb" => {
                let server = MariaDbServer::builder().start().await?;
                measure(&store, &server.url(), &with(&server.url(), "connections=1")).await?;
            }
            "memcached" => {
                let server = MemcachedServer::builder().start().await?;
                measure(&store, &server.url(), &server.url()).await?;
            }
            _ => return Err(STORES.into()),
        }
    }
    Ok(())
}

/// Returns the URL with one more option.
fn with(url: &str, option: &str) -> String {
    format!("{url}{}{option}", if url.contains('?') { '&' } else { '?' })
}

/// Takes all measures of one store. `small` is the URL for clients that are many.
async fn measure(store: &str, url: &str, small: &str) -> Outcome<()> {
    let show = |what: &str, value: String| println!("| {store} | {what} | {value} |");
    drop(Client::open(url).await?);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let idle = watched(LENGTH, 0.0).await?.server;
    show("an idle server, of a core", format!("{:.4}", idle));
    // The few first: memory that many have used and freed would be used again, and not be seen.
    waiters(url, idle, &show).await?;
    singles(store, small, idle, &show).await?;
    let cycles = cycles(url).await?;
    show("cycles in a second, 64 tasks", format!("{:.0}", cycles.0));
    show("a cycle, server and client, µs", per(cycles.1, cycles.0, idle));
    let before = Memory::now()?;
    let (client, guards, took) = hold(url, "held", HELD, TTL).await?;
    let memory = before.each(HELD)?;
    show("memory of a held lock, server and client, bytes", memory);
    show("to take each of 10,000, 64 tasks, µs", format!("{took:.0}"));
    tokio::time::sleep(TTL / 2).await;
    // Each is renewed once, and twice on ZooKeeper.
    let used = watched(LENGTH, idle).await?;
    let period = if store == "zookeeper" { TTL / 6 } else { TTL / 3 };
    show("a renewal of 10,000, server and client, µs", per(used, HELD as f64 / period.as_secs_f64(), 0.0));
    valid(&guards)?;
    drop(guards);
    client.close(Duration::from_secs(60)).await;
    hand_overs(url, idle, &show).await
}

/// Shows the cost of a renewal that is alone in its request, of many clients with a lock each.
async fn singles(store: &str, url: &str, idle: f64, show: &impl Fn(&str, String)) -> Outcome<()> {
    let ttl = Duration::from_secs(3);
    let before = Memory::now()?;
    let (mut clients, mut all) = (Vec::new(), Vec::new());
    // PostgreSQL has 100 connections unless it is set otherwise.
    let count = if store == "postgres" { CLIENTS / 5 } else { CLIENTS };
    for number in 0..count {
        let (client, guards, _) = hold(url, &format!("single/{number}"), 1, ttl).await?;
        clients.push(client);
        all.extend(guards);
    }
    show("memory of a client with a lock, server and client, bytes", before.each(count)?);
    tokio::time::sleep(ttl * 2).await;
    let used = watched(LENGTH, idle).await?;
    let period = if store == "zookeeper" { 2.0 / 3.0 } else { 1.0 };
    show("a renewal alone in its request, server and client, µs", per(used, count as f64 / period, 0.0));
    valid(&all)?;
    drop(all);
    for client in clients {
        client.close(Duration::from_secs(60)).await;
    }
    Ok(())
}

/// Shows the cost of waiters, each on a lock of its own.
async fn waiters(url: &str, idle: f64, show: &impl Fn(&str, String)) -> Outcome<()> {
    let (holder, guards, _) = hold(url, "wanted", WAITERS, Duration::from_secs(600)).await?;
    let before = Memory::now()?;
    let client = Client::open(url).await?;
    let mut tasks = JoinSet::new();
    for number in 0..WAITERS {
        let mutex = client.mutex(format!("wanted/{number}"));
        tasks.spawn(async move { mutex.lock().await.map(drop) });
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    show("memory of a waiter, server and client, bytes", before.each(WAITERS)?);
    let used = watched(LENGTH * 2, idle).await?;
    show("a waiter for a second, server and client, µs", per(used, WAITERS as f64, 0.0));
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    client.close(Duration::from_secs(60)).await;
    drop(guards);
    holder.close(Duration::from_secs(60)).await;
    Ok(())
}

/// Shows the cost of a lock that goes from client to client.
async fn hand_overs(url: &str, idle: f64, show: &impl Fn(&str, String)) -> Outcome<()> {
    let mut tasks = JoinSet::new();
    let end = Instant::now() + LENGTH / 2;
    for _ in 0..8 {
        let client = Client::open(url).await?;
        tasks.spawn(async move {
            let mut count = 0.0;
            while Instant::now() < end {
                let guard = client.mutex("handed").lock().await?;
                tokio::time::sleep(Duration::from_millis(2)).await;
                guard.release().await?;
                count += 1.0;
            }
            Outcome::Ok(count)
        });
    }
    let began = Instant::now();
    let used = watched(LENGTH / 2, idle).await?;
    let mut count = 0.0;
    while let Some(ended) = tasks.join_next().await {
        count += ended??;
    }
    let rate = count / began.elapsed().as_secs_f64();
    show("acquisitions in a second, 8 clients on one lock held for 2 ms", format!("{rate:.0}"));
    show("such an acquisition, server and client, µs", per(used, rate, 0.0));
    Ok(())
}

/// Returns the rate of cycles of 64 tasks, and the processor time.
async fn cycles(url: &str) -> Outcome<(f64, Used)> {
    let client = Client::open(url).await?;
    let mut tasks = JoinSet::new();
    let end = Instant::now() + LENGTH / 2;
    for number in 0..64 {
        let mutex = client.mutex(format!("cycle/{number}"));
        tasks.spawn(async move {
            let mut count = 0.0;
            while Instant::now() < end {
                mutex.lock().await?.release().await?;
                count += 1.0;
            }
            Outcome::Ok(count)
        });
    }
    let used = watched(LENGTH / 2, 0.0).await?;
    let mut count = 0.0;
    while let Some(ended) = tasks.join_next().await {
        count += ended??;
    }
    client.close(Duration::from_secs(60)).await;
    Ok((count / (LENGTH / 2).as_secs_f64(), used))
}

/// Opens a client that holds so many locks. Returns it with them, and the microseconds for each.
async fn hold(url: &str, prefix: &str, count: usize, ttl: Duration) -> Outcome<(Client, Vec<Guard>, f64)> {
    let (client, began) = (Client::open(url).await?, Instant::now());
    let mut tasks = JoinSet::new();
    let mut guards = Vec::with_capacity(count);
    for number in 0..count {
        if tasks.len() >= 64
            && let Some(guard) = tasks.join_next().await
        {
            guards.push(guard??);
        }
        let mutex = client.mutex(format!("{prefix}/{number}")).ttl(ttl);
        tasks.spawn(async move { mutex.lock().await });
    }
    while let Some(guard) = tasks.join_next().await {
        guards.push(guard??);
    }
    Ok((client, guards, began.elapsed().as_secs_f64() * 1e6 / count as f64))
}

fn valid(guards: &[Guard]) -> Outcome<()> {
    match guards.iter().filter(|guard| matches!(guard.state(), State::Lost(_))).count() {
        0 => Ok(()),
        lost => Err(format!("{lost} locks were lost").into()),
    }
}

/// Processor time, as parts of a core.
#[derive(Clone, Copy, Debug)]
struct Used {
    server: f64,
    client: f64,
}

/// Watches for a while what is used beyond an idle server.
async fn watched(length: Duration, idle: f64) -> Outcome<Used> {
    let (began, before) = (Instant::now(), Cpu::now()?);
    tokio::time::sleep(length).await;
    let (passed, after) = (began.elapsed().as_secs_f64(), Cpu::now()?);
    let server = (after.server - before.server) / passed - idle;
    Ok(Used { server, client: (after.client - before.client) / passed })
}

/// Shows the microseconds of server and client for each of so many in a second.
fn per(used: Used, rate: f64, idle: f64) -> String {
    format!("{:.2}, {:.2}", (used.server - idle) * 1e6 / rate, used.client * 1e6 / rate)
}

/// Processor seconds so far.
struct Cpu {
    server: f64,
    client: f64,
}

impl Cpu {
    fn now() -> Outcome<Cpu> {
        let client = Process::read(std::process::id())?.ok_or("this process is not in /proc")?;
        let server = started()?.iter().map(|process| process.cpu).sum();
        // The children that have ended are counted as the server's.
        Ok(Cpu { server, client: client.own })
    }
}

/// Resident bytes.
struct Memory {
    server: f64,
    client: f64,
}

impl Memory {
    fn now() -> Outcome<Memory> {
        let client = Process::read(std::process::id())?.ok_or("this process is not in /proc")?;
        Ok(Memory {
            server: started()?.iter().map(|process| process.resident).sum(),
            client: client.resident,
        })
    }

    /// Shows what was added since, for each of so many.
    fn each(&self, count: usize) -> Outcome<String> {
        let now = Memory::now()?;
        let each = |after: f64, before: f64| (after - before) / count as f64;
        Ok(format!("{:.0}, {:.0}", each(now.server, self.server), each(now.client, self.client)))
    }
}

/// One process.
struct Process {
    id: u32,
    parent: u32,
    /// Processor seconds of itself, and with its ended children.
    own: f64,
    cpu: f64,
    resident: f64,
}

impl Process {
    /// Reads a process; `None` where it has ended.
    fn read(id: u32) -> Outcome<Option<Process>> {
        let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else { return Ok(None) };
        let (_, rest) = stat.rsplit_once(") ").ok_or("a line of /proc has another form")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        let own = ran(id);
        let page = rustix::param::page_size() as f64;
        let parent = fields.get(1).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(Some(Process {
            id,
            parent,
            own,
            // What its ended children used is known to a hundredth of a second.
            cpu: own + (field(13) + field(14)) / 100.0,
            resident: field(21) * page,
        }))
    }
}

/// Returns the seconds that the threads of a process have run, by the clock of the scheduler.
fn ran(id: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}

/// Returns the processes that this one has started, and those that they have.
fn started() -> Outcome<Vec<Process>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(id) = name.to_str().and_then(|name| name.parse().ok()) {
            all.extend(Process::read(id)?);
        }
    }
    let mut ours = HashSet::from([std::process::id()]);
    loop {
        let before = ours.len();
        let found: Vec<u32> =
            all.iter().filter(|process| ours.contains(&process.parent)).map(|process| process.id).collect();
        ours.extend(found);
        if ours.len() == before {
            break;
        }
    }
    ours.remove(&std::process::id());
    all.retain(|process| ours.contains(&process.id));
    Ok(all)
}

const STORES: &str = "usage: capacity_constants [redis|etcd|zookeeper|postgres|mariadb|memcached]…";
const HELD: usize = 10_000;
const CLIENTS: usize = 200;
const WAITERS: usize = 1_000;
/// The one that is used where none is named.
const TTL: Duration = Duration::from_secs(30);
const LENGTH: Duration = Duration::from_secs(10);
