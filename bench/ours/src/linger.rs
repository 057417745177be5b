//! One task that locks one name repeatedly: with a linger time, beside the same without.

use std::time::Duration;

use leasehold::{Client, Mutex};
use leasehold_testkit::{EtcdCluster, RedisServer};

use crate::Outcome;
use crate::load::Load;
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Target, Unit};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let redis = RedisServer::start().await?;
    measure_store(plan, report, &redis.url(), "cycles on Redis, 1 task on 1 lock").await?;
    let etcd = EtcdCluster::builder().start().await?;
    measure_store(plan, report, &etcd.url(), "cycles on etcd, 1 task on 1 lock").await
}

async fn measure_store(plan: &Plan, report: &mut Report, url: &str, what: &'static str) -> Outcome<()> {
    // Separate clients, so that no round pays for what the other left behind.
    let plain = Client::open(url).await?.mutex("plain");
    let lingering = Client::open(url).await?.mutex("lingering").linger(LINGER);
    for lock in [&plain, &lingering] {
        run(lock, plan.round / 5).await?;
    }
    let (mut ours, mut reference) = (Series::default(), Series::default());
    for _ in 0..plan.rounds {
        ours.push(run(&lingering, plan.round).await?.rate());
        reference.push(run(&plain, plan.round).await?.rate());
    }
    let measure = Measure { group: GROUP, what, unit: Unit::PerSecond };
    report.compare(measure, &ours, "the same without a linger time", &reference, Some(Target::AtLeast(50.0)));
    Ok(())
}

async fn run(lock: &Mutex, length: Duration) -> Outcome<Load> {
    let lock = lock.clone();
    let cycle = move |_| {
        let lock = lock.clone();
        async move { Ok(lock.lock().await?.release().await?) }
    };
    Load::run(1, length, cycle).await
}

const GROUP: &str = "linger: one task locks one name repeatedly";
/// A claim is released and requested anew at least as often.
const LINGER: Duration = Duration::from_millis(100);
