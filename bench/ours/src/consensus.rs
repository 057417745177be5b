//! etcd and ZooKeeper: what a lock costs on top of the system's own operations, beside their own lock
//! recipes.
//!
//! One server each, as the test kit starts it: etcd syncs each write to the disk of the temporary
//! folder, ZooKeeper only writes it. Both do the same for ours as for what it is compared with.

pub(crate) mod etcd;
mod idle;
mod line;
pub(crate) mod peers;
pub(crate) mod zookeeper;

use leasehold_testkit::{EtcdCluster, ZooKeeperEnsemble};

use crate::Outcome;
use crate::cycle::Ours;
use crate::load::Load;
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Target, Unit};
use etcd::RawEtcd;
use zookeeper::RawZooKeeper;

/// Measures one task on a lock without other claims.
pub(crate) async fn measure_uncontended(plan: &Plan, report: &mut Report) -> Outcome<()> {
    for system in System::all().await? {
        uncontended(&system, plan, report).await?;
    }
    Ok(())
}

/// Measures lines, and clients that only hold or wait.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    for system in System::all().await? {
        line::measure(&system, plan, report).await?;
        idle::measure(&system, plan, report).await?;
    }
    Ok(())
}

/// A running server of one of the two.
pub(crate) enum System {
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperEnsemble),
}

impl System {
    async fn all() -> Outcome<[System; 2]> {
        let (etcd, zookeeper) = (EtcdCluster::builder().start().await?, ZooKeeperEnsemble::start(1).await?);
        Ok([System::Etcd(etcd), System::ZooKeeper(zookeeper)])
    }

    pub(crate) fn url(&self) -> String {
        match self {
            System::Etcd(server) => server.url(),
            System::ZooKeeper(server) => server.url(),
        }
    }

    /// Returns the heading of its rows.
    pub(crate) fn group(&self) -> &'static str {
        match self {
            System::Etcd(_) => "etcd: one server",
            System::ZooKeeper(_) => "ZooKeeper: one server",
        }
    }

    pub(crate) fn measure(&self, what: &'static str, unit: Unit) -> Measure {
        Measure { group: self.group(), what, unit }
    }

    /// Returns the number of all messages that clients have sent to it so far, those on streams one by
    /// one, and pings of sessions too.
    pub(crate) async fn messages(&self) -> Outcome<f64> {
        Ok(match self {
            System::Etcd(server) => {
                server.metric(0, "grpc_server_msg_received_total").await?.unwrap_or_default()
            }
            System::ZooKeeper(server) => server.metric(0, "zk_packets_received").await?,
        })
    }

    /// Returns the seconds of processor time that its server has used, where the server reports it.
    pub(crate) async fn cpu(&self) -> Outcome<Option<f64>> {
        Ok(match self {
            System::Etcd(server) => server.metric(0, "process_cpu_seconds_total").await?,
            System::ZooKeeper(_) => None,
        })
    }

    /// Returns the name of the least that the system can do for a lock.
    fn raw(&self) -> &'static str {
        match self {
            System::Etcd(_) => "a put on a lease by transaction and a delete by transaction, tonic",
            System::ZooKeeper(_) => "create an ephemeral sequential node, delete it, crate zookeeper-client",
        }
    }
}

async fn uncontended(system: &System, plan: &Plan, report: &mut Report) -> Outcome<()> {
    let ours = Ours::open(&system.url(), 1, |_| "cycle".to_owned()).await?;
    let raw = Raw::open(system).await?;
    ours.run(plan.round / 2).await?;
    raw.run(plan).await?;
    let (mut mine, mut theirs) = (Series::default(), Series::default());
    let (mut mine_cpu, mut theirs_cpu) = (Series::default(), Series::default());
    let (mut messages, mut cycles) = (0.0, 0);
    for _ in 0..plan.rounds {
        let before = system.messages().await?;
        let load = ours.run(plan.round).await?;
        messages += system.messages().await? - before;
        cycles += load.cycles();
        mine.push(load.latency());
        mine_cpu.push(load.cpu_per_cycle());
        let load = raw.run(plan).await?;
        theirs.push(load.latency());
        theirs_cpu.push(load.cpu_per_cycle());
    }
    let latency = system.measure("latency of an uncontended acquire and release", Unit::Micros);
    report.compare(latency, &mine, system.raw(), &theirs, Some(Target::AtMost(1.15)));
    let cpu = system.measure("client's processor time for it", Unit::Micros);
    report.compare(cpu, &mine_cpu, system.raw(), &theirs_cpu, None);
    let requests = system.measure("messages to the server for it", Unit::Count);
    let each = Series::once(messages / cycles.max(1) as f64);
    report.compare(requests, &each, system.raw(), &Series::once(2.0), None);
    Ok(())
}

enum Raw {
    Etcd(RawEtcd),
    ZooKeeper(RawZooKeeper),
}

impl Raw {
    async fn open(system: &System) -> Outcome<Raw> {
        Ok(match system {
            System::Etcd(server) => Raw::Etcd(RawEtcd::connect(server.addr(0)).await?),
            System::ZooKeeper(server) => Raw::ZooKeeper(RawZooKeeper::connect(server.addr(0)).await?),
        })
    }

    async fn run(&self, plan: &Plan) -> Outcome<Load> {
        match self {
            Raw::Etcd(raw) => {
                let raw = raw.clone();
                Load::run(1, plan.round, move |_| raw.clone().cycle()).await
            }
            Raw::ZooKeeper(raw) => {
                let raw = raw.clone();
                Load::run(1, plan.round, move |_| raw.clone().cycle()).await
            }
        }
    }
}
