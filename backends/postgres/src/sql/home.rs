//! The schema of the tables, where the URL names none.
//!
//! Ground rules: it is found once, by the search path of the first session, and every later statement names it. So
//! neither a session with another path nor a later change of the path leads to tables elsewhere.

use std::sync::Arc;

use leasehold_core::{Effect, Failure, FailureKind};
use tokio_postgres::Row;

use crate::config::{Dialect, Method, PostgresConfig, quoted};
use crate::error::Refusal;
use crate::net::dial::{Sql, only, read};
use crate::net::pool::Pool;

/// The schema that the search path of a session leads to.
pub(crate) struct Home {
    schema: Option<String>,
    /// `true` if it is the path with which the session began.
    is_unchanged: bool,
}

impl Home {
    /// The columns of the question.
    pub(crate) const COLUMNS: usize = 2;

    /// Returns a query for one row: the schema of the table that decides, of the other tables where that one is
    /// missing, and where they would be made.
    pub(crate) fn question(config: &PostgresConfig) -> String {
        let names = &config.names;
        if names.schema().is_some() {
            return "SELECT NULL::text, true".to_owned();
        }
        let schema_of = |table: String| {
            format!(
                "(SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE c.oid = to_regclass({table}::text)::oid)"
            )
        };
        format!(
            "SELECT coalesce({}, {}, pg_catalog.current_schema())::text, \
             (SELECT replace(setting, ' '::text, ''::text) = replace(reset_val, ' '::text, ''::text) \
             FROM pg_catalog.pg_settings WHERE name = 'search_path'::text)",
            schema_of(names.text(last_table(config))),
            schema_of(names.text(first_table(config)))
        )
    }

    /// Reads the answer to the question, from the column `at` on.
    pub(crate) fn read(row: &Row, at: usize) -> Result<Home, Failure> {
        Ok(Home { schema: read(row, at)?, is_unchanged: read(row, at + 1)? })
    }

    pub(crate) async fn ask(pool: &Pool) -> Result<Home, Failure> {
        let question = Sql { name: "home", text: Home::question(&pool.config), types: &[] };
        let rows = pool.query_retrying(&question, &[]).await.map_err(Refusal::into_failure)?;
        Home::read(&only(rows)?, 0)
    }

    /// Names the schema in the configuration.
    ///
    /// # Errors
    /// `Unsupported` where the path is not that of the client's own user, because a pooler gave it the session of
    /// another program.
    pub(crate) fn settle(self, config: &Arc<PostgresConfig>) -> Result<Arc<PostgresConfig>, Failure> {
        if config.names.schema().is_some() {
            return Ok(config.clone());
        }
        if !self.is_unchanged {
            return Err(unsupported(
                "the search path of this session was changed after its login, as by another program of a pooler: name schema= in the \
                 URL",
            ));
        }
        let missing = || unsupported("the search path leads to no schema: name schema= in the URL");
        Ok(Arc::new(config.in_schema(self.schema.ok_or_else(missing)?)))
    }
}

/// Checks that tables may be made in the schema that the search path leads to: that this user has none elsewhere,
/// whose locks would be held beside those of the new ones.
pub(crate) async fn check_alone(pool: &Pool) -> Result<(), Failure> {
    let names = &pool.config.names;
    let Some(home) = names.schema().filter(|_| !names.is_schema_named()) else { return Ok(()) };
    let found = schemas(pool).await?;
    let others: Vec<String> =
        found.iter().filter(|found| found.is_usable).map(|found| quoted(&found.name)).collect();
    if others.is_empty() || found.iter().any(|found| found.name == home) {
        return Ok(());
    }
    Err(unsupported(&format!(
        "the search path leads to schema {}, which has no tables of this name, while {} has: name schema= in the URL",
        quoted(home),
        others.join(", ")
    )))
}

/// A schema that has tables of the name that is asked for.
pub(crate) struct Found {
    pub(crate) name: String,
    /// `true` if this user may hold locks there.
    is_usable: bool,
}

/// Finds all schemas of the database that have tables of this name.
pub(crate) async fn schemas(pool: &Pool) -> Result<Vec<Found>, Failure> {
    let text = format!(
        "SELECT n.nspname::text, has_schema_privilege(n.oid, 'USAGE'::text) AND has_table_privilege(c.oid, 'UPDATE'::text) \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relname = '{}'::name AND c.relpersistence <> 't'::\"char\" ORDER BY n.nspname",
        pool.config.names.bare(first_table(&pool.config))
    );
    let rows = pool.query_retrying(&Sql { name: "schemas", text, types: &[] }, &[]).await;
    let rows = rows.map_err(Refusal::into_failure)?;
    rows.iter().map(|row| Ok(Found { name: read(row, 0)?, is_usable: read(row, 1)? })).collect()
}

/// Returns the ending of the table that is made last, which is the one that decides.
pub(crate) fn last_table(config: &PostgresConfig) -> &'static str {
    match config.method {
        Method::Row => "",
        Method::Advisory => FENCE_COUNTER,
        Method::ForUpdate => "_rows",
    }
}

/// Returns the ending of the table that all methods have.
fn first_table(config: &PostgresConfig) -> &'static str {
    match config.dialect {
        Dialect::Native => "_meta",
        Dialect::ShedLock => "",
    }
}

fn unsupported(text: &str) -> Failure {
    Failure::new(FailureKind::Unsupported, Effect::None, text.to_owned())
}

/// The counter of the fences of advisory locks.
pub(crate) const FENCE_COUNTER: &str = "_advisory_fence";
