//! A lock inside the user's own transaction: it ends with the transaction, and what it protects is written
//! by the same commit.
//!
//! Ground rules: the lock is the one of `method=for-update`, so both exclude each other.

use crate::config::MySqlConfig;
use crate::sql::schema::ROWS;

/// Returns the statement that takes the lock of `method=for-update` inside a transaction, for any client of
/// MySQL or MariaDB.
///
/// Its one parameter `?` is the name of the resource. It answers no row, and waits until the lock is to be
/// had; `innodb_lock_wait_timeout` bounds the wait. Let it be the first statement of the transaction, or
/// let that be `READ COMMITTED`: a `REPEATABLE READ` that has begun to read before continues to see the
/// data as they were then.
///
/// # Promises
/// - Commit and rollback release the lock, and nothing else does: what the transaction writes under it
///   becomes visible in the same instant in which the lock becomes free.
/// - It excludes any client that holds the resource by `method=for-update`, in the tables that `config`
///   names.
///
/// # Does not promise
/// - Anything between servers that decide together, by Galera or group replication: a row that is locked on
///   one is free on the others. Two transactions then both have the lock, and both commit unless they
///   change the same row. There let all clients of such locks use one server.
/// - A fence: these servers have no counter that both have and that a rollback spares. What is in the same
///   database needs none.
/// - `leasehold show` does not see it: what the transaction has written is not visible to others.
/// - A transaction that is left open is ended by nobody, unless the server's `wait_timeout` says so.
///
/// # Errors
/// Error 1205 (the wait was too long) and error 1213 (a deadlock) are for the transaction to be rolled
/// back, and tried again. Error 1146 says that the tables are missing: `leasehold schema` prints what
/// creates them.
pub fn in_transaction_sql(config: &MySqlConfig) -> String {
    // The assignment changes nothing, and locks the row all the same.
    format!("INSERT INTO {} (name) VALUES (?) ON DUPLICATE KEY UPDATE name = name", config.names.table(ROWS))
}
