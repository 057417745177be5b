//! Options of a memcached server, and its start.

use super::MemcachedServer;
use crate::certificates::Certificates;
use crate::chosen;
use crate::directory::Directory;
use crate::error::Error;
use crate::port::{Port, on_free_ports};
use crate::process::Process;
use crate::require;

/// Options for a [`MemcachedServer`]; without any, a server of 64 MB that evicts, without login and TLS.
#[derive(Debug, Clone)]
#[must_use = "nothing starts before `start`"]
pub struct MemcachedBuilder {
    args: Vec<String>,
    login: Option<(String, String)>,
    tls: bool,
}

impl MemcachedBuilder {
    pub(super) fn new() -> Self {
        Self { args: Vec::new(), login: None, tls: false }
    }

    /// Adds one more argument for the server: `.arg("-C")`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Sets how much memory its items may take.
    pub fn memory_mb(self, megabytes: u32) -> Self {
        self.arg("-m").arg(megabytes.to_string())
    }

    /// Makes it refuse new items when its memory is full, instead of evicting others (`-M`).
    pub fn without_evictions(self) -> Self {
        self.arg("-M")
    }

    /// Requires every client to log in. Both are plain words, since they are also used in URLs and in a
    /// file.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Adds a second port that speaks TLS, with certificates made for this server.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// [`Error::is_missing`] when the program is not installed. Otherwise the end of the server's log is in
    /// the text. A port that another program took meanwhile is not an error: the start is tried on others,
    /// 5 times.
    pub async fn start(self) -> Result<MemcachedServer, Error> {
        on_free_ports(|| self.start_once()).await
    }

    /// Starts as [`MemcachedBuilder::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(self) -> Option<MemcachedServer> {
        require::or_skip("memcached", self.start().await)
    }

    async fn start_once(&self) -> Result<MemcachedServer, Error> {
        let program = chosen::program(chosen::MEMCACHED, "memcached", "memcached")?;
        let directory = Directory::create("memcached")?;
        let port = Port::take()?;
        // Started by root it wants to know as which user to continue; started by others it ignores this.
        let mut args: Vec<String> = ["-u", "root", "-l"].map(str::to_owned).into();
        let tls = match self.tls {
            false => {
                args.push(port.addr().to_string());
                None
            }
            true => {
                let (secure, certificates) = (Port::take()?, Certificates::create(&directory)?);
                let (chain, key) = (&certificates.server().certificate, &certificates.server().key);
                args.push(format!("notls:{},{}", port.addr(), secure.addr()));
                args.push("-Z".to_owned());
                args.push("-o".to_owned());
                args.push(format!("ssl_chain_cert={},ssl_key={}", chain.display(), key.display()));
                Some((secure, certificates))
            }
        };
        if let Some((user, password)) = &self.login {
            let file = directory.write("logins", &format!("{user}:{password}\n"))?;
            args.extend(["-Y".to_owned(), file.display().to_string()]);
        }
        args.extend(self.args.iter().cloned());
        let process = Process::spawn(&program, args, directory)?;
        let server = MemcachedServer { process, port, tls, login: self.login.clone() };
        server.ready().await?;
        Ok(server)
    }
}
