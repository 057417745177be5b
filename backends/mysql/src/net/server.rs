//! The kind of the server, and the promises of a connection to it that follow.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_backend::sql;
use leasehold_core::{Durability, Failure, FenceGrade, Profile, WaitMode};
use mysql_async::Row;

use crate::config::{Dialect, Endpoint, MySqlConfig};
use crate::error::Refusal;
use crate::net::dial::read;
use crate::net::pool::Pool;

/// The facts that the server reported when the connection was made: its settings and counters, as text.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    settings: HashMap<String, String>,
}

impl Server {
    /// Counters of the server by which promises are made.
    pub(crate) const COUNTERS: &'static [&'static str] = COUNTERS;

    /// Returns a query for the settings by which promises are made. One that this server does not have has
    /// no row.
    pub(crate) fn question() -> String {
        format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({})", quoted(SETTINGS))
    }

    /// Asks what is needed to make promises.
    pub(crate) async fn inspect(pool: &Pool) -> Result<Server, Failure> {
        let counters = format!("SHOW GLOBAL STATUS WHERE Variable_name IN ({})", quoted(COUNTERS));
        let queries = format!("{}; {counters}", Server::question());
        Server::read(&pool.run(&queries).await.map_err(Refusal::into_failure)?)
    }

    /// Reads settings and counters.
    pub(crate) fn read<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Result<Server, Failure> {
        let pair = |row: &Row| Ok((read::<String>(row, 0)?.to_lowercase(), read(row, 1)?));
        Ok(Server { settings: rows.into_iter().map(pair).collect::<Result<_, Failure>>()? })
    }

    /// Returns the promises of leases in a table here.
    pub(crate) fn profile(&self, config: &MySqlConfig) -> Profile {
        sql::lease_profile("mysql", config.sql.order, self.grade())
    }

    /// Returns the promises of locks that a connection holds here. They are this server's alone, and known
    /// to no replica.
    pub(crate) fn session_profile(&self, config: &MySqlConfig, waiting: WaitMode) -> Profile {
        sql::session_profile("mysql", &config.sql, waiting).fencing(match config.dialect {
            Dialect::Native => self.grade(),
            // Clients without leasehold draw no fences.
            Dialect::Tooz | Dialect::DotNet | Dialect::ShedLock => FenceGrade::None,
        })
    }

    /// Returns what rows survive here, as far as this server says.
    pub(crate) fn durability(&self) -> Durability {
        sql::durability(self.grade())
    }

    /// Returns how far fences can be trusted: what is confirmed must be on a disk, and on any server that
    /// may take over.
    pub(crate) fn grade(&self) -> FenceGrade {
        match self.keeps_what_it_confirms() && (!self.is_followed() || self.waits_for_replicas()) {
            true if !self.is_clustered() => FenceGrade::Strict,
            _ => FenceGrade::BestEffort,
        }
    }

    /// Returns `true` if a crash of the machine forgets nothing that was confirmed.
    pub(crate) fn keeps_what_it_confirms(&self) -> bool {
        // With the binary log on, recovery undoes what that log does not have.
        self.is("innodb_flush_log_at_trx_commit", "1")
            && (!self.is_on("log_bin") || self.is("sync_binlog", "1"))
    }

    /// Returns `true` if there is, or may be, a replica that could take over.
    pub(crate) fn is_followed(&self) -> bool {
        // The last two only count registrations since the server started: to be believed when they say yes.
        ["slaves_connected", "rpl_semi_sync_master_clients", "rpl_semi_sync_source_clients"]
            .iter()
            .chain(&["com_register_slave", "com_register_replica", "com_binlog_dump", "com_binlog_dump_gtid"])
            .any(|counter| self.number(counter) > 0)
    }

    /// Checks that a commit waits until all replicas that are known have it, before anybody can see it, and
    /// never gives up waiting. Of more than it waits for, one that lacks the last commits could be the one
    /// that takes over.
    pub(crate) fn waits_for_replicas(&self) -> bool {
        [("master", "slave"), ("source", "replica")].iter().any(|(role, follower)| {
            let setting = |name: &str| format!("rpl_semi_sync_{role}_{name}");
            // MariaDB waits for one, and has no setting for it.
            let awaited = self.number(&setting(&format!("wait_for_{follower}_count"))).max(1);
            self.is_on(&setting("enabled"))
                && self.is_on(&setting("status"))
                && self.is(&setting("wait_point"), "AFTER_SYNC")
                && self.number(&setting("timeout")) >= FOR_EVER
                && self.followers() <= awaited
        })
    }

    /// Counts the replicas that are known. MySQL does not count those that are connected, so there it is
    /// how often one has come.
    fn followers(&self) -> u64 {
        let counters: &[&str] = match self.setting("slaves_connected") {
            "" => &["rpl_semi_sync_source_clients", "com_register_slave", "com_register_replica"],
            _ => &["rpl_semi_sync_master_clients", "slaves_connected"],
        };
        counters.iter().map(|counter| self.number(counter)).max().unwrap_or_default()
    }

    /// Returns `true` if several servers decide together, each by its own clock.
    pub(crate) fn is_clustered(&self) -> bool {
        self.is_on("wsrep_on") || !self.setting("group_replication_group_name").is_empty()
    }

    /// Returns `true` if the server logs the text of each statement, for replicas to run it.
    pub(crate) fn logs_statements(&self) -> bool {
        self.is_on("log_bin") && self.is("binlog_format", "STATEMENT")
    }

    /// Returns how long the server keeps a silent connection over TCP, if it has its own setting for that. MariaDB has
    /// settings for the first probe of the client's machine and for further ones.
    fn keeps_silent(&self) -> Option<Duration> {
        let setting = |name, default| match self.number(name) {
            0 => default,
            number => number,
        };
        let first = self.number("tcp_keepalive_time");
        let more = setting("tcp_keepalive_interval", LINUX_INTERVAL)
            .saturating_mul(setting("tcp_keepalive_probes", LINUX_PROBES));
        // Without a time of its own, the operating system sends the first probe after hours.
        (first > 0).then(|| Duration::from_secs(first.saturating_add(more)))
    }

    /// Returns how long the server keeps a silent connection, where that is too short for one that holds locks.
    pub(crate) fn ends_silence_early(&self, config: &MySqlConfig) -> Option<Duration> {
        let is_tcp = config.endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Tcp(_)));
        self.keeps_silent().filter(|kept| is_tcp && *kept < config.sql.server_timeout())
    }

    /// Returns the longest text of a cell, in bytes. A request has it twice, as hexadecimal digits, beside some
    /// kilobytes of other text.
    pub(crate) fn max_text(&self) -> usize {
        let packet = usize::try_from(self.number("max_allowed_packet")).unwrap_or(usize::MAX);
        (packet.saturating_sub(STATEMENTS) / 4).clamp(MIN_TEXT, MAX_TEXT)
    }

    /// Returns a setting or counter as the server reported it; empty where it has none of this name.
    pub(crate) fn setting(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.setting(name).eq_ignore_ascii_case(value)
    }

    fn is_on(&self, name: &str) -> bool {
        self.is(name, "on") || self.is(name, "1")
    }

    fn number(&self, name: &str) -> u64 {
        self.setting(name).parse().unwrap_or_default()
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

/// More than the text of a request beside that of a cell, in bytes.
const STATEMENTS: usize = 8 * 1024;
/// A queue of some ten thousand claims with short notes.
const MAX_TEXT: usize = 4 << 20;
const MIN_TEXT: usize = 16 << 10;
/// A wait for a replica that is as long as this, in milliseconds, does not end by itself: a day.
const FOR_EVER: u64 = 86_400_000;

/// The values that Linux takes for a setting of 0: the seconds between two probes, and their number.
const LINUX_INTERVAL: u64 = 75;
const LINUX_PROBES: u64 = 9;

const SETTINGS: &[&str] = &[
    "version",
    "version_comment",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "binlog_format",
    "transaction_isolation",
    "tx_isolation",
    "max_allowed_packet",
    "max_connections",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_master_wait_point",
    "rpl_semi_sync_master_timeout",
    "rpl_semi_sync_source_enabled",
    "rpl_semi_sync_source_wait_point",
    "rpl_semi_sync_source_timeout",
    "rpl_semi_sync_master_wait_for_slave_count",
    "rpl_semi_sync_source_wait_for_replica_count",
    "tcp_keepalive_time",
    "tcp_keepalive_interval",
    "tcp_keepalive_probes",
    "wsrep_on",
    "group_replication_group_name",
];

const COUNTERS: &[&str] = &[
    "slaves_connected",
    "rpl_semi_sync_master_clients",
    "rpl_semi_sync_source_clients",
    "rpl_semi_sync_master_status",
    "rpl_semi_sync_source_status",
    "com_register_slave",
    "com_register_replica",
    "com_binlog_dump",
    "com_binlog_dump_gtid",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn server(settings: &[(&str, &str)]) -> Server {
        let pairs = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Server { settings: pairs.collect() }
    }

    #[test]
    fn only_what_is_known_to_last_is_called_strict() {
        let flush = ("innodb_flush_log_at_trx_commit", "1");
        let (log, sync, followed) = (("log_bin", "ON"), ("sync_binlog", "1"), ("com_register_replica", "1"));
        let both = ("rpl_semi_sync_source_wait_for_replica_count", "2");
        let two = ("com_register_slave", "2");
        let semi = |timeout| {
            [
                flush,
                log,
                sync,
                followed,
                ("rpl_semi_sync_source_enabled", "ON"),
                ("rpl_semi_sync_source_status", "ON"),
                ("rpl_semi_sync_source_wait_point", "AFTER_SYNC"),
                ("rpl_semi_sync_source_timeout", timeout),
            ]
        };
        for (settings, grade) in [
            (&[flush][..], FenceGrade::Strict),
            (&[flush, log, sync], FenceGrade::Strict),
            (&[flush, log, ("sync_binlog", "0")], FenceGrade::BestEffort),
            (&[flush, log, sync, followed], FenceGrade::BestEffort),
            (&[flush, log, sync, ("slaves_connected", "1")], FenceGrade::BestEffort),
            (&semi("18446744073709551"), FenceGrade::Strict),
            (&semi("10000"), FenceGrade::BestEffort),
            (
                &[&semi("18446744073709551")[..], &[("slaves_connected", "2")]].concat(),
                FenceGrade::BestEffort,
            ),
            (&[&semi("18446744073709551")[..], &[("slaves_connected", "1")]].concat(), FenceGrade::Strict),
            (
                &[&semi("18446744073709551")[..], &[("com_register_slave", "2")]].concat(),
                FenceGrade::BestEffort,
            ),
            (&[&semi("18446744073709551")[..], &[both, two]].concat(), FenceGrade::Strict),
            (&[("innodb_flush_log_at_trx_commit", "2")], FenceGrade::BestEffort),
            (&[flush, ("wsrep_on", "ON")], FenceGrade::BestEffort),
            (&[flush, ("group_replication_group_name", "aaaa")], FenceGrade::BestEffort),
            (&[], FenceGrade::BestEffort),
        ] {
            assert_eq!(server(settings).grade(), grade, "{settings:?}");
        }
    }

    #[test]
    fn a_silent_connection_is_kept_for_as_long_as_the_probes_take() {
        let (time, interval, probes) =
            (("tcp_keepalive_time", "3"), ("tcp_keepalive_interval", "2"), ("tcp_keepalive_probes", "4"));
        for (settings, seconds) in [
            (&[][..], None),
            (&[("tcp_keepalive_time", "0"), interval, probes], None),
            (&[time, interval, probes], Some(11)),
            (&[time, interval], Some(3 + 2 * 9)),
            (&[time, probes], Some(3 + 75 * 4)),
        ] {
            assert_eq!(server(settings).keeps_silent(), seconds.map(Duration::from_secs), "{settings:?}");
        }
    }

    #[test]
    fn a_text_fits_what_the_server_takes() {
        assert_eq!(server(&[("max_allowed_packet", "16777216")]).max_text(), (4 << 20) - 2048);
        assert_eq!(server(&[("max_allowed_packet", "1048576")]).max_text(), (1 << 18) - 2048);
        assert_eq!(server(&[]).max_text(), MIN_TEXT);
    }
}
