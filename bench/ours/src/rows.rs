//! PostgreSQL, MariaDB, SQLite and memcached: what a lock costs on top of the statements that no lock
//! can do without.
//!
//! One server each, as the test kit starts it. Ours and the raw side write to the same server, or to
//! files in the same folder, through the same driver.

mod mariadb;
mod memcached;
mod postgres;
mod sqlite;

use crate::Outcome;
use crate::cycle::Ours;
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Target, Unit};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    for durability in [postgres::Durability::Off, postgres::Durability::On] {
        postgres::measure(durability, plan, report).await?;
    }
    for durability in [mariadb::Durability::Off, mariadb::Durability::On] {
        mariadb::measure(durability, plan, report).await?;
    }
    for durability in [sqlite::Durability::Full, sqlite::Durability::Normal] {
        sqlite::measure(durability, plan, report).await?;
    }
    memcached::measure(plan, report).await
}

/// A measure that is taken in turn with ours.
struct Comparison<'a> {
    name: String,
    target: Option<Target>,
    rate: Box<dyn AsyncRate + 'a>,
    series: Series,
}

/// Cycles per second of one round.
#[async_trait::async_trait]
trait AsyncRate {
    async fn rate(&mut self, plan: &Plan) -> Outcome<f64>;
}

impl<'a> Comparison<'a> {
    fn new(name: impl Into<String>, target: Option<Target>, rate: impl AsyncRate + 'a) -> Comparison<'a> {
        Comparison { name: name.into(), target, rate: Box::new(rate), series: Series::default() }
    }
}

/// Runs rounds of ours and of all others in turn. One task is described by its latency, many by their
/// rate.
async fn in_turn(
    group: &'static str,
    ours: &Ours,
    tasks: usize,
    mut others: Vec<Comparison<'_>>,
    plan: &Plan,
    report: &mut Report,
) -> Outcome<()> {
    let one = tasks == 1;
    let value = |rate: f64| if one { 1e6 / rate } else { rate };
    // Unmeasured: connections are made, statements prepared, numbers of requests guessed.
    ours.run(plan.round / 2).await?;
    for other in &mut others {
        other.rate.rate(plan).await?;
    }
    let mut mine = Series::default();
    for _ in 0..plan.rounds {
        mine.push(value(ours.run(plan.round).await?.rate()));
        for other in &mut others {
            let rate = other.rate.rate(plan).await?;
            other.series.push(value(rate));
        }
    }
    let (what, unit) = match one {
        true => ("latency of an uncontended acquire and release, 1 task", Unit::Micros),
        false => ("acquires and releases, a lock for each task", Unit::PerSecond),
    };
    for other in others {
        // A rate of 0.8 is a latency of 1.25.
        let target = other.target.map(|target| match (one, target) {
            (true, Target::AtLeast(part)) => Target::AtMost(1.0 / part),
            _ => target,
        });
        report.compare(Measure { group, what, unit }, &mine, other.name, &other.series, target);
    }
    Ok(())
}

/// The target against the raw statements.
const RAW: Target = Target::AtLeast(0.8);
