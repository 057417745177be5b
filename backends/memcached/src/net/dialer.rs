//! Opens connections: the socket, TLS, the login, and the check which server answers.
//!
//! Nothing that fails in here can have changed anything on the server, so every failure of this file has
//! the effect `None`.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_backend::connecting::{cannot_connect, cannot_secure};
use leasehold_backend::connection::Duplex;
use leasehold_backend::url::{Host, client_settings, invalid, reveal};
use leasehold_core::{Effect, Failure, FailureKind};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};
use tokio_rustls::TlsConnector;

use crate::config::MemcachedConfig;
use crate::net::error;
use crate::net::link::Link;
use crate::protocol::command::Command;
use crate::protocol::facts::Facts;
use crate::protocol::reply::{self, Reply};

/// Makes connections to one server.
#[derive(Debug)]
pub(crate) struct Dialer {
    config: Arc<MemcachedConfig>,
    host: Host,
}

impl Dialer {
    pub(crate) fn new(config: Arc<MemcachedConfig>, host: Host) -> Dialer {
        Dialer { config, host }
    }

    /// Returns the address of the server, for a person.
    pub(crate) fn address(&self) -> String {
        self.host.to_string()
    }

    /// Returns a connection for commands, to a server that is fit for use.
    pub(crate) async fn link(&self) -> Result<Link, Failure> {
        self.bounded(async {
            let mut stream = self.open(self.name()).await?;
            loop {
                let facts = self.facts(&mut *stream).await?;
                self.check(&facts)?;
                let wait = facts.unsettled(self.config.settle);
                if wait.is_zero() {
                    return Ok(Link::new(stream, facts));
                }
                // A server that has just started is waited for, if that is all that it takes: this is
                // bounded.
                if wait > self.config.timeout.min(MAX_SETTLING) {
                    return Err(self.unsettled(&facts, wait));
                }
                tokio::time::sleep(SETTLING_PAUSE).await;
            }
        })
        .await
    }

    /// Reads the facts that the server reports of itself, fit for use or not.
    pub(crate) async fn look(&self) -> Result<Facts, Failure> {
        self.look_at(self.name()).await
    }

    /// Reads the facts that each address of the name reports, as far as they answer.
    pub(crate) async fn look_at_all(&self) -> Vec<Facts> {
        let resolved = tokio::time::timeout(self.config.timeout, lookup_host(self.name())).await;
        let Ok(Ok(addresses)) = resolved else { return Vec::new() };
        let addresses: HashSet<SocketAddr> = addresses.collect();
        let looks = join_all(addresses.into_iter().map(|address| self.look_at(address))).await;
        looks.into_iter().flatten().collect()
    }

    async fn look_at(&self, address: impl ToSocketAddrs) -> Result<Facts, Failure> {
        self.bounded(async {
            let mut stream = self.open(address).await?;
            self.facts(&mut *stream).await
        })
        .await
    }

    /// Returns a stream that is logged in, for what does not fit the pattern of request and answer.
    pub(crate) async fn stream(&self) -> Result<Box<dyn Duplex>, Failure> {
        self.bounded(self.open(self.name())).await
    }

    async fn bounded<T>(&self, dialing: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let limit = self.config.timeout;
        match tokio::time::timeout(limit, dialing).await {
            Ok(outcome) => outcome,
            Err(elapsed) => Err(Failure::unavailable(format!(
                "{} was not ready within {}: is the server hung or just started, a firewall in between, or {}?",
                self.host,
                humantime::format_duration(limit),
                if self.config.tls.is_some() { "no TLS on this port" } else { "another protocol than memcached's" },
            ))
            .because(elapsed)),
        }
    }

    fn name(&self) -> (&str, u16) {
        (&self.host.name, self.host.port)
    }

    async fn open(&self, address: impl ToSocketAddrs) -> Result<Box<dyn Duplex>, Failure> {
        let login = self.login()?;
        let failed = |error| cannot_connect(error, &self.address());
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        // Requests are small and waited for: holding them back to fill a packet only adds delay.
        stream.set_nodelay(true).map_err(failed)?;
        let mut stream: Box<dyn Duplex> = match &self.config.tls {
            None => Box::new(stream),
            Some(files) => {
                let name = ServerName::try_from(self.host.name.clone());
                let name = name.map_err(|error| {
                    invalid(format!("{} is not a valid host name for TLS", self.host.name)).because(error)
                })?;
                let connector = TlsConnector::from(Arc::new(client_settings(files)?));
                let secured = connector.connect(name, stream).await;
                Box::new(secured.map_err(|error| cannot_secure(error, &self.address(), TLS_ADVICE))?)
            }
        };
        if let Some(login) = login {
            self.log_in(&mut *stream, &login).await?;
        }
        Ok(stream)
    }

    /// Returns the request of the login, where one is needed.
    fn login(&self) -> Result<Option<Vec<u8>>, Failure> {
        let password = self.config.login.password()?;
        match (&self.config.login.user, password) {
            (None, _) => Ok(None),
            (Some(_), None) => Err(invalid(
                "a user without a password: write user:password@host, or password-file, or set \
                 LEASEHOLD_MEMCACHED_PASSWORD",
            )),
            (Some(user), Some(password)) => {
                let login = format!("{user} {}", reveal(&password));
                // The name is anything, the value is what counts; it follows its length.
                Ok(Some(format!("set login 0 0 {}\r\n{login}\r\n", login.len()).into_bytes()))
            }
        }
    }

    async fn log_in(&self, stream: &mut dyn Duplex, login: &[u8]) -> Result<(), Failure> {
        // A login is written as a set. A server that asks for none would keep it, password and all, as an
        // item.
        let mut request = Vec::new();
        Command::Stats { part: "" }.write(0, &mut request);
        match self.exchange(stream, &request).await? {
            Reply::Refused(text) if text.contains("unauthenticated") => {}
            Reply::Stats(_) => {
                return Err(invalid(format!(
                    "{} asks nobody for a login: leave user and password out of the URL, or start it with a file of \
                     logins (-Y)",
                    self.host
                )));
            }
            Reply::Refused(text) => return Err(error::of_text(&text, &self.address())),
            _ => return Err(error::of_strange("it answers something else", &self.address())),
        }
        match self.exchange(stream, login).await? {
            Reply::Done { .. } => Ok(()),
            Reply::Refused(text) if text.contains("authentication failure") => Err(Failure::new(
                FailureKind::Denied,
                Effect::None,
                format!("{} refuses the login ({text}): check user and password", self.host),
            )),
            Reply::Refused(text) => Err(error::of_text(&text, &self.address())),
            _ => Err(error::of_strange("it does not know the login of the text protocol", &self.address())),
        }
    }

    async fn facts(&self, stream: &mut dyn Duplex) -> Result<Facts, Failure> {
        let stats = self.stats(stream, "").await?;
        let settings = self.stats(stream, "settings").await?;
        Facts::read(stats, settings)
            .map_err(|missing| error::of_strange(&format!("its statistics lack {missing}"), &self.address()))
    }

    async fn stats(
        &self,
        stream: &mut dyn Duplex,
        part: &'static str,
    ) -> Result<Vec<(String, String)>, Failure> {
        let mut request = Vec::new();
        Command::Stats { part }.write(0, &mut request);
        match self.exchange(stream, &request).await? {
            Reply::Stats(stats) => Ok(stats),
            Reply::Refused(text) => Err(error::of_text(&text, &self.address())),
            _ => Err(error::of_strange("it answers something else", &self.address())),
        }
    }

    async fn exchange(&self, stream: &mut dyn Duplex, request: &[u8]) -> Result<Reply, Failure> {
        let broken = |error| error::of_greeting(error, &self.address());
        stream.write_all(request).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        let mut buffer = Vec::new();
        loop {
            match reply::read(&buffer) {
                Ok(Some((reply, used))) if used == buffer.len() => return Ok(reply),
                Ok(None) if !reply::is_overlong(buffer.len()) => {}
                Err(protocol_error) => {
                    return Err(error::of_strange(&protocol_error.to_string(), &self.address()));
                }
                Ok(_) => return Err(error::of_strange("it says more than it was asked", &self.address())),
            }
            if stream.read_buf(&mut buffer).await.map_err(broken)? == 0 {
                return Err(broken(std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn check(&self, facts: &Facts) -> Result<(), Failure> {
        let mut parts = facts.version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if version < (1, 6) {
            return Err(error::of_strange(&format!("it is version {}", facts.version), &self.address()));
        }
        if !facts.numbers_items {
            let text = format!(
                "{} does not number its items, so nobody could release a lock without risk to another's: start it \
                 without -C",
                self.host
            );
            return Err(Failure::new(FailureKind::Unsupported, Effect::None, text));
        }
        Ok(())
    }

    fn unsettled(&self, facts: &Facts, wait: Duration) -> Failure {
        Failure::unavailable(format!(
            "{} started {} ago and is used in {} only, because it has forgotten who held what (settle)",
            self.host,
            humantime::format_duration(facts.uptime),
            humantime::format_duration(wait),
        ))
    }
}

/// The advice if TLS could not be agreed on, and no certificate was refused.
const TLS_ADVICE: &str = "check that the server speaks TLS on this port (memcached -Z)";
/// The longest time for which a start of the server is waited for within one attempt to connect.
const MAX_SETTLING: Duration = Duration::from_millis(3_500);
const SETTLING_PAUSE: Duration = Duration::from_millis(100);
