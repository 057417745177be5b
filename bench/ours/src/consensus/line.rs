//! 64 clients of one process in one line: how long a hand-over takes, and what it asks of the server.
//!
//! Ours are clients with a connection and a line of their own, because tasks of one client hand a lock
//! over without the server. The peers are the recipes that come with each system, run by their own
//! libraries.

use std::time::Duration;

use leasehold::Client;
use tokio::task::JoinSet;

use super::System;
use super::peers::{self, Handed, Peer};
use crate::Outcome;
use crate::effort::now_nanos;
use crate::handover::{HOLD, Latencies, latencies};
use crate::plan::Plan;
use crate::report::{Report, Series, Target, Unit};
use crate::waiter::{Hold, NAME};

pub(crate) async fn measure(system: &System, plan: &Plan, report: &mut Report) -> Outcome<()> {
    let (mut many, mut few) = (Rounds::default(), Rounds::default());
    let mut peers: Vec<(Peer, Rounds)> = Vec::new();
    for peer in Peer::of(system) {
        match peer {
            Ok(peer) => peers.push((peer, Rounds::default())),
            Err(error) if error.is_missing() => report.skip(format!("{}: {error}", system.group())),
            Err(error) => return Err(error.into()),
        }
    }
    for _ in 0..plan.handing_rounds {
        many.push(&ours(system, MANY, plan.handing).await?)?;
        few.push(&ours(system, FEW, plan.handing).await?)?;
        for (peer, rounds) in &mut peers {
            rounds.push(&peers::run(peer, system, MANY, plan.handing).await?)?;
        }
    }
    let measures = [
        system.measure("hand-over with 64 waiters, half are faster (p50)", Unit::Micros),
        system.measure("hand-over with 64 waiters, 99 of 100 are faster (p99)", Unit::Micros),
    ];
    let messages = system.measure("messages to the server an acquisition, 64 waiters", Unit::Count);
    for (peer, rounds) in &peers {
        many.times.add_to_report(report, measures, peer.name(), &rounds.times);
        report.compare(messages, &many.messages, peer.name(), &rounds.messages, None);
    }
    let constant = Some(Target::AtMost(1.15));
    report.compare(messages, &many.messages, "the same with 8 waiters", &few.messages, constant);
    Ok(())
}

#[derive(Default)]
struct Rounds {
    times: Latencies,
    messages: Series,
}

impl Rounds {
    fn push(&mut self, handed: &Handed) -> Outcome<()> {
        let mut holds = handed.holds.clone();
        holds.sort();
        self.times.push(&latencies(&holds, handed.until)?);
        self.messages.push(handed.messages / holds.len() as f64);
        Ok(())
    }
}

async fn ours(system: &System, waiters: usize, length: Duration) -> Outcome<Handed> {
    let mut clients = Vec::with_capacity(waiters);
    for _ in 0..waiters {
        clients.push(Client::open(&system.url()).await?);
    }
    // Requests that a client sends once are not part of a hand-over.
    for (number, locks) in clients.iter().enumerate() {
        locks.mutex(format!("first/{number}")).lock().await?.release().await?;
    }
    let before = system.messages().await?;
    let until = now_nanos() + u64::try_from(length.as_nanos())?;
    let mut tasks = JoinSet::new();
    for locks in &clients {
        let mutex = locks.mutex(NAME);
        tasks.spawn(async move {
            let mut holds = Vec::new();
            while now_nanos() < until {
                let guard = mutex.lock().await?;
                let granted = now_nanos();
                tokio::time::sleep(HOLD).await;
                holds.push(Hold { granted, released: now_nanos() });
                guard.release().await?;
            }
            Outcome::Ok(holds)
        });
    }
    let mut holds = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        holds.extend(ended??);
    }
    let messages = system.messages().await? - before;
    for locks in &clients {
        locks.close(CLOSING).await;
    }
    Ok(Handed { holds, until, messages })
}

const MANY: usize = 64;
const FEW: usize = 8;
const CLOSING: Duration = Duration::from_secs(5);
