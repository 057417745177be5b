//! Settings of the server that help or harm leases in a table.

use std::time::Duration;

use leasehold_backend::cell::server_clock_finding;
use leasehold_backend::session::break_finding;
use leasehold_backend::sql::{Rights, privileges_finding, unexamined_finding, user_for_locks};
use leasehold_core::{Failure, FenceGrade, Finding, Severity};

use crate::config::MySqlConfig;
use crate::error::Refusal;
use crate::net::dial::{only, read};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::schema::grants_to;
use crate::sql::statements::NOW;

/// Looks at everything; nothing is changed.
pub(crate) async fn diagnose(pool: &Pool, ttl: Duration) -> Vec<Finding> {
    let (server, facts) = match read_facts(pool).await {
        Ok(found) => found,
        Err(failure) => {
            let what = "durability, replication, isolation level, privileges, table and clock";
            return vec![unexamined_finding(failure.to_string(), what)];
        }
    };
    vec![
        durability(&server),
        replication(&server),
        isolation(&server),
        privileges(pool, &facts),
        table(pool, &facts),
        server_clock_finding(facts.from_the_future, ttl),
    ]
}

/// Returns the findings about locks that a connection holds.
pub(crate) async fn of_sessions(server: &Server, pool: &Pool) -> Vec<Finding> {
    let failover = match server.is_followed() {
        true => Finding::new(
            "replication",
            Severity::Notice,
            "replicas follow, and know nothing of what connections hold",
        )
        .meaning(
            "a failover ends every lock, and a client that reaches the old server alone believes in its own",
        )
        .advice("use method=row where that must not happen"),
        false => {
            Finding::new("replication", Severity::Good, "no replica is known").meaning("nothing takes over")
        }
    };
    let silence = silence(Server::inspect(pool).await, &pool.config);
    vec![durability(server), failover, silence, break_finding(may_break(pool).await, ALL_USERS, HOW_TO_GRANT)]
}

/// Returns the finding about clients that are out of reach. It asks anew, because the settings count for connections
/// that are made later.
fn silence(server: Result<Server, Failure>, config: &MySqlConfig) -> Finding {
    let topic = "silence";
    let early = match server {
        Ok(server) => server.ends_silence_early(config),
        Err(failure) => {
            return Finding::new(topic, Severity::Unknown, failure.to_string()).meaning(
                "it is not known how long the server keeps the locks of a client that is out of reach",
            );
        }
    };
    match early {
        Some(kept) => Finding::new(
            topic,
            Severity::Risk,
            format!("the server gives up a client out of reach after {kept:?}"),
        )
        .meaning("it frees locks before their holders count them as lost")
        .advice("raise tcp_keepalive_time of the server, or lower silence= of the URL"),
        None => Finding::new(
            topic,
            Severity::Good,
            "no setting of the server gives up a client out of reach early",
        )
        .meaning("holders count their locks as lost before, unless its operating system gives up earlier"),
    }
}

/// Checks whether this user may end the connections of others.
async fn may_break(pool: &Pool) -> Result<bool, Failure> {
    let grants = pool.run("SHOW GRANTS").await.map_err(Refusal::into_failure)?;
    let grants: Vec<String> = grants.iter().map(|row| read(row, 0)).collect::<Result<_, _>>()?;
    let rights = ["ALL PRIVILEGES", "SUPER", "CONNECTION ADMIN", "CONNECTION_ADMIN"];
    Ok(grants.iter().any(|grant| {
        let mut parts = grant.split(" ON *.* ");
        let (Some(granted), Some(_)) = (parts.next(), parts.next()) else { return false };
        rights.iter().any(|right| granted.contains(right))
    }))
}

/// The facts that can change while a connection lasts.
struct Facts {
    grants: Vec<String>,
    rows: u64,
    bytes: u64,
    /// The number of cells with their origin in what is the future now.
    from_the_future: u64,
    /// The number of triggers of the table, as far as this user sees them.
    triggers: u64,
}

async fn read_facts(pool: &Pool) -> Result<(Server, Facts), Failure> {
    let server = Server::inspect(pool).await?;
    let name = pool.config.names.table("");
    let facts = format!(
        "SELECT COALESCE(t.TABLE_ROWS, 0), COALESCE(t.DATA_LENGTH + t.INDEX_LENGTH, 0), \
         (SELECT COUNT(*) FROM {name} WHERE origin > {NOW} + 1000000), \
         (SELECT COUNT(*) FROM information_schema.TRIGGERS g \
         WHERE g.EVENT_OBJECT_SCHEMA = t.TABLE_SCHEMA AND g.EVENT_OBJECT_TABLE = t.TABLE_NAME) \
         FROM information_schema.TABLES t WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = '{}'",
        name.trim_matches('`')
    );
    let rows = pool.run(&facts).await.map_err(Refusal::into_failure)?;
    let row = only(rows)?;
    let grants = pool.run("SHOW GRANTS").await.map_err(Refusal::into_failure)?;
    let facts = Facts {
        grants: grants.iter().map(|row| read(row, 0)).collect::<Result<_, _>>()?,
        rows: read(&row, 0)?,
        bytes: read(&row, 1)?,
        from_the_future: read(&row, 2)?,
        triggers: read(&row, 3)?,
    };
    Ok((server, facts))
}

pub(crate) fn durability(server: &Server) -> Finding {
    let found = format!(
        "{} {}, innodb_flush_log_at_trx_commit {}, log_bin {}, sync_binlog {}",
        server.setting("version_comment"),
        server.setting("version"),
        server.setting("innodb_flush_log_at_trx_commit"),
        server.setting("log_bin"),
        server.setting("sync_binlog")
    );
    if server.keeps_what_it_confirms() {
        return Finding::new("durability", Severity::Good, found)
            .meaning("what was confirmed survives a crash of the server's machine");
    }
    Finding::new("durability", Severity::Risk, found)
        .meaning("a crash of the server's machine may forget grants and take fences back")
        .advice("set innodb_flush_log_at_trx_commit = 1, and sync_binlog = 1 where there is a binary log")
}

pub(crate) fn replication(server: &Server) -> Finding {
    let topic = "replication";
    if server.is_clustered() {
        return Finding::new(topic, Severity::Risk, "this server is one of a cluster that decides together")
            .meaning("leases end by the clock of the server that is asked, and a server of the cluster may be behind")
            .advice("name the same single server in the URLs of all clients");
    }
    if !server.is_followed() {
        return Finding::new(topic, Severity::Good, "no replica is known").meaning("nothing takes over");
    }
    match (server.waits_for_replicas(), server.grade()) {
        (true, FenceGrade::Strict) => Finding::new(topic, Severity::Good, "each commit waits for all replicas")
            .meaning("a failover forgets nothing"),
        (true, _) => Finding::new(topic, Severity::Notice, "each commit waits for all replicas")
            .meaning("a failover forgets nothing, but a crash of this machine may; see durability"),
        _ => Finding::new(topic, Severity::Notice, "replicas follow, and commits do not wait for all of them")
            .meaning("a failover may forget the last grants: two may hold for a while, and only clocks keep fences rising")
            .advice(
                "use semi-synchronous replication with wait point AFTER_SYNC, a timeout of a day or more, and a wait for as many replicas as \
                 there are (one, on MariaDB)",
            ),
    }
}

fn isolation(server: &Server) -> Finding {
    let level = match server.setting("transaction_isolation") {
        "" => server.setting("tx_isolation"),
        level => level,
    };
    let found = format!("isolation {level}, binlog_format {}", server.setting("binlog_format"));
    if level == "SERIALIZABLE" {
        return Finding::new("isolation", Severity::Notice, found)
            .meaning("requests of several claims lock more rows than they change, and wait for each other")
            .advice("leave it at REPEATABLE READ or READ COMMITTED");
    }
    Finding::new("isolation", Severity::Good, found)
        .meaning("a statement that comes second sees what the first one did")
}

fn privileges(pool: &Pool, facts: &Facts) -> Finding {
    let config = &pool.config;
    let (user, rights) = (config.credentials.user.as_deref().unwrap_or_default(), rights(&facts.grants));
    let needed = grants_to(config, user_for_locks(user, rights));
    let also = "; the user may also write to a read-only server";
    privileges_finding(user, rights, CREATE_USER, &needed, also)
}

/// Reads the lines of SHOW GRANTS: `GRANT SELECT, INSERT ON what TO whom`.
fn rights(grants: &[String]) -> Rights {
    let mut found = Rights::Rows;
    for grant in grants {
        let Some((rights, on)) = grant.strip_prefix("GRANT ").and_then(|grant| grant.split_once(" ON "))
        else {
            continue;
        };
        let has = |right: &str| rights.split(", ").any(|one| one == right);
        let all = has("ALL PRIVILEGES");
        if on.starts_with("*.*") && (all || has("SUPER")) {
            return Rights::Everything;
        }
        if all || has("CREATE") {
            found = Rights::Create;
        }
    }
    found
}

fn table(pool: &Pool, facts: &Facts) -> Finding {
    let name = pool.config.names.table("");
    let found = format!("{name} has about {} rows in {} KiB", facts.rows, facts.bytes / 1024);
    if facts.triggers > 0 {
        return Finding::new("table", Severity::Notice, format!("{found}; triggers: {}", facts.triggers))
            .meaning("each write of a lock runs them, and fails where one of them does")
            .advice("let none of them set a column of leasehold");
    }
    if facts.rows > MANY_ROWS {
        return Finding::new("table", Severity::Notice, found)
            .meaning("each name that was ever locked keeps its row, and with it the fence")
            .advice(format!(
                "delete rows of {name} whose lapses is long past, while their locks are not used"
            ));
    }
    Finding::new("table", Severity::Good, found).meaning("each name that was ever locked keeps its row")
}

/// The statement that creates a user for the locks alone.
const CREATE_USER: &str = "CREATE USER 'leasehold'@'%' IDENTIFIED BY …";
/// The locks that a user breaks who may end the connections of others, and the statement that lets one.
const ALL_USERS: &str = "locks of all users";
const HOW_TO_GRANT: &str = "GRANT CONNECTION_ADMIN (MySQL) or CONNECTION ADMIN (MariaDB) ON *.* TO";
const MANY_ROWS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_from_what_the_server_shows() {
        for (grants, expected) in [
            (
                &["GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION"][..],
                Rights::Everything,
            ),
            (&["GRANT SELECT, SUPER ON *.* TO `a`@`%`"], Rights::Everything),
            (
                &["GRANT USAGE ON *.* TO `a`@`%`", "GRANT ALL PRIVILEGES ON `app`.* TO `a`@`%`"],
                Rights::Create,
            ),
            (&["GRANT SELECT, CREATE ON `app`.* TO `a`@`%`"], Rights::Create),
            (&["GRANT SELECT, INSERT, UPDATE ON `app`.`leasehold` TO `a`@`%`"], Rights::Rows),
            (
                &["GRANT `role` TO `a`@`%`", "GRANT CREATE TEMPORARY TABLES ON `app`.* TO `a`@`%`"],
                Rights::Rows,
            ),
        ] {
            let grants: Vec<String> = grants.iter().map(|grant| (*grant).to_owned()).collect();
            assert_eq!(rights(&grants), expected, "{grants:?}");
        }
    }
}
