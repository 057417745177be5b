//! Redis, uncontended: what one acquire with its release costs, for one task and for 64 on 64 locks.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Mutex};
use leasehold_testkit::RedisServer;

use crate::Outcome;
use crate::benchmark::Benchmark;
use crate::captured::CapturedCycle;
use crate::load::Load;
use crate::plan::Plan;
use crate::raw::{self, Raw};
use crate::report::{Measure, Report, Series, Target, Unit};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let server = RedisServer::start().await?;
    let captured = CapturedCycle::on(&server.url()).await?;
    for tasks in [1, TASKS] {
        measure_tasks(plan, report, &server, &captured, tasks).await?;
    }
    let commands = Series::once(captured.commands_per_cycle);
    let measure = Measure { group: GROUP, what: "commands for a cycle", unit: Unit::Count };
    let one_way = Some(Target::AtMost(1.0));
    report.compare(
        measure,
        &commands,
        "one for the acquire, one for the release",
        &Series::once(2.0),
        one_way,
    );
    Ok(())
}

/// Mutexes of one client, one for each task.
pub(crate) struct Ours(Arc<Vec<Mutex>>);

impl Ours {
    pub(crate) async fn open(url: &str, tasks: usize, name: impl Fn(usize) -> String) -> Outcome<Ours> {
        let locks = Client::open(url).await?;
        Ok(Ours(Arc::new((0..tasks).map(|task| locks.mutex(name(task))).collect())))
    }

    /// Runs the tasks: each locks and releases its mutex, again and again.
    pub(crate) async fn run(&self, length: Duration) -> Outcome<Load> {
        let locks = self.0.clone();
        let cycle = move |task: usize| {
            let locks = locks.clone();
            async move { Ok(locks[task].lock().await?.release().await?) }
        };
        Load::run(self.0.len(), length, cycle).await
    }
}

const GROUP: &str = "cycle: Redis, uncontended acquire and release";
const TASKS: usize = 64;

/// The rounds of one number of tasks.
#[derive(Default)]
struct Rounds {
    ours: Series,
    ours_cpu: Series,
    many: Series,
    deep: Series,
    bare: Series,
    library: Series,
    library_cpu: Series,
    classic: Series,
}

async fn measure_tasks(
    plan: &Plan,
    report: &mut Report,
    server: &RedisServer,
    captured: &CapturedCycle,
    tasks: usize,
) -> Outcome<()> {
    let ours = Ours::open(&server.url(), tasks, raw::name).await?;
    let library = Raw::scripts(server, captured, tasks).await?;
    let classic = Raw::classic(server, tasks).await?;
    let (mut many, mut deep) = (Benchmark::new(tasks, 1)?, Benchmark::new(1, tasks)?);
    // Unmeasured: connections are made, scripts known, numbers of requests guessed.
    ours.run(plan.round / 5).await?;
    many.rate(server, captured, plan.round / 5).await?;
    deep.rate(server, captured, plan.round / 5).await?;
    // One task alone is described by its latency, many by their rate.
    let value = |rate: f64| if tasks == 1 { 1e6 / rate } else { rate };
    let mut rounds = Rounds::default();
    for _ in 0..plan.rounds {
        let load = ours.run(plan.round).await?;
        rounds.ours.push(value(load.rate()));
        rounds.ours_cpu.push(load.cpu_per_cycle());
        rounds.many.push(value(many.rate(server, captured, plan.round).await?));
        let load = library.run(plan.round).await?;
        rounds.library.push(value(load.rate()));
        rounds.library_cpu.push(load.cpu_per_cycle());
        rounds.bare.push(value(raw::bare(server, captured, tasks, plan.round).await?));
        if tasks > 1 {
            rounds.deep.push(deep.rate(server, captured, plan.round).await?);
        }
        rounds.classic.push(value(classic.run(plan.round).await?.rate()));
    }
    rounds.add_to_report(report, tasks);
    Ok(())
}

impl Rounds {
    fn add_to_report(&self, report: &mut Report, tasks: usize) {
        let one = tasks == 1;
        let (what, unit) = if one {
            ("latency of a cycle, 1 task", Unit::Micros)
        } else {
            ("cycles, 64 tasks on 64 locks of one client", Unit::PerSecond)
        };
        let measure = Measure { group: GROUP, what, unit };
        let limit = if one { "redis-benchmark -c 1" } else { "redis-benchmark -c 64" };
        let target = (!one).then_some(Target::AtLeast(0.8));
        report.compare(measure, &self.ours, format!("{limit}, same scripts"), &self.many, target);
        if !one {
            report.compare(measure, &self.ours, "redis-benchmark -c 1 -P 64, same scripts", &self.deep, None);
        }
        let bare = if one { "bare socket, same scripts" } else { "bare socket, 64 at once, same scripts" };
        report.compare(measure, &self.ours, bare, &self.bare, None);
        report.compare(measure, &self.ours, "crate redis alone, same scripts", &self.library, None);
        report.compare(
            measure,
            &self.ours,
            "crate redis, SET NX PX + compare-and-delete",
            &self.classic,
            None,
        );
        let cpu = Measure {
            group: GROUP,
            what: if one {
                "client's processor time for a cycle, 1 task"
            } else {
                "client's processor time for a cycle, 64 tasks"
            },
            unit: Unit::Micros,
        };
        report.compare(cpu, &self.ours_cpu, "crate redis alone, same scripts", &self.library_cpu, None);
    }
}
