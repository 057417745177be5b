//! A bounded set of connections, each used by one statement at a time.
//!
//! Ground rules: a connection whose statement did not end well is closed and never used again. A statement
//! whose future is dropped takes its connection with it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::sql::{ConnectionLimits, IdleConnections};
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
    permits: Semaphore,
    connections: IdleConnections<Link>,
}

impl Pool {
    pub(crate) fn new(config: Arc<PostgresConfig>) -> Pool {
        let (timeout, most) = (config.sql.timeout, config.sql.connections);
        let limits = ConnectionLimits { timeout, endpoints: config.endpoints.len(), idle: most };
        Pool {
            config,
            permits: Semaphore::new(most),
            connections: IdleConnections::new(limits, Link::is_open),
        }
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
        match answer {
            Ok(_) | Err(Refusal::LostRace | Refusal::NoTable(_)) => self.connections.give_back(link),
            Err(Refusal::Failed(failure) | Refusal::Cancelled(failure)) => {
                // The others are most likely broken as well, and a server that is gone may never say so.
                if self.connections.record(failure) {
                    self.connections.clear();
                }
            }
        }
    }

    /// Takes a connection out of the set, or makes one, for a use of its own.
    pub(crate) async fn lend(&self) -> Result<Link, Failure> {
        match self.connections.take() {
            Some(link) => Ok(link),
            // Boxed, so that the common future stays small.
            None => Box::pin(self.connections.connect(Link::dial(&self.config))).await,
        }
    }

    /// Returns a lent connection to the pool.
    pub(crate) fn give_back(&self, link: Link) {
        self.connections.give_back(link);
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
    use leasehold_conformance::dials;
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

    #[tokio::test]
    async fn lost_statement_limits_dials_until_an_answer() {
        let Some(server) = PostgresServer::start_or_skip().await else { return };
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let url = format!("{}?timeout=2s", server.url_at(proxy.addr()));
        let pool = Pool::new(Arc::new(PostgresConfig::parse(&url).unwrap()));
        let ask = async || pool.run_once("SELECT 1").await.map(drop).map_err(Refusal::into_failure);
        let way = dials::Way {
            silence: || proxy.blackhole(Way::Both),
            heal: || proxy.heal().unwrap(),
            count: || (proxy.connections(), proxy.accepted()),
        };
        dials::lost_statement_limits_dials_until_an_answer(ask, || pool.connections.clear(), way).await;
    }
}
