//! Several MariaDB servers that decide together, by Galera.
//!
//! Ground rules: the provider comes with Debian's `mariadb-server`, and so do the programs that carry a
//! state over to a server that joins.

use std::path::Path;

use super::{MariaDbBuilder, MariaDbServer};
use crate::error::Error;
use crate::port::Port;
use crate::require;

/// A cluster of this test alone, whose servers all take writes and agree on their order.
///
/// # Promises
/// As [`MariaDbServer`], for each of them: when `start` returns, all belong to one cluster and answer.
///
/// # Does not promise
/// Return of a killed server by [`MariaDbServer::restart`]: the first one was started to found a cluster.
#[derive(Debug)]
pub struct GaleraCluster {
    // Dropped in this order: the servers end before their ports are free for others.
    servers: Vec<MariaDbServer>,
    _ports: Vec<Port>,
}

impl GaleraCluster {
    /// Starts the servers, one after the other, since each takes over the state of those before it.
    ///
    /// # Errors
    /// [`Error::is_missing`] when the programs are not installed. Otherwise the end of a server's log is in
    /// the text.
    pub async fn start(count: usize) -> Result<Self, Error> {
        if !Path::new(PROVIDER).is_file() {
            return Err(Error::missing(PROVIDER, "galera-4"));
        }
        require::program("rsync", "rsync")?;
        let (mut servers, mut ports) = (Vec::new(), Vec::new());
        let mut founder = None;
        for _ in 0..count {
            let [group, increments, state] = [Port::take()?, Port::take()?, Port::take()?];
            let builder = member([&group, &increments, &state], founder);
            servers.push(builder.start().await?);
            founder = founder.or(Some(group.number()));
            ports.extend([group, increments, state]);
        }
        Ok(Self { servers, _ports: ports })
    }

    /// Starts as [`GaleraCluster::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(count: usize) -> Option<Self> {
        require::or_skip("galera", Self::start(count).await)
    }

    /// Returns the servers, in the order in which they joined.
    pub fn servers(&self) -> &[MariaDbServer] {
        &self.servers
    }

    /// Lets a server that has lost the others decide without them, as an operator does who knows that they
    /// are gone, and waits until it answers.
    ///
    /// # Errors
    /// The server's message.
    pub async fn form_cluster_alone(&self, server: usize) -> Result<(), Error> {
        let server = &self.servers[server];
        let asked = server.ask(&[], "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=yes'").await;
        if let Err(error) = asked {
            // Since MariaDB 11.4 each option of the provider is a variable.
            if !error.to_string().contains("plugin is loaded") {
                return Err(error);
            }
            server.ask(&[], "SET GLOBAL wsrep_provider_pc_bootstrap = ON").await?;
        }
        server.ready().await
    }
}

/// Returns a server that founds a cluster, or joins the one of this port.
fn member([group, increments, state]: [&Port; 3], founder: Option<u16>) -> MariaDbBuilder {
    let provider = format!(
        "base_port={own};gmcast.listen_addr=tcp://{group};ist.recv_addr={increments};gcache.size=8M;pc.recovery=false",
        own = group.number(),
        group = group.addr(),
        increments = increments.addr(),
    );
    let builder = MariaDbServer::builder()
        .setting("wsrep-on", "ON")
        .setting("wsrep-provider", PROVIDER)
        .setting("wsrep-provider-options", &provider)
        .setting("wsrep-cluster-name", "leasehold")
        .setting("wsrep-node-address", &group.addr().to_string())
        .setting("wsrep-sst-method", "rsync")
        .setting("wsrep-sst-receive-address", &state.addr().to_string())
        .setting("binlog-format", "ROW");
    match founder {
        None => builder.setting("wsrep-cluster-address", "gcomm://").flag("wsrep-new-cluster"),
        Some(port) => builder.setting("wsrep-cluster-address", &format!("gcomm://127.0.0.1:{port}")),
    }
}

const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";
