//! Many tasks of one process on one lock: the local line.

use std::sync::Arc;

use leasehold_testkit::RedisServer;

use crate::Outcome;
use crate::cycle::Ours;
use crate::effort::sent;
use crate::load::Load;
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Target, Unit};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let server = RedisServer::start().await?;
    let crowd = Ours::open(&server.url(), TASKS, |_| "crowded".to_owned()).await?;
    let alone = Ours::open(&server.url(), 1, |_| "alone".to_owned()).await?;
    let inner = Arc::new(tokio::sync::Mutex::new(()));
    crowd.run(plan.round / 5).await?;
    let mut rounds = Rounds::default();
    for _ in 0..plan.rounds {
        let before = server.counts().await?;
        let load = crowd.run(plan.round).await?;
        let counts = server.counts().await?.since(&before);
        rounds.ours.push(load.rate());
        rounds.ours_unfairness.push(load.unfairness());
        rounds.ours_commands.push(sent(&counts) as f64 / load.cycles() as f64);
        rounds.two.push(2.0);
        rounds.alone.push(alone.run(plan.round / 2).await?.rate());
        let mutex = inner.clone();
        let cycle = move |_| {
            let mutex = mutex.clone();
            async move {
                drop(mutex.lock().await);
                Ok(())
            }
        };
        let load = Load::run(TASKS, plan.round / 4, cycle).await?;
        rounds.inner.push(load.rate());
        rounds.inner_unfairness.push(load.unfairness());
    }
    rounds.add_to_report(report);
    Ok(())
}

const GROUP: &str = "crowd: Redis, 64 tasks of one process on one lock";
const TASKS: usize = 64;

#[derive(Default)]
struct Rounds {
    ours: Series,
    ours_unfairness: Series,
    ours_commands: Series,
    two: Series,
    alone: Series,
    inner: Series,
    inner_unfairness: Series,
}

impl Rounds {
    fn add_to_report(&self, report: &mut Report) {
        let rate = Measure { group: GROUP, what: "acquisitions, all tasks together", unit: Unit::PerSecond };
        let fairness = Measure {
            group: GROUP,
            what: "acquisitions of the luckiest task by those of the unluckiest",
            unit: Unit::Count,
        };
        let commands = Measure { group: GROUP, what: "commands for an acquisition", unit: Unit::Count };
        report.compare(
            rate,
            &self.ours,
            "one task alone on one lock",
            &self.alone,
            Some(Target::AtLeast(1.0)),
        );
        report.compare(rate, &self.ours, "tokio's mutex, without any server", &self.inner, None);
        report.compare(commands, &self.ours_commands, "each through the server", &self.two, None);
        report.compare(fairness, &self.ours_unfairness, "tokio's mutex", &self.inner_unfairness, None);
    }
}
