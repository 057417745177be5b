//! A bounded set of connections, each used by one statement at a time.
//!
//! Ground rules: a connection whose statement did not end well is closed and never used again. A statement
//! whose future is dropped takes its connection with it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::sql::{self, ConnectionLimits, IdleConnections};
use leasehold_core::{Clock, Failure, Moment};
use mysql_async::{Row, Value};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::MySqlConfig;
use crate::error::Refusal;
use crate::net::dial::{Answer, Done, Flavour, Link, Question, read};
use crate::net::session::IS_READ_ONLY;

/// The connections of one client.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) config: Arc<MySqlConfig>,
    permits: Semaphore,
    /// Each with the time when it was last used.
    connections: IdleConnections<(Link, Moment)>,
    clock: Arc<dyn Clock>,
}

impl Pool {
    pub(crate) fn new(config: Arc<MySqlConfig>, clock: Arc<dyn Clock>) -> Pool {
        let (timeout, most) = (config.sql.timeout, config.sql.connections);
        let limits = ConnectionLimits { timeout, endpoints: config.endpoints.len(), idle: most };
        // Whether one is open is found out by a question.
        Pool {
            config,
            permits: Semaphore::new(most),
            connections: IdleConnections::new(limits, |_| true),
            clock,
        }
    }

    /// Opens the first connection, and asks a question with it, as [`Link::dial_asking`] does. Returns the
    /// kind of the server as well, and the name by which it knows the database.
    pub(crate) async fn open(
        config: Arc<MySqlConfig>,
        clock: Arc<dyn Clock>,
        question: &Question,
    ) -> Result<(Pool, Answer, (Flavour, String)), Failure> {
        let (link, answer) = Link::dial_asking(&config, question).await?;
        let kind = (link.flavour, link.database.clone());
        let pool = Pool::new(config, clock);
        pool.give_back(link);
        Ok((pool, answer, kind))
    }

    /// Sends one statement with its parameters, and waits for its answer.
    pub(crate) async fn exec(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, Refusal> {
        let (_permit, mut link) = self.check_out().await.map_err(Refusal::Failed)?;
        let answer = link.exec(sql, values).await;
        self.check_in(link, &answer);
        answer
    }

    /// Sends a statement that changes one row and answers it, and waits for the end of its commit.
    ///
    /// The last column says whether the server was read-only when the statement had locked the table. A
    /// server is set read-only only after the commits of such statements, so a commit behind a `no` was made
    /// before. After a `yes` nothing is confirmed, as in [`Pool::transact`].
    pub(crate) async fn change(&self, sql: &str, values: Vec<Value>) -> Result<Row, Refusal> {
        let (_permit, mut link) = self.check_out().await.map_err(Refusal::Failed)?;
        let answer = change(&mut link, sql, values).await;
        self.check_in(link, &answer);
        answer
    }

    /// Sends statements without parameters, and waits for the rows of all of them.
    pub(crate) async fn run(&self, statements: &str) -> Result<Vec<Row>, Refusal> {
        self.run_within(statements, Duration::ZERO).await
    }

    /// Runs statements that may wait in the server for so long, as [`Pool::run`] does.
    pub(crate) async fn run_within(&self, statements: &str, wait: Duration) -> Result<Vec<Row>, Refusal> {
        let (_permit, mut link) = self.check_out().await.map_err(Refusal::Failed)?;
        let answer = link.run_within(statements, wait).await;
        self.check_in_unless_lost(link, &answer);
        answer
    }

    /// Runs statements in a transaction, and returns what each of them did.
    ///
    /// A user with the right to it writes to a server that is set read-only, too, although another server may
    /// decide by now. So the request also asks for that, behind the commit, and nothing is confirmed then.
    pub(crate) async fn transact(&self, statements: &[String]) -> Result<Vec<Done>, Refusal> {
        let (_permit, mut link) = self.check_out().await.map_err(Refusal::Failed)?;
        let answer = transact(&mut link, statements).await;
        self.check_in_unless_lost(link, &answer);
        answer
    }

    async fn check_out(&self) -> Result<(SemaphorePermit<'_>, Link), Failure> {
        let permit = sql::permit(&self.permits, &self.config.sql, "the server").await?;
        if let Some((mut link, used_at)) = self.connections.take() {
            if self.clock.now().since(used_at) < FRESH || link.is_alive().await {
                return Ok((permit, link));
            }
            // The others were used before it, and are not asked one after the other.
            self.connections.clear();
            self.connections.record_silence();
        }
        let dial = async { Ok((Link::dial(&self.config).await?, self.clock.now())) };
        // Boxed, so that the common future stays small.
        let (link, _) = Box::pin(self.connections.connect(dial)).await?;
        Ok((permit, link))
    }

    /// Keeps the connection as [`Pool::check_in`] does, but not where a race was lost: the statements behind
    /// the one that lost it were not run, such as those that set the session back.
    fn check_in_unless_lost<T>(&self, link: Link, answer: &Result<T, Refusal>) {
        if !matches!(answer, Err(Refusal::LostRace)) {
            self.check_in(link, answer);
        }
    }

    /// Keeps the connection where what it did ended well, or was undone as a whole. Other errors of the
    /// server may leave a transaction open, and a server that has become a replica must not be used again.
    fn check_in<T>(&self, link: Link, answer: &Result<T, Refusal>) {
        match answer {
            Ok(_) | Err(Refusal::LostRace) => self.give_back(link),
            Err(Refusal::NoTable(failure)) => _ = self.connections.record(failure),
            // The others are most likely broken as well.
            Err(Refusal::RowLocked(failure) | Refusal::Failed(failure)) => {
                self.connections.record(failure);
                self.connections.clear();
            }
        }
    }

    fn give_back(&self, link: Link) {
        self.connections.give_back((link, self.clock.now()));
    }
}

/// Changes one row over this connection, as [`Pool::change`] does.
async fn change(link: &mut Link, sql: &str, values: Vec<Value>) -> Result<Row, Refusal> {
    let (rows, refusal) = link.exec_until_refused(sql, values).await?;
    match refusal {
        None => {}
        Some(Refusal::LostRace) => return Err(Refusal::LostRace),
        // The row came before the commit, which was made, or may have been.
        Some(_) => return Err(unanswered(NO_END)),
    }
    let row = rows.into_iter().next().ok_or_else(|| unanswered(NO_END))?;
    let is_read_only: u8 = read(&row, row.len().saturating_sub(1)).map_err(Refusal::Failed)?;
    if is_read_only != 0 { Err(unanswered(READ_ONLY)) } else { Ok(row) }
}

/// Runs a transaction over this connection, as [`Pool::transact`] does.
async fn transact(link: &mut Link, statements: &[String]) -> Result<Vec<Done>, Refusal> {
    // Without these words the server's `completion_type` decides what follows the commit.
    let end = format!("COMMIT AND NO CHAIN NO RELEASE; SELECT {IS_READ_ONLY}");
    let text = format!("START TRANSACTION; {}; {end}", statements.join("; "));
    let (mut done, refusal) = link.run_until_refused(&text, Duration::ZERO).await?;
    let commit = statements.len() + 1;
    match (done.get(commit + 1).and_then(|done| done.rows.first()), refusal) {
        (None, Some(refusal)) if done.len() < commit => Err(refusal),
        (None, Some(Refusal::LostRace)) if done.len() == commit => Err(Refusal::LostRace),
        (Some(row), None) => match read::<u8>(row, 0).map_err(Refusal::Failed)? {
            0 => Ok(done.drain(1..commit).collect()),
            _ => Err(unanswered(READ_ONLY)),
        },
        // It was committed, or may have been: the server may fail after that, while it waits for replicas.
        _ => Err(unanswered(NO_END)),
    }
}

fn unanswered(text: &str) -> Refusal {
    Refusal::Failed(Failure::unanswered(text))
}

const READ_ONLY: &str =
    "the server was set read-only, so another one may decide by now: connect to the primary";
const NO_END: &str = "the server did not answer to the end of a transaction";

/// The time for which a connection is trusted without a question: longer than between two renewals of the
/// default ttl.
const FRESH: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use leasehold_conformance::{calls::clock, dials};
    use leasehold_testkit::{MariaDbServer, Proxy, Way};

    use super::*;

    #[tokio::test]
    async fn lost_statement_limits_dials_until_an_answer() {
        let Some(server) = MariaDbServer::start_or_skip().await else { return };
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let url = format!("{}?timeout=2s", server.url_at(proxy.addr()));
        let pool = Pool::new(Arc::new(MySqlConfig::parse(&url).unwrap()), clock());
        let ask = async || pool.run("SELECT 1").await.map(drop).map_err(Refusal::into_failure);
        let way = dials::Way {
            silence: || proxy.blackhole(Way::Both),
            heal: || proxy.heal().unwrap(),
            count: || (proxy.connections(), proxy.accepted()),
        };
        dials::lost_statement_limits_dials_until_an_answer(ask, || pool.connections.clear(), way).await;
    }
}
