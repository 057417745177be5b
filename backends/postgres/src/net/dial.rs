//! One connection: made, logged in, and asked what it is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_backend::connecting::{cannot_connect, cannot_open_socket};
use leasehold_backend::sql;
use leasehold_backend::url::{client_settings, reveal};
use leasehold_core::{Effect, Failure, FailureKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Row, Statement};

use crate::config::{Dialect, Endpoint, Method, PostgresConfig, Tls};
use crate::error::Refusal;
use crate::net::stream::{Transport, Unanswered};
use crate::net::tls::{Securing, Unsecured};

/// Messages that the server sends without a request, such as notifications.
pub(crate) type ServerMessages = mpsc::Receiver<AsyncMessage>;

/// One open connection. Closed when it is dropped.
pub(crate) struct Link {
    client: Client,
    /// The statements that were sent here, by their names; prepared once they were sent a second time.
    known: Mutex<HashMap<&'static str, Option<Statement>>>,
    /// `true` if the server on the other side is always the same one.
    pub(crate) is_direct: bool,
    /// The timeline of that server, which is a primary and so keeps it for its life; none where it was not asked for,
    /// or the connection may lead to another server each time.
    pub(crate) timeline: Option<i64>,
    /// The server's version as it counts them: 150018 is 15.18.
    pub(crate) version: i32,
    /// `true` if it speaks TLS, as a unix socket never does.
    is_secured: bool,
    endpoint: Endpoint,
    timeout: Duration,
    driver: JoinHandle<()>,
    /// Its other end is dropped with the driver.
    driven: watch::Receiver<()>,
}

/// A connection that was just made.
struct Dialled {
    link: Link,
    messages: ServerMessages,
    /// The answer to the question, behind the columns of the greeting; none where nothing was asked.
    answer: Option<Result<Row, Refusal>>,
}

/// A statement with the types of its parameters, under a name of its own.
#[derive(Clone, Debug)]
pub(crate) struct Sql {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) types: &'static [Type],
}

impl Link {
    /// Connects to the first server that is not a standby.
    pub(crate) async fn dial(config: &PostgresConfig) -> Result<Link, Failure> {
        Ok(Link::dial_listening(config).await?.0)
    }

    /// Dials as [`Link::dial`] does, and asks a question in the request that asks what the server is. The
    /// question is a query for one row, and neither its answer nor its failure decides whether the
    /// connection is of use.
    pub(crate) async fn dial_asking(
        config: &PostgresConfig,
        question: &str,
    ) -> Result<(Link, Result<Row, Refusal>), Failure> {
        let dialled = Link::dial_any(config, Some(question)).await?;
        let missing = || Refusal::Failed(Failure::unavailable("PostgreSQL did not answer the question"));
        Ok((dialled.link, dialled.answer.unwrap_or_else(|| Err(missing()))))
    }

    /// Dials as [`Link::dial`] does, and returns the server's own messages too.
    pub(crate) async fn dial_listening(config: &PostgresConfig) -> Result<(Link, ServerMessages), Failure> {
        let dialled = Link::dial_any(config, None).await?;
        Ok((dialled.link, dialled.messages))
    }

    // Boxed, because the compiler cannot see through the client's own futures that this one may be sent.
    fn dial_any<'a>(
        config: &'a PostgresConfig,
        question: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Dialled, Failure>> {
        Box::pin(Link::dial_in_turn(config, question))
    }

    async fn dial_in_turn(config: &PostgresConfig, question: Option<&str>) -> Result<Dialled, Failure> {
        let dial = |endpoint| Link::dial_one(config, endpoint, question);
        sql::dial_in_turn(&config.endpoints, config.sql.timeout, dial).await
    }

    async fn dial_one(
        config: &PostgresConfig,
        endpoint: &Endpoint,
        question: Option<&str>,
    ) -> Result<Dialled, Failure> {
        let failed = |error| match endpoint {
            Endpoint::Tcp(_) => cannot_connect(error, &endpoint.to_string()),
            Endpoint::Unix(..) => cannot_open_socket(error, &endpoint.to_string()),
        };
        let transport = Transport::open(endpoint).await.map_err(failed)?;
        let port = transport.local_port();
        let mut login = tokio_postgres::Config::new();
        login.application_name("leasehold");
        login.user(config.credentials.user.as_deref().unwrap_or_default());
        if let Some(database) = &config.database {
            login.dbname(database);
        }
        if let Some(password) = config.credentials.password()? {
            login.password(reveal(&password));
        }
        let refused = |error| Refusal::of_login(error, &endpoint.to_string());
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        let (driving, driven) = watch::channel(());
        let (client, driver) = match (config.sql.tls, endpoint) {
            (Tls::Verified, Endpoint::Tcp(host)) => {
                login.ssl_mode(SslMode::Require);
                let securing = Securing::new(Arc::new(client_settings(&config.sql.tls_files)?), &host.name)?;
                let (client, connection) = login.connect_raw(transport, securing).await.map_err(refused)?;
                (client, drive(connection, sender, driving))
            }
            _ => {
                login.ssl_mode(SslMode::Disable);
                let (client, connection) = login.connect_raw(transport, NoTls).await.map_err(refused)?;
                (client, drive(connection, sender, driving))
            }
        };
        let (known, endpoint, timeout) = (Mutex::default(), endpoint.clone(), config.sql.timeout);
        let is_secured = config.sql.tls == Tls::Verified;
        let mut link = Link {
            client,
            known,
            is_direct: false,
            timeline: None,
            version: 0,
            is_secured,
            endpoint,
            timeout,
            driver,
            driven,
        };
        let answer = link.greet(port, &greeting(config), question).await?;
        Ok(Dialled { link, messages, answer })
    }

    /// Asks what the server is, and the question. Where both together fail, because the question does, the
    /// server is asked alone.
    async fn greet(
        &mut self,
        port: Option<u16>,
        greeting: &str,
        question: Option<&str>,
    ) -> Result<Option<Result<Row, Refusal>>, Failure> {
        let Some(question) = question else {
            let rows = self.send_greeting(port, greeting.to_owned()).await.map_err(Refusal::into_failure)?;
            self.judge(&only(rows)?)?;
            return Ok(None);
        };
        let both = format!("SELECT g.*, q.* FROM ({greeting}) AS g LEFT JOIN ({question}) AS q ON true");
        let refusal = match self.send_greeting(port, both).await {
            Ok(rows) => {
                let row = only(rows)?;
                self.judge(&row)?;
                return Ok(Some(Ok(row)));
            }
            Err(Refusal::Failed(failure)) if failure.effect == Effect::Unknown => return Err(failure),
            Err(refusal) => refusal,
        };
        let rows = self.send_greeting(port, greeting.to_owned()).await.map_err(Refusal::into_failure)?;
        self.judge(&only(rows)?)?;
        Ok(Some(Err(refusal)))
    }

    /// Asks what the server is. In the same statement the session gets its time limit, if it is one that no
    /// other client uses.
    async fn send_greeting(&self, port: Option<u16>, text: String) -> Result<Vec<Row>, Refusal> {
        let process = process_of_login(&self.client, self.is_secured).await;
        let (port, limit) = (port.map(i32::from), self.statement_timeout_millis().to_string());
        let greeting = Sql { name: "", text, types: &[Type::INT4, Type::INT4, Type::TEXT] };
        self.query(&greeting, &[&port, &process, &limit]).await
    }

    /// Takes over what the server is. A standby is refused, because it can decide nothing.
    fn judge(&mut self, row: &Row) -> Result<(), Failure> {
        let endpoint = &self.endpoint;
        let (standby, version): (bool, i32) = (read(row, 0)?, read(row, 1)?);
        if standby {
            return Err(Failure::unavailable(format!(
                "{endpoint} is a standby, which cannot decide anything: name the primary"
            )));
        }
        if version < OLDEST {
            let text = format!("{endpoint} is PostgreSQL {}: leasehold needs 12 or later", version / 10_000);
            return Err(Failure::new(FailureKind::Unsupported, Effect::None, text));
        }
        self.version = version;
        self.is_direct = read::<Option<String>>(row, 2)?.is_some();
        let timeline = read(row, 3)?;
        self.timeline = if self.is_direct { timeline } else { None };
        Ok(())
    }

    /// Sends one statement, and waits for its rows. One that is sent for the first time here goes with its
    /// text, in one round trip. The second time it is prepared, because it will probably be sent again.
    pub(crate) async fn query(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Refusal> {
        self.query_within(sql, params, Duration::ZERO).await
    }

    /// Sends a statement that the server may let wait for so long, as [`Link::query`] does.
    pub(crate) async fn query_within(
        &self,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
        wait: Duration,
    ) -> Result<Vec<Row>, Refusal> {
        // What is prepared belongs to one session of the server; a pooler may give us another each time.
        let is_first = !self.is_direct || sql.name.is_empty() || self.is_first(sql.name);
        if is_first {
            let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                params.iter().copied().zip(sql.types.iter().cloned()).collect();
            return self.limited(self.client.query_typed(&sql.text, &typed), wait).await;
        }
        let prepared = self.known().get(sql.name).cloned().flatten();
        let statement = match prepared {
            Some(statement) => statement,
            None => {
                let preparing = self.client.prepare_typed(&sql.text, sql.types);
                let statement = self.limited(preparing, Duration::ZERO).await?;
                self.known().insert(sql.name, Some(statement.clone()));
                statement
            }
        };
        self.limited(self.client.query(&statement, params), wait).await
    }

    /// Returns `true` if a statement of this name was never sent here, and counts it as sent.
    fn is_first(&self, name: &'static str) -> bool {
        match self.known().entry(name) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(None);
                true
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<&'static str, Option<Statement>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a statement that is a transaction of its own, as [`Link::query`] does. The server ends it when
    /// its caller has given up, also where a session cannot be set up for that, because it is the pooler's.
    pub(crate) async fn query_alone(
        &self,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Refusal> {
        if self.is_direct {
            return self.query(sql, params).await;
        }
        let begin = format!("BEGIN; SET LOCAL statement_timeout = {}", self.statement_timeout_millis());
        // Sent one behind the other, and answered in one round trip. A statement that fails makes a
        // rollback of the last.
        let (begun, answer, ended) =
            tokio::join!(self.run(&begin), self.query(sql, params), self.run("COMMIT"));
        let rows = answer?;
        begun.and(ended).map(|()| rows)
    }

    /// Returns the server's limit for a statement: one whose answer nobody awaits must not take effect much
    /// later.
    fn statement_timeout_millis(&self) -> u128 {
        self.timeout.as_millis().max(1)
    }

    /// Sends statements without parameters, as one transaction unless they say otherwise.
    pub(crate) fn run<'a>(&'a self, statements: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(self.limited(self.client.batch_execute(statements), Duration::ZERO))
    }

    /// Returns `true` if it can still be used.
    pub(crate) fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    /// Waits until the connection has ended.
    pub(crate) async fn closed(&self) {
        // Nothing is ever sent: the channel ends with the task that carries what goes over the wire.
        let _ = self.driven.clone().changed().await;
    }

    /// Asks the server to end the statement that runs here, and waits until the request was sent. One that
    /// has just ended is not harmed, and neither is one that is sent afterwards.
    pub(crate) async fn cancel(&self, config: &PostgresConfig) {
        let token = self.client.cancel_token();
        let cancelling = async {
            let transport = Unanswered::over(Transport::open(&self.endpoint).await.ok()?);
            match (config.sql.tls, &self.endpoint) {
                (Tls::Verified, Endpoint::Tcp(host)) => {
                    let settings = Arc::new(client_settings(&config.sql.tls_files).ok()?);
                    token.cancel_query_raw(transport, Securing::new(settings, &host.name).ok()?).await.ok()
                }
                _ => token.cancel_query_raw(transport, NoTls).await.ok(),
            }
        };
        // The task that waits for the statement finds out that it did not end.
        if !matches!(tokio::time::timeout(self.timeout, cancelling).await, Ok(Some(()))) {
            tracing::debug!("a statement could not be called back");
        }
    }

    async fn limited<T>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
        wait: Duration,
    ) -> Result<T, Refusal> {
        // A little more than the server's own limit, so that its answer comes first.
        let limit = wait + self.timeout + Duration::from_millis(200);
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.map_err(Refusal::of),
            Err(_) => {
                let text = format!("PostgreSQL did not answer within {:?}", self.timeout);
                Err(Refusal::Failed(Failure::unanswered(text)))
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("is_direct", &self.is_direct).finish_non_exhaustive()
    }
}

/// Carries what goes over the wire, in a task of its own.
fn drive<T>(
    mut connection: Connection<Transport, T>,
    messages: mpsc::Sender<AsyncMessage>,
    driving: watch::Sender<()>,
) -> JoinHandle<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    leasehold_machine::spawn(async move {
        let _driving = driving;
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                // On most connections there is no listener.
                Some(Ok(message)) => _ = messages.send(message).await,
                Some(Err(error)) => return tracing::debug!(%error, "a connection to PostgreSQL ended"),
                None => return,
            }
        }
    })
}

/// Returns the process that serves this connection, by what the other side said at the login. It is read
/// from the request that would cancel a statement, which is written to nowhere.
async fn process_of_login(client: &Client, is_secured: bool) -> Option<i32> {
    let (near, mut far) = tokio::io::duplex(64);
    if is_secured {
        // The answer to the request for TLS, which is not awaited.
        far.write_u8(b'S').await.ok()?;
    }
    client.cancel_token().cancel_query_raw(near, Unsecured).await.ok()?;
    if is_secured {
        far.read_u64().await.ok()?;
    }
    let (_length, _code) = (far.read_i32().await.ok()?, far.read_i32().await.ok()?);
    far.read_i32().await.ok()
}

/// Returns the one row of an answer that has exactly one.
pub(crate) fn only(mut rows: Vec<Row>) -> Result<Row, Failure> {
    rows.pop().ok_or_else(|| Failure::unavailable("PostgreSQL answered without a row"))
}

/// Returns a column of an answer.
pub(crate) fn read<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Failure> {
    row.try_get(at).map_err(|error| {
        let text = format!("PostgreSQL answered what cannot be read: {error}");
        Failure::new(FailureKind::Foreign, Effect::Unknown, text)
    })
}

/// Asks what the server is and which timeline it is on, and limits the time of statements in the session if it is
/// this client's own. A pooler has connections of its own to the server, so the server sees another port (`$1`)
/// than ours. Where neither has one, because both ways are unix sockets, or where the ports are the same by chance, a
/// pooler shows by the process (`$2`) that it has made up.
fn greeting(config: &PostgresConfig) -> String {
    // Other methods have no use for it, and work where a server has no answer to it.
    let timeline = match (config.method, config.dialect) {
        (Method::Row, Dialect::Native) => TIMELINE,
        _ => "NULL::int8",
    };
    format!(
        "SELECT pg_catalog.pg_is_in_recovery(), \
         pg_catalog.current_setting('server_version_num')::int4, \
         CASE WHEN pg_catalog.inet_client_port() IS NOT DISTINCT FROM $1 \
         AND pg_catalog.pg_backend_pid() = $2 \
         THEN pg_catalog.set_config('statement_timeout', $3, false) END, \
         CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN {timeline} END"
    )
}

/// The timeline of a primary.
pub(crate) const TIMELINE: &str =
    "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int8";
/// The columns of the greeting, behind which those of a question begin.
pub(crate) const GREETED: usize = 4;

/// The messages that wait to be read by a listener; beyond that the server waits.
const MESSAGES_MAX: usize = 1_000;

/// The oldest supported version: older ones lack tables of this form, and their maintenance has ended.
const OLDEST: i32 = 120_000;
