//! The removal of rows of locks that are no longer used, without a fence ever going back.
//!
//! Ground rules: the row of a lock is what keeps its fence. Before one is deleted, the base of all epochs
//! is raised to its epoch at least, so that any later grant has a greater one: on this cluster, on any that
//! takes over from it, and where its tables are restored. No clock is asked. A statement that sees the
//! database as it was before it had to wait would continue under the old base: where any session may begin
//! in such an isolation, rows stay.

use std::time::Duration;

use leasehold_backend::cell::Found;
use leasehold_backend::sql::signed;
use leasehold_core::{Effect, Failure, FailureKind, Resource};
use tokio_postgres::types::Type;

use crate::error::Refusal;
use crate::net::dial::{Sql, only, read};
use crate::net::pool::Pool;
use crate::sql::rows::{cell, named};
use crate::sql::statements::{AGE, NOW, epoch};

/// Reads rows, whether claims live in them or not.
pub(crate) async fn all(pool: &Pool, after: Option<&Resource>, limit: usize) -> Result<Vec<Found>, Failure> {
    let names = &pool.config.names;
    let text = format!(
        "SELECT c.name, c.claims, c.version, c.epoch, c.seq, {AGE}, {epoch}, {NOW}, \
         greatest((extract(epoch FROM clock_timestamp() - c.lapses)::float8 * 1000000::float8)::int8, 0::int8) \
         FROM {table} c WHERE c.name > $1 ORDER BY c.name LIMIT $2",
        epoch = epoch(names),
        table = names.table("")
    );
    let (after, limit) = (after.map_or("", Resource::as_str), i64::try_from(limit).unwrap_or(i64::MAX));
    let sql = Sql { name: "all", text, types: &[Type::TEXT, Type::INT8] };
    let rows = pool.query_retrying(&sql, &[&after, &limit]).await.map_err(Refusal::into_failure)?;
    let found = |row: &tokio_postgres::Row| {
        let idle = u64::try_from(read::<i64>(row, 8)?).unwrap_or_default();
        Ok(Found { at: named(row)?, cell: cell(row, 1)?, idle: Duration::from_micros(idle) })
    };
    rows.iter().map(found).collect()
}

/// Deletes those rows that are still what was found; how many. `None` where rows have to stay.
pub(crate) async fn forget(pool: &Pool, unused: &[&Found]) -> Result<Option<usize>, Failure> {
    let isolated = Sql { name: "isolated", text: ISOLATED.to_owned(), types: &[] };
    let rows = pool.query_retrying(&isolated, &[]).await.map_err(Refusal::into_failure)?;
    if read(&only(rows)?, 0)? {
        return Ok(None);
    }
    let highest = unused.iter().map(|found| signed(found.cell.fence.epoch)).max().unwrap_or_default();
    raise(pool, highest).await.map_err(|failure| explained(pool, failure))?;
    let names = &pool.config.names;
    let text = format!(
        "DELETE FROM {table} c USING unnest($1, $2) AS w (name, version) \
         WHERE c.name = w.name AND c.version = w.version AND c.lapses <= clock_timestamp() \
         AND c.epoch <= (SELECT epoch_base FROM {meta}) RETURNING true",
        table = names.table(""),
        meta = names.table("_meta")
    );
    let whose: Vec<&str> = unused.iter().map(|found| found.at.as_str()).collect();
    let versions: Vec<i64> = unused.iter().map(|found| signed(found.cell.version)).collect();
    let sql = Sql { name: "forget", text, types: &[Type::TEXT_ARRAY, Type::INT8_ARRAY] };
    let rows = pool.query_retrying(&sql, &[&whose, &versions]).await.map_err(Refusal::into_failure);
    Ok(Some(rows.map_err(|failure| explained(pool, failure))?.len()))
}

/// Raises the base, so that every grant from now on has a greater epoch than this.
///
/// Statements that began before may still grant under the old one: the table is locked against writers for
/// a moment, so that they have ended when this has. Writers queue behind this lock, so it is waited for
/// briefly, and again after a pause in which they get on.
async fn raise(pool: &Pool, highest: i64) -> Result<(), Failure> {
    let names = &pool.config.names;
    let (table, meta, epoch) = (names.table(""), names.table("_meta"), epoch(names));
    let base = Sql { name: "base", text: format!("SELECT epoch_base FROM {meta}"), types: &[] };
    let rows = pool.query_retrying(&base, &[]).await.map_err(Refusal::into_failure)?;
    if read::<i64>(&only(rows)?, 0)? >= highest {
        return Ok(());
    }
    let statements = format!(
        "SET LOCAL lock_timeout = {LOCK_WAIT}; LOCK TABLE {table} IN SHARE MODE; \
         UPDATE {meta} SET epoch_base = greatest({epoch}, {highest}::int8) WHERE epoch_base < {highest}::int8;"
    );
    for _ in 0..LOCK_TRIES {
        match pool.run_once(&statements).await {
            Err(Refusal::LostRace) => tokio::time::sleep(LOCK_PAUSE).await,
            answer => return answer.map_err(Refusal::into_failure),
        }
    }
    let text = format!(
        "a transaction that has written to {table} stays open, or VACUUM or ANALYZE works on it: end the transaction, \
         or wait for the other, then sweep again"
    );
    Err(Failure::unavailable(text))
}

/// Adds advice for a user that may not delete.
fn explained(pool: &Pool, failure: Failure) -> Failure {
    if failure.kind != FailureKind::Denied {
        return failure;
    }
    let (table, config) = (pool.config.names.table(""), &pool.config);
    let user = config.credentials.user.as_deref().unwrap_or_default().replace('"', "\"\"");
    let text = format!(
        "to sweep needs a right that locks do not need: GRANT DELETE ON {table} TO \"{user}\", or sweep as another user"
    );
    Failure::new(FailureKind::Denied, Effect::None, text).because(failure)
}

/// Milliseconds for which the lock of the table is waited for, how often, and the pause between: writers
/// wait for a tenth of the time at most.
const LOCK_WAIT: u32 = 100;
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(900);

/// The condition that a session may begin in another isolation than READ COMMITTED, by the settings of the
/// server or of a database or a role. What a session has set for itself does not count.
const ISOLATED: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_settings WHERE name = 'default_transaction_isolation' \
                        AND reset_val NOT IN ('read committed', 'read uncommitted')) \
                        OR EXISTS (SELECT FROM pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) AS one \
                        WHERE one ILIKE 'default_transaction_isolation=%' \
                        AND one NOT ILIKE '%=read committed' AND one NOT ILIKE '%=read uncommitted' \
                        AND s.setdatabase IN (0::oid, (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())))";
