//! The statements for advisory locks, and for the table that shows their holders.
//!
//! Ground rules: each statement that changes something does so only in a session of the right mark.

use tokio_postgres::types::Type;

use crate::backend::session::fences;
use crate::backend::session::holders::{AGAIN, ALIVE, CLAIM, evict, insert};
use crate::config::Names;
use crate::net::dial::Sql;

/// The statements for advisory locks.
#[derive(Debug)]
pub(super) struct Statements {
    /// Takes the lock for a mutex, a writer or all permits: `lock` of a session.
    pub(super) take_alone: Sql,
    /// Takes the lock for a first reader, and shows it: `lock` of a session.
    pub(super) take_shared: Sql,
    /// Adds a reader to those of the same session, which has the lock: `lock` of a session.
    pub(super) join: Sql,
    /// Gives a reader that was entered another fence: `lock` of a session.
    pub(super) renumber: Sql,
    /// Finds another name with the same key, where a lock is taken: `lock` of a session.
    pub(super) namesake: Sql,
    /// Ends what `take_alone` took and `show` showed: `unlock` of a session.
    free_alone: Sql,
    /// Ends what `take_shared` took: `unlock` of a session.
    free_shared: Sql,
    /// Ends what `take_alone` took, and was not shown: `unlock` of a session, and after a failure.
    put_back_alone: Sql,
    /// Ends what a `take_shared` that failed may have taken.
    put_back_shared: Sql,
    /// Reads the sessions that have a lock: `holders`, for inspections.
    pub(super) key_holders: Sql,
    /// Reads the locks of other clients that are held alone and not shown yet: `list`.
    pub(super) unshown: Sql,
    /// Ends the connection that holds a claim: `evict`, for `leasehold break`.
    pub(super) evict: Sql,
    /// Marks the server's session as ours, when a connection is opened.
    pub(super) mark: Sql,
    /// Checks the mark of the server's session: `ping`, by which locks are renewed.
    pub(super) is_ours: Sql,
}

impl Statements {
    pub(super) fn of(names: &Names) -> Statements {
        let held = names.table("_held");
        let key = |function: &str| {
            let free =
                format!("CASE WHEN $1 THEN pg_catalog.{function}($2) ELSE pg_catalog.{function}($3, $4) END");
            format!("CASE WHEN {} THEN {free} END", is_ours(5))
        };
        let free =
            |name, function: &str| Sql { name, text: free_with_row(&held, &key(function)), types: FREE };
        let put_back =
            |name, function: &str| Sql { name, text: format!("SELECT {}", key(function)), types: &FREE[..5] };
        let enter = |name, lock: &str| Sql { name, text: enter(names, lock), types: ENTER };
        let try_shared = "CASE WHEN $7 THEN pg_catalog.pg_try_advisory_lock_shared($8) \
                          ELSE pg_catalog.pg_try_advisory_lock_shared($9, $10) END";
        Statements {
            // The fence is drawn when the lock has been given: a CASE evaluates nothing in advance.
            take_alone: Sql {
                name: "take_alone",
                text: format!(
                    "SELECT CASE WHEN {} THEN CASE WHEN CASE WHEN $1 THEN pg_catalog.pg_try_advisory_lock($2) \
                     ELSE pg_catalog.pg_try_advisory_lock($3, $4) END THEN {} ELSE 0::int8 END END",
                    is_ours(5),
                    fences::next(names)
                ),
                types: &FREE[..5],
            },
            take_shared: enter("take_shared", try_shared),
            // The parameters are named so that the statement has as many as the other.
            join: enter("join", "$7 OR $8 = 0 OR $9 = 0 OR $10 = 0 OR true"),
            renumber: Sql {
                name: "renumber",
                text: format!("UPDATE {held} SET epoch = $2, seq = $3 WHERE claim = $1"),
                types: &[Type::TEXT, Type::INT8, Type::INT8],
            },
            namesake: Sql {
                name: "namesake",
                text: format!(
                    "SELECT h.name FROM {held} h WHERE h.lock_key = $1 AND h.name <> $2 AND {ALIVE} LIMIT 1"
                ),
                types: &[Type::TEXT, Type::TEXT],
            },
            free_alone: free("free_alone", "pg_advisory_unlock"),
            free_shared: free("free_shared", "pg_advisory_unlock_shared"),
            put_back_alone: put_back("put_back_alone", "pg_advisory_unlock"),
            put_back_shared: put_back("put_back_shared", "pg_advisory_unlock_shared"),
            key_holders: Sql {
                name: "key_holders",
                text: format!("{KEY_HOLDERS} AND {} ORDER BY k.pid LIMIT 100", is_of_key(1)),
                types: KEY,
            },
            unshown: Sql { name: "unshown", text: unshown(&held), types: &[] },
            evict: Sql {
                name: "evict",
                text: evict(
                    names,
                    &format!(
                        "EXISTS (SELECT FROM pg_catalog.pg_locks k WHERE k.pid = h.pid AND {})",
                        is_of_key(3)
                    ),
                ),
                types: &[Type::TEXT, Type::TEXT, Type::BOOL, Type::INT8, Type::INT4, Type::INT4],
            },
            mark: Sql {
                name: "mark_session",
                text: format!(
                    "SELECT set_config({MARK}, $1, false), pg_backend_pid() WHERE {CURRENT_MARK} = ''::text"
                ),
                types: &[Type::TEXT],
            },
            is_ours: Sql {
                name: "is_ours",
                text: format!("SELECT CASE WHEN {} THEN true END", is_ours(1)),
                types: &[Type::TEXT],
            },
        }
    }

    /// Returns the statement that gives a lock back, with its row or alone.
    pub(super) fn free(&self, exclusive: bool, with_row: bool) -> &Sql {
        match (exclusive, with_row) {
            (true, true) => &self.free_alone,
            (false, true) => &self.free_shared,
            (true, false) => &self.put_back_alone,
            (false, false) => &self.put_back_shared,
        }
    }
}

/// Returns the statement that removes the row of a claim, and then frees its lock by the expression. A lock is freed for
/// good, also by a statement that fails afterwards.
fn free_with_row(held: &str, free: &str) -> String {
    format!(
        "WITH gone AS (DELETE FROM {held} WHERE claim = $6 RETURNING claim) \
         SELECT {free} FROM (SELECT count(*) FROM gone) AS removed"
    )
}

/// Takes the lock of readers and enters the holder, in one round trip. The number of the fence is drawn for a
/// row that exists only after the lock is given.
fn enter(names: &Names, lock: &str) -> String {
    let held = names.table("_held");
    format!(
        "WITH l AS MATERIALIZED (SELECT CASE WHEN {is_ours} THEN {lock} END AS got), \
         put AS ({insert} SELECT {CLAIM}, current_setting('application_name'), pg_backend_pid(), $12, {next} \
         FROM l WHERE l.got {AGAIN} RETURNING seq) \
         SELECT seq FROM put UNION ALL SELECT CASE WHEN NOT l.got THEN 0::int8 END FROM l WHERE l.got IS NOT TRUE",
        is_ours = is_ours(11),
        insert = insert(&held),
        next = fences::next(names),
    )
}

/// Reads the locks that sessions of leasehold hold alone, and of which no row shows the holder. The key is
/// compared in the form in which rows have it.
fn unshown(held: &str) -> String {
    let signed = |half: &str| format!("(((k.{half}::int8 << 32) >> 32))::text");
    let (high, low) = (signed("classid"), signed("objid"));
    format!(
        "SELECT k.pid, CASE WHEN k.objsubid = 1 THEN (k.classid::int8 << 32 | k.objid::int8)::text \
         ELSE {high} || ',' || {low} END AS key \
         FROM pg_catalog.pg_locks k JOIN pg_catalog.pg_stat_activity a USING (pid) \
         WHERE a.application_name LIKE 'leasehold %' AND k.mode = 'ExclusiveLock' AND {IS_ADVISORY} \
         AND NOT EXISTS (SELECT FROM {held} h WHERE h.pid = k.pid AND h.session = a.application_name \
         AND h.lock_key = CASE WHEN k.objsubid = 1 THEN (k.classid::int8 << 32 | k.objid::int8)::text \
         ELSE {high} || ',' || {low} END)"
    )
}

/// Returns the condition that the session has the mark of this parameter.
fn is_ours(parameter: usize) -> String {
    format!("{CURRENT_MARK} = ${parameter}")
}

/// Returns the condition that a lock `k` of the server is held, and is of the key whose four parameters
/// begin with this one. PostgreSQL shows a key of one number as two halves.
fn is_of_key(first: usize) -> String {
    let [wide, one, high, low] = [first, first + 1, first + 2, first + 3];
    format!(
        "{IS_ADVISORY} AND CASE WHEN ${wide} \
         THEN k.objsubid = 1 AND (k.classid::int8 << 32 | k.objid::int8) = ${one} \
         ELSE k.objsubid = 2 AND k.classid::int8 = (${high}::int8 & 4294967295) \
         AND k.objid::int8 = (${low}::int8 & 4294967295) END"
    )
}

/// The parameters of a statement that takes a lock of readers: the entry, the key, the mark of the session,
/// and the epoch of its fences.
const ENTER: &[Type] = &[
    Type::TEXT,
    Type::TEXT,
    Type::TEXT,
    Type::INT8,
    Type::INT8,
    Type::TEXT,
    Type::BOOL,
    Type::INT8,
    Type::INT4,
    Type::INT4,
    Type::TEXT,
    Type::INT8,
];

/// The parameters of a statement that takes or releases a lock: the key, the mark of the session and, where
/// it has a row, the claim.
const FREE: &[Type] = &[Type::BOOL, Type::INT8, Type::INT4, Type::INT4, Type::TEXT, Type::TEXT];

/// The setting that marks a session. No server reports its changes, so no pooler carries it from one
/// session to another.
const MARK: &str = "'leasehold.session'::text";
const CURRENT_MARK: &str = "coalesce(current_setting('leasehold.session'::text, true), ''::text)";

const KEY: &[Type] = &[Type::BOOL, Type::INT8, Type::INT4, Type::INT4];

/// The processes that hold a key.
const KEY_HOLDERS: &str = "SELECT k.pid, k.mode, a.application_name, a.application_name LIKE 'leasehold %' \
                           FROM pg_catalog.pg_locks k JOIN pg_catalog.pg_stat_activity a USING (pid) WHERE true";

/// The condition that a lock `k` of the server is an advisory one of this database, and held.
const IS_ADVISORY: &str = "k.locktype = 'advisory' AND k.granted \
    AND k.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())";
