//! What those who only hold, and those who only wait, ask of a server.

use std::time::{Duration, Instant};

use leasehold::{Leasehold, State};
use tokio::task::JoinSet;

use super::System;
use crate::Outcome;
use crate::leases::{LEASES, hold_all};
use crate::plan::Plan;
use crate::report::{Report, Series, Unit};

pub(crate) async fn measure(system: &System, plan: &Plan, report: &mut Report) -> Outcome<()> {
    // A recipe with a session or a lease for each would have to keep each alive, every third of its time.
    let each = |count: usize| Series::once(count as f64 / (TTL.as_secs_f64() / 3.0));
    let held = holders(system).await?;
    let what = system.measure("messages to the server for 10,000 held locks", Unit::CountPerSecond);
    let reckoned = "a keep-alive for each, every third of the ttl, reckoned";
    report.compare(what, &Series::once(held), reckoned, &each(LEASES), None);
    let waited = waiters(system, plan).await?;
    let what =
        system.measure("messages to the server for 1,000 waiters on 1,000 locks", Unit::CountPerSecond);
    report.compare(what, &Series::once(waited), reckoned, &each(WAITERS), None);
    Ok(())
}

/// Messages a second while ten thousand locks are held and renewed.
async fn holders(system: &System) -> Outcome<f64> {
    let locks = Leasehold::open(&system.url()).await?;
    let guards = hold_all(&locks, LEASES, TTL).await?;
    tokio::time::sleep(TTL / 6).await;
    // As long as two renewals take to come round.
    let rate = rate(system, TTL / 3 * 2).await?;
    let lost = guards.iter().filter(|guard| guard.state() != State::Valid).count();
    if lost > 0 {
        return Err(format!("{lost} of {LEASES} locks were not valid any more at the end").into());
    }
    drop(guards);
    if !locks.close(CLOSING).await {
        return Err("not all locks could be given back".into());
    }
    Ok(rate)
}

/// Messages a second while a thousand wait, of those who hold and those who wait together: they keep sessions, too.
async fn waiters(system: &System, plan: &Plan) -> Outcome<f64> {
    let (holder, waiting) = (Leasehold::open(&system.url()).await?, Leasehold::open(&system.url()).await?);
    let name = |waiter: usize| format!("wanted/{waiter}");
    let mut guards = Vec::with_capacity(WAITERS);
    for lock in 0..WAITERS {
        // Long enough that no renewal comes between.
        guards.push(holder.mutex(&name(lock)).ttl(LONG).lock().await?);
    }
    let mut tasks = JoinSet::new();
    for waiter in 0..WAITERS {
        let mutex = waiting.mutex(&name(waiter)).ttl(TTL);
        tasks.spawn(async move { mutex.lock().await.map(drop) });
    }
    tokio::time::sleep(SETTLE).await;
    let rate = rate(system, plan.idling).await?;
    if let Some(ended) = tasks.try_join_next() {
        return Err(format!("a waiter ended although the lock is held: {ended:?}").into());
    }
    for lock in [0, WAITERS - 1] {
        if holder.inspect(&name(lock)).await?.waiting.is_empty() {
            return Err(format!("nobody waits for {}", name(lock)).into());
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
/// After this all of them stand in line, and the first looks are over.
const SETTLE: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_secs(600);
const CLOSING: Duration = Duration::from_secs(10);
