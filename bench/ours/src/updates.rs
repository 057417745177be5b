//! Updates of one value: optimistic, by compare and set, beside pessimistic, behind a lock.

use std::sync::Arc;

use leasehold::{Client, Versioned};
use leasehold_testkit::{PostgresServer, RedisServer};

use crate::Outcome;
use crate::load::Load;
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Unit};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let redis = RedisServer::start().await?;
    on(&redis.url(), REDIS, plan, report).await?;
    let postgres = PostgresServer::builder().setting("fsync", "on").start().await?;
    on(&postgres.url(), POSTGRES, plan, report).await
}

/// Measures one client alone, so many with a value each, and as many on one value.
async fn on(url: &str, rows: [Measure; 3], plan: &Plan, report: &mut Report) -> Outcome<()> {
    let [alone, apart, together] = rows;
    for (row, clients, name) in [
        (alone, 1, (|_| "alone".to_owned()) as fn(usize) -> String),
        (apart, CLIENTS, |client| format!("apart/{client}")),
        (together, CLIENTS, |_| "together".to_owned()),
    ] {
        let writers = Writers::open(url, clients, name).await?;
        writers.run(AmendKind::Optimistic, plan).await?;
        writers.run(AmendKind::Pessimistic, plan).await?;
        let (mut optimistic, mut pessimistic) = (Series::default(), Series::default());
        for _ in 0..plan.rounds {
            optimistic.push(writers.run(AmendKind::Optimistic, plan).await?);
            pessimistic.push(writers.run(AmendKind::Pessimistic, plan).await?);
        }
        report.compare(row, &optimistic, "the same behind a lock, escalate_after(0)", &pessimistic, None);
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum AmendKind {
    Optimistic,
    Pessimistic,
}

/// Clients of their own, as processes would be, each with its value.
struct Writers(Arc<Vec<Versioned>>);

impl Writers {
    async fn open(url: &str, clients: usize, name: fn(usize) -> String) -> Outcome<Writers> {
        let mut values = Vec::new();
        for client in 0..clients {
            values.push(Client::open(url).await?.versioned(name(client)));
        }
        Ok(Writers(Arc::new(values)))
    }

    /// Updates a second, of all of them.
    async fn run(&self, way: AmendKind, plan: &Plan) -> Outcome<f64> {
        let values = self.0.clone();
        let cycle = move |client: usize| {
            let value = values[client].clone();
            let value = match way {
                AmendKind::Optimistic => value,
                AmendKind::Pessimistic => value.escalate_after(0),
            };
            async move {
                value.update(|old| Some(counted(old))).await?;
                Ok(())
            }
        };
        Ok(Load::run(self.0.len(), plan.round, cycle).await?.rate())
    }
}

/// Returns one more than the number that was there.
fn counted(old: Option<&[u8]>) -> Vec<u8> {
    let old = old.and_then(|old| Some(u64::from_le_bytes(old.try_into().ok()?))).unwrap_or_default();
    (old + 1).to_le_bytes().to_vec()
}

const CLIENTS: usize = 8;
const GROUP: &str = "updates: compare and set beside a lock";
const REDIS: [Measure; 3] = [
    Measure { group: GROUP, what: "Redis, one client", unit: Unit::PerSecond },
    Measure { group: GROUP, what: "Redis, 8 clients, a value each", unit: Unit::PerSecond },
    Measure { group: GROUP, what: "Redis, 8 clients, one value", unit: Unit::PerSecond },
];
const POSTGRES: [Measure; 3] = [
    Measure { group: GROUP, what: "PostgreSQL, one client", unit: Unit::PerSecond },
    Measure { group: GROUP, what: "PostgreSQL, 8 clients, a value each", unit: Unit::PerSecond },
    Measure { group: GROUP, what: "PostgreSQL, 8 clients, one value", unit: Unit::PerSecond },
];
