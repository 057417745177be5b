//! PostgreSQL, beside its own statements, its own benchmark, and advisory locks by hand.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold_testkit::{PostgresServer, require};
use tempfile::NamedTempFile;
use tokio::process::Command;
use tokio_postgres::{Client, NoTls, Statement};

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
    let (fsync, group) = match durability {
        Durability::Off => ("off", "PostgreSQL, fsync off: the processor's part"),
        Durability::On => ("on", "PostgreSQL, fsync on"),
    };
    let server = PostgresServer::builder().setting("fsync", fsync).start().await?;
    let table = "CREATE TABLE raw (name text COLLATE \"C\" PRIMARY KEY, owner text NOT NULL, until timestamptz NOT NULL)";
    server.sql(table).await?;
    for tasks in [1, TASKS] {
        let ours = Ours::open(&server.url(), tasks, |task| format!("rows/{task}")).await?;
        let others = vec![
            Comparison::new(
                "insert and delete by hand, crate tokio-postgres",
                Some(RAW),
                Raw::connect(&server, tasks, INSERT, DELETE).await?,
            ),
            Comparison::new(
                format!("insert and delete, pgbench -c {tasks}"),
                None,
                PgBench::new(&server, tasks)?,
            ),
            Comparison::new(
                "pg_advisory_lock and unlock by hand",
                None,
                Raw::connect(&server, tasks, LOCK, UNLOCK).await?,
            ),
        ];
        in_turn(group, &ours, tasks, others, plan, report).await?;
    }
    let group = match durability {
        Durability::Off => "PostgreSQL, method=advisory, fsync off",
        Durability::On => "PostgreSQL, method=advisory, fsync on",
    };
    for tasks in [1, MANY] {
        let url = format!("{}?method=advisory", server.url());
        let ours = Ours::open(&url, tasks, |task| format!("rows/{task}")).await?;
        let raw = Raw::connect(&server, tasks, LOCK, UNLOCK).await?;
        let target = Target::AtLeast(if tasks == 1 { 0.7 } else { 0.5 });
        let by_hand = Comparison::new("pg_advisory_lock and unlock by hand", Some(target), raw);
        in_turn(group, &ours, tasks, vec![by_hand], plan, report).await?;
    }
    Ok(())
}

/// As many as there are connections by default: a task never waits for one.
const TASKS: usize = 8;
/// Tasks of locks that a connection holds.
const MANY: usize = 64;
const INSERT: &str = "INSERT INTO raw VALUES ($1, 'owner', clock_timestamp() + interval '30 seconds')";
const DELETE: &str = "DELETE FROM raw WHERE name = $1 AND owner = 'owner'";
const LOCK: &str = "SELECT pg_advisory_lock(hashtext($1))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtext($1))";

/// Two prepared statements, and a connection for each task.
struct Raw(Arc<Vec<(Client, Statement, Statement)>>);

impl Raw {
    async fn connect(server: &PostgresServer, tasks: usize, take: &str, free: &str) -> Outcome<Raw> {
        let mut links = Vec::new();
        for _ in 0..tasks {
            let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
            tokio::spawn(connection);
            let (take, free) = (client.prepare(take).await?, client.prepare(free).await?);
            links.push((client, take, free));
        }
        Ok(Raw(Arc::new(links)))
    }
}

#[async_trait]
impl AsyncRate for Raw {
    async fn rate(&mut self, plan: &Plan) -> Outcome<f64> {
        let links = self.0.clone();
        let cycle = move |task: usize| {
            let links = links.clone();
            async move {
                let (client, take, free) = &links[task];
                let name = format!("raw/{task}");
                client.execute(take, &[&name]).await?;
                client.execute(free, &[&name]).await?;
                Ok(())
            }
        };
        Ok(Load::run(self.0.len(), plan.round, cycle).await?.rate())
    }
}

/// The server's own benchmark on the same two statements.
struct PgBench {
    program: PathBuf,
    script: NamedTempFile,
    port: u16,
    clients: usize,
    guess: f64,
}

impl PgBench {
    fn new(server: &PostgresServer, clients: usize) -> Outcome<PgBench> {
        let program = require::program("pgbench", "postgresql")?;
        let script = NamedTempFile::new()?;
        let name = "'pgbench/' || :client_id";
        let (take, free) = (INSERT.replace("$1", name), DELETE.replace("$1", name));
        std::fs::write(script.path(), format!("{take};\n{free};\n"))?;
        Ok(PgBench { program, script, port: server.addr().port(), clients, guess: 2_000.0 })
    }
}

#[async_trait]
impl AsyncRate for PgBench {
    async fn rate(&mut self, plan: &Plan) -> Outcome<f64> {
        let each = (self.guess * plan.round.as_secs_f64() / self.clients as f64).max(20.0);
        let mut command = Command::new(&self.program);
        command
            .args(["-n", "-M", "prepared", "-h", "127.0.0.1", "-U", "postgres", "-f"])
            .arg(self.script.path());
        let numbers = [("-p", usize::from(self.port)), ("-c", self.clients), ("-t", each as usize)];
        for (option, number) in numbers {
            command.arg(option).arg(number.to_string());
        }
        let output = command.arg("postgres").kill_on_drop(true).output().await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let rate = text.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|rate| rate.split(' ').next()).and_then(|rate| rate.parse().ok());
        self.guess = rate.ok_or_else(|| {
            format!("pgbench ended without a rate: {text}{}", String::from_utf8_lossy(&output.stderr))
        })?;
        Ok(self.guess)
    }
}
