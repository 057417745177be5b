//! A hundred thousand leases held by one process, renewed in batches and, for comparison, one by one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Client, Guard, State};
use leasehold_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::captured::{CapturedCycle, Template};
use crate::effort::{own_cpu, sent, server_cpu};
use crate::plan::Plan;
use crate::raw;
use crate::report::{Measure, Report, Series, Target, Unit};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let server = RedisServer::start().await?;
    let singly = one_by_one(&server, plan.leases).await?;
    server.flushall().await?;
    let locks = Client::open(&server.url()).await?;
    let guards = hold_all(&locks, plan.leases, plan.ttl).await?;
    // The first renewals follow the acquires, in whose beat they come. One round evens that out.
    tokio::time::sleep(plan.ttl / 2).await;
    let together = Watched::during(&server, plan.ttl * 2).await?;
    let lost = guards.iter().filter(|guard| guard.state() != State::Valid).count();
    if lost > 0 {
        return Err(format!("{lost} of {} leases were not valid any more at the end", plan.leases).into());
    }
    if together.renewals < 5 * plan.leases as u64 {
        return Err(format!("in two ttl only {} leases were renewed", together.renewals).into());
    }
    drop(guards);
    if !locks.close(Duration::from_secs(60)).await {
        return Err("not all leases could be released".into());
    }
    add_to_report(report, &together, &singly);
    Ok(())
}

/// As many as other stores hold at once.
pub(crate) const LEASES: usize = 10_000;
const GROUP: &str = "leases: Redis, 100,000 of them (quick: 10,000), renewed for two ttl";
/// Acquires, and renewals one by one, that are under way at the same time.
const AT_ONCE: usize = 64;

/// The cost of some renewals.
#[derive(Debug)]
struct Watched {
    renewals: u64,
    commands: u64,
    client: Duration,
    server: Duration,
    took: Duration,
}

impl Watched {
    /// Watches the server for a while. The renewal of a lease is one `PEXPIREAT`, so the server's own count
    /// of these is the number of renewals.
    async fn during(server: &RedisServer, length: Duration) -> Outcome<Watched> {
        Watched::of(server, async {
            tokio::time::sleep(length).await;
            Ok(())
        })
        .await
    }

    async fn of(server: &RedisServer, work: impl Future<Output = Outcome<()>>) -> Outcome<Watched> {
        let (counts, client, began) = (server.counts().await?, own_cpu(), Instant::now());
        let served = server_cpu(server).await?;
        work.await?;
        let (client, took) = (own_cpu().saturating_sub(client), began.elapsed());
        let served = server_cpu(server).await?.saturating_sub(served);
        let counts = server.counts().await?.since(&counts);
        Ok(Watched {
            renewals: counts.of("pexpireat"),
            commands: sent(&counts),
            client,
            server: served,
            took,
        })
    }

    /// Microseconds for a renewal.
    fn each(&self, time: Duration) -> Series {
        Series::once(time.as_secs_f64() * 1e6 / self.renewals.max(1) as f64)
    }
}

/// As many leases, each renewed once by a command of its own, 64 under way at the same time.
async fn one_by_one(server: &RedisServer, leases: usize) -> Outcome<Watched> {
    let captured = CapturedCycle::on(&server.url()).await?;
    // Longer than what was acquired, so that each renewal changes something.
    let renewal = Template::of_renewal(server, Duration::from_secs(600)).await?;
    for template in [&captured.acquire, &renewal] {
        let commands: Vec<_> =
            (0..leases).map(|lease| template.command(&raw::name(lease), &raw::id(lease))).collect();
        let connection = raw::connect(server).await?;
        let commands = Arc::new(commands);
        let work = async {
            let mut tasks = JoinSet::new();
            for first in 0..AT_ONCE {
                let (mut connection, commands) = (connection.clone(), commands.clone());
                tasks.spawn(async move {
                    for command in commands.iter().skip(first).step_by(AT_ONCE) {
                        connection.send_packed_command(command).await?;
                    }
                    Outcome::Ok(())
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            Ok(())
        };
        let watched = Watched::of(server, work).await?;
        if std::ptr::eq(template, &renewal) && watched.renewals == leases as u64 {
            return Ok(watched);
        }
    }
    Err("not every lease was renewed one by one".into())
}

pub(crate) async fn hold_all(locks: &Client, leases: usize, ttl: Duration) -> Outcome<Vec<Guard>> {
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE {
        let locks = locks.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for lease in (first..leases).step_by(AT_ONCE) {
                guards.push(locks.mutex(raw::name(lease)).ttl(ttl).lock().await?);
            }
            Outcome::Ok(guards)
        });
    }
    let mut guards = Vec::with_capacity(leases);
    while let Some(held) = tasks.join_next().await {
        guards.extend(held??);
    }
    Ok(guards)
}

fn add_to_report(report: &mut Report, together: &Watched, singly: &Watched) {
    let what = |what, unit| Measure { group: GROUP, what, unit };
    let per_lease =
        |watched: &Watched| Series::once(watched.commands as f64 / watched.renewals.max(1) as f64);
    report.compare(
        what("commands for the renewal of a lease", Unit::Count),
        &per_lease(together),
        "one by one",
        &per_lease(singly),
        Some(Target::AtMost(1.0 / 50.0)),
    );
    let a_second = |count: u64| Series::once(count as f64 / together.took.as_secs_f64());
    report.compare(
        what("commands a second", Unit::CountPerSecond),
        &a_second(together.commands),
        "one by one, for as many renewals",
        &a_second(together.renewals),
        None,
    );
    report.compare(
        what("client's processor time for a renewal", Unit::Micros),
        &together.each(together.client),
        "one by one, crate redis, 64 at once",
        &singly.each(singly.client),
        None,
    );
    report.compare(
        what("server's processor time for a renewal", Unit::Micros),
        &together.each(together.server),
        "one by one, crate redis, 64 at once",
        &singly.each(singly.server),
        None,
    );
    let part = |time: Duration| Series::once(time.as_secs_f64());
    report.compare(
        what("client's processor time, of all the time that passed", Unit::Seconds),
        &part(together.client),
        "time passed",
        &part(together.took),
        None,
    );
    report.compare(
        what("server's processor time, of all the time that passed", Unit::Seconds),
        &part(together.server),
        "time passed",
        &part(together.took),
        None,
    );
}
