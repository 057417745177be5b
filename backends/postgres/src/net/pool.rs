//! A bounded set of connections, each used by one statement at a time.
//!
//! Ground rules: a connection whose statement did not end well is closed and never used again. A statement
//! whose future is dropped takes its connection with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_backend::sql::Dials;
use leasehold_backend::{random, sql};
use leasehold_core::{Failure, part_of};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::config::PostgresConfig;
use crate::error::Refusal;
use crate::net::dial::{Link, Sql};

/// The connections of one client.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) config: Arc<PostgresConfig>,
    idle: Mutex<Vec<Link>>,
    permits: Semaphore,
    dials: Dials,
}

impl Pool {
    pub(crate) fn new(config: Arc<PostgresConfig>) -> Pool {
        let permits = Semaphore::new(config.sql.connections);
        Pool { config, idle: Mutex::default(), permits, dials: Dials::default() }
    }

    /// Opens the first connection, and asks a question with it, as [`Link::dial_asking`] does. A row of the
    /// answer begins with the columns of the greeting.
    pub(crate) async fn open(
        config: Arc<PostgresConfig>,
        question: &str,
    ) -> Result<(Pool, Result<Row, Refusal>), Failure> {
        let (link, answer) = Link::dial_asking(&config, question).await?;
        let pool = Pool::new(config);
        pool.give_back(link);
        Ok((pool, answer))
    }

    /// Sends one statement and waits for its rows.
    pub(crate) async fn query(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Refusal> {
        let (_permit, link) = self.check_out().await.map_err(Refusal::Failed)?;
        let answer = link.query_alone(sql, params).await;
        self.check_in(link, &answer);
        answer
    }

    /// Sends a statement as [`Pool::query`] does, whose last parameter is the timeline of the connection.
    pub(crate) async fn query_on_timeline(
        &self,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Refusal> {
        let (_permit, link) = self.check_out().await.map_err(Refusal::Failed)?;
        let mut all = Vec::with_capacity(params.len() + 1);
        all.extend_from_slice(params);
        let timeline = link.timeline;
        all.push(&timeline);
        let answer = link.query_alone(sql, &all).await;
        drop(all);
        self.check_in(link, &answer);
        answer
    }

    /// Sends a statement for which a lost race decides nothing, as [`Pool::query`] does: it is sent again.
    pub(crate) async fn query_retrying(
        &self,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Refusal> {
        for tries in 1.. {
            match self.query(sql, params).await {
                Err(Refusal::LostRace) if tries < MAX_TRIES => pause(tries).await,
                answer => return answer,
            }
        }
        Err(Refusal::LostRace)
    }

    /// Sends statements without parameters, as one transaction, again where they lost a race.
    pub(crate) async fn run(&self, statements: &str) -> Result<(), Refusal> {
        for tries in 1.. {
            match self.run_once(statements).await {
                Err(Refusal::LostRace) if tries < MAX_TRIES => pause(tries).await,
                answer => return answer,
            }
        }
        Err(Refusal::LostRace)
    }

    /// Sends statements without parameters, as one transaction.
    pub(crate) async fn run_once(&self, statements: &str) -> Result<(), Refusal> {
        let (_permit, link) = self.check_out().await.map_err(Refusal::Failed)?;
        let answer = link.run(statements).await;
        self.check_in(link, &answer);
        answer
    }

    async fn check_out(&self) -> Result<(SemaphorePermit<'_>, Link), Failure> {
        let permit = sql::permit(&self.permits, &self.config.sql, "PostgreSQL").await?;
        Ok((permit, self.lend().await?))
    }

    fn check_in<T>(&self, link: Link, answer: &Result<T, Refusal>) {
        let failure = match answer {
            Err(Refusal::Failed(failure)) => Some(failure),
            _ => None,
        };
        let is_unanswered = self.dials.record(failure);
        match answer {
            // The others are most likely broken as well, and a server that is gone may never say so.
            Err(Refusal::Failed(_)) if is_unanswered => self.idle().clear(),
            Err(Refusal::Failed(_) | Refusal::Cancelled(_)) => {}
            Ok(_) | Err(Refusal::LostRace | Refusal::NoTable(_)) => self.give_back(link),
        }
    }

    /// Returns the connection that was used last, so that those which are not needed grow old.
    fn take(&self) -> Option<Link> {
        let mut idle = self.idle();
        idle.retain(Link::is_open);
        idle.pop()
    }

    /// Takes a connection out of the set, or makes one, for a use of its own.
    pub(crate) async fn lend(&self) -> Result<Link, Failure> {
        match self.take() {
            Some(link) => Ok(link),
            None => {
                let dial = Link::dial(&self.config);
                // Boxed, so that the common future stays small.
                Box::pin(self.dials.connect(self.config.sql.timeout, || self.take(), dial)).await
            }
        }
    }

    /// Returns a lent connection to the pool.
    pub(crate) fn give_back(&self, link: Link) {
        let mut idle = self.idle();
        if idle.len() < self.config.sql.connections {
            idle.push(link);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sleeps before a statement is sent again, longer each time.
async fn pause(tries: u32) {
    tokio::time::sleep(part_of(Duration::from_millis(10) * tries, random::chance())).await;
}

/// Times that a statement is sent which loses its races.
const MAX_TRIES: u32 = 20;

#[cfg(test)]
mod tests {
    use leasehold_core::Effect;
    use leasehold_testkit::{PostgresServer, Proxy, Way};

    use super::*;

    /// As after a failover from a machine that lost its power: no connection to it ever ends by itself.
    #[tokio::test]
    async fn one_silent_connection_is_enough_to_leave_its_server() {
        let Some(server) = PostgresServer::start_or_skip().await else { return };
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let url = format!("postgres://postgres@{},{}/postgres?timeout=3s", proxy.addr(), server.addr());
        let pool = Pool::new(Arc::new(PostgresConfig::parse(&url).unwrap()));
        let ask = || pool.run_once("SELECT 1");
        // Each begins before another one has ended.
        let together = tokio::join!(ask(), ask(), ask(), ask());
        for answer in [together.0, together.1, together.2, together.3] {
            answer.unwrap();
        }
        assert_eq!(proxy.accepted(), 4);
        proxy.blackhole(Way::Both);
        let Err(Refusal::Failed(failure)) = ask().await else { panic!("it was answered") };
        assert_eq!(failure.effect, Effect::Unknown, "{failure}");
        ask().await.unwrap();
    }
}
