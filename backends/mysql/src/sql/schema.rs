//! The tables: the statements that create and check them, and the rights of a user that may not create
//! them.
//!
//! Ground rules: a change of the tables only adds, so that old and new clients run together; the table says
//! which is the oldest client that may still use it. Creating existing objects changes nothing.

use leasehold_backend::sql::too_new;
use leasehold_core::{Effect, Failure, FailureKind};
use mysql_async::Row;

use crate::config::{Create, Dialect, Method, MySqlConfig, Names};
use crate::error::Refusal;
use crate::net::dial::read;
use crate::net::pool::Pool;

/// The newest form of the tables that this client knows.
const FORM: i32 = 2;
/// The form of a table of leases. Older clients know no other.
const FORM_OF_ROWS: i32 = 1;

/// Returns the statements that create the tables, for databases whose programs may not do it. Running them
/// again changes nothing.
pub fn schema(config: &MySqlConfig) -> String {
    format!("USE {};\n{}", config.quoted_database(), tables(config))
}

fn tables(config: &MySqlConfig) -> String {
    if config.dialect == Dialect::ShedLock {
        return shedlock_table(config);
    }
    let meta = config.names.table("_meta");
    let own = match config.method {
        Method::Row => leases(&config.names),
        Method::GetLock => holders(&config.names) + &fences(&config.names),
        Method::ForUpdate => locked_rows(&config.names),
    };
    // Clients of form 1 draw the fences of named locks from another counter.
    let form = match config.method {
        Method::Row | Method::ForUpdate => String::new(),
        Method::GetLock => format!(
            "UPDATE {meta} SET form = GREATEST(form, {FORM}), oldest_client = {FORM} WHERE oldest_client < {FORM};\n"
        ),
    };
    format!(
        "{own}CREATE TABLE IF NOT EXISTS {meta} (
    one           TINYINT NOT NULL PRIMARY KEY,
    form          INT NOT NULL,
    oldest_client INT NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO {meta} (one, form, oldest_client) VALUES (1, {FORM_OF_ROWS}, {FORM_OF_ROWS});
{form}"
    )
}

/// Returns the statements that create the table, as ShedLock's documentation has it but with room for every
/// name and holder of leasehold, with names that are distinguished by their bytes, and with dates that no
/// time zone moves. Running them again changes nothing.
pub(crate) fn shedlock_table(config: &MySqlConfig) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (
    name       VARBINARY(512) NOT NULL PRIMARY KEY,
    lock_until DATETIME(6) NOT NULL,
    locked_at  DATETIME(6) NOT NULL,
    locked_by  VARCHAR(2048) CHARACTER SET utf8mb4 NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
",
        config.names.table("")
    )
}

/// Returns the tables of leases and of registers.
fn leases(names: &Names) -> String {
    let (table, registers) = (names.table(""), names.table("_registers"));
    // Bytes, because texts would be compared by the rules of a language, and with trailing spaces taken away.
    let columns = "
    name    VARBINARY(512) NOT NULL PRIMARY KEY,
    claims  MEDIUMBLOB NOT NULL,
    version BIGINT NOT NULL,
    seq     BIGINT NOT NULL,
    origin  BIGINT NOT NULL COMMENT 'microseconds since 1970, by the server',
    lapses  BIGINT NOT NULL COMMENT 'microseconds since 1970, by the server'
";
    format!(
        "CREATE TABLE IF NOT EXISTS {table} ({columns}) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
  COMMENT = 'Locks of leasehold. A row outlives its locks: seq is the fence that must not go back.';
CREATE TABLE IF NOT EXISTS {registers} ({columns}) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
  COMMENT = 'Values of leasehold that are no locks. A row without claims is an empty one.';
"
    )
}

/// Returns the table of the bound within which fences of named locks are given.
///
/// After two starts in one second the server's counter is the same. So where the table was lost in between, its first
/// bound lies at the clock, or at the end of the counter's second if that is over: the first client calls the counter
/// until it is there, which is done in a second.
fn fences(names: &Names) -> String {
    let table = names.table(FENCES);
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (
    one   TINYINT NOT NULL PRIMARY KEY,
    ahead BIGINT UNSIGNED NOT NULL,
    start BIGINT UNSIGNED NOT NULL,
    last  BIGINT UNSIGNED NOT NULL,
    turn  BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB
  COMMENT = 'The last fence that clients may give for named locks. It is raised before they do.';
SET @clock = FLOOR((UNIX_TIMESTAMP() + MICROSECOND(NOW(6)) / 1000000) * {PER_SECOND});
SET @last = LEAST(@clock, ({COUNTER} DIV {PER_SECOND} + 1) * {PER_SECOND});
INSERT IGNORE INTO {table} (one, ahead, start, last, turn) VALUES (1, 0, 0, @last, 0);
"
    )
}

/// Returns the table of the holders of a connection's locks.
fn holders(names: &Names) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {held} (
    lock_name VARBINARY(256) NOT NULL PRIMARY KEY,
    name      VARBINARY(512) NOT NULL,
    claim     BINARY(32) NOT NULL,
    note      VARBINARY(1024) NOT NULL,
    session   BIGINT NOT NULL,
    seq       BIGINT NOT NULL,
    since     BIGINT NOT NULL COMMENT 'microseconds since 1970, by the server',
    KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
  COMMENT = 'Who had which lock of leasehold last, and has it while IS_USED_LOCK says so. A row outlives its locks.';
",
        held = names.table("_held")
    )
}

/// Returns the table of the rows that transactions lock, and the table of their holders. The two are apart
/// because another connection cannot write a locked row, and no other connection sees what the holder's own
/// transaction writes.
fn locked_rows(names: &Names) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {rows} (
    name VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
  COMMENT = 'Locks of leasehold: who holds one has its row locked in an open transaction.';
CREATE TABLE IF NOT EXISTS {held} (
    name    VARBINARY(512) NOT NULL PRIMARY KEY,
    claim   BINARY(32) NOT NULL,
    note    VARBINARY(1024) NOT NULL,
    word    VARBINARY(64) NOT NULL,
    session BIGINT NOT NULL,
    seq     BIGINT NOT NULL,
    since   BIGINT NOT NULL COMMENT 'microseconds since 1970, by the server'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
  COMMENT = 'Who had which row last, and has it while IS_USED_LOCK(word) says so. A row outlives its locks: seq is the fence.';
",
        rows = names.table(ROWS),
        held = names.table(ROWS_HELD)
    )
}

/// Endings of the tables without which the method cannot be used.
fn needed(method: Method) -> &'static [&'static str] {
    match method {
        Method::Row => &[""],
        Method::GetLock => &["_held", FENCES],
        Method::ForUpdate => &[ROWS, ROWS_HELD],
    }
}

/// The server's counter, without the number of the server in its highest bits.
pub(crate) const COUNTER: &str = "(UUID_SHORT() & 72057594037927935)";
/// The numbers that the counter has for each second.
const PER_SECOND: u64 = 1 << 24;
/// The table of the bound of fences of `method=get-lock`.
pub(crate) const FENCES: &str = "_fences";
/// The tables of `method=for-update`.
pub(crate) const ROWS: &str = "_rows";
pub(crate) const ROWS_HELD: &str = "_rows_held";

/// Statements that let the user of the URL do what is needed, and nothing else, once the tables are there.
pub fn grants(config: &MySqlConfig) -> String {
    grants_to(config, config.credentials.user.as_deref().unwrap_or_default())
}

/// Returns the grants for another user than that of the URL, as [`grants`] does.
pub(crate) fn grants_to(config: &MySqlConfig, user: &str) -> String {
    let user = user.replace('\\', "\\\\").replace('\'', "\\'");
    let grant = |rights: &str, ending: &str| {
        let (database, table) = (config.quoted_database(), config.names.table(ending));
        format!("GRANT {rights} ON {database}.{table} TO '{user}'@'%';\n")
    };
    if config.dialect == Dialect::ShedLock {
        return grant("SELECT, INSERT, UPDATE", "");
    }
    let endings: &[&str] = match config.method {
        Method::Row => &["", "_registers"],
        Method::GetLock | Method::ForUpdate => needed(config.method),
    };
    let on_rows: String = endings.iter().map(|ending| grant("SELECT, INSERT, UPDATE", ending)).collect();
    on_rows + &grant("SELECT", "_meta")
}

/// Sees to it that the tables are there, and are such that this client may use them.
pub(crate) async fn ensure(pool: &Pool) -> Result<(), Failure> {
    let found = match oldest_client(pool).await {
        Err(Refusal::NoTable(failure)) if pool.config.sql.create == Create::No => return Err(failure),
        Err(Refusal::NoTable(_)) => {
            create(pool).await.map_err(Refusal::into_failure)?;
            oldest_client(pool).await
        }
        found => found,
    };
    if found.map_err(Refusal::into_failure)? > FORM {
        return Err(too_new(&pool.config.names.table(needed(pool.config.method)[0])));
    }
    Ok(())
}

/// Creates what is missing of the tables: they are lost, or were made by a client that knew fewer of them.
pub(crate) async fn restore(pool: &Pool) -> Result<(), Failure> {
    create(pool).await.map_err(Refusal::into_failure)?;
    ensure(pool).await
}

/// Returns a query for the oldest client that may use the tables, which fails where one of them is missing.
pub(crate) fn question(config: &MySqlConfig) -> String {
    let mut query = format!("SELECT m.oldest_client FROM {} m", config.names.table("_meta"));
    for (n, ending) in needed(config.method).iter().enumerate() {
        query += &format!(" LEFT JOIN {} c{n} ON FALSE", config.names.table(ending));
    }
    query
}

/// Returns `true` if the answer to the question says that this client may use the tables.
pub(crate) fn is_settled(rows: &[Row]) -> bool {
    rows.first().and_then(|row| read::<i32>(row, 0).ok()).is_some_and(|oldest_client| oldest_client <= FORM)
}

/// Returns the oldest client that may use the tables, where all are there.
async fn oldest_client(pool: &Pool) -> Result<i32, Refusal> {
    let rows = pool.run(&question(&pool.config)).await?;
    match rows.first() {
        Some(row) => read(row, 0).map_err(Refusal::Failed),
        None => {
            let meta = pool.config.names.table("_meta");
            let text = format!("the table {meta} is empty: run what `leasehold schema --store` prints");
            Err(Refusal::NoTable(Failure::new(FailureKind::Unsupported, Effect::None, text)))
        }
    }
}

/// Creates the tables. Of several clients that do it at once, the server lets one after the other.
async fn create(pool: &Pool) -> Result<(), Refusal> {
    for _ in 1..MAX_TRIES {
        match pool.run(&tables(&pool.config)).await {
            Err(Refusal::LostRace) => {}
            answer => return answer.map(drop),
        }
    }
    pool.run(&tables(&pool.config)).await.map(drop)
}

/// Times that the tables are tried to be created where others do the same.
const MAX_TRIES: usize = 20;
