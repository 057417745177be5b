//! Options of a Redis Cluster, and the start of its servers.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{Member, RedisCluster};
use crate::certificates::Certificates;
use crate::directory::Directory;
use crate::error::Error;
use crate::port::{Port, on_free_ports};
use crate::redis::builder::quoted;
use crate::redis::version::{BUS_PORT, version};
use crate::redis::{RedisBuilder, RedisServer};
use crate::require;

/// Options for a [`RedisCluster`]; without any, three primaries with a replica each.
#[derive(Debug, Clone)]
#[must_use = "nothing starts before `start`"]
pub struct RedisClusterBuilder {
    server: RedisBuilder,
    /// The setting of replicas, where it differs.
    replica: Option<RedisBuilder>,
    primaries: usize,
    replicas: usize,
    node_timeout: Duration,
}

impl RedisClusterBuilder {
    pub(super) fn new() -> Self {
        Self {
            server: RedisBuilder::new(),
            replica: None,
            primaries: 3,
            replicas: 1,
            node_timeout: Duration::from_secs(5),
        }
    }

    /// Options of each member: `.server(RedisServer::builder().password("secret"))`. A password is what
    /// members log in to each other with as well, and TLS makes the whole cluster speak it.
    pub fn server(mut self, server: RedisBuilder) -> Self {
        self.server = server;
        self
    }

    /// Options of each replica, where they differ from those of the primaries in the version, as during an upgrade.
    /// After a replica has taken over, an older server does not follow it, so the cluster does not settle.
    pub fn replica(mut self, server: RedisBuilder) -> Self {
        self.replica = Some(server);
        self
    }

    /// Sets how many members have slots of their own; at least three for a cluster that can lose one.
    pub fn primaries(mut self, primaries: usize) -> Self {
        self.primaries = primaries;
        self
    }

    /// Sets how many replicas each primary has.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets after which silence a member is taken for dead. A replica takes over about a second after that.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.node_timeout = node_timeout;
        self
    }

    /// Starts the members, makes them one cluster, and waits until it serves.
    ///
    /// # Errors
    /// [`Error::is_missing`] when the program is not installed. Otherwise the end of a member's log is in
    /// the text.
    pub async fn start(self) -> Result<RedisCluster, Error> {
        let directory = Directory::create("redis-cluster")?;
        let (password, tls) = self.server.login();
        let certificates = tls.map(|_| Certificates::create(&directory)).transpose()?;
        let common = |server: &RedisBuilder| {
            let mut common = server
                .clone()
                .line("cluster-enabled yes")
                // Beside the data: a member that has lost its data still knows who it is.
                .line("cluster-config-file ../nodes.conf")
                .line(format!("cluster-node-timeout {}", self.node_timeout.as_millis()))
                .line("cluster-allow-replica-migration no")
                .line("repl-diskless-sync-delay 0");
            if let Some(password) = password {
                common = common.line(format!("masterauth {}", quoted(password)));
            }
            if let Some(certificates) = &certificates {
                let client = certificates.client();
                let path = |path: &Path| quoted(&path.display().to_string());
                common = common
                    .certificates(certificates)
                    .line("tls-cluster yes")
                    .line("tls-replication yes")
                    .line(format!("tls-client-cert-file {}", path(&client.certificate)))
                    .line(format!("tls-client-key-file {}", path(&client.key)));
            }
            common
        };
        let (primary, replica) =
            (common(&self.server), common(self.replica.as_ref().unwrap_or(&self.server)));
        let mut members = Vec::new();
        for number in 0..self.primaries * (1 + self.replicas) {
            let common = if number < self.primaries { &primary } else { &replica };
            let is_old = version(&common.find()?)? < BUS_PORT;
            if is_old && certificates.is_some() {
                return Err(Error::absent("the kit starts no cluster with TLS of a Redis before 7.0"));
            }
            let (server, bus) = on_free_ports(|| start_member(common, is_old)).await?;
            members.push(Member { server, bus, awake: AtomicBool::new(true) });
        }
        let cluster =
            RedisCluster { members, primaries: self.primaries, certificates, _directory: directory };
        cluster.form().await?;
        Ok(cluster)
    }

    /// Starts as [`RedisClusterBuilder::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(self) -> Option<RedisCluster> {
        require::or_skip("redis", self.start().await)
    }
}

/// Starts one member. The port of its bus is a free one, or lies where an old server has it.
async fn start_member(common: &RedisBuilder, is_old: bool) -> Result<(RedisServer, Port), Error> {
    if is_old {
        let (port, bus) = Port::take_with_bus()?;
        return Ok((common.clone().start_at(port).await?, bus));
    }
    let bus = Port::take()?;
    let server = common.clone().line(format!("cluster-port {}", bus.number())).start().await?;
    Ok((server, bus))
}
