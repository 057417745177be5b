//! One connection: made, logged in, set up, and asked what it is.
//!
//! Ground rules: a connection whose statement was not answered in full, because the future was dropped or the answer
//! did not come, must not be used again. Its owner closes it.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use leasehold_backend::sql;
use leasehold_backend::url::{reveal, trusted_authorities};
use leasehold_core::{Effect, Failure, FailureKind};
use mysql_async::prelude::{FromValue, Protocol, Queryable};
use mysql_async::{ClientIdentity, Conn, OptsBuilder, Params, QueryResult, Row, SslOpts, Statement, Value};

use crate::config::{Endpoint, MySqlConfig, Tls};
use crate::error::Refusal;

/// One open connection. Closed when it is dropped.
pub(crate) struct Link {
    /// The connection, until it is dropped.
    connection: Option<Conn>,
    /// `true` while an answer has not been read to its end.
    is_asking: bool,
    /// The statements that were sent here as text, and those that were prepared since.
    known: HashMap<Box<str>, Option<Statement>>,
    pub(crate) flavour: Flavour,
    /// The name by which the server distinguishes the database from others.
    pub(crate) database: String,
    timeout: Duration,
}

/// The kind of server, where the two differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    MariaDb,
    MySql,
}

/// The other servers that decide what this one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replication {
    /// None that is known.
    None,
    /// A primary that it follows.
    Primary,
    /// The servers of a cluster that decide together, by Galera.
    Cluster,
}

/// Questions that go in the request that makes a session what it has to be.
#[derive(Debug, Default)]
pub(crate) struct Question {
    /// Counters of the server.
    pub(crate) counters: &'static [&'static str],
    /// Queries, each of which has a row in its answer.
    pub(crate) statements: Vec<String>,
}

/// The answer to a [`Question`].
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) counters: Vec<Row>,
    /// The rows of each query, up to one that failed.
    pub(crate) statements: Vec<Vec<Row>>,
}

/// The outcome of a statement.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) rows: Vec<Row>,
    /// The number of rows that it changed, as far as triggers and proxies leave it.
    pub(crate) changed: u64,
}

impl Link {
    /// Connects to the first server that is not a replica.
    pub(crate) async fn dial(config: &MySqlConfig) -> Result<Link, Failure> {
        Ok(Link::dial_asking(config, &Question::default()).await?.0)
    }

    /// Dials as [`Link::dial`] does, and asks a question in the request that makes the session what it has
    /// to be. Neither its answer nor its failure decides whether the connection is of use.
    pub(crate) async fn dial_asking(
        config: &MySqlConfig,
        question: &Question,
    ) -> Result<(Link, Answer), Failure> {
        let dial = |endpoint| Link::dial_one(config, endpoint, question);
        sql::dial_in_turn(&config.endpoints, config.sql.timeout, dial).await
    }

    async fn dial_one(
        config: &MySqlConfig,
        endpoint: &Endpoint,
        question: &Question,
    ) -> Result<(Link, Answer), Failure> {
        let login = login(config, endpoint)?;
        let opened = Conn::new(login).await;
        let connection = opened.map_err(|error| Refusal::of_login(error, &endpoint.to_string()))?;
        // What the server is called may be said by a proxy. The greeting knows better.
        let flavour =
            if connection.server_version() >= (10, 0, 0) { Flavour::MariaDb } else { Flavour::MySql };
        let (known, database, timeout) = (HashMap::new(), String::new(), config.sql.timeout);
        let connection = Some(connection);
        let mut link = Link { connection, is_asking: false, known, flavour, database, timeout };
        let answer = link.greet(endpoint, question).await?;
        Ok((link, answer))
    }

    /// Makes the session what the statements expect, asks what the server is, and asks the question, in one
    /// request. A replica is refused, because its locks exclude nobody on the primary.
    async fn greet(&mut self, endpoint: &Endpoint, question: &Question) -> Result<Answer, Failure> {
        let failed = |refusal: Refusal| refusal.into_failure();
        let settings = settings(self.timeout);
        let counters: Vec<String> =
            COUNTERS.iter().chain(question.counters).map(|name| format!("'{name}'")).collect();
        let counters = format!("SHOW GLOBAL STATUS WHERE Variable_name IN ({})", counters.join(", "));
        let mut statements = vec![GREETING, &settings, &counters];
        statements.extend(question.statements.iter().map(String::as_str));
        let asked = self.flavour;
        statements.push(followed_by(asked));
        let (done, refusal) =
            self.run_until_refused(&statements.join("; "), Duration::ZERO).await.map_err(failed)?;
        let refusal = match refusal {
            // The session may have ended, and what was not asked must not be taken for nothing.
            Some(Refusal::Failed(failure)) if failure.effect == Effect::Unknown => return Err(failure),
            refusal => refusal,
        };
        let mut answers = done.into_iter().map(|done| done.rows);
        let (Some(greeting), Some(_settings)) = (answers.next(), answers.next()) else {
            return Err(refusal.map_or_else(unread, failed));
        };
        let row = only(greeting)?;
        let (version, comment): (String, String) = (read(&row, 0)?, read(&row, 1)?);
        let is_mariadb = [&version, &comment].iter().any(|text| text.to_lowercase().contains("mariadb"));
        self.flavour = if is_mariadb { Flavour::MariaDb } else { Flavour::MySql };
        self.database = read(&row, 4)?;
        check_version(self.flavour, &version, endpoint)?;
        let is_on =
            |at| read::<String>(&row, at).map(|value| value != "0" && !value.eq_ignore_ascii_case("off"));
        let counters = answers.next().unwrap_or_default();
        let statements: Vec<Vec<Row>> = answers.by_ref().take(question.statements.len()).collect();
        // Where only the last question failed, this user may not ask it.
        let is_asked = asked == self.flavour && statements.len() == question.statements.len();
        let followed = is_asked.then(|| answers.next().unwrap_or_default());
        let replication = self.replication(&counters, followed).await?;
        if is_on(2)? || is_on(3)? || replication == Replication::Primary {
            return Err(Failure::unavailable(format!(
                "{endpoint} is a replica or set read-only, and cannot decide anything: name the primary; one that was \
                 promoted has to forget its own primary, by RESET REPLICA ALL"
            )));
        }
        if replication == Replication::Cluster {
            // What another server of the cluster has confirmed to us may not have come here yet. A change
            // made on such ground fails by itself, so only reading has to wait for it. The server would run
            // a statement whose change came too late once more, in which it changes nothing, and answer
            // with the count of the first run: a lock that is held would be reported as released.
            let settings = "SET SESSION wsrep_sync_wait = 1, wsrep_retry_autocommit = 0";
            self.run(settings).await.map_err(failed)?;
        }
        Ok(Answer { counters, statements })
    }
    /// Returns which other servers decide, by the counters and the primaries that the server follows. One
    /// that does not let this user ask is believed to be a primary, unless it is set read-only.
    async fn replication(
        &mut self,
        counters: &[Row],
        followed: Option<Vec<Row>>,
    ) -> Result<Replication, Failure> {
        let followed = match followed {
            Some(followed) => followed,
            None => self.allowed(followed_by(self.flavour)).await?,
        };
        if !followed.is_empty() {
            return Ok(Replication::Primary);
        }
        let mut replication = Replication::None;
        for row in counters {
            let (name, value): (String, String) = (read(row, 0)?, read(row, 1)?);
            match (name.to_lowercase().as_str(), value.as_str()) {
                // The number of connections to servers that it follows, which MariaDB shows to each user. One
                // whose replication has ended is not in it.
                ("slaves_running", "0") => {}
                ("slaves_running", _) => return Ok(Replication::Primary),
                ("wsrep_connected", value) if value.eq_ignore_ascii_case("on") => {
                    replication = Replication::Cluster;
                }
                _ => {}
            }
        }
        Ok(replication)
    }

    /// Runs a statement, and returns no rows if this user may not run it.
    async fn allowed(&mut self, question: &str) -> Result<Vec<Row>, Failure> {
        match self.run(question).await {
            Ok(rows) => Ok(rows),
            Err(Refusal::Failed(failure)) if failure.effect == Effect::None => Ok(Vec::new()),
            Err(refusal) => Err(refusal.into_failure()),
        }
    }

    /// Sends one statement with its parameters, and waits for all of its answer. One that is sent for the
    /// first time here goes as text, in one round trip. The second time it is prepared, because it will
    /// probably be sent again.
    pub(crate) async fn exec(&mut self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, Refusal> {
        match self.exec_until_refused(sql, values).await? {
            (rows, None) => Ok(rows),
            (_, Some(refusal)) => Err(refusal),
        }
    }

    /// Sends a statement as [`Link::exec`] does, and returns the rows that came before a refusal, too. One
    /// without rows before it is the error.
    pub(crate) async fn exec_until_refused(
        &mut self,
        sql: &str,
        values: Vec<Value>,
    ) -> Result<(Vec<Row>, Option<Refusal>), Refusal> {
        let prepared = match self.known.get(sql) {
            Some(Some(statement)) => Some(statement.clone()),
            Some(None) => self.prepare(sql).await?,
            None => {
                self.known.insert(sql.into(), None);
                None
            }
        };
        let Some(statement) = prepared else {
            let text = written_out(sql, &values);
            let asking = async |connection: &mut Conn| rows_of(connection.query_iter(text).await?).await;
            return self.limited(Duration::ZERO, asking).await;
        };
        let params = if values.is_empty() { Params::Empty } else { Params::Positional(values) };
        let asking =
            async |connection: &mut Conn| rows_of(connection.exec_iter(statement, params).await?).await;
        self.limited(Duration::ZERO, asking).await
    }

    /// Prepares a statement. `None` where the server refuses that, for instance because all its clients together have
    /// as many as it allows: nothing was changed, and the statement is as good as text.
    async fn prepare(&mut self, sql: &str) -> Result<Option<Statement>, Refusal> {
        let asking = async |connection: &mut Conn| connection.prep(sql).await;
        match self.limited(Duration::ZERO, asking).await {
            Ok(statement) => {
                self.known.insert(sql.into(), Some(statement.clone()));
                Ok(Some(statement))
            }
            Err(Refusal::Failed(failure)) if failure.effect == Effect::None => {
                // It is tried again at every second use.
                self.known.remove(sql);
                Ok(None)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Sends statements without parameters, separated by semicolons, and waits for the rows of all of them.
    /// Those behind one that fails are not carried out.
    pub(crate) async fn run(&mut self, statements: &str) -> Result<Vec<Row>, Refusal> {
        self.run_within(statements, Duration::ZERO).await
    }

    /// Runs statements that may wait in the server for so long, as [`Link::run`] does.
    pub(crate) async fn run_within(&mut self, statements: &str, wait: Duration) -> Result<Vec<Row>, Refusal> {
        let done = self.run_each(statements, wait).await?;
        Ok(done.into_iter().flat_map(|done| done.rows).collect())
    }

    /// Runs statements as [`Link::run_within`] does, and returns what each of them did.
    pub(crate) async fn run_each(&mut self, statements: &str, wait: Duration) -> Result<Vec<Done>, Refusal> {
        match self.run_until_refused(statements, wait).await? {
            (done, None) => Ok(done),
            (_, Some(refusal)) => Err(refusal),
        }
    }

    /// Runs statements up to the first that the server refuses, and returns what those before it did. A
    /// refusal of the first one is the error.
    pub(crate) async fn run_until_refused(
        &mut self,
        statements: &str,
        wait: Duration,
    ) -> Result<(Vec<Done>, Option<Refusal>), Refusal> {
        let asking = async |connection: &mut Conn| {
            let mut result = connection.query_iter(statements).await?;
            let mut done = Vec::new();
            // Bounded by the statements that were sent.
            loop {
                let changed = result.affected_rows();
                if result.is_empty() {
                    done.push(Done { rows: Vec::new(), changed });
                    break;
                }
                done.push(Done { rows: result.collect().await?, changed });
            }
            // An error of any but the first statement looks like an end, and is only reported here.
            match result.drop_result().await {
                Ok(()) => Ok((done, None)),
                Err(error @ mysql_async::Error::Server(_)) => {
                    done.pop();
                    Ok((done, Some(Refusal::of(error))))
                }
                Err(error) => Err(error),
            }
        };
        self.limited(wait, asking).await
    }

    /// Waits no longer than this for an answer.
    pub(crate) fn limit_to(&mut self, limit: Duration) {
        self.timeout = self.timeout.min(limit);
    }

    /// Checks whether it answers.
    pub(crate) async fn is_alive(&mut self) -> bool {
        self.limited(Duration::ZERO, async |connection: &mut Conn| connection.ping().await).await.is_ok()
    }

    /// Asks, and waits for the answer for as long as the server may take and so much longer.
    async fn limited<T>(
        &mut self,
        wait: Duration,
        asking: impl AsyncFnOnce(&mut Conn) -> mysql_async::Result<T>,
    ) -> Result<T, Refusal> {
        // A little more than the server's own limit, so that its answer comes first.
        let limit = wait + self.timeout + Duration::from_millis(200);
        let Some(connection) = &mut self.connection else {
            return Err(Refusal::Failed(Failure::unavailable("the connection is closed")));
        };
        self.is_asking = true;
        let answer = tokio::time::timeout(limit, asking(connection)).await;
        let unanswered =
            || Refusal::Failed(Failure::unanswered(format!("the server did not answer within {limit:?}")));
        let answer = answer.map_err(|_| unanswered())?.map_err(Refusal::of);
        self.is_asking = false;
        answer
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let connection = self.connection.take();
        if self.is_asking {
            // Where there is a runtime, the driver would read the rest of the answer first, for as long as
            // that takes. In a thread of its own there is none, and the connection is closed as it is.
            _ = std::thread::Builder::new().spawn(move || drop(connection));
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The driver's connection would show its options, and with them the password.
        f.debug_struct("Link").field("flavour", &self.flavour).finish_non_exhaustive()
    }
}

fn login(config: &MySqlConfig, endpoint: &Endpoint) -> Result<OptsBuilder, Failure> {
    let mut login = OptsBuilder::default()
        .user(config.credentials.user.clone())
        .db_name(Some(config.database.clone()))
        // Where the URL names a host, that way is wanted, and no other.
        .prefer_socket(false)
        .tcp_keepalive(Some(KEEPALIVE))
        .stmt_cache_size(STATEMENTS)
        // Named, so that they are not asked for.
        .max_allowed_packet(Some(PACKET_MAX))
        .wait_timeout(Some(0));
    if let Some(password) = config.credentials.password()? {
        login = login.pass(Some(reveal(&password)));
    }
    login = match endpoint {
        Endpoint::Tcp(host) => login.ip_or_hostname(host.name.clone()).tcp_port(host.port),
        Endpoint::Unix(path) => login.socket(Some(path.display().to_string())),
    };
    if config.sql.tls == Tls::Verified {
        let roots = trusted_authorities(&config.sql.tls_files)?.into_iter().map(Into::into).collect();
        let identity = config.sql.tls_files.read_identity()?;
        let identity = identity.map(|files| ClientIdentity::new(files.cert.into(), files.key.into()));
        let tls = SslOpts::default()
            .with_disable_built_in_roots(true)
            .with_root_certs(roots)
            .with_client_identity(identity);
        login = login.ssl_opts(tls);
    }
    Ok(login)
}

/// Reads the one answer to a statement: its rows, and an error of the server behind them.
async fn rows_of<P: Protocol>(
    mut answer: QueryResult<'_, '_, P>,
) -> mysql_async::Result<(Vec<Row>, Option<Refusal>)> {
    let mut rows = Vec::new();
    match answer.for_each(|row| rows.push(row)).await {
        Err(error @ mysql_async::Error::Server(_)) if !rows.is_empty() => {
            Ok((rows, Some(Refusal::of(error))))
        }
        answered => answered.map(|()| (rows, None)),
    }
}

/// Returns the statement whose answer has a row for each server that this one follows.
fn followed_by(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::MariaDb => "SHOW ALL SLAVES STATUS",
        Flavour::MySql => "SHOW REPLICA STATUS",
    }
}

/// Returns the settings of a session. A statement whose answer nobody awaits must not take effect much
/// later. What is in the comment is read by MariaDB alone.
fn settings(timeout: Duration) -> String {
    let (seconds, limit) = (lock_wait(timeout), timeout.as_secs_f64());
    format!(
        "SET SESSION autocommit = 1, completion_type = 'NO_CHAIN', sql_mode = 'STRICT_ALL_TABLES', \
         innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}, sql_select_limit = 18446744073709551615 \
         /*M! , max_statement_time = {limit} */"
    )
}

/// Writes the values into the statement, in the place of its question marks.
fn written_out(sql: &str, values: &[Value]) -> String {
    let mut text = String::with_capacity(sql.len() + values.len() * 24);
    let mut values = values.iter();
    for (n, part) in sql.split('?').enumerate() {
        if n > 0 {
            match values.next() {
                Some(Value::Bytes(bytes)) => text += &literal(bytes),
                // Numbers, which have no form that something in them could end.
                Some(value) => text += &value.as_sql(true),
                None => text.push('?'),
            }
        }
        text += part;
    }
    text
}

/// Returns bytes in a form that nothing in them can end.
pub(crate) fn literal(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len() + 3);
    digits.push_str("X'");
    for byte in bytes {
        // Writing into a String does not fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits.push('\'');
    digits
}

/// Refuses older versions, whose maintenance has ended.
fn check_version(flavour: Flavour, version: &str, endpoint: &Endpoint) -> Result<(), Failure> {
    // MariaDB may be called "5.5.5-10.11.6-MariaDB", for clients that know no other beginning.
    let plain = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = plain.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let (oldest, name) = match flavour {
        Flavour::MariaDb => ((10, 6), "MariaDB 10.6"),
        Flavour::MySql => ((8, 0), "MySQL 8.0"),
    };
    if found >= oldest {
        return Ok(());
    }
    let text = format!("{endpoint} is version {version}: leasehold needs {name} or later");
    Err(Failure::new(FailureKind::Unsupported, Effect::None, text))
}

fn unread() -> Failure {
    Failure::unavailable("the server did not answer what it is")
}

/// Returns the one row of an answer that has exactly one.
pub(crate) fn only(mut rows: Vec<Row>) -> Result<Row, Failure> {
    rows.pop().ok_or_else(|| Failure::unavailable("the server answered without a row"))
}

/// Returns a column of an answer.
pub(crate) fn read<T: FromValue>(row: &Row, at: usize) -> Result<T, Failure> {
    row.get_opt(at).and_then(Result::ok).ok_or_else(|| {
        let text = format!("the server answered what cannot be read, in column {at}");
        Failure::new(FailureKind::Foreign, Effect::Unknown, text)
    })
}

// As text, because a switch is a number on one server and a word on another. Where the server does not
// distinguish small letters of a database's name from large ones, small ones are used.
const GREETING: &str = "SELECT VERSION(), CAST(@@version_comment AS CHAR), CAST(@@global.read_only AS CHAR), \
                        CAST(@@innodb_read_only AS CHAR), \
                        IF(@@lower_case_table_names = 0, DATABASE(), LOWER(DATABASE()))";

/// Counters that every session asks for.
const COUNTERS: &[&str] = &["Slaves_running", "wsrep_connected"];

/// The time after which the operating system begins to ask whether the other side still exists.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Statements that a connection keeps prepared: more than there are.
const STATEMENTS: usize = 16;
/// The longest answer that is read.
const PACKET_MAX: usize = 64 << 20;

/// Calculates for how many seconds a statement waits for a lock, on a connection with this limit.
pub(crate) fn lock_wait(timeout: Duration) -> f64 {
    timeout.as_secs_f64().ceil().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_distinguished_from_compatibility_prefixes() {
        let endpoint = Endpoint::Unix("/s".into());
        for (flavour, version, fits) in [
            (Flavour::MariaDb, "10.11.19-MariaDB-0+deb12u1", true),
            (Flavour::MariaDb, "5.5.5-10.6.1-MariaDB", true),
            (Flavour::MariaDb, "10.5.29-MariaDB", false),
            (Flavour::MariaDb, "12.0.2-MariaDB", true),
            (Flavour::MySql, "8.0.36-0ubuntu0.22.04.1", true),
            (Flavour::MySql, "9.4.0", true),
            (Flavour::MySql, "5.7.44-log", false),
        ] {
            assert_eq!(check_version(flavour, version, &endpoint).is_ok(), fits, "{version}");
        }
    }
}
