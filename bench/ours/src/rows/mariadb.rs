//! MariaDB, beside its own statements, and `GET_LOCK` by hand.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_testkit::MariaDbServer;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::sync::Mutex;

use super::{AsyncRate, Comparison, RAW, in_turn};
use crate::Outcome;
use crate::cycle::Ours;
use crate::load::Load;
use crate::plan::Plan;
use crate::report::{Report, Target};

/// The choice whether a commit waits for the disk.
#[derive(Clone, Copy)]
pub(crate) enum Durability {
    Off,
    On,
}

pub(crate) async fn measure(durability: Durability, plan: &Plan, report: &mut Report) -> Outcome<()> {
    let (method, group) = match durability {
        Durability::Off => ("nosync", "MariaDB, no sync: the processor's part"),
        Durability::On => ("fsync", "MariaDB, a sync for each commit"),
    };
    // As large as the server's own defaults. With those of the test kit it would be busy with the pages
    // that a full log has it write.
    let server = MariaDbServer::builder()
        .setting("innodb-log-file-size", "96M")
        .setting("innodb-buffer-pool-size", "128M")
        .setting("innodb-flush-method", method);
    let server = match server.start().await {
        Err(error) if error.is_missing() => {
            report.skip(format!("{group}: {error}"));
            return Ok(());
        }
        started => started?,
    };
    let table =
        "CREATE TABLE raw (name VARBINARY(512) PRIMARY KEY, owner TEXT NOT NULL, until DATETIME(6) NOT NULL)";
    server.sql(table).await?;
    for tasks in [1, TASKS] {
        let ours = Ours::open(&server.url(), tasks, |task| format!("rows/{task}")).await?;
        let others = vec![
            Comparison::new(
                "insert and delete by hand, crate mysql_async",
                Some(RAW),
                Raw::connect(&server, tasks, INSERT, DELETE).await?,
            ),
            Comparison::new(
                "GET_LOCK and RELEASE_LOCK by hand",
                None,
                Raw::connect(&server, tasks, LOCK, UNLOCK).await?,
            ),
        ];
        in_turn(group, &ours, tasks, others, plan, report).await?;
    }
    let group = match durability {
        Durability::Off => "MariaDB, method=get-lock, no sync",
        Durability::On => "MariaDB, method=get-lock, a sync for each commit",
    };
    for tasks in [1, MANY] {
        let url = format!("{}?method=get-lock", server.url());
        let ours = Ours::open(&url, tasks, |task| format!("rows/{task}")).await?;
        let raw = Raw::connect(&server, tasks, LOCK, UNLOCK).await?;
        let target = Target::AtLeast(if tasks == 1 { 0.7 } else { 0.6 });
        let by_hand = Comparison::new("GET_LOCK and RELEASE_LOCK by hand", Some(target), raw);
        in_turn(group, &ours, tasks, vec![by_hand], plan, report).await?;
    }
    Ok(())
}

/// As many as there are connections by default: a task never waits for one.
const TASKS: usize = 8;
/// Tasks of locks that a connection holds.
const MANY: usize = 64;
const INSERT: &str = "INSERT INTO raw VALUES (?, 'owner', TIMESTAMPADD(SECOND, 30, UTC_TIMESTAMP(6)))";
const DELETE: &str = "DELETE FROM raw WHERE name = ? AND owner = 'owner'";
const LOCK: &str = "DO GET_LOCK(?, 10)";
const UNLOCK: &str = "DO RELEASE_LOCK(?)";

/// Two statements that the driver prepares once, and a connection for each task.
struct Raw {
    links: Arc<Vec<Mutex<Conn>>>,
    take: &'static str,
    free: &'static str,
}

impl Raw {
    async fn connect(
        server: &MariaDbServer,
        tasks: usize,
        take: &'static str,
        free: &'static str,
    ) -> Outcome<Raw> {
        let mut links = Vec::new();
        for _ in 0..tasks {
            links.push(Mutex::new(Conn::from_url(server.url()).await?));
        }
        Ok(Raw { links: Arc::new(links), take, free })
    }
}

#[async_trait]
impl AsyncRate for Raw {
    async fn rate(&mut self, plan: &Plan) -> Outcome<f64> {
        let (links, take, free) = (self.links.clone(), self.take, self.free);
        let cycle = move |task: usize| {
            let links = links.clone();
            async move {
                // No other client wants this one.
                let mut link = links[task].lock().await;
                let name = format!("raw/{task}");
                link.exec_drop(take, (&name,)).await?;
                link.exec_drop(free, (&name,)).await?;
                Ok(())
            }
        };
        Ok(Load::run(self.links.len(), plan.round, cycle).await?.rate())
    }
}
