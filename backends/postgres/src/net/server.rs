//! The kind of the server, and the promises of a connection to it that follow.

use std::time::Duration;

use leasehold_backend::{random, sql};
use leasehold_core::{Durability, Effect, Failure, FailureKind, FenceGrade, LockSupport, Profile, WaitMode};
use tokio_postgres::{AsyncMessage, Row};

use crate::config::{PostgresConfig, Wait};
use crate::error::Refusal;
use crate::net::dial::{Link, ServerMessages, Sql, only, read};
use crate::net::pool::Pool;

/// The facts that the server reported when the connection was made.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) version: String,
    pub(crate) fsync: bool,
    pub(crate) synchronous_commit: String,
    pub(crate) synchronous_standby_names: String,
    /// Those that are connected.
    pub(crate) standbys: i64,
    /// Those of them for which no commit waits, as far as this user may know.
    pub(crate) unawaited: i64,
    /// Those that are away and for which the server keeps what they lack.
    pub(crate) away: i64,
    pub(crate) sessions: SessionPath,
}

/// The connection path between this client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionPath {
    /// Nothing that has connections of its own.
    Direct,
    /// Something, and each connection to it is one session of the server.
    Kept,
    /// A pooler that gives the sessions of the server to one client after the other.
    Shared,
}

impl Server {
    /// The columns of the question.
    pub(crate) const COLUMNS: usize = 8;

    /// Returns a query for one row: what is needed to make promises.
    pub(crate) fn question() -> &'static str {
        FACTS
    }

    /// Reads the answer to the question, from the column `at` on, and finds out which way leads to the
    /// server.
    pub(crate) async fn read(row: &Row, at: usize, pool: &Pool) -> Result<Server, Failure> {
        let encoding: String = read(row, at + 4)?;
        if encoding != "UTF8" {
            return Err(Failure::new(
                FailureKind::Unsupported,
                Effect::None,
                format!("the database's encoding is {encoding}: names of locks need one in UTF8"),
            ));
        }
        Ok(Server {
            fsync: read::<String>(row, at)? == "on",
            synchronous_commit: read(row, at + 1)?,
            synchronous_standby_names: read(row, at + 2)?,
            standbys: read(row, at + 3)?,
            unawaited: read(row, at + 6)?,
            away: read(row, at + 7)?,
            version: read(row, at + 5)?,
            sessions: probe(pool).await?,
        })
    }

    /// Returns the promises of leases in a table here.
    pub(crate) fn profile(&self, config: &PostgresConfig) -> Profile {
        let listens = config.wait == Wait::Listen && self.sessions != SessionPath::Shared;
        sql::lease_profile("postgres", config.sql.order, self.grade()).waiting(if listens {
            WaitMode::Notifies
        } else {
            WaitMode::Polls
        })
    }

    /// Returns what can take a grant away, no matter how it is written down.
    pub(crate) fn durability(&self) -> Durability {
        sql::durability(self.grade())
    }

    /// Returns the promises of locks that a connection holds here: while the timeline distinguishes one
    /// server from its successor, the locks are the first's alone.
    pub(crate) fn session_profile(&self, config: &PostgresConfig, waiting: WaitMode) -> Profile {
        sql::session_profile("postgres", &config.sql, waiting)
            .admission(LockSupport::SharedExclusive)
            .fencing(self.grade())
    }

    /// Returns how far fences can be trusted: what is confirmed must be on a disk, and on any server that
    /// may take over.
    pub(crate) fn grade(&self) -> FenceGrade {
        if !self.fsync || self.synchronous_commit == "off" {
            return FenceGrade::BestEffort;
        }
        let is_alone = self.standbys == 0 && self.away == 0 && self.synchronous_standby_names.is_empty();
        match is_alone || self.waits_for_all() {
            true => FenceGrade::Strict,
            // What a standby did not get is forgotten by a failover; the timeline keeps fences rising.
            false => FenceGrade::AcrossFailover,
        }
    }

    /// Checks that each server that may be promoted has on its disk what was confirmed: a commit waits for
    /// each standby by its name, and no two have one name. Of more than are waited for, one that lacks the
    /// last commits could be the one that is promoted.
    fn waits_for_all(&self) -> bool {
        matches!(self.synchronous_commit.as_str(), "on" | "remote_apply")
            && self.unawaited == 0
            && self.away == 0
            && named(&self.synchronous_standby_names).is_some_and(|named| self.standbys <= named)
    }
}

/// Counts the standbys that `synchronous_standby_names` names and asks for, if it asks for as many as it
/// names: `FIRST 2 (a, b)`, `ANY 2 (a, b)`, `2 (a, b)` or `a`. A `*` is none of them: it means those that
/// are connected, and not one that is away.
fn named(setting: &str) -> Option<i64> {
    let (asked, names) = match setting.trim().strip_suffix(')').and_then(|rest| rest.split_once('(')) {
        Some((asked, names)) => (asked.split_whitespace().last().unwrap_or_default(), names),
        None => ("1", setting),
    };
    let mut named = 1;
    let mut is_quoted = false;
    for c in names.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => named += 1,
            '*' if !is_quoted => return None,
            _ => {}
        }
    }
    (!names.trim().is_empty() && asked.parse() == Ok(named)).then_some(named)
}

/// Finds out whether sessions are shared. Nothing is assumed: they are called kept only once that was shown.
///
/// A pooler in transaction mode gives a session that has just become free to the next client that asks. So
/// what one connection sets shows in the other, or is not there when it is read again. A busy pooler may hide
/// that: by chance the first connection gets the same session back each time. What no chance gives is a
/// notification to a connection that is between two transactions: only one that has a session of its own
/// receives it.
async fn probe(pool: &Pool) -> Result<SessionPath, Failure> {
    let one = pool.lend().await?;
    if one.is_direct {
        pool.give_back(one);
        return Ok(SessionPath::Direct);
    }
    let (two, mut messages) = Link::dial_listening(&pool.config).await?;
    let token = format!("{:016x}", random::number().unwrap_or_default());
    set(&two, &token).await?;
    let shows = seen(&one).await? == token || seen(&two).await? != token;
    let is_kept = !shows && is_notified(&two, &mut messages, &one, &token, pool.config.sql.timeout).await?;
    // What was set in a session that others will get is taken back, as far as that session can be reached.
    set(&two, "").await?;
    pool.give_back(one);
    Ok(if is_kept { SessionPath::Kept } else { SessionPath::Shared })
}

/// Checks whether an idle connection receives the notification that another one sends.
async fn is_notified(
    listener: &Link,
    messages: &mut ServerMessages,
    sender: &Link,
    token: &str,
    limit: Duration,
) -> Result<bool, Failure> {
    let channel = format!("leasehold_probe_{token}");
    listener.run(&format!("LISTEN {channel}")).await.map_err(Refusal::into_failure)?;
    sender.run(&format!("NOTIFY {channel}")).await.map_err(Refusal::into_failure)?;
    let received = async {
        while let Some(message) = messages.recv().await {
            if matches!(&message, AsyncMessage::Notification(notification) if notification.channel() == channel)
            {
                return true;
            }
        }
        false
    };
    let received = tokio::time::timeout(limit, received).await.unwrap_or(false);
    listener.run(&format!("UNLISTEN {channel}")).await.map_err(Refusal::into_failure)?;
    Ok(received)
}

async fn set(link: &Link, token: &str) -> Result<(), Failure> {
    // The token is made of hexadecimal digits.
    let text = format!("SELECT set_config('leasehold.probe', '{token}', false)");
    link.query(&Sql { name: "", text, types: &[] }, &[]).await.map(drop).map_err(Refusal::into_failure)
}

async fn seen(link: &Link) -> Result<String, Failure> {
    let text = "SELECT coalesce(current_setting('leasehold.probe', true), '')".to_owned();
    let rows = link.query(&Sql { name: "", text, types: &[] }, &[]).await.map_err(Refusal::into_failure)?;
    read(&only(rows)?, 0)
}

const FACTS: &str = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
                     current_setting('synchronous_standby_names'), \
                     (SELECT count(*) FROM pg_stat_replication)::int8, current_setting('server_encoding'), \
                     current_setting('server_version'), \
                     (SELECT count(*) FROM pg_stat_replication WHERE coalesce(sync_state, '') NOT IN ('sync', 'quorum'))::int8, \
                     (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT active)::int8";

#[cfg(test)]
mod tests {
    use super::*;

    fn server(fsync: bool, commit: &str, names: &str, standbys: i64) -> Server {
        Server {
            version: "15".to_owned(),
            fsync,
            synchronous_commit: commit.to_owned(),
            synchronous_standby_names: names.to_owned(),
            standbys,
            unawaited: 0,
            away: 0,
            sessions: SessionPath::Direct,
        }
    }

    #[test]
    fn only_what_is_known_to_last_is_called_strict() {
        for (server, grade) in [
            (server(true, "on", "", 0), FenceGrade::Strict),
            (Server { away: 1, ..server(true, "on", "", 0) }, FenceGrade::AcrossFailover),
            (server(true, "on", "", 1), FenceGrade::AcrossFailover),
            (server(true, "on", "FIRST 2 (a, b)", 2), FenceGrade::Strict),
            (server(true, "remote_apply", "ANY 2 (a, b)", 2), FenceGrade::Strict),
            (server(true, "on", "a", 1), FenceGrade::Strict),
            // Each of two that have one name is a candidate, and a commit waits for either one.
            (server(true, "on", "ANY 1 (a)", 2), FenceGrade::AcrossFailover),
            (server(true, "on", "ANY 2 (a, b)", 3), FenceGrade::AcrossFailover),
            // A standby that is away may be behind, and be promoted all the same.
            (server(true, "on", "*", 2), FenceGrade::AcrossFailover),
            (server(true, "on", "*", 0), FenceGrade::AcrossFailover),
            (server(true, "on", "ANY 1 (a, b, c)", 3), FenceGrade::AcrossFailover),
            (server(true, "on", "a, b", 1), FenceGrade::AcrossFailover),
            (Server { unawaited: 1, ..server(true, "on", "a", 2) }, FenceGrade::AcrossFailover),
            (Server { away: 1, ..server(true, "on", "a", 1) }, FenceGrade::AcrossFailover),
            // It is in the memory of the standby only.
            (server(true, "remote_write", "a", 1), FenceGrade::AcrossFailover),
            (server(true, "local", "a", 1), FenceGrade::AcrossFailover),
            (server(true, "off", "", 0), FenceGrade::BestEffort),
            (server(false, "on", "", 0), FenceGrade::BestEffort),
        ] {
            assert_eq!(server.grade(), grade, "{server:?}");
        }
    }

    #[test]
    fn as_many_standbys_are_asked_for_as_are_named() {
        for (all, count) in [
            ("a", 1),
            ("\"a,b\"", 1),
            ("1 (a)", 1),
            ("FIRST 2 (a, b)", 2),
            ("first 3(a,\"*\",c)", 3),
            ("ANY 2 (a, \"b (x)\")", 2),
        ] {
            assert_eq!(named(all), Some(count), "{all}");
        }
        for some in
            ["", " ", "*", "a, b", "1 (a, b)", "FIRST 1 (*)", "ANY 2 (a, b, c)", "ANY 2 (a, *)", "FIRST 1 ()"]
        {
            assert_eq!(named(some), None, "{some}");
        }
    }

    #[test]
    fn client_with_shared_sessions_polls() {
        let config = PostgresConfig::parse("postgres://me@h").unwrap();
        let mut server = server(true, "on", "", 0);
        assert_eq!(server.profile(&config).waiting, WaitMode::Notifies);
        server.sessions = SessionPath::Shared;
        assert_eq!(server.profile(&config).waiting, WaitMode::Polls);
    }
}
