//! The destination of requests: the only server, or those of a cluster that serve their slots.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Failure;
use redis::Value;

use crate::net::command_conn::CommandConn;
use crate::net::request::Request;
use crate::protocol::slots::slot_of;
use crate::topology::cluster::Cluster;
use crate::topology::cluster::delivery::HalfMovedKeys;

/// The destination of requests.
#[derive(Debug)]
pub(crate) enum Servers {
    One(Arc<CommandConn>),
    Cluster(Cluster),
}

impl Servers {
    /// Runs one script.
    pub(crate) async fn run(&self, request: &Request, limit: Duration) -> Result<Value, Failure> {
        match self {
            Servers::One(conn) => conn.run(request, limit).await,
            Servers::Cluster(cluster) => {
                let mut outcomes = cluster.run_on_slots(&[request], limit, HalfMovedKeys::Wait).await;
                outcomes.pop().unwrap_or_else(|| Err(Failure::unavailable("nothing was sent")))
            }
        }
    }

    /// Runs one script over the connection that is there, as [`CommandConn::ask_now`]; `None` on a cluster.
    pub(crate) fn ask_now(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Option<impl Future<Output = Result<Value, Failure>> + Send + use<>> {
        match self {
            Servers::One(conn) => conn.ask_now(request, limit),
            // There a request watches for a change of the slots while it waits, and follows it.
            Servers::Cluster(_) => None,
        }
    }

    /// Runs one script over the connection that is there, as [`CommandConn::run_now`]; `None` on a cluster.
    pub(crate) fn run_now(
        &self,
        request: Request,
        limit: Duration,
    ) -> Option<impl Future<Output = Result<Value, Failure>> + Send + use<>> {
        match self {
            Servers::One(conn) => conn.run_now(request, limit),
            Servers::Cluster(_) => None,
        }
    }

    /// Runs scripts in one go to each server; each has its own outcome, in order.
    pub(crate) async fn run_all(&self, requests: &[Request], limit: Duration) -> Vec<Result<Value, Failure>> {
        match self {
            Servers::One(conn) => conn.run_all(requests, limit).await,
            Servers::Cluster(cluster) => {
                let requests: Vec<&Request> = requests.iter().collect();
                cluster.run_on_slots(&requests, limit, HalfMovedKeys::Wait).await
            }
        }
    }

    /// Runs scripts as [`Servers::run_all`], but does not wait for the keys of a request with several that are moving:
    /// it fails with the cause [`HalfMoved`](crate::net::failures::HalfMoved), so that they can be sent apart.
    pub(crate) async fn run_all_apart(
        &self,
        requests: &[Request],
        limit: Duration,
    ) -> Vec<Result<Value, Failure>> {
        match self {
            Servers::One(conn) => conn.run_all(requests, limit).await,
            Servers::Cluster(cluster) => {
                let requests: Vec<&Request> = requests.iter().collect();
                cluster.run_on_slots(&requests, limit, HalfMovedKeys::GiveUp).await
            }
        }
    }

    /// Groups keys that one script may use together, as positions: all, or those of a slot.
    pub(crate) fn group_by_slot(&self, keys: &[String]) -> Vec<Vec<usize>> {
        match self {
            Servers::One(_) if keys.is_empty() => Vec::new(),
            Servers::One(_) => vec![(0..keys.len()).collect()],
            Servers::Cluster(_) => {
                let mut groups: Vec<Vec<usize>> = Vec::new();
                let mut group_of = HashMap::new();
                for (position, key) in keys.iter().enumerate() {
                    let group = *group_of.entry(slot_of(key)).or_insert(groups.len());
                    match groups.get_mut(group) {
                        Some(group) => group.push(position),
                        None => groups.push(vec![position]),
                    }
                }
                groups
            }
        }
    }

    /// Returns a number for the server that decides over a key, a different one for each.
    pub(crate) fn part(&self, key: &str) -> u64 {
        match self {
            Servers::One(_) => 0,
            Servers::Cluster(cluster) => cluster.part(slot_of(key)),
        }
    }

    /// Returns each server that decides over anything.
    pub(crate) async fn each(&self) -> Result<Vec<Arc<CommandConn>>, Failure> {
        match self {
            Servers::One(conn) => Ok(vec![conn.clone()]),
            Servers::Cluster(cluster) => {
                cluster.refresh(None).await?;
                Ok(cluster.primaries().iter().map(|member| member.conn.clone()).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RedisConfig;
    use crate::net::connection::Dialer;
    use crate::net::endpoint::Fixed;

    #[test]
    fn one_server_takes_all_keys_together() {
        let config = RedisConfig::parse("redis://h").unwrap();
        let source = Arc::new(Fixed::new(config.endpoint.clone()));
        let one = Servers::One(Arc::new(CommandConn::new(Arc::new(Dialer::new(config, source)))));
        assert_eq!(one.group_by_slot(&["a".into(), "b".into()]), [[0, 1]]);
        assert!(one.group_by_slot(&[]).is_empty());
    }
}
