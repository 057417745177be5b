//! A lock inside the user's own transaction: it ends with the transaction, and what it protects is written
//! by the same commit.
//!
//! Ground rules: the lock is the one of `method=for-update`, so both exclude each other.

use leasehold_core::{Effect, Failure, FailureKind, Fence, Resource};
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use super::holders::drawn;
use crate::config::PostgresConfig;
use crate::error::Refusal;
use crate::net::dial::{only, read};
use crate::sql::rows::fence;

/// Returns the statement that takes the lock of `method=for-update` inside a transaction, for any client of
/// PostgreSQL.
///
/// Its one parameter `$1` is the name of the resource, as text. It answers one row with the two numbers of
/// the fence, `epoch` and `seq`, and the `isolation` of the transaction, as `SHOW transaction_isolation` prints it.
/// It waits until the lock is free; `SET LOCAL lock_timeout` bounds the wait. The lock ends with the transaction, or
/// with a rollback to a savepoint before it.
///
/// Use it in a transaction that is `READ COMMITTED` (or `READ UNCOMMITTED`, which PostgreSQL treats alike). A stricter
/// one sees the data as they were when this statement began, so it can miss what the last holder has written.
///
/// The tables must be there: `leasehold schema` prints what creates them. Where the URL names no schema, they are
/// those of the search path of the session, which must be the path of the clients, too.
pub fn in_transaction_sql(config: &PostgresConfig) -> String {
    // What is drawn for the answer is drawn when the row is locked.
    let (rows, drawn) = (config.names.table("_rows"), drawn(&config.names, "locked.name IS NOT NULL"));
    format!(
        "WITH locked AS MATERIALIZED (INSERT INTO {rows} AS r (name) VALUES ($1) \
         ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING r.name) \
         SELECT f.epoch, f.seq, current_setting('transaction_isolation') AS isolation \
         FROM locked, LATERAL (SELECT {drawn} WHERE locked.name IS NOT NULL) AS f (epoch, seq)"
    )
}

/// Takes the lock of `method=for-update` inside a transaction of the user's own, and waits until it is free.
///
/// This is the way out to a type of `tokio-postgres`, for users of that client; [`in_transaction_sql`]
/// serves every other.
///
/// # Promises
/// - Commit and rollback release the lock, and nothing else does: what the transaction writes under it
///   becomes visible in the same instant in which the lock becomes free. No lease can run out in between,
///   and no fence need be checked for what is in the same database.
/// - It excludes any client that holds the resource by `method=for-update`, in the tables that `config`
///   names, with its schema.
///
/// # Does not promise
/// - `leasehold show` does not see it: what the transaction has written is not visible to others.
/// - A transaction that is left open is ended by nobody, unless the server's
///   `idle_in_transaction_session_timeout` says so.
///
/// # Cancel safety
/// Dropping the future leaves the statement waiting: roll the transaction back, or close its connection.
///
/// # Errors
/// `Unsupported` where the tables are missing, and in a transaction that is stricter than `READ COMMITTED`: it would
/// not see what the last holder has written. Roll that transaction back. `Unavailable` where the server ended the
/// statement: by `lock_timeout`, by a deadlock, or by a serialization failure, where the transaction is stricter. The
/// transaction must be rolled back, and may be tried again.
pub async fn in_transaction(
    transaction: &Transaction<'_>,
    config: &PostgresConfig,
    resource: &Resource,
) -> Result<Fence, Failure> {
    let (sql, name) = (in_transaction_sql(config), resource.as_str());
    let answer = transaction.query_typed(&sql, &[(&name, Type::TEXT)]).await;
    let rows = answer.map_err(|error| Refusal::of(error).into_failure())?;
    let row = only(rows)?;
    let isolation: String = read(&row, 2)?;
    if !SEES_THE_LAST_HOLDER.contains(&isolation.as_str()) {
        let text = format!(
            "the transaction is {}: it does not see what the last holder of the lock has written; roll it back, and \
             begin it with ISOLATION LEVEL READ COMMITTED",
            isolation.to_uppercase()
        );
        return Err(Failure::new(FailureKind::Unsupported, Effect::Unknown, text));
    }
    fence(&row, 0)
}

/// The isolations in which each statement sees what was committed before it began.
const SEES_THE_LAST_HOLDER: [&str; 2] = ["read committed", "read uncommitted"];
