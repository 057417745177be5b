//! Findings about a cluster before an application relies on it.
//!
//! Ground rules: nothing is changed but a lease that is ended again. What may not be asked, or is not
//! answered, is unknown, never good.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold_backend::diagnose::{
    different_versions, leader_clock_finding, open_access_finding, servers_finding,
};
use leasehold_core::{Finding, Severity};

use crate::client::Shared;
use crate::net::error::Refusal;
use crate::protocol::layout::key_request;
use crate::protocol::proto::{LeaseGrantRequest, Permission, RangeRequest, StatusResponse, alarm};
use crate::protocol::txn::Span;
use crate::protocol::version::{KNOWN_BUGS, REFUSES_ALL_IF_FULL};

pub(crate) async fn diagnose(shared: &Shared, ttl: Duration) -> Vec<Finding> {
    let began = shared.now();
    let states = match shared.cluster.states().await {
        Ok(states) => states,
        Err(failure) => return vec![Finding::new("servers", Severity::Broken, failure.to_string())],
    };
    let took = shared.now().since(began);
    let known: Vec<&StatusResponse> = states.iter().flatten().collect();
    let mut findings = vec![servers(shared, &states).await, quorum(&known)];
    // Before the first claim no clock exists.
    findings.extend((!took.is_zero()).then(|| speed(took, ttl)));
    findings.extend(versions(&known));
    findings.push(alarms(shared, &known).await);
    findings.push(space(&known));
    findings.push(history(shared).await);
    findings.push(shortest_lease(shared).await);
    findings.push(leader_clock_finding("leases"));
    findings.push(access(shared).await);
    findings
}

/// Reports how many servers there are, and how many of them this client knows and reaches.
async fn servers(shared: &Shared, states: &[Option<StatusResponse>]) -> Finding {
    let names = shared.cluster.names().zip(states);
    let silent: Vec<String> =
        names.filter(|(_, state)| state.is_none()).map(|(name, _)| name.to_owned()).collect();
    let named = states.len();
    let listed = shared.cluster.ask(|conn| async move { conn.members().await }).await;
    match listed {
        Ok(listed) => {
            let voters = listed.value.members.iter().filter(|member| !member.is_learner).count();
            servers_finding(named, &silent, voters)
        }
        Err(_) if !silent.is_empty() => servers_finding(named, &silent, named),
        Err(_) => {
            let found = format!("{named} answer; the list of members was refused");
            Finding::new("servers", Severity::Unknown, found)
        }
    }
}

fn quorum(states: &[&StatusResponse]) -> Finding {
    let Some(first) = states.first() else {
        return Finding::new("quorum", Severity::Unknown, "no server reported the leader");
    };
    let agree = states.iter().all(|state| state.leader == first.leader && state.raft_term == first.raft_term);
    match (agree, first.leader) {
        (true, 0) => Finding::new("quorum", Severity::Broken, "the cluster has no leader")
            .meaning("nothing can be locked or renewed: locks run out")
            .advice("bring back enough servers for a quorum"),
        (true, leader) => {
            Finding::new("quorum", Severity::Good, format!("{leader:x} leads in term {}", first.raft_term))
        }
        (false, _) => Finding::new("quorum", Severity::Risk, "the servers name different leaders")
            .meaning("an election is under way, or a server is cut off from the others")
            .advice("ask again; where it stays so, see to the network between the servers"),
    }
}

/// Requests go to any of the servers, one after the other fails.
fn speed(slowest: Duration, ttl: Duration) -> Finding {
    let found = format!("the slowest server answered within {slowest:.1?}");
    if slowest >= ttl / 10 {
        return Finding::new("server-answers", Severity::Risk, found)
            .meaning("a renewal that has to go to that server may come too late")
            .advice("take a longer ttl, or nearer servers");
    }
    Finding::new("server-answers", Severity::Good, found)
}

fn versions(states: &[&StatusResponse]) -> Vec<Finding> {
    let versions = match different_versions(states.iter().map(|state| state.version.as_str())) {
        Ok(versions) => versions,
        Err(finding) => return vec![finding],
    };
    let found = format!("etcd {}", versions.join(", "));
    let bugs = KNOWN_BUGS.iter().filter(|bug| versions.iter().any(|version| bug.is_in(version)));
    let bugs: Vec<Finding> = bugs
        .map(|bug| {
            Finding::new("version", bug.severity, format!("{found}: {}", bug.what))
                .meaning(bug.meaning)
                .advice(format!("use {} or later", bug.fixed_versions()))
        })
        .collect();
    if bugs.is_empty() { vec![Finding::new("version", Severity::Good, found)] } else { bugs }
}

async fn alarms(shared: &Shared, states: &[&StatusResponse]) -> Finding {
    let alarms = match shared.cluster.ask(|conn| async move { conn.alarms().await }).await {
        Ok(answer) => answer.value.alarms,
        Err(refusal) => return unknown("alarms", refusal),
    };
    let raised = |kind| alarms.iter().find(|alarm| alarm.kind == kind).map(|alarm| alarm.member_id);
    if let Some(member) = raised(alarm::CORRUPT) {
        return Finding::new("alarms", Severity::Broken, format!("CORRUPT, raised by {member:x}"))
            .meaning("the servers hold different data: they may disagree who holds a lock")
            .advice("replace that member, see etcd's page on data corruption");
    }
    if let Some(member) = raised(alarm::NO_SPACE) {
        return Finding::new("alarms", Severity::Broken, format!("NOSPACE, raised by {member:x}"))
            .meaning(meaning_of_full(states.iter().map(|state| state.version.as_str())))
            .advice("compact and defragment, then `etcdctl alarm disarm`");
    }
    Finding::new("alarms", Severity::Good, "none is raised")
}

/// Returns what a full database means for locks on servers of these versions.
fn meaning_of_full<'a>(mut versions: impl Iterator<Item = &'a str>) -> String {
    if versions.any(|version| REFUSES_ALL_IF_FULL.is_in(version)) {
        format!(
            "no lock can be acquired; servers before {} also refuse to renew and release: held locks are lost",
            REFUSES_ALL_IF_FULL.fixed_versions()
        )
    } else {
        "no lock can be acquired; held locks can be renewed and released".to_owned()
    }
}

fn space(states: &[&StatusResponse]) -> Finding {
    let Some(fullest) = states.iter().max_by_key(|state| state.db_size) else {
        return Finding::new("space", Severity::Unknown, "no server reported the size of its data");
    };
    let is_reported = fullest.db_size_quota > 0;
    let quota = if is_reported { fullest.db_size_quota } else { USUAL_QUOTA };
    let mib = |bytes: i64| bytes / (1 << 20);
    let origin = if is_reported { "its quota" } else { "the usual quota" };
    let found = format!("{} MiB of {} MiB, {origin}, are used", mib(fullest.db_size), mib(quota));
    if fullest.db_size > quota / 5 * 4 {
        return Finding::new("space", Severity::Risk, found)
            .meaning("once it is full, no lock can be taken")
            .advice("let etcd compact by itself (--auto-compaction-retention), and defragment it");
    }
    Finding::new("space", Severity::Good, found)
}

/// Reports whether the cluster forgets old revisions.
async fn history(shared: &Shared) -> Finding {
    let probe = key_request(&shared.layout.probe());
    let ask = |revision| {
        let probe = RangeRequest { revision, ..probe.clone() };
        shared.cluster.ask(move |conn| {
            let probe = probe.clone();
            async move { conn.range(probe).await }
        })
    };
    let present = match ask(0).await {
        Ok(answer) => answer.value.header.map_or(0, |header| header.revision),
        Err(refusal) => return unknown("history", refusal),
    };
    let old = present - LONG_HISTORY;
    if old <= 0 {
        return short_history();
    }
    match ask(old).await {
        Ok(_) => long_history(present),
        Err(Refusal::Failed(failure)) if failure.detail().contains("compacted") => short_history(),
        Err(refusal) => unknown("history", refusal),
    }
}

fn short_history() -> Finding {
    Finding::new("history", Severity::Good, format!("fewer than {LONG_HISTORY} revisions are kept"))
}

fn long_history(present: i64) -> Finding {
    let found = format!("the last {LONG_HISTORY} of {present} revisions are not compacted");
    Finding::new("history", Severity::Notice, found)
        .meaning("each look at a lock passes over all of its claims since then: one that is taken often gets slower")
        .advice("let etcd compact by itself: --auto-compaction-retention=5m, for instance")
}

/// Reports by how much the server makes short leases longer: that is how late it frees the locks of a
/// process that died.
async fn shortest_lease(shared: &Shared) -> Finding {
    // The server chooses the number.
    let request = LeaseGrantRequest { ttl: 1, id: 0 };
    let asked = shared.cluster.ask(|conn| {
        let request = request.clone();
        async move { conn.grant(request).await }
    });
    let lease = match asked.await {
        Ok(answer) => answer.value,
        Err(refusal) => return unknown("shortest-lease", refusal),
    };
    // A lease that is left by a failure here ends by itself.
    let _ = shared.cluster.ask(|conn| async move { conn.revoke(lease.id).await }).await;
    let found = format!("the shortest lease of this cluster is {} s", lease.ttl);
    if lease.ttl <= 2 {
        return Finding::new("shortest-lease", Severity::Good, found);
    }
    Finding::new("shortest-lease", Severity::Notice, found)
        .meaning("the locks of a process that died, and its places in the queue, last at least this long, even if their ttl is shorter")
        .advice("shorten --election-timeout where that is too long")
}

/// Reports which other users could end the locks.
async fn access(shared: &Shared) -> Finding {
    let Some(user) = shared.cluster.user().map(str::to_owned) else {
        if shared.cluster.shows_certificate() {
            return Finding::new("access", Severity::Good, "this client shows a certificate and no user");
        }
        return open_access_finding("`etcdctl auth enable`, and a user with readwrite on the prefix");
    };
    let asked = shared.cluster.ask(|conn| {
        let user = user.clone();
        async move { conn.user(user).await }
    });
    let roles = match asked.await {
        Ok(answer) => answer.value.roles,
        Err(refusal) => return unknown("access", refusal),
    };
    if roles.iter().any(|role| role == "root") {
        return Finding::new("access", Severity::Notice, format!("{user} is root"))
            .meaning("anyone who has this password can change everything in the cluster")
            .advice("a user of its own, with readwrite on the prefix");
    }
    let asking = roles.iter().map(|role| {
        shared.cluster.ask(move |conn| {
            let role = role.clone();
            async move { conn.role(role).await }
        })
    });
    let granted: Result<Vec<_>, Refusal> = join_all(asking).await.into_iter().collect();
    let granted: Vec<Permission> = match granted {
        Ok(answers) => answers.into_iter().flat_map(|answer| answer.value.permissions).collect(),
        Err(refusal) => return unknown("access", refusal),
    };
    let marks = shared.layout.marks();
    let needed = match marks {
        Some(_) => "readwrite on the prefix and on keys that begin with leasehold-mark-, and on no others",
        None => "readwrite on the prefix only",
    };
    let ours: Vec<Span> = std::iter::once(shared.layout.everything()).chain(marks).collect();
    let beyond = granted.iter().find(|granted| !ours.iter().any(|span| is_within(granted, span)));
    match beyond {
        Some(granted) => {
            let key = String::from_utf8_lossy(&granted.key).into_owned();
            Finding::new(
                "access",
                Severity::Notice,
                format!("{user} may reach keys outside the prefix, from {key:?}"),
            )
            .meaning("anyone who has this password can do more than lock")
            .advice(format!("give its role {needed}"))
        }
        None => Finding::new("access", Severity::Good, format!("{user} may reach the prefix only")),
    }
}

/// Returns `true` if a permission is for keys of this span only.
fn is_within(granted: &Permission, span: &Span) -> bool {
    let ends_inside = match &granted.range_end[..] {
        [] => granted.key < span.end,
        // As etcd writes a range without an end.
        [0] => false,
        end => *end <= span.end[..],
    };
    granted.key >= span.start && ends_inside
}

fn unknown(topic: &'static str, refusal: Refusal) -> Finding {
    Finding::new(topic, Severity::Unknown, refusal.into_failure().to_string())
}

/// A lock with so many claims since the last compaction takes its server about half a millisecond more
/// for each.
const LONG_HISTORY: i64 = 10_000;
/// The size that etcd keeps at most by default.
const USUAL_QUOTA: i64 = 2 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_full_database_means_depends_on_the_versions() {
        for (versions, is_kept) in [
            (&["3.4.23", "3.4.20"][..], true),
            (&["3.5.7", "3.6.0", "4.0.0"], true),
            (&["3.4.19"], false),
            (&["3.5.6"], false),
            (&["3.5.30", "3.5.1"], false),
        ] {
            let meaning = meaning_of_full(versions.iter().copied());
            assert_eq!(meaning.contains("can be renewed and released"), is_kept, "{versions:?}: {meaning}");
            assert_eq!(meaning.contains("held locks are lost"), !is_kept, "{versions:?}: {meaning}");
        }
    }
}
