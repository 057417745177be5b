//! The facts that one server reported, and their meaning for locks. Pure: it sends nothing.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_backend::diagnose::open_access_finding;
use leasehold_core::{Finding, Severity};

use super::clocks::Offset;
use super::fields;
use crate::config::Deployment;

/// The facts that one server reported of itself.
#[derive(Debug, Default)]
pub(super) struct Facts {
    info: HashMap<String, String>,
    /// The settings that `CONFIG GET` showed.
    pub(super) settings: HashMap<String, String>,
    /// The user of this login.
    pub(super) user: Option<String>,
    /// The difference between its clock and this machine's.
    pub(super) clock_offset: Option<Offset>,
}

impl Facts {
    pub(super) fn read_info(&mut self, text: &str) {
        self.info = fields(text);
    }

    pub(super) fn judge(&self, deployment: &Deployment) -> Vec<Finding> {
        if self.info.is_empty() {
            let finding = Finding::new("server", Severity::Unknown, "INFO is not permitted")
                .meaning("eviction, persistence and replicas are not known; the worst is assumed")
                .advice("ACL SETUSER … +info");
            return [Some(finding), self.clock(), self.access()].into_iter().flatten().collect();
        }
        let all = [
            Some(self.version()),
            Some(self.eviction()),
            Some(self.persistence()),
            self.snapshots(),
            Some(self.replicas(deployment)),
            self.connections(),
            self.idle_timeout(),
            self.clock(),
            self.access(),
        ];
        all.into_iter().flatten().collect()
    }

    fn info(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.info(name).parse().unwrap_or(0)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    fn version(&self) -> Finding {
        let valkey = self.info("valkey_version");
        let (name, version) =
            if valkey.is_empty() { ("Redis", self.info("redis_version")) } else { ("Valkey", valkey) };
        let at_least = |major: u32, minor: u32| {
            let mut parts =
                self.info("redis_version").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
            (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
        };
        let features = [
            (at_least(7, 0), "channels of a slot"),
            (at_least(7, 2), "WAITAOF"),
            (at_least(8, 4) || name == "Valkey" && version.starts_with('9'), "compare-and-delete"),
        ];
        let list = |has: bool| {
            let named = features.iter().filter(|(there, _)| *there == has).map(|(_, feature)| *feature);
            named.collect::<Vec<_>>().join(", ")
        };
        let found = match (list(true), list(false)) {
            (has, without) if without.is_empty() => format!("{name} {version}, with {has}"),
            (has, without) if has.is_empty() => format!("{name} {version}, without {without}"),
            (has, without) => format!("{name} {version}, with {has}, without {without}"),
        };
        Finding::new("version", Severity::Good, found)
    }

    fn eviction(&self) -> Finding {
        let policy = self.info("maxmemory_policy");
        let (limit, used, evicted) =
            (self.number("maxmemory"), self.number("used_memory"), self.number("evicted_keys"));
        let mib = |bytes: u64| bytes >> 20;
        let found = match limit {
            0 => format!("maxmemory-policy is {policy}, without a limit"),
            _ => format!(
                "maxmemory-policy is {policy}; {} of {} MiB are used, {evicted} keys were evicted",
                mib(used),
                mib(limit)
            ),
        };
        if policy == "noeviction" {
            if limit > 0 && used > limit / 10 * 9 {
                return Finding::new("eviction", Severity::Risk, found)
                    .meaning(
                        "once memory is full no lock can be acquired; held locks can be renewed and released",
                    )
                    .advice("raise maxmemory, or move other data elsewhere");
            }
            return Finding::new("eviction", Severity::Good, found)
                .meaning("no lock is given up for want of memory");
        }
        let what = match policy.split_once('-').map(|(which, _)| which) {
            Some("allkeys") => "locks and fences",
            _ => "held locks, which have a time to live,",
        };
        Finding::new("eviction", Severity::Risk, found)
            .meaning(format!(
                "under memory pressure {what} are thrown away, and a lock goes to a second holder"
            ))
            .advice("CONFIG SET maxmemory-policy noeviction, or keep locks on a server of their own")
    }

    fn persistence(&self) -> Finding {
        if self.info("aof_last_write_status") == "err" {
            return Finding::new("persistence", Severity::Broken, "the append-only file cannot be written")
                .meaning("the server refuses to take locks, or forgets them with a restart")
                .advice("see to its disk; its log says more");
        }
        if self.info("aof_enabled") != "1" {
            return Finding::new("persistence", Severity::Notice, "the server writes no append-only file")
                .meaning("a restart forgets all holders: a lock may go to a second holder while the first counts on it. \
                          Fences begin anew at the wall clock")
                .advice("CONFIG SET appendonly yes and appendfsync always, or keep the server down for the longest ttl");
        }
        match self.setting("appendfsync") {
            Some("always") if self.setting("no-appendfsync-on-rewrite") == Some("yes") => {
                Finding::new("persistence", Severity::Notice, "no-appendfsync-on-rewrite is yes")
                    .meaning("what is answered while the file is rewritten or a snapshot saved is not on disk: a crash of the machine \
                              then takes back locks and fences")
                    .advice("CONFIG SET no-appendfsync-on-rewrite no")
            }
            Some("always") => Finding::new("persistence", Severity::Good, "each write is on disk before it is answered"),
            Some(policy) => Finding::new("persistence", Severity::Notice, format!("appendfsync is {policy}"))
                .meaning("a crash of the machine (not of the server alone) forgets the last second: locks and fences")
                .advice("CONFIG SET appendfsync always, where that matters"),
            None => Finding::new("persistence", Severity::Unknown, "appendonly is on; how it is flushed may not be asked")
                .advice("ACL SETUSER … +config|get"),
        }
    }

    fn snapshots(&self) -> Option<Finding> {
        (self.info("rdb_last_bgsave_status") == "err").then(|| {
            Finding::new("snapshots", Severity::Risk, "the last snapshot failed")
                .meaning("unless stop-writes-on-bgsave-error is off, the server refuses all writes, and so all locks")
                .advice("see to its disk and memory; its log says more")
        })
    }

    fn replicas(&self, deployment: &Deployment) -> Finding {
        let count = self.number("connected_slaves");
        let needed: u64 =
            self.setting("min-replicas-to-write").and_then(|text| text.parse().ok()).unwrap_or(0);
        if count == 0 {
            return match deployment {
                Deployment::Single => {
                    Finding::new("replicas", Severity::Good, "it has none: nothing fails over")
                }
                Deployment::Sentinel(_) | Deployment::Cluster(_) => {
                    Finding::new("replicas", Severity::Risk, "it has none")
                        .meaning("nothing can take over when it dies: its locks stand still")
                        .advice("attach a replica")
                }
            };
        }
        let slowest = (0..count).filter_map(|nth| lag(self.info(&format!("slave{nth}")))).max();
        let lag = slowest.map(|lag| format!(", the slowest {lag} s behind")).unwrap_or_default();
        if needed > count {
            return Finding::new(
                "replicas",
                Severity::Broken,
                format!("it has {count}{lag}; min-replicas-to-write is {needed}"),
            )
            .meaning("the server refuses all writes, and so all locks")
            .advice("bring back the replicas, or lower min-replicas-to-write");
        }
        let found = format!("it has {count}{lag}; min-replicas-to-write is {needed}");
        Finding::new("replicas", Severity::Notice, found)
            .meaning(
                "they follow behind: a lock that was granted just before a failover may be granted again. \
                 Fences tell the two holders apart, where an epoch goes with them",
            )
            .advice(match needed {
                0 => "?replicas=1 makes such double grants rarer, and min-replicas-to-write 1 ends a cut-off primary's sooner",
                _ => "?replicas=1 makes such double grants rarer",
            })
    }

    fn connections(&self) -> Option<Finding> {
        let (used, limit) = (self.number("connected_clients"), self.number("maxclients"));
        (limit > 0 && used > limit / 5 * 4).then(|| {
            Finding::new("connections", Severity::Risk, format!("{used} of {limit} are in use"))
                .meaning("a client that has to connect again may be refused, and loses its locks")
                .advice("raise maxclients")
        })
    }

    fn idle_timeout(&self) -> Option<Finding> {
        let seconds = self.setting("timeout").filter(|seconds| *seconds != "0")?;
        let finding = Finding::new(
            "idle-timeout",
            Severity::Notice,
            format!("idle connections are closed after {seconds} s"),
        );
        Some(finding.meaning("a client that held nothing for so long connects again before its next request"))
    }

    fn clock(&self) -> Option<Finding> {
        let offset = self.clock_offset?.distance();
        let found = format!("the server's clock is {offset:.0?} from this machine's at least");
        if offset < Duration::from_secs(1) {
            return Some(Finding::new(
                "clock",
                Severity::Good,
                "the server's clock agrees with this machine's",
            ));
        }
        let finding = Finding::new("clock", Severity::Notice, found)
            .meaning(
                "no lease compares these two. But leases end by the server's wall clock: when somebody sets it right in \
                 one step, locks end too early or too late by as much",
            )
            .advice("let both follow the same time service, which corrects in small steps");
        Some(finding)
    }

    fn access(&self) -> Option<Finding> {
        let user = self.user.as_deref()?;
        let is_open = user == "default" && self.setting("requirepass").is_some_and(str::is_empty);
        if !is_open {
            return Some(Finding::new("access", Severity::Good, format!("this client is the user {user}")));
        }
        let advice = "a user of its own, with the rights that the documentation of leasehold-redis lists";
        Some(open_access_finding(advice))
    }
}

/// Judges the state of a cluster, from `CLUSTER INFO`.
pub(super) fn judge_cluster(text: &str) -> Finding {
    let info = fields(text);
    let field = |name: &str| info.get(name).map_or("?", String::as_str);
    let (state, assigned, ok) =
        (field("cluster_state"), field("cluster_slots_assigned"), field("cluster_slots_ok"));
    let found = format!(
        "its state is {state}; {assigned} of 16384 slots are assigned, {ok} of them served, by {} servers",
        field("cluster_known_nodes")
    );
    if state != "ok" || assigned != "16384" || ok != "16384" {
        return Finding::new("cluster", Severity::Broken, found)
            .meaning("locks in slots that no server serves cannot be acquired or renewed")
            .advice("run `redis-cli --cluster check`: it shows what is missing");
    }
    Finding::new("cluster", Severity::Good, found)
}

/// Returns the seconds since the last message of a replica, from
/// `ip=…,port=…,state=online,offset=…,lag=1`.
fn lag(line: &str) -> Option<u64> {
    line.split(',').find_map(|field| field.strip_prefix("lag="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: &str = "redis_version:7.2.4\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n\
                        aof_last_write_status:ok\r\nconnected_slaves:0\r\nrdb_last_bgsave_status:ok\r\n";

    fn facts(changes: &[(&str, &str)]) -> Facts {
        let mut facts = Facts::default();
        facts.read_info(WELL);
        facts.settings.insert("appendfsync".to_owned(), "always".to_owned());
        for (name, value) in changes {
            match name.strip_prefix("config ") {
                Some(name) => facts.settings.insert(name.to_owned(), (*value).to_owned()),
                None => facts.info.insert((*name).to_owned(), (*value).to_owned()),
            };
        }
        facts
    }

    fn severity(changes: &[(&str, &str)], topic: &str) -> Option<Severity> {
        let found = facts(changes).judge(&Deployment::Single);
        found.into_iter().find(|finding| finding.topic == topic).map(|finding| finding.severity)
    }

    #[test]
    fn a_server_without_a_fault_has_good_findings_only() {
        let found = facts(&[]).judge(&Deployment::Single);
        assert!(found.iter().all(|finding| finding.severity == Severity::Good), "{found:#?}");
        assert!(
            found.iter().any(|finding| finding.found.contains("with channels of a slot, WAITAOF")),
            "{found:#?}"
        );
    }

    #[test]
    fn each_fault_is_found_under_its_topic() {
        let some = |severity| Some(severity);
        for (changes, topic, expected) in [
            (&[("maxmemory_policy", "allkeys-lru")][..], "eviction", some(Severity::Risk)),
            (&[("maxmemory_policy", "volatile-ttl")], "eviction", some(Severity::Risk)),
            (&[("maxmemory", "1000"), ("used_memory", "950")], "eviction", some(Severity::Risk)),
            (&[("aof_enabled", "0")], "persistence", some(Severity::Notice)),
            (&[("config appendfsync", "everysec")], "persistence", some(Severity::Notice)),
            (&[("config no-appendfsync-on-rewrite", "yes")], "persistence", some(Severity::Notice)),
            (&[("config no-appendfsync-on-rewrite", "no")], "persistence", some(Severity::Good)),
            (&[("aof_last_write_status", "err")], "persistence", some(Severity::Broken)),
            (&[("rdb_last_bgsave_status", "err")], "snapshots", some(Severity::Risk)),
            (&[("connected_slaves", "1"), ("slave0", "ip=a,lag=3")], "replicas", some(Severity::Notice)),
            (
                &[("connected_slaves", "1"), ("config min-replicas-to-write", "2")],
                "replicas",
                some(Severity::Broken),
            ),
            (&[("connected_clients", "90"), ("maxclients", "100")], "connections", some(Severity::Risk)),
            (&[("config timeout", "300")], "idle-timeout", some(Severity::Notice)),
            (&[("config timeout", "0")], "idle-timeout", None),
        ] {
            assert_eq!(severity(changes, topic), expected, "{changes:?}");
        }
        let lagging =
            facts(&[("connected_slaves", "1"), ("slave0", "ip=a,port=1,lag=3")]).judge(&Deployment::Single);
        assert!(
            lagging.iter().any(|finding| finding.found.contains("the slowest 3 s behind")),
            "{lagging:#?}"
        );
    }

    #[test]
    fn what_may_not_be_asked_is_unknown() {
        let found = Facts::default().judge(&Deployment::Single);
        assert_eq!(found.iter().map(|finding| finding.severity).max(), Some(Severity::Unknown), "{found:#?}");
        let mut facts = facts(&[]);
        facts.settings.clear();
        let found = facts.judge(&Deployment::Single);
        let persistence = found.iter().find(|finding| finding.topic == "persistence").unwrap();
        assert_eq!(persistence.severity, Severity::Unknown);
    }

    #[test]
    fn a_cluster_with_a_hole_is_broken() {
        let text = |state, ok| {
            format!(
                "cluster_state:{state}\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:{ok}\r\ncluster_known_nodes:6\r\n"
            )
        };
        assert_eq!(judge_cluster(&text("ok", 16384)).severity, Severity::Good);
        assert_eq!(judge_cluster(&text("ok", 16000)).severity, Severity::Broken);
        assert_eq!(judge_cluster(&text("fail", 16384)).severity, Severity::Broken);
        assert_eq!(judge_cluster("").severity, Severity::Broken);
    }
}
