//! The lock recipes that come with etcd and ZooKeeper, in their own languages, under the same load.
//!
//! A peer program prints `ready` when all its clients are connected, reads `MILLISECONDS MICROSECONDS`
//! (how long to run, how long to hold), prints a line `GRANTED RELEASED` for each hold, in nanoseconds,
//! and then `end`. `etcdctl lock` is a process for each acquisition: it prints a line when it holds,
//! and unlocks when it is interrupted.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold_testkit::{Error, EtcdCluster, peers, require};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc::unbounded_channel;

use super::System;
use crate::Outcome;
use crate::effort::now_nanos;
use crate::handover::HOLD;
use crate::waiter::{Hold, NAME};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Curator,
    Kazoo,
    Etcdctl,
}

impl Peer {
    /// Returns those of a system, or why one cannot be run here.
    pub(crate) fn of(system: &System) -> Vec<Result<Peer, Error>> {
        match system {
            System::Etcd(_) => vec![require::program("etcdctl", "etcd-client").map(|_| Peer::Etcdctl)],
            System::ZooKeeper(_) => {
                vec![curator().map(|_| Peer::Curator), kazoo().map(|_| Peer::Kazoo)]
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Curator => "Curator's InterProcessMutex, 64 clients in one JVM",
            Peer::Kazoo => "kazoo's Lock, 64 clients in one Python",
            Peer::Etcdctl => "etcdctl lock, a process for each",
        }
    }
}

/// The work of one line.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) holds: Vec<Hold>,
    /// The moment after which no waiter began anew.
    pub(crate) until: u64,
    /// The messages to the server, by all together.
    pub(crate) messages: f64,
}

/// Lets `waiters` clients of a peer hand a lock to each other.
pub(crate) async fn run(peer: &Peer, system: &System, waiters: usize, length: Duration) -> Outcome<Handed> {
    let command = match (peer, system) {
        (Peer::Etcdctl, System::Etcd(server)) => return processes(server, system, waiters).await,
        (Peer::Curator, System::ZooKeeper(server)) => (curator()?, server.addr(0)),
        (Peer::Kazoo, System::ZooKeeper(server)) => (kazoo()?, server.addr(0)),
        _ => return Err("this peer belongs to the other system".into()),
    };
    let (mut command, addr) = command;
    command.arg(addr.to_string()).arg(format!("/peers/{NAME}")).arg(waiters.to_string());
    let mut program = tokio::task::spawn_blocking(move || {
        let program = peers::Peer::start(command)?;
        match program.answer()?.as_str() {
            "ready" => Outcome::Ok(program),
            other => Err(format!("a peer said {other} instead of being ready").into()),
        }
    })
    .await??;
    let before = system.messages().await?;
    let until = now_nanos() + u64::try_from(length.as_nanos())?;
    let holds = tokio::task::spawn_blocking(move || {
        program.send_line(&format!("{} {}", length.as_millis(), HOLD.as_micros()))?;
        let mut text = String::new();
        loop {
            match program.answer()?.as_str() {
                "end" => return Hold::read_all(&text),
                line => text += &format!("{line}\n"),
            }
        }
    })
    .await??;
    Ok(Handed { holds, until, messages: system.messages().await? - before })
}

/// Puts all of them in line, then interrupts each when it holds, which releases.
async fn processes(server: &EtcdCluster, system: &System, waiters: usize) -> Outcome<Handed> {
    let program = require::program("etcdctl", "etcd-client")?;
    let before = system.messages().await?;
    let mut children = Children(Vec::with_capacity(waiters));
    let (sender, mut granted) = unbounded_channel();
    for number in 0..waiters {
        let mut command = server.etcdctl_command(&program);
        command.args(["lock", NAME]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or("etcdctl has no stdout")?;
        let sender = sender.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            if read.is_ok_and(|length| length > 0) {
                // If the run has failed, the receiver is gone.
                let _ = sender.send((number, now_nanos()));
            }
        });
        children.0.push(child);
    }
    let queued = || -> Outcome<usize> {
        let keys = server.etcdctl(&["get", "--prefix", &format!("{NAME}/"), "--keys-only"])?;
        Ok(keys.lines().filter(|line| !line.is_empty()).count())
    };
    let mut looks = 0.0;
    while queued()? < waiters {
        looks += 1.0;
        if looks > QUEUE_CHECKS {
            return Err(format!("not all of {waiters} etcdctl are queued").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut holds = Vec::with_capacity(waiters);
    for _ in 0..waiters {
        let next = tokio::time::timeout(GRANT_LIMIT, granted.recv()).await?;
        let (number, granted) = next.ok_or("etcdctl does not continue")?;
        tokio::time::sleep(HOLD).await;
        holds.push(Hold { granted, released: now_nanos() });
        kill_process(Pid::from_child(&children.0[number]), Signal::INT)?;
    }
    tokio::task::spawn_blocking(move || children.0.iter_mut().try_for_each(|child| child.wait().map(drop)))
        .await??;
    // Each look was one message, and so was the one that found all of them.
    let messages = system.messages().await? - before - looks - 1.0;
    Ok(Handed { holds, until: u64::MAX, messages })
}

/// Processes that end with the run, however it ends.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It has ended, where all is well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn curator() -> Result<Command, Error> {
    let mut command = peers::java(&JARS)?;
    command.arg(source("CuratorLine.java"));
    Ok(command)
}

fn kazoo() -> Result<Command, Error> {
    let mut command = peers::python(&["kazoo>=2.10,<3"])?;
    command.arg(source("kazoo_line.py"));
    Ok(command)
}

fn source(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../rivals/peers")).join(name)
}

/// With the Debian package that each is of.
pub(crate) const JARS: [(&str, &str); 8] = [
    ("curator-recipes.jar", "libcurator-recipes-java"),
    ("curator-framework.jar", "libcurator-framework-java"),
    ("curator-client.jar", "libcurator-client-java"),
    ("guava.jar", "libguava-java"),
    ("zookeeper.jar", "libzookeeper-java"),
    ("zookeeper-jute.jar", "libzookeeper-java"),
    ("slf4j-api.jar", "libslf4j-java"),
    ("slf4j-nop.jar", "libslf4j-java"),
];
const GRANT_LIMIT: Duration = Duration::from_secs(30);
const QUEUE_CHECKS: f64 = 600.0;
