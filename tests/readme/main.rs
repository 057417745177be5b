//! The README and `docs/book/src/choosing.md` are true: the table of stores is printed from the profiles,
//! the program of the README is a compiled example, and the examples run unchanged.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod examples;

use leasehold::backend::{Liveness, Registers};
use leasehold::{Client, Durability, FenceGrade, Profile, WaitMode};
use leasehold_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisCluster, RedisQuorum, ZooKeeperEnsemble,
};
use leasehold_tests::{Store, opened};

const BEGIN: &str = "<!-- profiles:begin";
const END: &str = "<!-- profiles:end -->";

fn row(url: &str, locks: &Client) -> String {
    shown(url, locks.profile(), locks.backend().registers())
}

fn shown(url: &str, profile: &Profile, registers: Option<&dyn Registers>) -> String {
    let Profile { admission, order, .. } = profile;
    let waiting = match profile.waiting {
        WaitMode::Polls => "polling",
        WaitMode::Notifies => "notification",
        _ => "blocking in the kernel or server",
    };
    let liveness = match profile.liveness {
        Liveness::Lease { min, max } if max.as_secs() < 3600 => format!("lease, {min:?} to {max:?}"),
        Liveness::Lease { min, max } => format!("lease, {min:?} to {} h", max.as_secs() / 3600),
        Liveness::Heartbeat { .. } => "session with heartbeats".to_owned(),
        _ => "session".to_owned(),
    };
    let durability = match profile.durability {
        Durability::Evictable => "memory pressure, or restart",
        Durability::LostOnFailover => "failover, or restart without data",
        _ => "only if the store loses confirmed data",
    };
    let fence = profile.fencing;
    let values = match registers.map(Registers::promise) {
        None => "no",
        Some(promise) if promise.forgets => "yes, with expiry",
        Some(_) => "yes",
    };
    format!(
        "| `{url}` | {admission} | {order} | {waiting} | {liveness} | {fence} | {durability} | {values} |\n"
    )
}

async fn table() -> Option<String> {
    let mut table = String::from(
        "| store | locks | order | waiting | kept alive by | fence | lost when | registers |\\n|---|---|---|---|---|---|---|---|\\n",
    )
    .replace("\\n", "\n");
    let file = Store::file();
    let database = tempfile::tempdir().unwrap();
    let redis = Store::redis().await?;
    let cluster = RedisCluster::builder().replicas(0).start_or_skip().await?;
    let etcd = EtcdCluster::start_or_skip().await?;
    let ensemble = ZooKeeperEnsemble::start_or_skip(1).await?;
    let postgres = PostgresServer::builder().setting("fsync", "on").start_or_skip().await?;
    for (url, locks) in [
        ("mem:", Client::open("mem:").await.unwrap()),
        ("file:", file.client().await),
        (
            "sqlite:",
            Client::open(&format!("sqlite:{}", database.path().join("l.db").display())).await.unwrap(),
        ),
        ("redis://", redis.client().await),
        (
            "redis://…?wait=poll&order=unordered",
            Client::open(&format!("{}?wait=poll&order=unordered", redis.url())).await.unwrap(),
        ),
    ] {
        table += &row(url, &locks);
    }
    table += &row("redis+cluster://", &Client::open(&cluster.url()).await.unwrap());
    let servers = RedisQuorum::start_or_skip(3).await?;
    let redlock = opened(&format!("redlock://{}", servers.hosts())).await;
    table += &row("redlock://", &redlock);
    let etcd = Client::open(&etcd.url()).await.unwrap();
    // Which server is installed decides these two promises; the text below the table says which keep them.
    let sound = etcd.profile().clone().durability(Durability::Strict).fencing(FenceGrade::Strict);
    table += &shown("etcd://", &sound, etcd.backend().registers());
    table += &row("zk://", &Client::open(&ensemble.url()).await.unwrap());
    let memcached = MemcachedServer::start_or_skip().await?;
    for (name, options) in [("memcached://", ""), ("memcached://…?dialect=plain", "?dialect=plain")] {
        let url = format!("{}{options}", memcached.url());
        table += &row(name, &Client::open(&url).await.unwrap());
    }
    for (name, options) in [
        ("postgres://", ""),
        ("postgres://…?dialect=shedlock", "?dialect=shedlock"),
        ("postgres://…?method=advisory", "?method=advisory"),
        ("postgres://…?method=for-update", "?method=for-update"),
    ] {
        let url = format!("{}{options}", postgres.url());
        table += &row(name, &Client::open(&url).await.unwrap());
    }
    let mariadb = MariaDbServer::start_or_skip().await?;
    for (name, options) in [
        ("mysql://", ""),
        ("mysql://…?dialect=shedlock", "?dialect=shedlock"),
        ("mysql://…?method=get-lock", "?method=get-lock"),
        ("mysql://…?method=for-update", "?method=for-update"),
    ] {
        let url = format!("{}{options}", mariadb.url());
        table += &row(name, &Client::open(&url).await.unwrap());
    }
    Some(table)
}

/// Reads a file of this repository.
fn text_of(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[tokio::test]
async fn the_table_of_stores_is_that_of_the_profiles() {
    let Some(table) = Box::pin(table()).await else { return };
    let page = text_of("docs/book/src/choosing.md");
    let (head, rest) = page.split_once(BEGIN).unwrap();
    let (marker, rest) = rest.split_once('\n').unwrap();
    let (present, tail) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src/choosing.md");
        std::fs::write(path, format!("{head}{BEGIN}{marker}\n{table}{END}{tail}")).unwrap();
        return;
    }
    assert_eq!(present, table, "run the command beside the table's beginning to write it anew");
}

#[test]
fn readme_program_matches_the_example() {
    let source = text_of("crates/leasehold/examples/first_lock.rs");
    // The `//!` lines on top are not shown.
    let (_, program) = source.split_once("\n\n").unwrap();
    for page in ["README.md", "crates/leasehold/README.md"] {
        let text = text_of(page);
        let (shown, _) = text.split_once("```rust\n").and_then(|(_, rest)| rest.split_once("```")).unwrap();
        assert_eq!(
            shown, program,
            "{page} shows another program than crates/leasehold/examples/first_lock.rs"
        );
    }
}

#[test]
fn readme_has_at_most_120_lines() {
    let lines = text_of("README.md").lines().count();
    assert!(lines <= 120, "README.md has {lines} lines: move the parts that few readers need to docs/");
}
