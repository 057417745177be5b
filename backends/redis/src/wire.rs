//! The one connection that all commands share, and the scripts that are sent over it.
//!
//! Nothing is retried here except what is known not to have happened: a connection known to be dead is replaced before
//! a request is written, a script that the server does not know is sent in full, and what a server refused because it
//! is not the one to decide goes to the one that is. Whether to repeat what may have happened is the engine's decision.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::{Effect, Failure};
use redis::{Cmd, Pipeline, RedisError, Value, cmd};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::connection::{Dialer, Link, REDIAL_PAUSE};
use crate::refusal::{self, Elsewhere};
use crate::replicas::{Confirm, Unconfirmed};
use crate::reply;
use crate::scripts::{Script, Stamp};
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
    /// What replicas have to confirm, where anything.
    pub(crate) confirm: Option<Confirm>,
}

impl Wire {
    /// A wire that is not connected yet.
    pub(crate) fn new(dialer: Arc<Dialer>) -> Wire {
        Wire { dialer, slot: Mutex::default() }
    }

    /// Where requests go, for a person.
    pub(crate) fn address(&self) -> String {
        self.dialer.source().describe()
    }

    /// Connects, where that was not done yet.
    pub(crate) async fn connect(&self) -> Result<(), Failure> {
        self.connected().await.map(drop)
    }

    /// Runs one script.
    pub(crate) async fn run(&self, request: &Request, limit: Duration) -> Result<Value, Failure> {
        for _ in 1..MAX_TARGETS {
            let slot = self.connected().await?;
            let link = slot.link()?;
            match self.send_script(link, request, limit).await {
                // It did nothing, and somebody else decides: once more there.
                Err(Trouble::NotTheOne(_)) if !self.dialer.source().is_current(link.target()) => {}
                Err(trouble) => return Err(failure(trouble, link)),
                Ok(value) => return self.confirmed(link, request, value, limit).await,
            }
        }
        let slot = self.connected().await?;
        let link = slot.link()?;
        let answer = self.send_script(link, request, limit).await;
        self.confirmed(link, request, answer.map_err(|trouble| failure(trouble, link))?, limit).await
    }

    /// Passes an answer on once replicas have confirmed what it is about, where they have to. The time for that is a third of
    /// `limit`, and the failure of one that they have not carries [`Unconfirmed`].
    async fn confirmed(
        &self,
        link: &Link,
        request: &Request,
        value: Value,
        limit: Duration,
    ) -> Result<Value, Failure> {
        let Some(confirm) = request.confirm.filter(|confirm| (confirm.counts)(&value)) else {
            return Ok(value);
        };
        let ask = |left: Duration| async move {
            let mut wait = cmd("WAIT");
            // None would mean without end.
            wait.arg(confirm.replicas).arg(u64::try_from(left.as_millis().max(1)).unwrap_or(u64::MAX));
            let answer = self.send(link, &wait, left + ANSWER_SLACK).await;
            reply::read::<u32>(answer.map_err(|trouble| failure(trouble, link))?)
        };
        // Meanwhile the connection answers nothing else, so those behind must still be in time after it.
        match link.barrier().pass(confirm.replicas, limit / 3, ask).await {
            Ok(had) if had >= confirm.replicas => Ok(value),
            Ok(had) => Err(Unconfirmed { value, had, wanted: confirm.replicas }.into_failure()),
            // Whatever became of the question, the script has run.
            Err(mut failure) => {
                failure.effect = Effect::Unknown;
                Err(failure)
            }
        }
    }

    async fn send_script(&self, link: &Link, request: &Request, limit: Duration) -> Result<Value, Trouble> {
        match self.send(link, &request.short(link), limit).await {
            Err(Trouble::UnknownScript) => self.send(link, &request.full(link), limit).await,
            outcome => outcome,
        }
    }

    /// Runs scripts in one go; each has its own outcome, in order.
    pub(crate) async fn run_all(&self, requests: &[Request], limit: Duration) -> Vec<Result<Value, Failure>> {
        let requests: Vec<&Request> = requests.iter().collect();
        let outcomes = self.attempt(&requests, As::Known, limit).await;
        outcomes.into_iter().map(|outcome| outcome.map_err(Miss::into_failure)).collect()
    }

    /// As [`Wire::run_all`], for a sender who knows what to do about a server that is not the one to ask.
    pub(crate) async fn attempt(
        &self,
        requests: &[&Request],
        sent: As,
        limit: Duration,
    ) -> Vec<Result<Value, Miss>> {
        let slot = match self.connected().await {
            Ok(slot) => slot,
            Err(failure) => return vec![Err(Miss::Unreached(failure)); requests.len()],
        };
        let link = match slot.link() {
            Ok(link) => link,
            Err(failure) => return vec![Err(Miss::Unreached(failure)); requests.len()],
        };
        let mut outcomes = self.pipeline(link, requests, Request::short, sent, limit).await;
        let unknown: Vec<usize> = (0..outcomes.len())
            .filter(|index| matches!(outcomes[*index], Err(Trouble::UnknownScript)))
            .collect();
        if let Some(first) = unknown.first() {
            // One in full teaches the server the script; the rest then know its name.
            for chunk in [&unknown[..1], &unknown[1..]] {
                let again: Vec<&Request> = chunk.iter().map(|index| requests[*index]).collect();
                let write = if chunk.first() == Some(first) { Request::full } else { Request::short };
                for (index, outcome) in
                    chunk.iter().zip(self.pipeline(link, &again, write, sent, limit).await)
                {
                    outcomes[*index] = outcome;
                }
            }
        }
        let confirmed = requests.iter().zip(outcomes).map(|(request, outcome)| async move {
            let value = outcome.map_err(|trouble| miss(trouble, link))?;
            self.confirmed(link, request, value, limit).await.map_err(Miss::Failed)
        });
        join_all(confirmed).await
    }

    /// Sends one plain command.
    pub(crate) async fn command(&self, command: &Cmd, limit: Duration) -> Result<Value, Failure> {
        let slot = self.connected().await?;
        let link = slot.link()?;
        self.send(link, command, limit).await.map_err(|trouble| failure(trouble, link))
    }

    async fn pipeline(
        &self,
        link: &Link,
        requests: &[&Request],
        write: fn(&Request, &Link) -> Cmd,
        sent: As,
        limit: Duration,
    ) -> Vec<Result<Value, Trouble>> {
        let mut pipeline = Pipeline::new();
        for request in requests {
            if sent == As::Referred {
                pipeline.add_command(redis::cmd("ASKING"));
            }
            pipeline.add_command(write(request, link));
        }
        let count = requests.len();
        if count == 0 {
            return Vec::new();
        }
        match self.send_pipeline(link, &pipeline, limit).await {
            Ok(values) => {
                let answers =
                    values.into_iter().skip(pipeline.len() / count - 1).step_by(pipeline.len() / count);
                answers.map(|value| self.refusals(link, value.extract_error())).collect()
            }
            Err(trouble) => vec![Err(trouble); count],
        }
    }

    async fn send_pipeline(
        &self,
        link: &Link,
        pipeline: &Pipeline,
        limit: Duration,
    ) -> Result<Vec<Value>, Trouble> {
        let mut connection = link.connection();
        self.hear(link, connection.send_packed_commands(pipeline, 0, pipeline.len()), limit).await
    }

    async fn send(&self, link: &Link, command: &Cmd, limit: Duration) -> Result<Value, Trouble> {
        let mut connection = link.connection();
        let value = self.hear(link, connection.send_packed_command(command), limit).await?;
        self.refusals(link, value.extract_error())
    }

    /// Tells refusals apart, and notes those of a server that is not the one to decide.
    fn refusals(&self, link: &Link, outcome: Result<Value, RedisError>) -> Result<Value, Trouble> {
        outcome.map_err(|error| {
            let trouble = Trouble::from(error);
            if let Trouble::NotTheOne(_) = trouble {
                self.dialer.source().doubt(link.target());
            }
            trouble
        })
    }

    /// Waits for an answer, and notes on the link what came of it.
    async fn hear<T>(
        &self,
        link: &Link,
        sending: impl Future<Output = Result<T, RedisError>>,
        limit: Duration,
    ) -> Result<T, Trouble> {
        let outcome = tokio::select! {
            biased;
            outcome = tokio::time::timeout(limit, sending) => outcome,
            // A server that was deposed while it hung is not waited for: what it does late does not count any more.
            () = self.dialer.source().superseded(link.target()) => {
                return Err(Trouble::Failed(Failure::unanswered(format!(
                    "{} had not answered when another server took over from it",
                    link.target().endpoint
                ))));
            }
        };
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
                        link.target().endpoint,
                        humantime::format_duration(limit)
                    ))
                    .because(elapsed),
                ))
            }
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
                Ok(link) if link.is_usable() && self.dialer.source().is_current(link.target()) => {
                    return Ok(slot);
                }
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
    fn short(&self, link: &Link) -> Cmd {
        self.write("EVALSHA", &self.script.sha, link)
    }

    /// With the script's text, which the server then knows by name.
    fn full(&self, link: &Link) -> Cmd {
        self.write("EVAL", self.script.source, link)
    }

    fn write(&self, verb: &str, script: &str, link: &Link) -> Cmd {
        let texts = || self.keys.iter().chain(&self.args);
        let bytes = script.len() + texts().map(String::len).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + self.keys.len() + self.args.len(), bytes + 16);
        command.arg(verb).arg(script).arg(self.keys.len());
        for text in texts() {
            command.arg(text);
        }
        if self.script.stamp == Stamp::Epoch {
            command.arg(link.target().epoch);
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

/// In which role a request comes to a server of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    /// It serves the slot, as far as is known.
    Known,
    /// The server that serves the slot has sent it there, because it has given the keys away already.
    Referred,
}

/// Why a request came to nothing, for a sender who may know another server.
#[derive(Clone, Debug)]
pub(crate) enum Miss {
    /// The server was not reached; nothing was sent.
    Unreached(Failure),
    /// Another server is to be asked, or the same one later; nothing was done.
    Elsewhere(Elsewhere, Failure),
    /// Anything else.
    Failed(Failure),
}

impl Miss {
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Miss::Unreached(failure) | Miss::Elsewhere(_, failure) | Miss::Failed(failure) => failure,
        }
    }
}

/// What came instead of an answer.
#[derive(Clone, Debug)]
enum Trouble {
    UnknownScript,
    /// The server is not, or not any more, the one to decide. It changed nothing.
    NotTheOne(RedisError),
    Refused(RedisError),
    Failed(Failure),
}

impl From<RedisError> for Trouble {
    fn from(error: RedisError) -> Trouble {
        if refusal::is_unknown_script(&error) {
            Trouble::UnknownScript
        } else if refusal::is_of_no_primary(&error) {
            Trouble::NotTheOne(error)
        } else {
            Trouble::Refused(error)
        }
    }
}

fn failure(trouble: Trouble, link: &Link) -> Failure {
    let address = link.target().endpoint.to_string();
    match trouble {
        Trouble::Failed(failure) => failure,
        Trouble::Refused(error) | Trouble::NotTheOne(error) => refusal::of_request(&error, &address),
        Trouble::UnknownScript => refusal::of_request(
            &RedisError::from((redis::ErrorKind::Client, "NOSCRIPT", "forgotten".to_owned())),
            &address,
        ),
    }
}

fn miss(trouble: Trouble, link: &Link) -> Miss {
    let elsewhere = match &trouble {
        Trouble::NotTheOne(error) | Trouble::Refused(error) => refusal::elsewhere(error),
        Trouble::UnknownScript | Trouble::Failed(_) => None,
    };
    let failure = failure(trouble, link);
    match elsewhere {
        Some(elsewhere) => Miss::Elsewhere(elsewhere, failure),
        None => Miss::Failed(failure),
    }
}

/// A request goes to at most so many servers, one after the other, each of which refuses it because another decides.
const MAX_TARGETS: usize = 2;

/// How much later than asked for a server may answer that it has waited: an idle one looks at its timeouts ten times a second.
const ANSWER_SLACK: Duration = Duration::from_millis(500);

/// A call connects anew at most this often before it gives up: once where the old connection is dead, once where an
/// attempt before it failed.
const MAX_DIALS: usize = 3;
