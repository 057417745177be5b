//! Several servers that know nothing of each other, each behind a network of its own.

use std::net::SocketAddr;

use super::{RedisBuilder, RedisServer};
use crate::error::Error;
use crate::proxy::Proxy;
use crate::require;

/// Independent Redis servers for clients that ask several and go by the majority, as in Redlock.
///
/// Every server has a [`Proxy`], so that each can be cut off alone. Faults of a server are those of
/// [`RedisServer`].
#[derive(Debug)]
pub struct RedisQuorum {
    // Dropped in this order: nothing is passed on to a server that has ended.
    proxies: Vec<Proxy>,
    servers: Vec<RedisServer>,
}

impl RedisQuorum {
    /// Starts so many servers with the default options.
    ///
    /// # Errors
    /// As [`RedisBuilder::start`].
    pub async fn start(count: usize) -> Result<Self, Error> {
        Self::start_with(count, RedisServer::builder()).await
    }

    /// Starts so many servers with these options.
    ///
    /// # Errors
    /// As [`RedisBuilder::start`].
    pub async fn start_with(count: usize, builder: RedisBuilder) -> Result<Self, Error> {
        let mut starting = Vec::new();
        for _ in 0..count {
            starting.push(tokio::spawn(builder.clone().start()));
        }
        let mut servers = Vec::with_capacity(count);
        for server in starting {
            let started =
                server.await.map_err(|error| Error::failed(format!("a start panicked: {error}")))?;
            servers.push(started?);
        }
        let mut proxies = Vec::with_capacity(count);
        for server in &servers {
            proxies.push(Proxy::start(server.addr()).await?);
        }
        Ok(Self { proxies, servers })
    }

    /// Starts as [`RedisQuorum::start`] does, or ends the test as skipped; see [`require`](crate::require).
    ///
    /// # Panics
    /// As [`require::or_skip`](crate::require::or_skip).
    pub async fn start_or_skip(count: usize) -> Option<Self> {
        require::or_skip("redis", Self::start(count).await)
    }

    /// Returns how many servers there are.
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// Returns one of the servers.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn server(&self, number: usize) -> &RedisServer {
        &self.servers[number]
    }

    /// Returns the network before one of the servers, for clients that came by
    /// [`RedisQuorum::hosts_by_proxy`].
    ///
    /// # Panics
    /// If there are fewer.
    pub fn proxy(&self, number: usize) -> &Proxy {
        &self.proxies[number]
    }

    /// Returns `host:port,host:port,…` of the servers themselves.
    pub fn hosts(&self) -> String {
        joined(self.servers.iter().map(RedisServer::addr))
    }

    /// Returns `host:port,host:port,…` by way of the proxies.
    pub fn hosts_by_proxy(&self) -> String {
        joined(self.proxies.iter().map(Proxy::addr))
    }
}

fn joined(addresses: impl Iterator<Item = SocketAddr>) -> String {
    addresses.map(|address| address.to_string()).collect::<Vec<_>>().join(",")
}
