//! The cost of a thousand waiters that get nothing for a while, for the server.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::effort::{own_cpu, sent};
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Target, Unit};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    for case in CASES {
        let notified = watch(case.locks, "", plan.idling).await?;
        // Polling shows its traffic in a moment.
        let polling = watch(case.locks, "?wait=poll", plan.idling / 3).await?;
        case.add_to_report(report, &notified, &polling);
    }
    Ok(())
}

const GROUP: &str = "idle: Redis, 1,000 waiters of one process";
const WAITERS: usize = 1_000;
const CASES: [Case; 2] = [
    Case {
        locks: 1,
        connections: "open connections, 1,000 on one lock",
        commands: "commands, 1,000 on one lock",
        client: "client's processor time a second, 1,000 on one lock",
    },
    Case {
        locks: WAITERS,
        connections: "open connections, 1,000 on 1,000 locks",
        commands: "commands, 1,000 on 1,000 locks",
        client: "client's processor time a second, 1,000 on 1,000 locks",
    },
];

struct Case {
    locks: usize,
    connections: &'static str,
    commands: &'static str,
    client: &'static str,
}

/// The cost of the waiters.
struct Watched {
    connections: f64,
    /// Commands per second of all waiters together.
    commands: f64,
    /// Microseconds of this process for each second.
    client: f64,
}

/// Holds all locks by one client, lets a thousand tasks of another wait for them, and watches.
async fn watch(locks: usize, options: &str, length: Duration) -> Outcome<Watched> {
    let server = RedisServer::start().await?;
    let holder = Client::open(&server.url()).await?;
    let name = move |waiter: usize| format!("wanted/{}", waiter % locks);
    let mut guards = Vec::with_capacity(locks);
    for lock in 0..locks {
        // Long enough that no renewal comes between.
        guards.push(holder.mutex(name(lock)).ttl(LONG).lock().await?);
    }
    let others = server.counts().await?.connections;
    let waiting = Client::open(&format!("{}{options}", server.url())).await?;
    let mut tasks = JoinSet::new();
    for waiter in 0..WAITERS {
        let mutex = waiting.mutex(name(waiter));
        tasks.spawn(async move { mutex.lock().await.map(drop) });
    }
    tokio::time::sleep(SETTLE).await;
    let (before, client, began) = (server.counts().await?, own_cpu(), Instant::now());
    tokio::time::sleep(length).await;
    let (client, took) = (own_cpu().saturating_sub(client), began.elapsed());
    let counts = server.counts().await?.since(&before);
    if let Some(ended) = tasks.try_join_next() {
        return Err(format!("a waiter ended although the lock is held: {ended:?}").into());
    }
    for lock in [0, locks - 1] {
        if holder.inspect(&name(lock)).await?.waiting.is_empty() {
            return Err(format!("no client waits for {}", name(lock)).into());
        }
    }
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    waiting.close(LONG / 60).await;
    drop(guards);
    holder.close(LONG / 60).await;
    Ok(Watched {
        connections: counts.connections.saturating_sub(others) as f64,
        commands: sent(&counts) as f64 / took.as_secs_f64(),
        client: client.as_secs_f64() * 1e6 / took.as_secs_f64(),
    })
}

/// The time after which all of them are in line, subscribed, and the first looks are over.
const SETTLE: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(600);

impl Case {
    fn add_to_report(&self, report: &mut Report, notified: &Watched, polling: &Watched) {
        let what = |what, unit| Measure { group: GROUP, what, unit };
        let once = Series::once;
        report.compare(
            what(self.connections, Unit::Count),
            &once(notified.connections),
            "two: one for commands, one to listen",
            &once(2.0),
            Some(Target::AtMost(1.0)),
        );
        // A thousand that polled, however seldom, would send more.
        report.compare(
            what(self.commands, Unit::CountPerSecond),
            &once(notified.commands),
            "one command a second, all together",
            &once(1.0),
            Some(Target::AtMost(1.0)),
        );
        report.compare(
            what(self.commands, Unit::CountPerSecond),
            &once(notified.commands),
            "?wait=poll",
            &once(polling.commands),
            None,
        );
        report.compare(
            what(self.client, Unit::Micros),
            &once(notified.client),
            "?wait=poll",
            &once(polling.client),
            None,
        );
    }
}
