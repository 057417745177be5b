//! The server: its sockets, its connections, and its end.
//!
//! Ground rules: everything that can be refused is refused before the first connection is accepted. At the end
//! holders are notified first, and a lock that an answer has called valid is not given up before that time is over.

mod connection;
#[cfg(test)]
mod fuzz;
mod noticing;
mod sockets;
mod strangers;
mod tls;

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn;
use leasehold::Client;
use leasehold_monitor::{Monitor, Options};
use rustix::process::{Resource, getrlimit};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::config::{Config, Listen};
use crate::guard::protect;
use crate::holds::Holds;
use crate::state::State;
use crate::token::Token;
use crate::watchers::Watchers;
use crate::{api, console, lately, probes};
use connection::Serving;
use sockets::Socket;
use strangers::Strangers;
use tls::Tls;

/// The reason why a server cannot start. The text says what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ServeError(String);

impl From<String> for ServeError {
    fn from(text: String) -> ServeError {
        ServeError(text)
    }
}

/// A server that listens, and answers once it [runs](Server::run).
pub struct Server {
    sockets: Vec<Socket>,
    state: Arc<State>,
    routes: Router,
    tls: Option<Tls>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl Server {
    /// Opens the token file and the sockets.
    ///
    /// # Errors
    /// A text for people if a file or a socket cannot be used.
    pub async fn bind(client: Client, mut config: Config) -> Result<Server, ServeError> {
        let token = Token::open(config.token_file.as_deref())?;
        let tls = config.tls.as_ref().map(Tls::open).transpose()?;
        if config.listen.is_empty() {
            return Err("there is no address to listen at: name one with --listen".to_owned().into());
        }
        let mut sockets = Vec::new();
        for listen in &config.listen {
            sockets.push(Socket::bind(listen).await?);
        }
        let (asked, files) = (config.limits.connections, most_files());
        config.limits = config.limits.within(files);
        if config.limits.connections < asked {
            tracing::warn!(
                "there is room for only {} connections, not {asked}, because this process may have only {files} files \
                 open: raise that limit to twice the connections (ulimit -n, or LimitNOFILE= in a unit of systemd)",
                config.limits.connections
            );
        }
        let state = Arc::new(State {
            monitor: Arc::new(Monitor::start(client.clone(), Options::default())),
            lately: lately::of_this_process(),
            holds: Holds::new(client.clone(), config.limits.clone()),
            watchers: Watchers::new(config.limits.watchers),
            client,
            token,
            config,
        });
        let routes = routes(&state);
        Ok(Server { sockets, state, routes, tls })
    }

    /// Returns the addresses at which it listens, with the ports that the system chose.
    pub fn addresses(&self) -> Vec<Listen> {
        self.sockets.iter().map(Socket::address).collect()
    }

    /// Returns the URLs for people.
    pub fn urls(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let url = |address: &Listen| match address {
            Listen::Tcp(address) => format!("{scheme}://{address}"),
            Listen::Unix(_) => address.to_string(),
        };
        self.addresses().iter().map(url).collect()
    }

    /// Returns the file that holds the token.
    pub fn token_path(&self) -> PathBuf {
        Path::to_owned(self.state.token.path())
    }

    /// Returns `true` if other machines can connect without TLS.
    pub fn has_plain_public_address(&self) -> bool {
        self.tls.is_none() && self.addresses().iter().any(|address| !address.is_local())
    }

    /// Returns `true` if locks of this store end with this process, and not with a lease.
    pub fn is_bound_to_process(&self) -> bool {
        self.state.holds.is_bound_to_process()
    }

    /// Serves until `shutdown` is over. Then it takes no new locks, notifies holders, and waits until they have
    /// released, for the grace time at most; a second `shutdown` ends that wait.
    ///
    /// Returns the number of locks that were still held. On a store with leases they stay until their leases end, if
    /// the process ends without dropping its runtime: the tasks that hold them would release them.
    pub async fn run(
        self,
        mut shutdown: impl FnMut() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> usize {
        let (closing, watched) = watch::channel(false);
        let places = Arc::new(Semaphore::new(self.state.config.limits.connections));
        let strangers = Arc::new(Strangers::default());
        // For all sockets together, as the files are.
        let refusals = Arc::new(Semaphore::new(REFUSALS.min(most_files() / 8)));
        let mut accepting = JoinSet::new();
        for socket in self.sockets {
            let tls = self.tls.as_ref().filter(|_| socket.is_tcp()).map(Tls::acceptor);
            let serving = Serving {
                refusals: refusals.clone(),
                strangers: strangers.clone(),
                routes: self.routes.clone(),
                tls,
                places: places.clone(),
                closing: watched.clone(),
            };
            accepting.spawn(connection::accept(socket, serving));
        }
        let upkeep = tokio::spawn(async {
            loop {
                tokio::time::sleep(UPKEEP).await;
                probes::tidy_up();
            }
        });
        let renewing = self.tls.map(|tls| tokio::spawn(tls.renew()));
        shutdown().await;
        let grace = self.state.config.grace;
        let left = tokio::select! {
            left = self.state.holds.close(grace) => left,
            () = shutdown() => self.state.holds.counts().0,
        };
        closing.send_replace(true);
        upkeep.abort();
        if let Some(renewing) = renewing {
            renewing.abort();
        }
        accepting.shutdown().await;
        // The last answers are still being written.
        let all = u32::try_from(self.state.config.limits.connections).unwrap_or(u32::MAX);
        drop(tokio::time::timeout(LAST_ANSWERS, places.acquire_many(all)).await);
        left
    }
}

/// Returns the number of files, connections among them, that this process can have open.
fn most_files() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// The connections that are answered at a time that there are too many. There are fewer if this process can have few
/// files open.
const REFUSALS: usize = 64;
/// The time that connections have for their last answers at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// The pause between two times at which measurements are summed up.
const UPKEEP: Duration = Duration::from_secs(5);

/// Puts all routes together.
fn routes(state: &Arc<State>) -> Router {
    let routes = Router::new().merge(api::routes()).merge(probes::routes()).merge(console::routes(state));
    let routes = routes.fallback(api::not_found).method_not_allowed_fallback(api::method_not_allowed);
    protect(routes, state).layer(from_fn(console::as_page))
}
