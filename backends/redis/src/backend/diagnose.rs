//! Findings about the servers before an application relies on them.
//!
//! Ground rules: nothing is changed, and nothing is written but a message on a channel of our own. What
//! may not be asked, or is not answered, is unknown, never good. Asking is here, judging in `facts.rs`,
//! without I/O.

mod clocks;
mod facts;

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use futures_util::future::{join, join_all};
use leasehold_core::{Failure, FailureKind, Finding, Resource, Severity};
use redis::{Cmd, Value, cmd};

use crate::backend::RedisBackend;
use crate::config::{Deployment, Wait};
use crate::net::command_conn::CommandConn;
use crate::protocol::keys::Keys;
use crate::protocol::reply;
use clocks::Offset;
use facts::Facts;

/// Returns everything that was found, server by server.
pub(crate) async fn diagnose(backend: &RedisBackend) -> Vec<Finding> {
    let servers = match backend.servers.each().await {
        Ok(servers) => servers,
        Err(failure) => return vec![Finding::new("servers", Severity::Broken, failure.to_string())],
    };
    let limit = backend.config.timeout;
    let is_alone = servers.len() == 1;
    let (mut findings, mut clocks) = (Vec::new(), Vec::new());
    // Those that hang are waited for once, and not one after the other.
    let asked = join_all(servers.iter().map(|conn| Facts::ask(conn, limit))).await;
    for (conn, facts) in servers.iter().zip(asked) {
        let address = conn.address();
        let found = match facts {
            Ok(facts) => {
                clocks.extend(facts.clock_offset.map(|offset| (address.clone(), offset)));
                facts.judge(&backend.config.deployment)
            }
            Err(failure) => vec![Finding::new("servers", Severity::Broken, failure.to_string())],
        };
        findings.extend(found.into_iter().map(|mut finding| {
            if !is_alone {
                finding.found = format!("{address}: {}", finding.found);
            }
            finding
        }));
    }
    if let (Deployment::Cluster(_), Some(conn)) = (&backend.config.deployment, servers.first()) {
        findings.push(cluster(conn, limit).await);
    }
    findings.extend(clocks::judge(&clocks));
    let (rights, pubsub) = join(rights(backend, &servers), pubsub(backend, &servers)).await;
    findings.extend([rights, pubsub]);
    findings
}

impl Facts {
    async fn ask(conn: &CommandConn, limit: Duration) -> Result<Facts, Failure> {
        let mut facts = Facts::default();
        if let Some(info) = permitted(conn.command(&cmd("INFO"), limit).await)? {
            facts.read_info(&text(info));
        }
        for name in SETTINGS {
            let question = with(cmd("CONFIG"), &["GET", name]);
            if let Some(Value::Array(pair)) = permitted(conn.command(&question, limit).await)?
                && let Some(value) = pair.into_iter().nth(1)
            {
                facts.settings.insert((*name).to_owned(), text(value));
            }
        }
        facts.user = permitted(conn.command(&with(cmd("ACL"), &["WHOAMI"]), limit).await)?.map(text);
        let before = SystemTime::now();
        if let Some(now) = permitted(conn.command(&cmd("TIME"), limit).await)? {
            let (seconds, micros): (String, String) = reply::read(now)?;
            let server = Duration::from_secs(seconds.parse().unwrap_or(0));
            let server = server + Duration::from_micros(micros.parse().unwrap_or(0));
            let after = SystemTime::now();
            facts.clock_offset = Offset::measured(before, after, server);
        }
        Ok(facts)
    }
}

async fn cluster(conn: &CommandConn, limit: Duration) -> Finding {
    let answer = conn.command(&with(cmd("CLUSTER"), &["INFO"]), limit).await;
    match answer {
        Ok(answer) => facts::judge_cluster(&text(answer)),
        Err(failure) => Finding::new("cluster", Severity::Unknown, failure.to_string()),
    }
}

/// Reports what this login may not do. That it can lock at all was tested before, by locking.
async fn rights(backend: &RedisBackend, servers: &[std::sync::Arc<CommandConn>]) -> Finding {
    let limit = backend.config.timeout;
    let scan = with(cmd("SCAN"), &["0", "MATCH", "leasehold-doctor", "COUNT", "1"]);
    let wanted = [
        ("INFO", cmd("INFO"), "grades and `doctor` assume the worst"),
        (
            "CONFIG GET",
            with(cmd("CONFIG"), &["GET", "appendfsync"]),
            "a durable server is not known to be one",
        ),
        ("SCAN", scan, "`leasehold ls` does not work"),
    ];
    let mut missing = Vec::new();
    for conn in servers {
        for (name, command, meaning) in &wanted {
            match permitted(conn.command(command, limit).await) {
                Ok(Some(_)) => {}
                Ok(None) if missing.iter().any(|(known, _)| known == name) => {}
                Ok(None) => missing.push((*name, *meaning)),
                Err(failure) => return Finding::new("rights", Severity::Unknown, failure.to_string()),
            }
        }
    }
    if missing.is_empty() {
        return Finding::new("rights", Severity::Good, "this login may do all that leasehold ever asks for");
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let meanings: Vec<&str> = missing.iter().map(|(_, meaning)| *meaning).collect();
    let rules: Vec<String> =
        names.iter().map(|name| format!("+{}", name.to_lowercase().replace(' ', "|"))).collect();
    Finding::new("rights", Severity::Notice, format!("this login may lock, but not {}", names.join(", ")))
        .meaning(meanings.join("; "))
        .advice(format!("to allow it: ACL SETUSER … {}", rules.join(" ")))
}

/// Checks that notifications to a waiter arrive.
async fn pubsub(backend: &RedisBackend, servers: &[std::sync::Arc<CommandConn>]) -> Finding {
    if backend.config.wait == Wait::Poll {
        return Finding::new("pubsub", Severity::Notice, "not used: the URL says wait=poll")
            .meaning("a waiter sees a release at its next question, not at once");
    }
    let forbidden = |what: &str, failure: &Failure| {
        Finding::new("pubsub", Severity::Broken, format!("{what} fails: {}", failure.detail()))
            .meaning("waiters are not notified of releases")
            .advice("allow it (see the rights in the documentation of leasehold-redis), or write ?wait=poll")
    };
    // The same channel that a waiter for this lock listens on.
    let resource = match Resource::new("leasehold-doctor") {
        Ok(resource) => resource,
        Err(error) => return Finding::new("pubsub", Severity::Unknown, error.to_string()),
    };
    let channel = Keys::of(&backend.config.prefix, &resource).channel(backend.scope);
    let published = servers.iter().map(async |conn| {
        // A server before 7.0 does not know the first, and its clients use the second.
        for verb in [backend.scope.publish(), "PUBLISH"] {
            // A server of other slots refuses it by `MOVED`, and its answer says nothing of rights.
            match conn.command(&with(cmd(verb), &[&channel, ""]), backend.config.timeout).await {
                Err(failure) if failure.kind == FailureKind::Denied => {
                    return Some(forbidden(verb, &failure));
                }
                Err(failure) if failure.detail().contains("unknown command") => {}
                _ => break,
            }
        }
        None
    });
    if let Some(denied) = join_all(published).await.into_iter().flatten().next() {
        return denied;
    }
    match backend.subscribers.subscribe(&channel).await {
        Ok(_) => {
            let over = match servers.len() {
                1 => "one server".to_owned(),
                count => format!("{count} servers"),
            };
            Finding::new(
                "pubsub",
                Severity::Good,
                format!("messages and subscriptions are allowed, over {over}"),
            )
        }
        Err(failure) if failure.kind == FailureKind::Denied => forbidden("a subscription", &failure),
        Err(failure) => Finding::new("pubsub", Severity::Unknown, failure.to_string()),
    }
}

/// The settings that `INFO` does not show.
const SETTINGS: &[&str] = &[
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "timeout",
    "requirepass",
];

fn with(mut command: Cmd, args: &[&str]) -> Cmd {
    for arg in args {
        command.arg(*arg);
    }
    command
}

/// Returns `None` where the server does not permit the question, or does not know it.
fn permitted(answer: Result<Value, Failure>) -> Result<Option<Value>, Failure> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(failure) if matches!(failure.kind, FailureKind::Denied | FailureKind::Unsupported) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn text(value: Value) -> String {
    redis::from_redis_value(value).unwrap_or_default()
}

/// Parses an answer of the form `name:value`, a line each, into fields.
fn fields(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
