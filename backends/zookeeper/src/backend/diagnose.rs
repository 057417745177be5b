//! Findings about what in an ensemble's set-up helps or hurts locks, for a person to decide whether to
//! rely on it.
//!
//! Ground rules: nothing is changed. Each server is asked by itself for what it says to all clients;
//! what only the ensemble knows is asked in the session that locks use. A fact that may not be asked is
//! reported as unknown.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold_backend::diagnose::{
    different_versions, leader_clock_finding, open_access_finding, servers_finding,
};
use leasehold_backend::url::Host;
use leasehold_core::{Finding, Severity};
use zookeeper_client::{Acl, Error, Permission};

use crate::client::Ensemble;
use crate::net::four_letter::{self, ServerReport};
use crate::protocol::dialect::Dialect;
use crate::state::validity::Validity;

impl Ensemble {
    /// Returns all findings, `validity` being what the servers gave.
    pub(crate) async fn diagnose(&self, validity: Validity) -> Vec<Finding> {
        let addresses = self.sessions.addresses(&self.config);
        let asked = addresses.iter().map(|address| four_letter::ask(address, self.config.timeout));
        let reports: Vec<ServerReport> = join_all(asked).await;
        let mut findings = vec![servers(&self.config.hosts, &reports, self.voters().await), quorum(&reports)];
        findings.extend(latency(&reports, validity.session));
        findings.push(versions(&reports));
        findings.push(self.session(validity));
        findings.push(leader_clock_finding("sessions"));
        findings.push(self.access().await);
        findings.extend(self.dialect());
        findings
    }

    /// Returns how many servers have a vote, where the ensemble says so.
    async fn voters(&self) -> Option<usize> {
        let session = self.sessions.present(self.config.timeout).await.ok()?;
        let (text, _) = session.ask(self.config.timeout, session.client.get_config()).await.ok()?;
        let text = String::from_utf8(text).ok()?;
        let is_voter = |line: &&str| line.starts_with("server.") && !line.contains(":observer");
        Some(text.lines().filter(is_voter).count()).filter(|voters| *voters > 0)
    }

    fn session(&self, validity: Validity) -> Finding {
        let (asked, given) = (self.config.session, validity.session);
        let mut found = format!("a session ends {given:.1?} after it was last heard of");
        let meaning = format!(
            "the locks of a process that dies are free after this time, whatever their ttl; a holder that hears \
             of no server gives up after {:.1?}",
            validity.valid
        );
        if given != asked {
            found.push_str(&format!("; {asked:.1?} were asked for"));
        } else if !validity.is_curtailed() {
            return Finding::new("session", Severity::Good, found).meaning(meaning);
        }
        let advice = match (validity.is_curtailed(), validity.tick) {
            (true, Some(tick)) => format!(
                "ask for a `session` of {:.1?} at least, which is two ticks of the servers: of shorter ones less than half is counted on",
                tick * 2
            ),
            (true, None) => "add conf to 4lw.commands.whitelist, so that the servers' tickTime is known, or ask for a `session` of 4 s"
                .to_owned(),
            (false, _) => "servers give 2 to 20 of their ticks: set tickTime or maxSessionTimeout for others, but no \
                           minSessionTimeout of less than two ticks"
                .to_owned(),
        };
        Finding::new("session", Severity::Notice, found).meaning(meaning).advice(advice)
    }

    async fn access(&self) -> Finding {
        let Some(user) = self.config.user() else {
            return open_access_finding(
                "write a user into the URL: all nodes are then made for this user alone",
            );
        };
        if self.config.exposes_password() {
            return Finding::new("access", Severity::Risk, format!("{user}'s password is sent as it is"))
                .meaning("anyone who listens on the network can break every lock")
                .advice("write zks:// instead of zk://");
        }
        let Ok(session) = self.sessions.present(self.config.timeout).await else {
            return Finding::new("access", Severity::Unknown, "the client has no session");
        };
        let root = self.names.root();
        match session.ask(self.config.timeout, session.client.get_acl(root)).await {
            Ok((acls, _)) if acls.iter().any(is_for_everybody) => {
                let found = format!("everybody may change {root}, which was made without a login");
                Finding::new("access", Severity::Risk, found)
                    .meaning("others can make locks there that this user cannot take, and remove empty ones")
                    .advice(format!("let {user} make it: take another prefix, or set its ACL"))
            }
            Ok(_) | Err(Error::NoNode) => {
                Finding::new("access", Severity::Good, format!("nodes are for {user} alone"))
            }
            Err(Error::NoAuth) => Finding::new(
                "access",
                Severity::Broken,
                format!("{root} belongs to another user than {user}"),
            )
            .meaning("no lock can be taken there")
            .advice("log in as that one, or take another prefix"),
            Err(error) => Finding::new("access", Severity::Unknown, format!("no ACL of {root}: {error}")),
        }
    }

    fn dialect(&self) -> Option<Finding> {
        let (of, parents) = match self.names.dialect() {
            Dialect::Native => return None,
            Dialect::Curator => ("Curator", "empty ones go by themselves"),
            Dialect::Kazoo => ("kazoo", "the nodes of names that are not used any more stay"),
        };
        let finding = Finding::new("dialect", Severity::Notice, format!("locks are written as {of} does"));
        Some(finding.meaning(format!(
            "names are paths, a semaphore is another lock than the mutex of its name, and {parents}"
        )))
    }
}

/// Reports how many servers there are, and how many of them this client knows and reaches.
fn servers(hosts: &[Host], reports: &[ServerReport], voters: Option<usize>) -> Finding {
    let silent: Vec<String> = hosts
        .iter()
        .zip(reports)
        .filter_map(|(host, report)| match report {
            ServerReport::Unreachable(why) => Some(format!("{host} ({why})")),
            _ => None,
        })
        .collect();
    // One server alone keeps no list of members.
    servers_finding(hosts.len(), &silent, voters.unwrap_or(hosts.len()))
}

fn quorum(reports: &[ServerReport]) -> Finding {
    let without_quorum = reports.iter().filter(|report| matches!(report, ServerReport::NoQuorum)).count();
    let roles: Vec<&str> = reports
        .iter()
        .filter_map(|report| match report {
            ServerReport::Serves { role, .. } => Some(role.as_str()),
            _ => None,
        })
        .collect();
    if without_quorum > 0 {
        return Finding::new(
            "quorum",
            Severity::Risk,
            format!("{without_quorum} servers run, and know no leader"),
        )
        .meaning("they elect one, or cannot: with too few of them no lock is granted or confirmed")
        .advice("see to the servers' logs, and to the network between them");
    }
    if roles.is_empty() {
        return Finding::new("quorum", Severity::Unknown, "no server says what it is")
            .advice("add srvr to 4lw.commands.whitelist");
    }
    Finding::new("quorum", Severity::Good, format!("they serve as {}", roles.join(", ")))
}

/// Reports how long the servers let a request wait at worst, since they were started.
fn latency(reports: &[ServerReport], session: Duration) -> Option<Finding> {
    let slowest = reports.iter().filter_map(|report| match report {
        ServerReport::Serves { slowest, .. } => *slowest,
        _ => None,
    });
    let slowest = slowest.max()?;
    let found = format!("the slowest request since the servers started took {slowest:.1?}");
    if slowest >= session / 6 {
        return Some(
            Finding::new("latency", Severity::Risk, found)
                .meaning("a renewal that waits so long makes guards suspect, and twice as long may lose them")
                .advice("give the servers' transaction log a disk of its own, or ask for longer sessions"),
        );
    }
    Some(Finding::new("latency", Severity::Good, found))
}

fn versions(reports: &[ServerReport]) -> Finding {
    let reported = reports.iter().filter_map(|report| match report {
        ServerReport::Serves { version, .. } => Some(version.as_str()),
        _ => None,
    });
    let versions = match different_versions(reported) {
        Ok(versions) => versions,
        Err(finding) => return finding,
    };
    let found = format!("ZooKeeper {}", versions.join(", "));
    if versions.iter().any(|version| is_old(version)) {
        return Finding::new("version", Severity::Broken, format!("{found}: too old"))
            .meaning("reading several nodes in one request is not known there, and so no renewal")
            .advice("use 3.6 or later");
    }
    Finding::new("version", Severity::Good, found)
        .meaning("parents of locks that are not used go by themselves")
}

fn is_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) < (3, 6)
}

fn is_for_everybody(acl: &Acl) -> bool {
    acl.scheme() == "world"
        && (acl.permission() & Permission::ALL) != Permission::NONE
        && acl.permission() != Permission::READ
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serves(role: &str, version: &str, slowest: u64) -> ServerReport {
        let slowest = Some(Duration::from_millis(slowest));
        ServerReport::Serves { role: role.to_owned(), version: version.to_owned(), slowest }
    }

    #[test]
    fn old_and_slow_servers_are_reported() {
        assert_eq!(
            versions(&[serves("leader", "3.5.9", 0), serves("follower", "3.8.0", 0)]).severity,
            Severity::Broken
        );
        assert_eq!(versions(&[serves("leader", "3.10.1", 0)]).severity, Severity::Good);
        assert_eq!(versions(&[ServerReport::NotAllowed]).severity, Severity::Unknown);
        let session = Duration::from_secs(6);
        let of = |slowest| {
            latency(&[serves("leader", "3.8.0", slowest), ServerReport::NoQuorum], session).unwrap().severity
        };
        assert_eq!((of(999), of(1000)), (Severity::Good, Severity::Risk));
        assert_eq!(latency(&[ServerReport::NotAllowed], session), None);
    }

    #[test]
    fn servers_that_know_no_leader_are_a_risk() {
        assert_eq!(
            quorum(&[ServerReport::NoQuorum, ServerReport::Unreachable(String::new())]).severity,
            Severity::Risk
        );
        assert_eq!(quorum(&[ServerReport::NotAllowed]).severity, Severity::Unknown);
        let found = quorum(&[serves("leader", "3.8.0", 0), serves("follower", "3.8.0", 0)]);
        assert!(found.severity == Severity::Good && found.found.contains("leader, follower"), "{found:?}");
    }
}
