//! The load that holders alone, and waiters alone, put on a server.

use std::time::{Duration, Instant};

use leasehold::{Client, State};
use tokio::task::JoinSet;

use super::System;
use crate::Outcome;
use crate::effort::{own_cpu, resident};
use crate::leases::{LEASES, hold_all};
use crate::plan::Plan;
use crate::report::{Report, Series, Unit};

pub(crate) async fn measure(system: &System, plan: &Plan, report: &mut Report) -> Outcome<()> {
    // A recipe with a session or a lease for each would have to keep each alive, every third of its time.
    let each = |count: usize| Series::once(count as f64 / (TTL.as_secs_f64() / 3.0));
    let reckoned = "a keep-alive for each, every third of the ttl, reckoned";
    let few = Holding::of(system, LEASES).await?;
    let what = system.measure("messages to the server for 10,000 held locks", Unit::CountPerSecond);
    report.compare(what, &Series::once(few.messages), reckoned, &each(LEASES), None);
    if plan.leases > LEASES {
        let many = Holding::of(system, plan.leases).await?;
        let what = system.measure("messages to the server for 100,000 held locks", Unit::CountPerSecond);
        report.compare(what, &Series::once(many.messages), reckoned, &each(plan.leases), None);
        many.compare_with(&few, system, report);
    }
    let waited = waiters(system, plan).await?;
    let what =
        system.measure("messages to the server for 1,000 waiters on 1,000 locks", Unit::CountPerSecond);
    report.compare(what, &Series::once(waited), reckoned, &each(WAITERS), None);
    Ok(())
}

/// The cost of holding many locks.
struct Holding {
    /// Microseconds of time for each to be taken, with 64 tasks.
    taken: f64,
    /// The messages to the server, in a second.
    messages: f64,
    /// Processor time in a second, of this process and of the server.
    client: f64,
    server: Option<f64>,
    /// Memory of this process for each, in KiB.
    memory: f64,
}

impl Holding {
    /// Reports what grows with their number, and what does not.
    fn compare_with(&self, few: &Holding, system: &System, report: &mut Report) {
        let rows = [
            ("client's processor time in a second, 100,000 held", Unit::Seconds, self.client, few.client),
            ("client's memory for each of 100,000 held, KiB", Unit::Count, self.memory, few.memory),
            ("time to take each of 100,000, 64 tasks", Unit::Micros, self.taken, few.taken),
        ];
        let server = "server's processor time in a second, 100,000 held";
        let server = self.server.zip(few.server).map(|(many, few)| (server, Unit::Seconds, many, few));
        for (what, unit, many, few) in rows.into_iter().chain(server) {
            let what = system.measure(what, unit);
            report.compare(what, &Series::once(many), "the same with 10,000", &Series::once(few), None);
        }
    }

    /// Takes them, and watches while they are held and renewed.
    async fn of(system: &System, count: usize) -> Outcome<Holding> {
        let locks = Client::open(&system.url()).await?;
        let (empty, began) = (resident()?, Instant::now());
        let guards = hold_all(&locks, count, TTL).await?;
        let taken = began.elapsed().as_secs_f64() * 1e6 / count as f64;
        let memory = resident()?.saturating_sub(empty) as f64 / 1024.0 / count as f64;
        tokio::time::sleep(TTL / 6).await;
        // As long as two renewals take to come round.
        let length = TTL / 3 * 2;
        let (client, server) = (own_cpu(), system.cpu().await?);
        let messages = rate(system, length).await?;
        let client = own_cpu().saturating_sub(client).as_secs_f64() / length.as_secs_f64();
        let server = match (server, system.cpu().await?) {
            (Some(before), Some(after)) => Some((after - before) / length.as_secs_f64()),
            _ => None,
        };
        // One whose renewal is late, because others have the processor, is in doubt for a moment; none
        // may be lost.
        let lost = guards.iter().filter(|guard| matches!(guard.state(), State::Lost(_))).count();
        if lost > 0 {
            return Err(format!("{lost} of {count} locks were lost").into());
        }
        drop(guards);
        if !locks.close(CLOSING).await {
            return Err("not all locks could be released".into());
        }
        Ok(Holding { taken, messages, client, server, memory })
    }
}

/// Counts the messages in a second while a thousand wait, of holders and waiters together: they keep
/// sessions, too.
async fn waiters(system: &System, plan: &Plan) -> Outcome<f64> {
    let (holder, waiting) = (Client::open(&system.url()).await?, Client::open(&system.url()).await?);
    let name = |waiter: usize| format!("wanted/{waiter}");
    let mut guards = Vec::with_capacity(WAITERS);
    for lock in 0..WAITERS {
        // Long enough that no renewal comes between.
        guards.push(holder.mutex(name(lock)).ttl(LONG).lock().await?);
    }
    let mut tasks = JoinSet::new();
    for waiter in 0..WAITERS {
        let mutex = waiting.mutex(name(waiter)).ttl(TTL);
        tasks.spawn(async move { mutex.lock().await.map(drop) });
    }
    tokio::time::sleep(SETTLE).await;
    let rate = rate(system, plan.idling).await?;
    if let Some(ended) = tasks.try_join_next() {
        return Err(format!("a waiter ended although the lock is held: {ended:?}").into());
    }
    for lock in [0, WAITERS - 1] {
        if holder.inspect(&name(lock)).await?.waiting.is_empty() {
            return Err(format!("no client waits for {}", name(lock)).into());
        }
    }
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    waiting.close(CLOSING).await;
    drop(guards);
    holder.close(CLOSING).await;
    Ok(rate)
}

async fn rate(system: &System, length: Duration) -> Outcome<f64> {
    let (before, began) = (system.messages().await?, Instant::now());
    tokio::time::sleep(length).await;
    Ok((system.messages().await? - before) / began.elapsed().as_secs_f64())
}

const WAITERS: usize = 1_000;
/// The one that is used where none is named.
const TTL: Duration = Duration::from_secs(30);
/// The time after which all of them are in line, and the first looks are over.
const SETTLE: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_secs(600);
const CLOSING: Duration = Duration::from_secs(60);
