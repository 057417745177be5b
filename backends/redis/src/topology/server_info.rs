//! What a server says of itself, and the promises that follow from that.
//!
//! Asked once, when the backend connects. A fact that may not be asked is assumed to be the weaker.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_core::{
    Durability, Effect, Failure, FailureKind, FenceGrade, Liveness, LockSupport, Profile, QueueOrder,
    WaitMode,
};
use redis::{Cmd, Value, cmd};

use crate::config::{Deployment, RedisConfig, Wait};
use crate::net::command_conn::CommandConn;

/// The facts that a server reported of itself, by `INFO` and `CONFIG GET`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Its version of the Redis protocol, where `INFO` is permitted.
    pub version: Option<String>,
    /// The identity of the running process; another one after a restart.
    pub run_id: Option<String>,
    /// The policy by which it evicts when memory is full.
    pub maxmemory_policy: Option<String>,
    /// `true` if it writes an append-only file.
    pub appendonly: Option<bool>,
    /// The policy by which it flushes that file to disk, where `CONFIG GET` is permitted.
    pub appendfsync: Option<String>,
    /// Set if it flushes nothing while it rewrites that file or saves a snapshot, where `CONFIG GET` is
    /// permitted.
    pub no_appendfsync_on_rewrite: Option<bool>,
    /// The number of replicas that follow it.
    pub replicas: Option<u32>,
    /// `true` if it is a replica itself.
    pub is_replica: bool,
    /// `true` if it is a server of a cluster.
    pub is_of_cluster: bool,
}

impl ServerInfo {
    /// Asks the server, which has to be a primary.
    pub(crate) async fn ask(conn: &CommandConn, limit: Duration) -> Result<ServerInfo, Failure> {
        let server = ServerInfo::ask_any(conn, limit).await?;
        server.check(&conn.address())?;
        Ok(server)
    }

    /// Asks the server, be it a primary or a replica.
    pub(crate) async fn ask_any(conn: &CommandConn, limit: Duration) -> Result<ServerInfo, Failure> {
        // The attempt has a limit of its own, and its failure says more than that of a request that
        // waited for it.
        conn.connect(4 * limit).await?;
        let mut server = ServerInfo::default();
        if let Some(info) = answered(conn, &cmd("INFO"), limit).await? {
            server.read_info(&text(info));
        }
        let mut command = cmd("CONFIG");
        // One pattern for both settings: older servers take no second one.
        command.arg("GET").arg("*appendfsync*");
        if let Some(answer) = answered(conn, &command, limit).await? {
            server.read_settings(redis::from_redis_value(answer).unwrap_or_default());
        }
        Ok(server)
    }

    /// Returns what may be relied on of all of several servers; `None` of none.
    pub(crate) fn weakest(servers: Vec<ServerInfo>) -> Option<ServerInfo> {
        servers.into_iter().reduce(|one, other| ServerInfo {
            version: match (&one.version, &other.version) {
                (Some(a), Some(b)) => Some(if version(a) <= version(b) { a } else { b }.clone()),
                _ => None,
            },
            run_id: None,
            maxmemory_policy: if one.keeps_all() { other.maxmemory_policy } else { one.maxmemory_policy },
            appendonly: one.appendonly.zip(other.appendonly).map(|(one, other)| one && other),
            appendfsync: match one.appendfsync.as_deref() {
                Some("always") => other.appendfsync,
                _ => one.appendfsync,
            },
            no_appendfsync_on_rewrite: one
                .no_appendfsync_on_rewrite
                .zip(other.no_appendfsync_on_rewrite)
                .map(|(one, other)| one || other),
            replicas: one.replicas.max(other.replicas),
            is_replica: one.is_replica || other.is_replica,
            is_of_cluster: one.is_of_cluster && other.is_of_cluster,
        })
    }

    /// Refuses a server of a cluster where a single one is expected.
    pub(crate) fn refuse_cluster(&self, address: &str) -> Result<(), Failure> {
        if !self.is_of_cluster {
            return Ok(());
        }
        let advice = format!(
            "{address} is a server of a cluster, which shares its keys with others: write redis+cluster://"
        );
        Err(Failure::new(FailureKind::Unsupported, Effect::None, advice))
    }

    /// Returns what a connection to this server promises.
    pub(crate) fn profile(&self, config: &RedisConfig) -> Profile {
        Profile::new("redis", Liveness::Lease { min: MIN_TTL, max: MAX_TTL })
            .admission(LockSupport::Counted)
            .order(config.order)
            .waiting(match config.wait {
                Wait::Pubsub => WaitMode::Notifies,
                Wait::Poll => WaitMode::Polls,
            })
            .fencing(match config.deployment {
                Deployment::Single if self.is_durable() => FenceGrade::Strict,
                // An epoch carries fences over failovers, as long as nothing evicts the counter.
                Deployment::Sentinel(_) | Deployment::Cluster(_) if self.keeps_all() => {
                    FenceGrade::AcrossFailover
                }
                Deployment::Single | Deployment::Sentinel(_) | Deployment::Cluster(_) => {
                    FenceGrade::BestEffort
                }
            })
            .durability(match config.deployment {
                Deployment::Single if self.is_durable() => Durability::Strict,
                _ if self.keeps_all() => Durability::LostOnFailover,
                _ => Durability::Evictable,
            })
            .place_ttl(if config.order == QueueOrder::Fifo { PLACE_TTL } else { Duration::ZERO })
            .granularity(Duration::from_millis(2))
            .renew_batch_max(RENEW_BATCH_MAX)
            .note_max(leasehold_core::Note::MAX_BYTES)
    }

    /// Returns `true` if it never evicts data to free memory.
    fn keeps_all(&self) -> bool {
        self.maxmemory_policy.as_deref() == Some("noeviction")
    }

    /// Returns `true` if nothing but the loss of its disk takes away what the server has confirmed.
    fn is_durable(&self) -> bool {
        self.keeps_all()
            && self.appendonly == Some(true)
            && self.appendfsync.as_deref() == Some("always")
            && self.no_appendfsync_on_rewrite == Some(false)
            // A replica confirms nothing before the primary does: a failover to it forgets the last writes.
            && self.replicas == Some(0)
    }

    fn read_info(&mut self, info: &str) {
        for line in info.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            match name {
                "redis_version" => self.version = Some(value.to_owned()),
                "run_id" => self.run_id = Some(value.to_owned()),
                "maxmemory_policy" => self.maxmemory_policy = Some(value.to_owned()),
                "aof_enabled" => self.appendonly = Some(value == "1"),
                "connected_slaves" => self.replicas = value.parse().ok(),
                "role" => self.is_replica = value == "slave",
                // As Valkey calls it from 9 on.
                "redis_mode" | "server_mode" => self.is_of_cluster = value == "cluster",
                _ => {}
            }
        }
    }

    fn read_settings(&mut self, settings: HashMap<String, String>) {
        for (name, value) in settings {
            match name.as_str() {
                "appendfsync" => self.appendfsync = Some(value),
                "no-appendfsync-on-rewrite" => self.no_appendfsync_on_rewrite = Some(value != "no"),
                _ => {}
            }
        }
    }

    fn check(&self, address: &str) -> Result<(), Failure> {
        if let Some(version) = &self.version
            && is_too_old(version)
        {
            return Err(Failure::new(
                FailureKind::Unsupported,
                Effect::None,
                format!("{address} is Redis {version}: leasehold needs Redis 6.2 or later, or Valkey"),
            ));
        }
        if self.is_replica {
            return Err(Failure::unavailable(format!(
                "{address} is a replica, which cannot decide anything: connect to the primary"
            )));
        }
        Ok(())
    }
}

/// The shortest lease: a few times what a busy server or a scheduler may take to answer.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);

/// The longest lease.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// The time for which a place is kept for a waiter that sends nothing. It is generous, because the
/// queue does not wait for it: a dead waiter is passed over within the grace of its call once its turn
/// comes, or once it keeps another waiter from a free share.
pub(crate) const PLACE_TTL: Duration = Duration::from_secs(60);

/// The same in milliseconds, as the scripts get it.
pub(crate) const PLACE_TTL_MILLIS: &str = "60000";

/// The most claims that one script renews: about a millisecond of the server's time.
pub(crate) const RENEW_BATCH_MAX: usize = 500;

/// Returns `None` where the server does not permit the question, or does not know it.
async fn answered(conn: &CommandConn, command: &Cmd, limit: Duration) -> Result<Option<Value>, Failure> {
    match conn.command(command, limit).await {
        Ok(value) => Ok(Some(value)),
        Err(failure) if matches!(failure.kind, FailureKind::Denied | FailureKind::Unsupported) => Ok(None),
        // Some proxies end the connection where they do not know a command. Such a proxy answers on
        // another connection.
        Err(failure) if failure.effect == Effect::Unknown => {
            conn.command(&cmd("PING"), limit).await.map_err(|_| failure)?;
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

fn text(value: Value) -> String {
    redis::from_redis_value(value).unwrap_or_default()
}

fn is_too_old(text: &str) -> bool {
    version(text) < (6, 2)
}

/// Parses the first two numbers; a part that is not a number counts as the newest.
fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse::<u32>().unwrap_or(u32::MAX));
    (parts.next().unwrap_or(u32::MAX), parts.next().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(info: &str, appendfsync: Option<&str>) -> ServerInfo {
        let appendfsync = appendfsync.map(str::to_owned);
        let no_appendfsync_on_rewrite = appendfsync.as_ref().map(|_| false);
        let mut server = ServerInfo { appendfsync, no_appendfsync_on_rewrite, ..ServerInfo::default() };
        server.read_info(info);
        server
    }

    fn promises(info: &str, appendfsync: Option<&str>) -> (FenceGrade, Durability) {
        promises_at("redis://h", info, appendfsync)
    }

    fn promises_at(url: &str, info: &str, appendfsync: Option<&str>) -> (FenceGrade, Durability) {
        let profile = server(info, appendfsync).profile(&RedisConfig::parse(url).unwrap());
        (profile.fencing, profile.durability)
    }

    #[test]
    fn place_ttl_is_the_same_as_text() {
        assert_eq!(PLACE_TTL.as_millis().to_string(), PLACE_TTL_MILLIS);
    }

    #[test]
    fn old_servers_are_refused_by_name() {
        assert!(is_too_old("6.0.16") && is_too_old("5.0.7"));
        assert!(!is_too_old("6.2.0") && !is_too_old("7.0.15") && !is_too_old("unstable"));
        let refusal = server("redis_version:6.0.9\r\n", None).check("h:1").unwrap_err();
        assert_eq!(refusal.kind, FailureKind::Unsupported);
        assert!(refusal.detail().contains("6.0.9") && refusal.detail().contains("6.2"));
        assert!(server("redis_version:7.0.0\r\nrole:slave\r\n", None).check("h:1").is_err());
    }

    #[test]
    fn several_servers_promise_what_the_weakest_does() {
        let kept =
            "redis_version:7.2.1\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nredis_mode:cluster\r\n";
        let config = RedisConfig::parse("redis+cluster://h").unwrap();
        let promises = |other: &str| {
            let servers = vec![server(kept, Some("always")), server(other, Some("always"))];
            let weakest = ServerInfo::weakest(servers).unwrap();
            let profile = weakest.profile(&config);
            (profile.fencing, profile.durability)
        };
        assert_eq!(promises(kept), (FenceGrade::AcrossFailover, Durability::LostOnFailover));
        let evicting = kept.replace("noeviction", "volatile-lru").replace("7.2", "6.2");
        assert_eq!(promises(&evicting), (FenceGrade::BestEffort, Durability::Evictable));
        assert_eq!(promises(""), (FenceGrade::BestEffort, Durability::Evictable));
        assert!(ServerInfo::weakest(Vec::new()).is_none());
        let refusal = server(kept, None).refuse_cluster("h:1").unwrap_err();
        assert!(refusal.detail().contains("redis+cluster://"));
    }

    #[test]
    fn only_what_is_known_to_last_is_called_strict() {
        let kept = "maxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:0\r\n";
        assert_eq!(promises(kept, Some("always")), (FenceGrade::Strict, Durability::Strict));
        assert_eq!(promises(kept, Some("everysec")), (FenceGrade::BestEffort, Durability::LostOnFailover));
        assert_eq!(promises(kept, None), (FenceGrade::BestEffort, Durability::LostOnFailover));
        let followed = kept.replace("slaves:0", "slaves:1");
        assert_eq!(promises(&followed, Some("always")), (FenceGrade::BestEffort, Durability::LostOnFailover));
        let evicting = kept.replace("noeviction", "allkeys-lru");
        assert_eq!(promises(&evicting, Some("always")), (FenceGrade::BestEffort, Durability::Evictable));
        assert_eq!(promises("", None), (FenceGrade::BestEffort, Durability::Evictable));
    }

    #[test]
    fn what_is_not_flushed_during_a_rewrite_is_not_durable() {
        let kept = "maxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:0\r\n";
        let durability = |on_rewrite: &[(&str, &str)]| {
            let mut server = server(kept, None);
            let settings = [("appendfsync", "always")].iter().chain(on_rewrite);
            server.read_settings(settings.map(|(name, value)| ((*name).into(), (*value).into())).collect());
            server.profile(&RedisConfig::parse("redis://h").unwrap()).durability
        };
        assert_eq!(durability(&[("no-appendfsync-on-rewrite", "no")]), Durability::Strict);
        assert_eq!(durability(&[("no-appendfsync-on-rewrite", "yes")]), Durability::LostOnFailover);
        assert_eq!(
            durability(&[]),
            Durability::LostOnFailover,
            "what is not known is assumed to be the weaker"
        );
    }

    #[test]
    fn a_server_of_a_cluster_is_known_by_either_name_of_its_mode() {
        let redis = "# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\nos:Linux\r\n";
        let valkey = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n\
                      valkey_release_stage:ga\r\nserver_mode:cluster\r\nos:Linux\r\n";
        for info in [redis, valkey] {
            assert!(server(info, None).refuse_cluster("h:1").is_err(), "{info}");
            assert!(server(&info.replace("cluster", "standalone"), None).refuse_cluster("h:1").is_ok());
        }
    }

    #[test]
    fn elected_primary_is_never_strict_and_fences_survive_failover() {
        let of = |info, appendfsync| promises_at("redis+sentinel://a,b,c/jobs", info, appendfsync);
        let kept = "maxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:0\r\n";
        assert_eq!(of(kept, Some("always")), (FenceGrade::AcrossFailover, Durability::LostOnFailover));
        assert_eq!(
            of("maxmemory_policy:noeviction\r\n", None),
            (FenceGrade::AcrossFailover, Durability::LostOnFailover)
        );
        assert_eq!(
            of("maxmemory_policy:volatile-lru\r\n", None),
            (FenceGrade::BestEffort, Durability::Evictable)
        );
    }
}
