//! Lists all resources that have claims, page by page. Changes nothing.

use futures_util::future::join_all;
use leasehold_core::{Effect, Failure, FailureKind, Resource, ResourceSummary};
use zookeeper_client::Error;

use crate::backend::acquire::look_failure;
use crate::client::Ensemble;
use crate::net::session::EnsembleSession;
use crate::protocol::dialect::{Dialect, looks_like_a_claim};

impl Ensemble {
    /// Lists resources with claims, in the order of their names.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let session = self.sessions.present(self.config.timeout).await?;
        let synced = session.ask(self.config.timeout, session.client.sync(self.names.root())).await;
        synced.map_err(look_failure)?;
        let mut resources = match self.names.dialect() {
            Dialect::Native => self.containers(&session).await?,
            Dialect::Curator | Dialect::Kazoo => self.walk(&session, prefix).await?,
        };
        resources.retain(|resource| {
            resource.as_str().starts_with(prefix) && after.is_none_or(|after| resource > after)
        });
        resources.sort_unstable();
        resources.dedup();
        // Empty containers stay for a while, so how many have to be looked at for a full page is not known.
        let mut page = Vec::new();
        for chunk in resources.chunks(LOOKS_AT_ONCE) {
            let looks = chunk.iter().map(|resource| self.summary(&session, resource));
            for summary in join_all(looks).await {
                page.extend(summary?);
            }
            if page.len() >= limit {
                break;
            }
        }
        page.truncate(limit);
        Ok(page)
    }

    /// Lists resources where all are the children of one node.
    async fn containers(&self, session: &EnsembleSession) -> Result<Vec<Resource>, Failure> {
        let root = self.names.root();
        let children = self.children(session, root).await?;
        Ok(children.iter().filter_map(|child| self.names.resource(&format!("{root}/{child}"))).collect())
    }

    /// Lists resources where names are paths: every node below that has children like claims.
    async fn walk(&self, session: &EnsembleSession, prefix: &str) -> Result<Vec<Resource>, Failure> {
        let mut found = Vec::new();
        let start = self.start(prefix);
        let first = self.names.resource(&start);
        let (mut level, mut walked) = (vec![(start, first)], 0);
        while !level.is_empty() {
            walked += level.len();
            if walked > MAX_WALKED {
                let text = format!(
                    "there are more than {MAX_WALKED} nodes to look through: list with a longer prefix, or keep \
                     locks below a node of their own"
                );
                return Err(Failure::new(FailureKind::Invalid, Effect::None, text));
            }
            let mut next = Vec::new();
            for chunk in level.chunks(LOOKS_AT_ONCE) {
                let looks = join_all(chunk.iter().map(|(path, _)| self.children(session, path))).await;
                for ((path, resource), children) in chunk.iter().zip(looks) {
                    let (claims, deeper): (Vec<_>, Vec<_>) =
                        children?.into_iter().partition(|child| looks_like_a_claim(child));
                    if !claims.is_empty() {
                        found.extend(resource.clone());
                    }
                    let path = path.trim_end_matches('/');
                    for child in &deeper {
                        let path = format!("{path}/{child}");
                        // The content of a part of a semaphore belongs to that semaphore. Such a part
                        // may have no name of its own.
                        let part = resource.clone().filter(|_| self.names.is_part(child, &deeper));
                        let named = || self.names.resource(&path).filter(|named| leads_to(named, prefix));
                        if let Some(resource) = part.or_else(named) {
                            next.push((path, Some(resource)));
                        }
                    }
                }
            }
            level = next;
        }
        Ok(found)
    }

    /// Returns the lowest node that everything of this prefix is below. Of a path that ends or doubles
    /// slashes only the beginning is sure to be a path on the server, too.
    fn start(&self, prefix: &str) -> String {
        let whole: Vec<&str> = prefix.split('/').take_while(|part| !part.is_empty()).collect();
        let above = whole.split_last().map(|(_, above)| above.join("/")).unwrap_or_default();
        match Resource::new(&above) {
            Ok(resource) if self.names.check_name(&resource).is_ok() => self.names.container(&resource),
            _ => self.names.root().to_owned(),
        }
    }

    /// Returns the children of a node; none where it does not exist, or is not for this user.
    async fn children(&self, session: &EnsembleSession, path: &str) -> Result<Vec<String>, Failure> {
        match session.ask(self.config.timeout, session.client.list_children(path)).await {
            Ok(children) => Ok(children),
            Err(Error::NoNode) => Ok(Vec::new()),
            // This is normal in a tree that is shared with others. In leasehold's own, it is a mistake
            // to be reported.
            Err(Error::NoAuth) if self.names.dialect() != Dialect::Native => Ok(Vec::new()),
            Err(error) => Err(look_failure(error)),
        }
    }

    async fn summary(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
    ) -> Result<Option<ResourceSummary>, Failure> {
        let view = match self.read_view(session, resource).await {
            Ok(view) if !view.is_empty() => view,
            Ok(_) => return Ok(None),
            // Children that do not read as a queue are not ours to show, nor are those that another user
            // may not see.
            Err(failure) if matches!(failure.kind, FailureKind::Foreign) => return Ok(None),
            Err(failure)
                if failure.kind == FailureKind::Denied && self.names.dialect() != Dialect::Native =>
            {
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let (mut holders, mut waiting) = (view.queue.holders(), view.locks.entries().len());
        waiting += view.queue.entries().len() - holders;
        holders += view.leases.len();
        // The first in the queue may have made its lease already.
        if !(view.locks.entries().is_empty() || view.leases.is_empty())
            && let Some(claim_infos) = self.claim_infos(session, resource, &view).await?
        {
            (holders, waiting) = (claim_infos.holders.len(), claim_infos.waiting.len());
        }
        let count = |claims: usize| u32::try_from(claims).unwrap_or(u32::MAX);
        Ok(Some(ResourceSummary::new(resource.clone(), count(holders), count(waiting))))
    }
}

/// Returns `true` if this name, or a longer path, can begin with `prefix`.
fn leads_to(resource: &Resource, prefix: &str) -> bool {
    let name = resource.as_str();
    name.starts_with(prefix) || prefix.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
}

/// The number of nodes that are asked for together.
const LOOKS_AT_ONCE: usize = 64;
/// The most nodes that one listing looks through.
const MAX_WALKED: usize = 20_000;
