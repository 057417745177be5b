//! Opens connections: the socket, TLS, and the login.
//!
//! Nothing that fails in here can have changed anything on the server, so every failure of this file
//! has the effect `None`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_backend::connecting::{cannot_connect, cannot_open_socket};
use leasehold_backend::connection::Duplex;
use leasehold_core::{Effect, Failure};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use crate::config::{Endpoint, RedisConfig, invalid, reveal};
use crate::net::endpoint::{Source, Target};
use crate::net::login::{Login, LoginError};
use crate::net::pipe::Pipe;
use crate::net::replicas::Barrier;
use crate::net::request::LinkValues;
use crate::net::run::Run;
use crate::net::timer::Limit;
use crate::net::tls;
use crate::protocol::error;

/// Opens connections to the current target.
#[derive(Debug)]
pub(crate) struct Dialer {
    config: RedisConfig,
    source: Arc<dyn Source>,
    /// `true` if scripts are for one run of the server.
    knows_runs: bool,
}

impl Dialer {
    /// Creates a dialer to the server that `source` names.
    pub(crate) fn new(config: RedisConfig, source: Arc<dyn Source>) -> Dialer {
        Dialer { config, source, knows_runs: false }
    }

    /// Makes each connection for commands know the run of its server, for scripts that are meant for one run.
    pub(crate) fn knowing_runs(self) -> Dialer {
        Dialer { knows_runs: true, ..self }
    }

    /// Returns the source that knows where to dial.
    pub(crate) fn source(&self) -> &dyn Source {
        &*self.source
    }

    /// Opens a connection for commands, ready to use.
    pub(crate) async fn link(&self) -> Result<Link, Failure> {
        let target = self.source.target().await?;
        self.bounded(&target, async {
            let stream = self.open(&target.endpoint).await?;
            let mut link = Link::new(target.clone(), stream);
            if self.knows_runs {
                link.run = Some(Run::ask(link.pipe(), &target.endpoint).await?);
            }
            self.source.admit(link.pipe().clone(), &target).await?;
            Ok(link)
        })
        .await
    }

    /// Opens a stream that is logged in, and returns where it leads.
    pub(crate) async fn stream(&self) -> Result<(Box<dyn Duplex>, Target), Failure> {
        let target = self.source.target().await?;
        let stream = self.bounded(&target, self.open(&target.endpoint)).await?;
        Ok((stream, target))
    }

    /// Returns the time within which the server has to answer.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Dials for as long as an answer may take, and no longer than the target is current: a server that hangs may have
    /// been deposed meanwhile.
    async fn bounded<T>(
        &self,
        target: &Target,
        dialing: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let (limit, endpoint) = (self.config.timeout, &target.endpoint);
        let dialing = tokio::time::timeout(limit, dialing);
        let outcome = tokio::select! {
            biased;
            outcome = dialing => outcome,
            () = self.source.superseded(target) => {
                let text = format!("{endpoint} had accepted no connection when another server took over from it");
                return Err(Failure::unavailable(text));
            }
        };
        match outcome {
            Ok(outcome) => outcome.map_err(|failure| failure.with_effect(Effect::None)),
            Err(elapsed) => Err(Failure::unavailable(format!(
                "{endpoint} accepted no connection within {}: check for a hung server, for a firewall in between, and for {}",
                humantime::format_duration(limit),
                match endpoint {
                    Endpoint::Tls { .. } => "a port without TLS",
                    Endpoint::Tcp { .. } | Endpoint::Unix { .. } => "another protocol than Redis",
                }
            ))
            .because(elapsed)),
        }
    }

    /// Opens a stream that is logged in and whose server has answered.
    async fn open(&self, endpoint: &Endpoint) -> Result<Box<dyn Duplex>, Failure> {
        let password = self.config.credentials.password()?;
        if password.is_none() && self.config.credentials.user.is_some() {
            return Err(invalid(
                "a user without a password: write user:password@host, or password-file, or set \
                 LEASEHOLD_REDIS_PASSWORD",
            ));
        }
        let mut stream = open_stream(endpoint).await?;
        let login = Login {
            user: self.config.credentials.user.as_deref(),
            password: password.as_ref().map(reveal),
            database: self.config.db,
        };
        match login.perform(&mut stream).await {
            Ok(()) => Ok(stream),
            Err(LoginError::Broken(error)) => Err(error::of_greeting(error, endpoint)),
            Err(LoginError::Answered(text)) => Err(error::of_login(&text, &endpoint.to_string())),
        }
    }
}

async fn open_stream(endpoint: &Endpoint) -> Result<Box<dyn Duplex>, Failure> {
    match endpoint {
        Endpoint::Tcp { host, port } => Ok(Box::new(open_tcp(endpoint, host, *port).await?)),
        Endpoint::Unix { path } => {
            let stream = UnixStream::connect(path).await;
            Ok(Box::new(stream.map_err(|error| cannot_open_socket(error, &endpoint.to_string()))?))
        }
        Endpoint::Tls { host, port, files } => {
            let connector = tls::Connector::new(host, files)?;
            let stream = open_tcp(endpoint, host, *port).await?;
            Ok(Box::new(connector.connect(stream, endpoint).await?))
        }
    }
}

async fn open_tcp(endpoint: &Endpoint, host: &str, port: u16) -> Result<TcpStream, Failure> {
    let failed = |error| cannot_connect(error, &endpoint.to_string());
    let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
    // Requests are small and waited for: holding them back to fill a packet only adds delay.
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}

/// One connection for commands, shared by all requests that are made at the same time.
#[derive(Debug)]
pub(crate) struct Link {
    target: Target,
    pipe: Pipe,
    /// Set once it is given up.
    closed: AtomicBool,
    /// Set once the server has carried out a request.
    proved: AtomicBool,
    silences: AtomicU32,
    barrier: Barrier,
    /// When a request last had the server check the right to publish.
    rights_checked_at: Mutex<Option<Instant>>,
    /// The run of the server, if scripts are meant for one.
    run: Option<Run>,
}

impl Link {
    fn new(target: Target, stream: Box<dyn Duplex>) -> Link {
        Link {
            target,
            pipe: Pipe::new(stream),
            closed: AtomicBool::new(false),
            proved: AtomicBool::new(false),
            silences: AtomicU32::new(0),
            barrier: Barrier::new(),
            rights_checked_at: Mutex::new(None),
            run: None,
        }
    }

    /// Returns where the connection leads, and under which epoch.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the barrier that is shared by requests that wait for replicas.
    pub(crate) fn barrier(&self) -> &Barrier {
        &self.barrier
    }

    /// Returns the connection to send over.
    pub(crate) fn pipe(&self) -> &Pipe {
        &self.pipe
    }

    /// Returns the run of the server that was answered when the connection was made, if it is known.
    pub(crate) fn run(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    /// Checks that the connection still leads to the run that is known, if one is; else it is given up. A connection
    /// ends with its server, so only a proxy can hide that.
    pub(crate) async fn confirm_run(&self, limit: Limit) -> Result<(), Failure> {
        let Some(known) = self.run() else { return Ok(()) };
        let endpoint = &self.target.endpoint;
        let late = |_| Failure::unavailable(format!("{endpoint} did not answer within {limit}"));
        if limit.bound(Run::ask(&self.pipe, endpoint)).await.map_err(late)??.is(known) {
            return Ok(());
        }
        self.broke();
        Err(Failure::unavailable(format!("{endpoint} has restarted behind its connection")))
    }

    /// Gives the connection up, unless the returned doubt is settled: a script for a run is being loaded over it.
    pub(crate) fn doubt(&self) -> Doubt<'_> {
        Doubt { link: self, is_settled: false }
    }

    /// Returns what requests that are sent now carry in addition.
    pub(crate) fn values(&self, now: Instant) -> LinkValues {
        let is_known = |checked_at| now.duration_since(checked_at) < RIGHTS_KNOWN;
        let checks_rights = !self.rights_checked_at().is_some_and(is_known);
        LinkValues { epoch: self.target.epoch, checks_rights }
    }

    /// Records that the server carried out a request of that time, which may have had it check the right to publish.
    pub(crate) fn learn_rights(&self, checks_rights: bool, link_values: LinkValues, begun_at: Instant) {
        if link_values.checks_rights && checks_rights {
            *self.rights_checked_at() = Some(begun_at);
        }
    }

    fn rights_checked_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.rights_checked_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if more requests may be sent. A request that is sent over a connection
    /// known to be dead would be reported as one of unknown outcome without need.
    pub(crate) fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
            && !self.pipe.has_ended()
            && self.silences.load(Ordering::Acquire) < MAX_SILENCES
    }

    /// Records that the server answered.
    pub(crate) fn answered(&self) {
        self.silences.store(0, Ordering::Release);
    }

    /// Records that the server carried out a request.
    pub(crate) fn prove(&self) {
        self.proved.store(true, Ordering::Release);
    }

    /// Returns whether the connection was useful. A server may accept connections and then refuse every
    /// request, or close them.
    pub(crate) fn is_proved(&self) -> bool {
        self.proved.load(Ordering::Acquire)
    }

    /// Records that the server did not answer in time.
    ///
    /// The first time the connection stays in use: over it the server receives the next request, for
    /// instance the release of a claim of unknown outcome, after the unanswered one, and not before it.
    pub(crate) fn stayed_silent(&self) {
        self.silences.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that the connection broke.
    pub(crate) fn broke(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// The time until it is known which run has learned a script.
#[derive(Debug)]
pub(crate) struct Doubt<'a> {
    link: &'a Link,
    is_settled: bool,
}

impl Doubt<'_> {
    /// Keeps the connection: it still leads to the run for which the script is.
    pub(crate) fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.link.broke();
        }
    }
}

/// The time after which the right to publish is checked again: so long may pass until its loss is noticed.
const RIGHTS_KNOWN: Duration = Duration::from_secs(1);

/// The number of consecutive unanswered requests after which the connection is abandoned.
const MAX_SILENCES: u32 = 2;
