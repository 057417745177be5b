//! Facts about the servers that a person should know before trusting locks to them.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::{Finding, Severity};

use crate::net::servers::{Node, Servers};
use crate::protocol::command::CLOCK_LAG;
use crate::protocol::facts::Facts;

/// Returns the findings of all servers, and of their combination.
pub(crate) async fn all(servers: &Servers, ttl: Duration) -> Vec<Finding> {
    let looks = servers.nodes.iter().map(async |node| {
        let facts = node.dialer.look().await;
        let answers = if facts.is_ok() { node.dialer.look_at_all().await } else { Vec::new() };
        (node, facts, answers)
    });
    let looks = join_all(looks).await;
    let mut findings = vec![durability()];
    if servers.nodes.len() > 1 {
        findings.push(server_set(servers));
    }
    for (node, facts, answers) in looks {
        match facts {
            Ok(facts) => {
                findings.extend(one(node, &facts, ttl));
                findings.extend(several_behind(&node.dialer.address(), &answers));
            }
            Err(failure) => findings.push(
                Finding::new("server", Severity::Broken, failure.to_string())
                    .meaning("its resources cannot be locked until it is back; those of other servers can")
                    .advice("start it; do not take it out of the URL while any client still names it"),
            ),
        }
    }
    findings
}

fn one(node: &Node, facts: &Facts, ttl: Duration) -> Vec<Finding> {
    let at = node.dialer.address();
    vec![
        version(&at, facts),
        memory(&at, facts, ttl),
        evictions(&at, facts),
        uptime(&at, facts),
        ttl_of(ttl),
        login(&at, facts),
    ]
}

fn durability() -> Finding {
    Finding::new("durability", Severity::Risk, "memcached keeps nothing")
        .meaning(
            "a restart, flush_all, or anybody's delete frees every lock while its holder still works; the holder learns \
             of it at its next renewal",
        )
        .advice("use it where a second holder costs time and not data, and check fences where it writes")
}

fn server_set(servers: &Servers) -> Finding {
    let (count, fingerprint) = (servers.nodes.len(), servers.ring.fingerprint());
    Finding::new("servers", Severity::Notice, format!("{count} servers, set {fingerprint}"))
        .meaning("each resource lives on one of them; clients that name other servers, or the same by other names, do \
                  not exclude each other")
        .advice("compare the set with the other clients' before you rely on it")
}

/// Returns the finding of a name that leads to several servers: those that were started at different times. A load
/// balancer has one address, so what is behind it is not seen.
fn several_behind(at: &str, answers: &[Facts]) -> Option<Finding> {
    let started: HashSet<u64> = answers.iter().map(|facts| facts.started).collect();
    let found = || format!("{at} leads to {} servers", started.len());
    (started.len() > 1).then(|| {
        Finding::new("name", Severity::Broken, found())
            .meaning("clients that reach different ones hold the same lock, and both renew it")
            .advice("name each server by an address of its own, in the URL of every client")
    })
}

fn version(at: &str, facts: &Facts) -> Finding {
    let found = format!("{at} is memcached {}", facts.version);
    if facts.numbers_items {
        return Finding::new("version", Severity::Good, found);
    }
    Finding::new("version", Severity::Broken, format!("{found}, started with -C"))
        .meaning("items have no numbers, so nobody can release a lock without risk to another's")
        .advice("start it without -C")
}

fn memory(at: &str, facts: &Facts, ttl: Duration) -> Finding {
    let topic = "eviction";
    if !facts.evicts {
        return Finding::new(topic, Severity::Notice, format!("{at} refuses new items when its memory is full (-M)"))
            .meaning(
                "locks stay, but none can be taken or renewed then; and an attempt to write over a lock by a meta set, \
                 or by set, of another program removes it",
            )
            .advice("give it memory that is never used up, or let it evict and start it with -o temporary_ttl=86400");
    }
    match facts.spares {
        Some(spared) if spared >= ttl.saturating_add(CLOCK_LAG) => {
            let spared = humantime::format_duration(spared);
            Finding::new(topic, Severity::Good, format!("{at} spares items of up to {spared} when it evicts"))
        }
        spared => {
            let found = match spared {
                None => format!("{at} evicts items that were not used lately, locks included"),
                Some(spared) => {
                    format!("{at} spares items of up to {} only", humantime::format_duration(spared))
                }
            };
            Finding::new(topic, Severity::Risk, found)
                .meaning("when its memory is full it forgets who holds a lock")
                .advice(
                    "start it with -o temporary_ttl=86400, so that what has a shorter life is never evicted, or give \
                     locks a server of their own",
                )
        }
    }
}

fn evictions(at: &str, facts: &Facts) -> Finding {
    let used = format!(
        "{} of {} MB are used, {} items were evicted since it started",
        facts.bytes >> 20,
        facts.max_bytes >> 20,
        facts.evictions
    );
    let severity =
        if facts.evictions > 0 && facts.spares.is_none() { Severity::Risk } else { Severity::Good };
    let finding = Finding::new("memory", severity, format!("{at}: {used}"));
    match severity {
        Severity::Risk => finding
            .meaning("its memory is too small for what it is used for, so locks are among what is evicted")
            .advice("give it more memory (-m), or give locks a server of their own"),
        _ => finding,
    }
}

fn uptime(at: &str, facts: &Facts) -> Finding {
    let uptime = humantime::format_duration(facts.uptime);
    let severity = if facts.uptime < RECENT { Severity::Notice } else { Severity::Good };
    Finding::new("uptime", severity, format!("{at} has run for {uptime}, since {}", facts.started))
        .meaning(
            "its start, in seconds of its wall clock, is the epoch of its fences: they rise over a restart unless that \
             clock is set back meanwhile",
        )
        .advice("where a restart must not let two hold one lock, set ?settle= to the longest ttl of all clients")
}

fn ttl_of(ttl: Duration) -> Finding {
    let shown = humantime::format_duration(ttl);
    if ttl >= SHORT {
        return Finding::new("ttl", Severity::Good, format!("a ttl of {shown}"));
    }
    Finding::new("ttl", Severity::Notice, format!("a ttl of {shown}"))
        .meaning("the server counts whole seconds, so one of them is taken off what a holder may rely on")
        .advice("use a ttl of 5s or more")
}

fn login(at: &str, facts: &Facts) -> Finding {
    if facts.asks_login {
        return Finding::new("login", Severity::Good, format!("{at} asks for a login"));
    }
    Finding::new("login", Severity::Risk, format!("{at} asks nobody for a login"))
        .meaning("anyone who reaches its port can free or take every lock")
        .advice("let it listen on a private address, and start it with a file of logins (-Y)")
}

/// The time in which an earlier holder may still believe that it has a lock.
const RECENT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_testkit::MemcachedServer;

    use super::*;
    use crate::config::MemcachedConfig;

    #[tokio::test]
    async fn name_that_leads_to_several_servers_is_found() {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        // More than one address of this name may lead to the same server.
        let url = format!("memcached://localhost:{}", server.addr().port());
        let servers = Servers::new(Arc::new(MemcachedConfig::parse(&url).unwrap()));
        let answers = servers.nodes[0].dialer.look_at_all().await;
        let facts = answers[0].clone();
        assert_eq!(several_behind("mc:11211", &answers), None);
        let other = Facts { started: facts.started + 7, ..facts.clone() };
        let found = several_behind("mc:11211", &[facts.clone(), other, facts]).map(|finding| finding.found);
        assert_eq!(found.as_deref(), Some("mc:11211 leads to 2 servers"));
    }
}
