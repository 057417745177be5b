//! Settings of the server that help or harm leases in a table.

use std::time::Duration;

use leasehold_backend::cell::server_clock_finding;
use leasehold_backend::session::break_finding;
use leasehold_backend::sql::{Rights, privileges_finding, unexamined_finding, unsigned, user_for_locks};
use leasehold_core::{Failure, FenceGrade, Finding, Severity};

use crate::config::{Method, quoted};
use crate::error::Refusal;
use crate::net::dial::{Sql, only, read};
use crate::net::pool::Pool;
use crate::net::server::{Server, SessionPath};
use crate::sql::home;
use crate::sql::schema::grants_to;

/// Looks at everything; nothing is changed.
pub(crate) async fn diagnose(pool: &Pool, server: &Server, ttl: Duration) -> Vec<Finding> {
    let mut findings = vec![durability(server), sessions(server), schemas(pool).await];
    match Facts::read(pool).await {
        Ok(facts) => findings.extend([
            isolation(&facts),
            privileges(pool, &facts),
            bloat(pool, &facts),
            server_clock_finding(facts.from_the_future, ttl),
        ]),
        Err(text) => {
            findings.push(unexamined_finding(text, "isolation level, privileges, table and clock"));
        }
    }
    findings
}

/// The facts that can change while a connection lasts.
struct Facts {
    isolation: String,
    is_superuser: bool,
    may_create: bool,
    rows: i64,
    dead_rows: i64,
    bytes: i64,
    /// The number of cells with their origin in what is the future now.
    from_the_future: u64,
}

impl Facts {
    async fn read(pool: &Pool) -> Result<Facts, String> {
        let (table, relation) = (pool.config.names.table(""), pool.config.names.text(""));
        let text = format!(
            "SELECT current_setting('default_transaction_isolation'), \
             coalesce((SELECT rolsuper FROM pg_roles WHERE rolname = current_user), false), \
             has_schema_privilege(current_user, (SELECT relnamespace FROM pg_class WHERE oid = r.relid), 'CREATE'::text), \
             r.n_live_tup, r.n_dead_tup, pg_total_relation_size(r.relid::regclass), \
             (SELECT count(*) FROM {table} WHERE origin > clock_timestamp() + interval '1 second') \
             FROM pg_stat_all_tables r WHERE r.relid = {relation}::regclass::oid"
        );
        let rows = pool.query_retrying(&Sql { name: "diagnose", text, types: &[] }, &[]).await;
        let rows = rows.map_err(|refusal| refusal.into_failure().to_string())?;
        let row = rows.first().ok_or("the table is not in the statistics")?;
        let facts = || {
            Ok(Facts {
                isolation: read(row, 0)?,
                is_superuser: read(row, 1)?,
                may_create: read(row, 2)?,
                rows: read(row, 3)?,
                dead_rows: read(row, 4)?,
                bytes: read(row, 5)?,
                from_the_future: unsigned(read(row, 6)?),
            })
        };
        facts().map_err(|failure: leasehold_core::Failure| failure.to_string())
    }
}

/// Returns the findings about locks that a connection holds.
pub(crate) async fn of_sessions(server: &Server, pool: &Pool) -> Vec<Finding> {
    let may_break = break_finding(may_break(pool).await, ALL_USERS, HOW_TO_GRANT);
    vec![durability(server), sessions(server), schemas(pool).await, may_break]
}

/// Returns how many connections the server has, where it says so.
pub(crate) async fn connections(pool: &Pool) -> Option<u64> {
    let text = "SELECT pg_catalog.current_setting('max_connections')::int8";
    let query = Sql { name: "connections", text: text.to_owned(), types: &[] };
    let rows = pool.query_retrying(&query, &[]).await.ok()?;
    u64::try_from(read::<i64>(&only(rows).ok()?, 0).ok()?).ok()
}

/// Checks whether this user may end the connections of others.
async fn may_break(pool: &Pool) -> Result<bool, Failure> {
    let text = "SELECT r.rolsuper OR pg_catalog.pg_has_role(current_user, 'pg_signal_backend', 'USAGE') \
                FROM pg_catalog.pg_roles r WHERE r.rolname = current_user";
    let query = Sql { name: "may_break", text: text.to_owned(), types: &[] };
    let rows = pool.query_retrying(&query, &[]).await.map_err(Refusal::into_failure)?;
    read(&only(rows)?, 0)
}

pub(crate) fn durability(server: &Server) -> Finding {
    let Server { version, fsync, synchronous_commit, synchronous_standby_names, .. } = server;
    let found = format!(
        "PostgreSQL {version}, fsync {}, synchronous_commit {synchronous_commit}, {} standbys ({} not waited for), {} away, \
         synchronous_standby_names {synchronous_standby_names:?}",
        if *fsync { "on" } else { "off" },
        server.standbys,
        server.unawaited,
        server.away
    );
    match server.grade() {
        FenceGrade::Strict => Finding::new("durability", Severity::Good, found)
            .meaning("what was confirmed survives a crash, and a failover where there are standbys"),
        FenceGrade::AcrossFailover => Finding::new("durability", Severity::Notice, found)
            .meaning(
                "a failover may forget the last grants: two may hold for a while, and their fences differ",
            )
            .advice(
                "where that must not happen, set synchronous_commit to on, name all standbys in synchronous_standby_names and ask \
                 for as many (FIRST 2 (a, b)), drop slots of standbys that are gone, and GRANT pg_monitor TO the user of the URL, \
                 which does not see otherwise which standbys are waited for",
            ),
        _ => Finding::new("durability", Severity::Risk, found)
            .meaning("a crash of the server's machine may forget grants and take fences back")
            .advice("set fsync and synchronous_commit to on, at least for the user of the locks"),
    }
}

/// The meaning of a server without a pooler that shares sessions, for locks in rows and for those of a connection.
const OWN_SESSIONS: &str = "notifications arrive, and what a session holds is its client's alone";

fn sessions(server: &Server) -> Finding {
    let (severity, found, meaning) = match server.sessions {
        SessionPath::Direct => (Severity::Good, "nothing is between client and server", OWN_SESSIONS),
        SessionPath::Kept => (
            Severity::Good,
            "something between client and server keeps a session for each connection",
            OWN_SESSIONS,
        ),
        SessionPath::Shared => (
            Severity::Notice,
            "a pooler shares the server's sessions among its clients",
            "leases in rows work; waiters poll, and advisory locks are impossible",
        ),
    };
    let advice = match server.sessions {
        SessionPath::Shared => {
            "connect to the server itself, or a pool in session mode, for quicker hand-overs"
        }
        _ => "",
    };
    Finding::new("pooler", severity, found).meaning(meaning).advice(advice)
}

/// Returns the finding about tables of the same name in several schemas.
pub(crate) async fn schemas(pool: &Pool) -> Finding {
    let found = match home::schemas(pool).await {
        Ok(found) => found,
        Err(failure) => return unexamined_finding(failure.to_string(), "schemas"),
    };
    let ours = quoted(pool.config.names.schema().unwrap_or_default());
    let others: Vec<String> =
        found.iter().map(|found| quoted(&found.name)).filter(|name| *name != ours).collect();
    if others.is_empty() {
        return Finding::new("schema", Severity::Good, format!("the tables are in schema {ours} alone"))
            .meaning("all clients of this database use the same tables");
    }
    let found =
        format!("the tables are in schema {ours}, and {} has tables of this name, too", others.join(", "));
    Finding::new("schema", Severity::Notice, found)
        .meaning(match pool.config.method {
            Method::Advisory => "locks of all of them exclude each other; fences of two cannot be compared",
            _ => "each is a store of its own: two clients hold one lock if their search paths differ",
        })
        .advice("name schema= in the URL of every client, and drop the tables that none uses")
}

fn isolation(facts: &Facts) -> Finding {
    let found = format!("default_transaction_isolation is {:?}", facts.isolation);
    match facts.isolation.as_str() {
        "read committed" => Finding::new("isolation", Severity::Good, found)
            .meaning("a statement that comes second sees what the first one did"),
        _ => Finding::new("isolation", Severity::Notice, found)
            .meaning("a statement that comes second fails and is run again: slower where many want one lock")
            .advice(
                "ALTER ROLE … SET default_transaction_isolation = 'read committed' for the user of the locks",
            ),
    }
}

fn privileges(pool: &Pool, facts: &Facts) -> Finding {
    let config = &pool.config;
    let user = config.credentials.user.as_deref().unwrap_or_default();
    let rights = match (facts.is_superuser, facts.may_create) {
        (true, _) => Rights::Everything,
        (_, true) => Rights::Create,
        _ => Rights::Rows,
    };
    let needed = grants_to(config, user_for_locks(user, rights));
    privileges_finding(user, rights, CREATE_USER, &needed, "")
}

fn bloat(pool: &Pool, facts: &Facts) -> Finding {
    let table = pool.config.names.table("");
    let found = format!(
        "{table} has {} rows and {} dead ones in {} KiB",
        facts.rows,
        facts.dead_rows,
        facts.bytes / 1024
    );
    if facts.dead_rows > MANY_DEAD && facts.dead_rows > 10 * facts.rows {
        return Finding::new("table", Severity::Risk, found)
            .meaning("every acquire and release reads past dead rows, and gets slower with time")
            .advice(format!(
                "see that autovacuum runs and no old transaction stays open; then VACUUM {table}"
            ));
    }
    Finding::new("table", Severity::Good, found).meaning("dead rows are cleared away in time")
}

/// The statement that creates a user for the locks alone.
const CREATE_USER: &str = "CREATE ROLE leasehold LOGIN";
/// The locks that a user breaks who may end the connections of others, and the statement that lets one.
const ALL_USERS: &str = "locks of all users, of superusers only for a superuser";
const HOW_TO_GRANT: &str = "GRANT pg_signal_backend TO";
const MANY_DEAD: i64 = 10_000;
