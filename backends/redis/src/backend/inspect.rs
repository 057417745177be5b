//! Inspects one resource, and lists all of them. Changes at most the mark of a lock whose release it waits for.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use leasehold_backend::changes::{until_changed, within};
use leasehold_core::{
    Effect, Failure, FailureKind, Patience, Resource, ResourceSummary, Snapshot, SnapshotVersion,
};
use redis::cmd;
use tokio::sync::Mutex;

use crate::backend::RedisBackend;
use crate::config::Wait;
use crate::net::command_conn::CommandConn;
use crate::net::request::Request;
use crate::protocol::keys::{Keys, MAX_NAME, plain};
use crate::protocol::reply;
use crate::protocol::scripts;

impl RedisBackend {
    /// Looks at one resource; with `seen`, again and again until it shows another version or patience ends.
    pub(crate) async fn inspect_until(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        let keys = Keys::of(&self.config.prefix, resource);
        let channel = keys.channel(self.scope);
        let subscription = Mutex::new(None);
        // Releases are announced; grants and arrivals are not, so that they cost nothing.
        let change = async || match self.config.wait {
            Wait::Pubsub => self.subscribers.next(&subscription, &channel, |_| LOOK_AGAIN).await,
            Wait::Poll => within(LOOK_AGAIN, pending::<()>()).await,
        };
        let watch = if seen.is_some() && self.config.wait == Wait::Pubsub { "!" } else { "" };
        let look = || async { Ok((self.inspect_once(resource, &keys, watch).await?, change())) };
        until_changed(patience, |snapshot| seen.is_none_or(|seen| *seen != snapshot.version), look).await
    }

    /// Looks once. With `watch`, the release of a single value is published.
    async fn inspect_once(&self, resource: &Resource, keys: &Keys, watch: &str) -> Result<Snapshot, Failure> {
        let request = Request {
            script: &scripts::INSPECT,
            keys: keys.all().into(),
            args: vec![keys.hashed_name.clone(), watch.to_owned()],
            confirm: None,
        };
        reply::snapshot(resource, self.servers.run(&request, self.config.timeout).await?)
    }

    /// Lists resources with holders or waiters, in the order of their names.
    pub(crate) async fn list_resources(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let candidates: Vec<Resource> = self
            .names(prefix)
            .await?
            .into_iter()
            .filter(|resource| after.is_none_or(|after| resource > after))
            .collect();
        let mut summaries = Vec::new();
        for chunk in candidates.chunks(COUNT_BATCH_MAX) {
            if summaries.len() >= limit {
                break;
            }
            summaries.extend(self.count(chunk).await?);
        }
        summaries.truncate(limit);
        Ok(summaries)
    }

    /// Counts the claims that hold and wait; resources without either are left out.
    async fn count(&self, resources: &[Resource]) -> Result<Vec<ResourceSummary>, Failure> {
        let keys: Vec<Keys> =
            resources.iter().map(|resource| Keys::of(&self.config.prefix, resource)).collect();
        let groups = self.servers.group_by_slot(&keys.iter().map(Keys::held).collect::<Vec<_>>());
        let requests = groups.iter().map(|group| {
            let keys = group.iter().flat_map(|position| [keys[*position].held(), keys[*position].places()]);
            Request { script: &scripts::COUNT, keys: keys.collect(), args: Vec::new(), confirm: None }
        });
        let requests: Vec<Request> = requests.collect();
        let answers = self.servers.run_all(&requests, self.config.timeout).await;
        let mut summaries = Vec::with_capacity(resources.len());
        for (group, answer) in groups.iter().zip(answers) {
            let numbers = reply::numbers(answer?, 2 * group.len())?;
            for (position, counts) in group.iter().zip(numbers.chunks(2)) {
                let [holders, waiting] = *counts else { continue };
                let resource = resources[*position].clone();
                summaries.extend(
                    (holders + waiting > 0).then_some(ResourceSummary::new(resource, holders, waiting)),
                );
            }
        }
        summaries.sort_by(|one, other| one.resource.cmp(&other.resource));
        Ok(summaries)
    }

    /// Returns the names of all resources that begin with `prefix` and have keys besides their fence.
    async fn names(&self, prefix: &str) -> Result<BTreeSet<Resource>, Failure> {
        let root = format!("{{{}:", self.config.prefix);
        let pattern = format!("{}{}*}}:[hp]*", glob_escaped(&root), glob_escaped(&searched(prefix)));
        let mut names = BTreeSet::new();
        for conn in self.servers.each().await? {
            self.names_at(&conn, &root, &pattern, prefix, &mut names).await?;
        }
        Ok(names)
    }

    /// Adds the names that one server knows.
    async fn names_at(
        &self,
        conn: &CommandConn,
        root: &str,
        pattern: &str,
        prefix: &str,
        names: &mut BTreeSet<Resource>,
    ) -> Result<(), Failure> {
        let mut hashed = BTreeSet::new();
        each_key(conn, self.config.timeout, pattern, None, |key| {
            if let Some(stored) = stored_name(key, root) {
                match Resource::from_escaped(stored) {
                    Some(resource) if resource.as_str().starts_with(prefix) => _ = names.insert(resource),
                    None if Resource::is_hashed(stored) => _ = hashed.insert(stored.to_owned()),
                    _ => {}
                }
            }
            names.len() + hashed.len()
        })
        .await?;
        self.resolve(conn, root, &hashed, prefix, names).await
    }

    /// Adds the resources whose keys carry a hash; their names are kept with their fences.
    async fn resolve(
        &self,
        conn: &CommandConn,
        root: &str,
        hashed: &BTreeSet<String>,
        prefix: &str,
        names: &mut BTreeSet<Resource>,
    ) -> Result<(), Failure> {
        for stored in hashed {
            let mut get = cmd("GET");
            get.arg(format!("{root}{stored}}}:fence"));
            // A name that cannot be read is not one of ours.
            let Ok(value) = conn.command(&get, self.config.timeout).await else { continue };
            let text: Option<String> = reply::read(value).unwrap_or_default();
            let name = text.as_deref().and_then(|text| text.split_once(' ')).map(|(_, name)| name);
            let resource = name.and_then(|name| Resource::new(name).ok());
            names.extend(resource.filter(|resource| resource.as_str().starts_with(prefix)));
        }
        Ok(())
    }
}

/// Visits all keys of a pattern at one server, and of a type where one is named; some of them twice.
/// `visit` returns how many it keeps.
pub(crate) async fn each_key(
    conn: &CommandConn,
    limit: Duration,
    pattern: &str,
    kind: Option<&str>,
    mut visit: impl FnMut(&[u8]) -> usize,
) -> Result<(), Failure> {
    let mut cursor = 0u64;
    for _ in 0..MAX_SCANS {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
        if let Some(kind) = kind {
            scan.arg("TYPE").arg(kind);
        }
        let answer = conn.command(&scan, limit).await?;
        let (next, keys): (u64, Vec<Vec<u8>>) = reply::read(answer)?;
        let kept = keys.iter().map(|key| visit(key)).last().unwrap_or(0);
        if kept > MAX_NAMES {
            return Err(too_many("resources", "give a longer prefix"));
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
    Err(too_many("keys", "keep locks in a database of their own"))
}

/// Longest time between two looks of an observer that waits for a change.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Resources that are counted by one script.
const COUNT_BATCH_MAX: usize = 500;

/// Bounds of one listing.
pub(crate) const SCAN_COUNT: usize = 1_000;
pub(crate) const MAX_SCANS: usize = 100_000;
const MAX_NAMES: usize = 1_000_000;

/// The length of an escaped prefix that hashed names begin with too.
const HASHED_HEAD: usize = 24;

/// Returns the beginning of the stored names to be found.
pub(crate) fn searched(prefix: &str) -> String {
    let Ok(prefix) = Resource::new(prefix) else { return String::new() };
    let escaped = prefix.escaped(plain, usize::MAX);
    // A hashed name is cut between two characters, so its last two bytes may be missing.
    let head = escaped.len().min(HASHED_HEAD - 2);
    escaped.get(..head).unwrap_or_default().to_owned()
}

fn stored_name<'a>(key: &'a [u8], root: &str) -> Option<&'a str> {
    let key = std::str::from_utf8(key).ok()?;
    let (stored, part) = key.strip_prefix(root)?.split_once("}:")?;
    (matches!(part, "held" | "places") && stored.len() <= MAX_NAME).then_some(stored)
}

/// Escapes `text` for a pattern, where it matches itself.
pub(crate) fn glob_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

pub(crate) fn too_many(what: &str, advice: &str) -> Failure {
    Failure::new(FailureKind::Unsupported, Effect::None, format!("too many {what} to be listed: {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_name_is_found_in_its_key() {
        assert_eq!(stored_name(b"{lh:a/b}:held", "{lh:"), Some("a/b"));
        assert_eq!(stored_name(b"{lh:a/b}:fence", "{lh:"), None);
        assert_eq!(stored_name(b"{other:a}:held", "{lh:"), None);
        assert_eq!(stored_name(b"\xff", "{lh:"), None);
    }

    #[test]
    fn a_prefix_is_searched_literally() {
        assert_eq!(glob_escaped("a*[b]?"), "a\\*\\[b\\]\\?");
        assert_eq!(searched("a b"), "a%20b");
        assert_eq!(searched(""), "");
        assert_eq!(searched(&"x".repeat(100)).len(), 22);
    }
}
