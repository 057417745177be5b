//! The one connection that all commands share, and the scripts that are sent over it.
//!
//! Nothing is retried here except what is known not to have happened: a connection known to be dead is replaced before
//! a request is written, and a script that the server does not know is sent in full. Whether to repeat
//! what may have happened is the engine's decision.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::Failure;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::connection::{Dialer, Link, REDIAL_PAUSE};
use crate::refusal;
use crate::scripts::Script;
use crate::timer;

/// The shared connection for commands.
#[derive(Debug)]
pub(crate) struct Wire {
    dialer: Arc<Dialer>,
    slot: Mutex<Arc<Slot>>,
}

/// One script with what it is given.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
}

impl Wire {
    /// A wire that is not connected yet.
    pub(crate) fn new(dialer: Arc<Dialer>) -> Wire {
        Wire { dialer, slot: Mutex::default() }
    }

    /// Where the server is, for a person.
    pub(crate) fn address(&self) -> String {
        self.dialer.address()
    }

    /// Connects, where that was not done yet.
    pub(crate) async fn connect(&self) -> Result<(), Failure> {
        self.connected().await.map(drop)
    }

    /// Runs one script.
    pub(crate) async fn run(&self, request: &Request, limit: Duration) -> Result<Value, Failure> {
        let slot = self.connected().await?;
        let link = slot.link()?;
        match self.send(link, &request.short(), limit).await {
            Err(Trouble::UnknownScript) => {
                self.send(link, &request.full(), limit).await.map_err(|trouble| self.failure(trouble))
            }
            outcome => outcome.map_err(|trouble| self.failure(trouble)),
        }
    }

    /// Runs scripts in one go; each has its own outcome, in order.
    pub(crate) async fn run_all(&self, requests: &[Request], limit: Duration) -> Vec<Result<Value, Failure>> {
        let mut outcomes = self.pipeline(requests, Request::short, limit).await;
        let unknown: Vec<usize> = (0..outcomes.len())
            .filter(|index| matches!(outcomes[*index], Err(Trouble::UnknownScript)))
            .collect();
        if let Some(first) = unknown.first() {
            // One in full teaches the server the script; the rest then know its name.
            for chunk in [&unknown[..1], &unknown[1..]] {
                let again: Vec<&Request> = chunk.iter().map(|index| &requests[*index]).collect();
                let write = if chunk.first() == Some(first) { Request::full } else { Request::short };
                for (index, outcome) in chunk.iter().zip(self.pipeline(again, write, limit).await) {
                    outcomes[*index] = outcome;
                }
            }
        }
        outcomes.into_iter().map(|outcome| outcome.map_err(|trouble| self.failure(trouble))).collect()
    }

    /// Sends one plain command.
    pub(crate) async fn command(&self, command: &Cmd, limit: Duration) -> Result<Value, Failure> {
        let slot = self.connected().await?;
        self.send(slot.link()?, command, limit).await.map_err(|trouble| self.failure(trouble))
    }

    async fn pipeline<'a>(
        &self,
        requests: impl IntoIterator<Item = &'a Request>,
        write: fn(&Request) -> Cmd,
        limit: Duration,
    ) -> Vec<Result<Value, Trouble>> {
        let mut pipeline = Pipeline::new();
        for request in requests {
            pipeline.add_command(write(request));
        }
        let count = pipeline.len();
        if count == 0 {
            return Vec::new();
        }
        match self.send_pipeline(&pipeline, limit).await {
            Ok(values) => {
                values.into_iter().map(|value| value.extract_error().map_err(Trouble::from)).collect()
            }
            Err(trouble) => vec![Err(trouble); count],
        }
    }

    async fn send_pipeline(&self, pipeline: &Pipeline, limit: Duration) -> Result<Vec<Value>, Trouble> {
        let slot = self.connected().await.map_err(Trouble::Failed)?;
        let link = slot.link().map_err(Trouble::Failed)?;
        let mut connection = link.connection();
        let sending = connection.send_packed_commands(pipeline, 0, pipeline.len());
        self.hear(link, tokio::time::timeout(limit, sending).await, limit)
    }

    async fn send(&self, link: &Link, command: &Cmd, limit: Duration) -> Result<Value, Trouble> {
        let mut connection = link.connection();
        let sending = connection.send_packed_command(command);
        let value = self.hear(link, tokio::time::timeout(limit, sending).await, limit)?;
        value.extract_error().map_err(Trouble::from)
    }

    /// Notes on the link what came of a request.
    fn hear<T>(
        &self,
        link: &Link,
        outcome: Result<Result<T, RedisError>, tokio::time::error::Elapsed>,
        limit: Duration,
    ) -> Result<T, Trouble> {
        match outcome {
            Ok(Ok(answer)) => {
                link.answered();
                Ok(answer)
            }
            Ok(Err(error)) => {
                if error.is_unrecoverable_error() {
                    link.broke();
                }
                Err(Trouble::from(error))
            }
            Err(elapsed) => {
                link.stayed_silent();
                Err(Trouble::Failed(
                    Failure::unanswered(format!(
                        "{} did not answer within {}: is the server hung, or the network down?",
                        self.address(),
                        humantime::format_duration(limit)
                    ))
                    .because(elapsed),
                ))
            }
        }
    }

    fn failure(&self, trouble: Trouble) -> Failure {
        match trouble {
            Trouble::Failed(failure) => failure,
            Trouble::Refused(error) => refusal::of_request(&error, &self.address()),
            Trouble::UnknownScript => refusal::of_request(
                &RedisError::from((redis::ErrorKind::Client, "NOSCRIPT", "forgotten".to_owned())),
                &self.address(),
            ),
        }
    }

    /// A slot that is connected. Whoever comes while another connects waits for the same connection.
    async fn connected(&self) -> Result<Arc<Slot>, Failure> {
        for _ in 0..MAX_DIALS {
            let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let dialed = slot.dialed.get_or_init(|| async {
                let link = self.dialer.link().await;
                Dialed { link, at: timer::now() }
            });
            let dialed = dialed.await;
            match &dialed.link {
                Ok(link) if link.is_usable() => return Ok(slot),
                Err(failure) if dialed.at.elapsed() < REDIAL_PAUSE => return Err(failure.clone()),
                _ => self.replace(&slot),
            }
        }
        Err(Failure::unavailable(format!("{} ends every connection as soon as it is made", self.address())))
    }

    fn replace(&self, spent: &Arc<Slot>) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&slot, spent) {
            *slot = Arc::default();
        }
    }
}

impl Request {
    /// By the script's name; the arguments are what most requests consist of.
    fn short(&self) -> Cmd {
        self.write("EVALSHA", &self.script.sha)
    }

    /// With the script's text, which the server then knows by name.
    fn full(&self) -> Cmd {
        self.write("EVAL", self.script.source)
    }

    fn write(&self, verb: &str, script: &str) -> Cmd {
        let texts = || self.keys.iter().chain(&self.args);
        let bytes = script.len() + texts().map(String::len).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + self.keys.len() + self.args.len(), bytes + 16);
        command.arg(verb).arg(script).arg(self.keys.len());
        for text in texts() {
            command.arg(text);
        }
        command
    }
}

/// One connection, or the attempt to make it.
#[derive(Debug, Default)]
struct Slot {
    dialed: OnceCell<Dialed>,
}

#[derive(Debug)]
struct Dialed {
    link: Result<Link, Failure>,
    at: Instant,
}

impl Slot {
    fn link(&self) -> Result<&Link, Failure> {
        match self.dialed.get() {
            Some(Dialed { link: Ok(link), .. }) => Ok(link),
            Some(Dialed { link: Err(failure), .. }) => Err(failure.clone()),
            None => Err(Failure::unavailable("the connection was not made yet")),
        }
    }
}

/// What came instead of an answer.
#[derive(Clone, Debug)]
enum Trouble {
    UnknownScript,
    Refused(RedisError),
    Failed(Failure),
}

impl From<RedisError> for Trouble {
    fn from(error: RedisError) -> Trouble {
        if refusal::is_unknown_script(&error) { Trouble::UnknownScript } else { Trouble::Refused(error) }
    }
}

/// A call connects anew at most this often before it gives up: once where the old connection is dead, once where an
/// attempt before it failed.
const MAX_DIALS: usize = 3;
