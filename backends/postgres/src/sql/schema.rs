//! The tables: the statements that create and check them, and the rights of a user that may not create
//! them.
//!
//! Ground rules: a change of the tables only adds, so that old and new clients run together; the table says
//! which is the oldest client that may still use it. Creating existing objects changes nothing.

use leasehold_backend::sql::too_new;
use leasehold_core::{Effect, Failure, FailureKind};
use tokio_postgres::Row;

use crate::config::{Create, Dialect, Method, Names, PostgresConfig, quoted};
use crate::error::Refusal;
use crate::net::dial::{Sql, only, read};
use crate::net::pool::Pool;
use crate::sql::home::{self, FENCE_COUNTER, last_table};
use crate::sql::statements::NOW;

/// The newest form of the tables that this client knows.
const FORM: i32 = 2;
/// The form of a table of leases. Older clients know no other.
const FORM_OF_ROWS: i32 = 1;

/// The columns of a table of cells. Rows are rewritten all the time, so half of each page is left for that.
const COLUMNS: &str = r#"
    name    text COLLATE "C" PRIMARY KEY,
    claims  text NOT NULL,
    version bigint NOT NULL,
    epoch   bigint NOT NULL,
    seq     bigint NOT NULL,
    origin  timestamptz NOT NULL,
    lapses  timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.2"#;

/// Returns the statements that create the tables, for databases whose programs may not do it. Running them
/// again changes nothing.
pub fn schema(config: &PostgresConfig) -> String {
    if config.dialect == Dialect::ShedLock {
        return shedlock_table(config);
    }
    let meta = config.names.table("_meta");
    let create_schema = create_schema(&config.names);
    let tables = match config.method {
        Method::Row => cells(&config.names),
        Method::Advisory => holders(&config.names) + &advisory(&config.names),
        Method::ForUpdate => holders(&config.names) + &rows(&config.names),
    };
    // Clients of form 1 draw the fences of advisory locks from another counter.
    let form = match config.method {
        Method::Row | Method::ForUpdate => String::new(),
        Method::Advisory => format!(
            "UPDATE {meta} SET form = greatest(form, {FORM}), oldest_client = {FORM} WHERE oldest_client < {FORM};\n"
        ),
    };
    // By the clock, epochs begin above those of tables that were lost, also where a sweep or a move to another cluster
    // had raised those.
    format!(
        r#"{create_schema}{tables}CREATE TABLE IF NOT EXISTS {meta} (
    one               boolean PRIMARY KEY DEFAULT true CHECK (one),
    form              integer NOT NULL,
    oldest_client     integer NOT NULL,
    system_identifier text NOT NULL,
    epoch_base        bigint NOT NULL
);
INSERT INTO {meta} (form, oldest_client, system_identifier, epoch_base)
    VALUES ({FORM_OF_ROWS}, {FORM_OF_ROWS}, (SELECT system_identifier::text FROM pg_control_system()), {NOW})
    ON CONFLICT DO NOTHING;
{form}"#
    )
}

/// Returns the statement that creates the schema, if the configuration names one.
fn create_schema(names: &Names) -> String {
    match names.schema() {
        Some(schema) if names.is_schema_named() => {
            format!("CREATE SCHEMA IF NOT EXISTS {};\n", quoted(schema))
        }
        _ => String::new(),
    }
}

/// Returns the statements that create the table, as ShedLock's documentation has it but with room for every
/// name and holder of leasehold. Running them again changes nothing.
pub(crate) fn shedlock_table(config: &PostgresConfig) -> String {
    let create_schema = create_schema(&config.names);
    format!(
        "{create_schema}CREATE TABLE IF NOT EXISTS {} (
    name       varchar(512) NOT NULL PRIMARY KEY,
    lock_until timestamp NOT NULL,
    locked_at  timestamp NOT NULL,
    locked_by  varchar(2048) NOT NULL
);\n",
        config.names.table("")
    )
}

/// Returns the tables of cells: leases, and values that are not locks.
fn cells(names: &Names) -> String {
    let (table, registers) = (names.table(""), names.table("_registers"));
    format!(
        r#"CREATE TABLE IF NOT EXISTS {table} ({COLUMNS});
COMMENT ON TABLE {table} IS 'Locks of leasehold. A row outlives its locks: epoch and seq are the fence that must not go back.';
CREATE TABLE IF NOT EXISTS {registers} ({COLUMNS});
COMMENT ON TABLE {registers} IS 'Values of leasehold that are no locks. A row without claims is an empty one.';
{view}"#,
        view = view(names)
    )
}

/// Returns the view for people: a row for each claim that holds or waits. Ids are left out, since anyone
/// who knows one can end the claim.
///
/// The form of the text is that of the ledger: an id, weight and capacity, the fence or `-`, end and
/// beginning in nanoseconds, where 10^18 is the row's origin, and the note. A fence of zeros is the one
/// beside the text.
fn view(names: &Names) -> String {
    let (table, view) = (names.table(""), names.table("_locks"));
    let moment = |part: usize| {
        format!(
            "c.origin + ((p[{part}]::numeric - 1000000000000000000::numeric) / 1000::numeric)::float8 * interval '1 microsecond'"
        )
    };
    let (expires, since) = (moment(4), moment(5));
    format!(
        r#"CREATE OR REPLACE VIEW {view} AS
SELECT c.name AS resource,
       CASE p[3] WHEN '-' THEN 'waits' ELSE 'holds' END AS state,
       replace(p[6], '%25', '%') AS note,
       {since} AS since,
       {expires} AS expires,
       CASE WHEN p[3] = '-' THEN NULL WHEN p[3] <> repeat('0', 20) THEN p[3]
            WHEN c.epoch = 0 THEN lpad(c.seq::text, 20, '0')
            ELSE 'e' || lpad(c.epoch::text, 20, '0') || '.' || lpad(c.seq::text, 20, '0') END AS fence,
       p[1]::bigint AS weight,
       p[2]::bigint AS capacity
  FROM {table} c
 CROSS JOIN LATERAL regexp_split_to_table(c.claims, E'\n') WITH ORDINALITY AS l (line, place)
 CROSS JOIN LATERAL regexp_match(l.line, '^[0-9a-f]{{32}} (\d+) (\d+) (\S+) (\d+) (\d+) (.*)$') AS m (p)
 WHERE c.lapses > clock_timestamp() AND l.place > 3 AND {expires} > clock_timestamp()
 ORDER BY c.name, l.place;
COMMENT ON VIEW {view} IS 'Who holds or awaits which lock of leasehold, for people. Its form may change.';
"#
    )
}

/// Returns the table of the holders of a connection's locks, and the counter of fences. It begins at the
/// server's time, so that fences rise even after the loss of the table.
fn holders(names: &Names) -> String {
    let (held, fence, fence_text) = (names.table("_held"), names.table("_fence"), names.text("_fence"));
    let index = |column: &str| names.bare(&format!("_held_{column}"));
    format!(
        r#"CREATE TABLE IF NOT EXISTS {held} (
    claim    text PRIMARY KEY,
    name     text COLLATE "C" NOT NULL,
    lock_key text NOT NULL,
    weight   bigint NOT NULL,
    capacity bigint NOT NULL,
    note     text NOT NULL,
    session  text NOT NULL,
    pid      integer NOT NULL,
    epoch    bigint NOT NULL,
    seq      bigint NOT NULL,
    since    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX IF NOT EXISTS "{by_name}" ON {held} (name);
CREATE INDEX IF NOT EXISTS "{by_key}" ON {held} (lock_key);
COMMENT ON TABLE {held} IS 'Who holds which lock of leasehold. A row counts only while its session is there.';
CREATE SEQUENCE IF NOT EXISTS {fence} AS bigint;
SELECT setval({fence_text}::regclass, {NOW}) FROM {fence} WHERE NOT is_called;
"#,
        by_name = index("name"),
        by_key = index("key")
    )
}

/// Returns the counter of the fences of advisory locks, and the bound within which it may be used.
fn advisory(names: &Names) -> String {
    let (blocks, counter) = (names.table(FENCE_BLOCKS), names.table(FENCE_COUNTER));
    format!(
        r#"CREATE TABLE IF NOT EXISTS {blocks} (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    last  bigint NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE {blocks} IS 'The last fence that clients may give for advisory locks. It is raised before they do.';
CREATE SEQUENCE IF NOT EXISTS {counter} AS bigint;
"#
    )
}

/// Returns the rows that transactions lock.
fn rows(names: &Names) -> String {
    let rows = names.table("_rows");
    format!(
        r#"CREATE TABLE IF NOT EXISTS {rows} (
    name text COLLATE "C" PRIMARY KEY
) WITH (fillfactor = 50);
COMMENT ON TABLE {rows} IS 'Rows that transactions lock for leasehold. One may be deleted while nobody locks it.';
"#
    )
}

/// Statements that let the user of the URL do what is needed, and nothing else, once the tables are there.
pub fn grants(config: &PostgresConfig) -> String {
    grants_to(config, config.credentials.user.as_deref().unwrap_or_default())
}

/// Returns the grants for another user than that of the URL, as [`grants`] does.
pub(crate) fn grants_to(config: &PostgresConfig, user: &str) -> String {
    let user = user.replace('"', "\"\"");
    let usage = match config.names.schema() {
        Some(schema) => format!("GRANT USAGE ON SCHEMA {} TO \"{user}\";\n", quoted(schema)),
        None => String::new(),
    };
    let table = |ending: &str| config.names.table(ending);
    let holders = || {
        let (held, fence) = (table("_held"), table("_fence"));
        format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON {held} TO \"{user}\";\n\
             GRANT SELECT, USAGE, UPDATE ON SEQUENCE {fence} TO \"{user}\";\n"
        )
    };
    let on_rows = |table: String| format!("GRANT SELECT, INSERT, UPDATE ON {table} TO \"{user}\";\n");
    if config.dialect == Dialect::ShedLock {
        return usage + &on_rows(table(""));
    }
    let tables = match config.method {
        Method::Row => on_rows(table("")) + &on_rows(table("_registers")),
        Method::Advisory => {
            let (blocks, counter) = (table(FENCE_BLOCKS), table(FENCE_COUNTER));
            let on_counter = format!("GRANT SELECT, USAGE, UPDATE ON SEQUENCE {counter} TO \"{user}\";\n");
            holders() + &on_rows(blocks) + &on_counter
        }
        Method::ForUpdate => holders() + &on_rows(table("_rows")),
    };
    format!("{usage}{tables}GRANT SELECT, UPDATE ON {} TO \"{user}\";\n", table("_meta"))
}

/// Sees to it that the tables are there, and are such that this client may use them.
pub(crate) async fn ensure(pool: &Pool) -> Result<(), Failure> {
    let found = match Form::ask(pool).await {
        Err(Refusal::NoTable(failure)) => {
            home::check_alone(pool).await?;
            if pool.config.sql.create == Create::No {
                return Err(failure);
            }
            create(pool, &schema(&pool.config)).await?;
            Form::ask(pool).await
        }
        found => found,
    };
    let form = found.map_err(Refusal::into_failure)?;
    form.check(&pool.config.names)?;
    if form.is_moved { settle_in(pool).await } else { Ok(()) }
}

/// Creates what is missing of the tables: they are lost, or were made by a client that knew fewer of them.
pub(crate) async fn restore(pool: &Pool) -> Result<(), Failure> {
    create(pool, &schema(&pool.config)).await?;
    ensure(pool).await
}

/// The form of the tables that are there.
pub(crate) struct Form {
    oldest_client: i32,
    /// `true` if the tables came from another cluster.
    is_moved: bool,
    /// `true` if they are there, in one schema.
    has_all_tables: bool,
}

impl Form {
    /// The columns of the question.
    pub(crate) const COLUMNS: usize = 3;

    /// Returns a query for one row.
    pub(crate) fn question(config: &PostgresConfig) -> String {
        format!(
            "SELECT oldest_client, system_identifier <> (SELECT system_identifier::text FROM pg_control_system()), \
             EXISTS (SELECT FROM pg_catalog.pg_class l JOIN pg_catalog.pg_class m ON m.relnamespace = l.relnamespace \
             WHERE l.oid = to_regclass({}::text)::oid AND m.oid = to_regclass({}::text)::oid) FROM {}",
            config.names.text(last_table(config)),
            config.names.text("_meta"),
            config.names.table("_meta")
        )
    }

    /// Reads the answer to the question, from the column `at` on.
    pub(crate) fn read(row: &Row, at: usize) -> Result<Form, Failure> {
        let (oldest_client, is_moved) = (read(row, at)?, read(row, at + 1)?);
        Ok(Form { oldest_client, is_moved, has_all_tables: read(row, at + 2)? })
    }

    /// Returns `true` if nothing need be done before the tables are used.
    pub(crate) fn is_settled(&self) -> bool {
        self.oldest_client <= FORM && !self.is_moved && self.has_all_tables
    }

    async fn ask(pool: &Pool) -> Result<Form, Refusal> {
        let text = Form::question(&pool.config);
        let rows = pool.query_retrying(&Sql { name: "form", text, types: &[] }, &[]).await?;
        let form = only(rows).and_then(|row| Form::read(&row, 0)).map_err(Refusal::Failed)?;
        if form.has_all_tables {
            return Ok(form);
        }
        // Another method has made its own tables.
        Err(Refusal::NoTable(Failure::new(
            FailureKind::Unsupported,
            Effect::None,
            "a table is missing; create what `leasehold schema --store` prints",
        )))
    }

    fn check(&self, names: &Names) -> Result<(), Failure> {
        if self.oldest_client > FORM { Err(too_new(&names.table(""))) } else { Ok(()) }
    }
}

/// Creates the tables. Of several clients that do it at once, one after the other does.
pub(crate) async fn create(pool: &Pool, schema: &str) -> Result<(), Failure> {
    let statements = format!("SELECT pg_advisory_xact_lock({CREATING});\n{schema}");
    pool.run(&statements).await.map_err(Refusal::into_failure)
}

/// Settles tables that were dumped in one cluster and restored in this one, whose timeline begins at 1
/// again. Epochs continue above all that were ever used: those in the tables, and by the clock those that
/// were given after the dump.
async fn settle_in(pool: &Pool) -> Result<(), Failure> {
    let names = &pool.config.names;
    let (leases, held, meta) = (names.table(""), names.table("_held"), names.table("_meta"));
    let blocks = names.table(FENCE_BLOCKS);
    tracing::warn!(
        meta,
        "the tables are from another PostgreSQL cluster: fences continue above the old ones"
    );
    // The method that comes first settles in for all.
    let text = format!(
        "SELECT to_regclass({}::text) IS NOT NULL, to_regclass({}::text) IS NOT NULL, \
         to_regclass({}::text) IS NOT NULL",
        names.text(""),
        names.text("_held"),
        names.text(FENCE_BLOCKS)
    );
    let found = pool.query_retrying(&Sql { name: "tables", text, types: &[] }, &[]).await;
    let row = only(found.map_err(Refusal::into_failure)?)?;
    let mut last = format!("greatest(epoch_base, {NOW})");
    for (at, table) in [leases, held, blocks].into_iter().enumerate() {
        if read::<bool>(&row, at)? {
            last = format!("greatest({last}, (SELECT coalesce(max(epoch), 0::int8) FROM {table}))");
        }
    }
    let statements = format!(
        "SELECT pg_advisory_xact_lock({CREATING});\n\
         UPDATE {meta} SET epoch_base = {last}, \
         system_identifier = (SELECT system_identifier::text FROM pg_control_system()) \
         WHERE system_identifier <> (SELECT system_identifier::text FROM pg_control_system());\n"
    );
    pool.run(&statements).await.map_err(Refusal::into_failure)
}

/// The table of the bound of the fences of advisory locks.
pub(crate) const FENCE_BLOCKS: &str = "_advisory_fences";

/// The advisory lock under which tables are created: "leasehold" in letters of a byte each, cut.
pub(crate) const CREATING: i64 = 0x6c65_6173_6568_6f6c;
