//! From a release to the next grant, with twelve waiters in front that were killed in that moment.
//!
//! Each waiter is a process, so its end is that of its connections too. One client that lives waits
//! behind them.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisServer, ZooKeeperEnsemble,
};
use tokio::process::Child;

use crate::Outcome;
use crate::handover::spawn;
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Target, Unit};
use crate::waiter::{Means, NAME};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    store("files", &format!("file://{}", at("store")), plan, report).await?;
    store("SQLite", &format!("sqlite:{}", at("locks.db")), plan, report).await?;
    let server = RedisServer::start().await?;
    store("Redis", &server.url(), plan, report).await?;
    drop(server);
    let server = PostgresServer::builder().start().await?;
    store("PostgreSQL", &server.url(), plan, report).await?;
    drop(server);
    let server = MariaDbServer::builder().start().await?;
    store("MariaDB", &server.url(), plan, report).await?;
    drop(server);
    let server = MemcachedServer::builder().start().await?;
    store("memcached", &server.url(), plan, report).await?;
    drop(server);
    let server = EtcdCluster::builder().start().await?;
    store("etcd", &server.url(), plan, report).await?;
    drop(server);
    let server = ZooKeeperEnsemble::start(1).await?;
    store("ZooKeeper", &server.url(), plan, report).await?;
    store("ZooKeeper, session=4s", &format!("{}?session=4s", server.url()), plan, report).await
}

const GROUP: &str = "dead: from a release to the next grant, with 12 killed waiters in front";
const DEAD: usize = 12;
/// The target for a store that has no sessions.
const WANTED: f64 = 2.0;
/// No step takes longer.
const LIMIT: Duration = Duration::from_secs(60);
const BUSY: &str = "the lock was not free in time";

async fn store(what: &'static str, url: &str, plan: &Plan, report: &mut Report) -> Outcome<()> {
    let (mut ours, mut wanted) = (Series::default(), Series::default());
    for _ in 0..plan.handing_rounds {
        ours.push(round(url).await.map_err(|error| format!("{what}: {error}"))?);
        wanted.push(WANTED);
    }
    let measure = Measure { group: GROUP, what, unit: Unit::Seconds };
    report.compare(measure, &ours, "2 s, which is wanted", &wanted, Some(Target::AtMost(1.0)));
    Ok(())
}

/// Seconds.
async fn round(url: &str) -> Outcome<f64> {
    let (holder, last) = (Client::open(url).await?, Client::open(url).await?);
    let guard = holder.mutex(NAME).try_lock_for(LIMIT).await?.ok_or(BUSY)?;
    // The dead of the round before.
    waiting(&holder, 0).await?;
    let mut dead: Vec<Child> =
        (0..DEAD).map(|_| spawn(Means::Client, url, 0, u64::MAX)).collect::<Outcome<_>>()?;
    waiting(&holder, DEAD).await?;
    let mutex = last.mutex(NAME);
    let next = tokio::spawn(async move { (mutex.try_lock_for(LIMIT).await, Instant::now()) });
    waiting(&holder, DEAD + 1).await?;
    for process in &mut dead {
        process.start_kill()?;
    }
    for process in &mut dead {
        process.wait().await?;
    }
    let released = Instant::now();
    guard.release().await?;
    let (granted, at) = next.await?;
    granted?.ok_or(BUSY)?.release().await?;
    holder.close(LIMIT).await;
    last.close(LIMIT).await;
    Ok((at - released).as_secs_f64())
}

/// Waits until so many wait.
async fn waiting(locks: &Client, count: usize) -> Outcome<()> {
    let looking = async {
        while locks.inspect(NAME).await?.waiting.len() != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Outcome::Ok(())
    };
    tokio::time::timeout(LIMIT, looking).await.map_err(|_| format!("never were there {count} waiters"))?
}
