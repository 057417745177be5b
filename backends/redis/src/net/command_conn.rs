//! The one connection that all commands share, and the scripts that are sent over it.
//!
//! Nothing is retried here except what is known not to have happened: a connection known to be dead is
//! replaced before a request is written, a script that the server does not know is sent in full, and
//! a request that a server refused because it is not the primary goes to the primary. Whether to repeat
//! what may have happened is the engine's decision.
//!
//! All requests share one attempt to connect, and the pause before it; each waits no longer than its
//! own limit. The attempt continues when the requests that waited for it have left.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared, join_all};
use leasehold_core::{Effect, Failure};
use redis::{Cmd, RedisError, Value, cmd};

use crate::net::connection::{Dialer, Link};
use crate::net::failures::{ReplyError, SendError, failure, send_error};
use crate::net::outage::{Outage, Pause};
use crate::net::replicas::Unconfirmed;
use crate::net::request::{Naming, Request};
use crate::net::sent::{RequestRole, Sent, send_script};
use crate::net::timer::{self, Limit};
use crate::protocol::error::Redirect;
use crate::protocol::reply;

/// The shared connection for commands.
#[derive(Debug)]
pub(crate) struct CommandConn {
    dialer: Arc<Dialer>,
    state: Mutex<DialState>,
}

impl CommandConn {
    /// Creates a connection that is not open yet.
    pub(crate) fn new(dialer: Arc<Dialer>) -> CommandConn {
        let outage = Outage::new(FIRST_PAUSE, LAST_PAUSE);
        let state = DialState { dialing: None, outage, pause: None, last: None };
        CommandConn { dialer, state: Mutex::new(state) }
    }

    /// Describes for a person where requests go.
    pub(crate) fn address(&self) -> String {
        self.dialer.source().describe()
    }

    /// Connects, unless it is connected already.
    pub(crate) async fn connect(&self, limit: Duration) -> Result<(), Failure> {
        self.connect_within(Limit::of(limit)).await
    }

    /// Connects within a limit that has begun, unless it is connected already.
    pub(crate) async fn connect_within(&self, limit: Limit) -> Result<(), Failure> {
        self.connected(limit).await.map(drop)
    }

    /// Ends a connection that is not needed for now; the next request makes another.
    pub(crate) fn hang_up(&self) {
        let connected = self.state().dialing.clone().filter(|dialing| matches!(dialing.peek(), Some(Ok(_))));
        if let Some(dialing) = connected {
            self.discard(&dialing);
        }
    }

    /// Runs one script.
    pub(crate) async fn run(&self, request: &Request, limit: Duration) -> Result<Value, Failure> {
        let limit = Limit::of(limit);
        let outcome = self.attempt_one(request, RequestRole::Known, limit).await;
        let outcome = match outcome {
            // A server that is not the primary refused, and did nothing: try once more over a new connection.
            Err(SendError::Redirect(Redirect::Deposed | Redirect::Outdated, _)) => {
                self.attempt_one(request, RequestRole::Known, limit).await
            }
            outcome => outcome,
        };
        outcome.map_err(SendError::into_failure)
    }

    /// Runs scripts in one go; each has its own outcome, in order.
    pub(crate) async fn run_all(&self, requests: &[Request], limit: Duration) -> Vec<Result<Value, Failure>> {
        let requests: Vec<&Request> = requests.iter().collect();
        let limit = Limit::of(limit);
        let mut outcomes = self.attempt(&requests, RequestRole::Known, limit).await;
        // A server that is not the primary refused, and did nothing: try once more over a new connection.
        let refused = |position: &usize| {
            matches!(
                outcomes.get(*position),
                Some(Err(SendError::Redirect(Redirect::Deposed | Redirect::Outdated, _)))
            )
        };
        let again: Vec<usize> = (0..requests.len()).filter(refused).collect();
        if !again.is_empty() {
            let repeated: Vec<&Request> = again.iter().map(|position| requests[*position]).collect();
            for (position, outcome) in
                again.into_iter().zip(self.attempt(&repeated, RequestRole::Known, limit).await)
            {
                outcomes[position] = outcome;
            }
        }
        outcomes.into_iter().map(|outcome| outcome.map_err(SendError::into_failure)).collect()
    }

    /// Returns the answer once the required replicas have confirmed its effect, if any are required. The
    /// time for that is a third of `limit`. If too few replicas confirm, the failure carries
    /// [`Unconfirmed`].
    async fn confirmed(
        &self,
        link: &Link,
        request: &Request,
        value: Value,
        limit: Limit,
    ) -> Result<Value, Failure> {
        let Some(confirm) = request.confirm_of(&value) else { return Ok(value) };
        let ask = |left: Duration| async move {
            let mut wait = cmd("WAIT");
            // None would mean without end.
            wait.arg(confirm.replicas).arg(u64::try_from(left.as_millis().max(1)).unwrap_or(u64::MAX));
            let answer = self.send(link, &wait, Limit::of(left + ANSWER_SLACK)).await;
            reply::read::<u32>(answer.map_err(|error| failure(error, link))?)
        };
        // Meanwhile the connection answers nothing else, so the requests behind must still be in time.
        let patience = (limit.whole() / 3).min(limit.left());
        match link.barrier().pass(confirm.replicas, patience, ask).await {
            Ok(confirmed) if confirmed >= confirm.replicas => Ok(value),
            Ok(confirmed) => Err(Unconfirmed { value, confirmed, required: confirm.replicas }.into_failure()),
            // The script has run, independent of the outcome of `WAIT`.
            Err(failure) => Err(failure.with_effect(Effect::Unknown)),
        }
    }

    /// As [`CommandConn::run_all`], for a sender that handles redirections itself.
    pub(crate) async fn attempt(
        &self,
        requests: &[&Request],
        role: RequestRole,
        limit: Limit,
    ) -> Vec<Result<Value, SendError>> {
        if let [request] = requests {
            return vec![self.attempt_one(request, role, limit).await];
        }
        debug_assert!(!requests.iter().any(|request| request.is_of_a_run()), "such a script is sent alone");
        let link = match self.connected(limit).await {
            Ok(link) => link,
            Err(failure) => return vec![Err(SendError::Unreached(failure)); requests.len()],
        };
        let link = &*link;
        let mut outcomes = self.pipeline(link, requests, Naming::Short, role, limit).await;
        for _ in 0..requests.len() {
            let unknown: Vec<usize> = (0..outcomes.len())
                .filter(|index| matches!(outcomes[*index], Err(ReplyError::UnknownScript)))
                .collect();
            if unknown.is_empty() {
                break;
            }
            // One script in full loads it on the server; the rest are then sent by name. Behind a proxy there may be
            // several servers, so each round loads it on one that did not know it.
            for (chunk, naming) in [(&unknown[..1], Naming::Full), (&unknown[1..], Naming::Short)] {
                if chunk.is_empty() {
                    break;
                }
                let again: Vec<&Request> = chunk.iter().map(|index| requests[*index]).collect();
                for (index, outcome) in
                    chunk.iter().zip(self.pipeline(link, &again, naming, role, limit).await)
                {
                    outcomes[*index] = outcome;
                }
            }
        }
        let confirmed = requests.iter().zip(outcomes).map(|(request, outcome)| async move {
            let value = outcome.map_err(|error| send_error(error, link))?;
            self.confirmed(link, request, value, limit).await.map_err(SendError::Failed)
        });
        join_all(confirmed).await
    }

    /// Runs one script, as [`CommandConn::attempt`].
    async fn attempt_one(
        &self,
        request: &Request,
        role: RequestRole,
        limit: Limit,
    ) -> Result<Value, SendError> {
        let link = self.connected(limit).await.map_err(SendError::Unreached)?;
        let mut answer = self.ask(&link, request, Naming::Short, role, limit).await;
        if let Err(ReplyError::UnknownScript) = answer {
            answer = self.ask_with_text(&link, request, role, limit).await;
        }
        let value = answer.map_err(|error| send_error(error, &link))?;
        self.confirmed(&link, request, value, limit).await.map_err(SendError::Failed)
    }

    /// Runs one script whose text the server does not know.
    async fn ask_with_text(
        &self,
        link: &Link,
        request: &Request,
        role: RequestRole,
        limit: Limit,
    ) -> Result<Value, ReplyError> {
        if !request.is_of_a_run() {
            return self.ask(link, request, Naming::Full, role, limit).await;
        }
        link.confirm_run(limit).await.map_err(ReplyError::Failed)?;
        let doubt = link.doubt();
        let answer = self.ask(link, request, Naming::Full, role, limit).await;
        // A proxy may have changed to a new run in between. Runs only follow each other: if it is still the same one,
        // it was that before.
        let confirmed = link.confirm_run(limit).await;
        confirmed.map_err(|failure| ReplyError::Failed(failure.with_effect(Effect::Unknown)))?;
        doubt.settle();
        answer
    }

    /// Sends one script over the connection that is there, at once, and returns its answer; `None` if there is no
    /// connection, and nothing was sent. An answer that says where to ask instead is a failure here.
    ///
    /// # Cancel safety
    /// The request is sent, even if the future is dropped.
    pub(crate) fn ask_now(
        self: &Arc<Self>,
        request: &Request,
        limit: Duration,
    ) -> Option<impl Future<Output = Result<Value, Failure>> + Send + use<>> {
        let (conn, link, limit) = (self.clone(), self.present()?, Limit::of(limit));
        let sent = Sent::over(&link, request, Naming::Short, RequestRole::Known);
        Some(async move {
            let answer = conn.answer_to(&link, sent, limit).await;
            answer.map_err(|error| failure(error, &link))
        })
    }

    /// Runs one script as [`CommandConn::ask_now`], and once more with its text if the server does not know it.
    ///
    /// # Cancel safety
    /// The request is sent, even if the future is dropped. The text is not.
    pub(crate) fn run_now(
        self: &Arc<Self>,
        request: Request,
        limit: Duration,
    ) -> Option<impl Future<Output = Result<Value, Failure>> + Send + use<>> {
        let (conn, link, limit) = (self.clone(), self.present()?, Limit::of(limit));
        let sent = Sent::over(&link, &request, Naming::Short, RequestRole::Known);
        Some(async move {
            let mut answer = conn.answer_to(&link, sent, limit).await;
            // A caller that was not polled for long may come too late, which is not the fault of the connection.
            let is_in_time = || !limit.left().is_zero() && conn.is_current(&link);
            if matches!(answer, Err(ReplyError::UnknownScript)) && is_in_time() {
                // Boxed, so that the common future stays small.
                answer = Box::pin(conn.ask_with_text(&link, &request, RequestRole::Known, limit)).await;
            }
            answer.map_err(|error| failure(error, &link))
        })
    }

    /// Sends one plain command.
    pub(crate) async fn command(&self, command: &Cmd, limit: Duration) -> Result<Value, Failure> {
        let limit = Limit::of(limit);
        let link = self.connected(limit).await?;
        self.send(&link, command, limit).await.map_err(|error| failure(error, &link))
    }

    /// Sends scripts in one go.
    async fn pipeline(
        &self,
        link: &Link,
        requests: &[&Request],
        naming: Naming,
        role: RequestRole,
        limit: Limit,
    ) -> Vec<Result<Value, ReplyError>> {
        let begun_at = timer::now();
        let link_values = link.values(begun_at);
        let replies = requests.iter().map(|request| send_script(link, request, naming, role, link_values));
        // Each for itself: when a connection ends, some may be answered, others sent, and others not even that.
        let replies = join_all(replies.collect::<Vec<_>>()).map(Ok);
        match self.receive(link, replies, limit).await {
            Ok(replies) => {
                if replies.iter().any(Result::is_err) {
                    link.broke();
                }
                let answers = requests.iter().zip(replies);
                let classified = answers.map(|(request, reply)| {
                    let answer = self.classify(link, reply.and_then(Value::extract_error))?;
                    link.learn_rights(request.checks_rights(), link_values, begun_at);
                    Ok(answer)
                });
                classified.collect()
            }
            Err(error) => vec![Err(error); requests.len()],
        }
    }

    /// Sends one script.
    async fn ask(
        &self,
        link: &Link,
        request: &Request,
        naming: Naming,
        role: RequestRole,
        limit: Limit,
    ) -> Result<Value, ReplyError> {
        self.answer_to(link, Sent::over(link, request, naming, role), limit).await
    }

    /// Waits for the answer to one script.
    async fn answer_to(&self, link: &Link, sent: Sent, limit: Limit) -> Result<Value, ReplyError> {
        let Sent { reply, checks_rights, link_values, begun_at } = sent;
        let value = self.receive(link, reply, limit).await?;
        let answer = self.classify(link, value.extract_error())?;
        link.learn_rights(checks_rights, link_values, begun_at);
        Ok(answer)
    }

    async fn send(&self, link: &Link, command: &Cmd, limit: Limit) -> Result<Value, ReplyError> {
        let outcome = self.receive(link, link.pipe().command(command), limit).await;
        match outcome {
            Ok(value) => self.classify(link, value.extract_error()),
            Err(error) => Err(error),
        }
    }

    /// Classifies refusals, and reports a target that is not the primary.
    fn classify(&self, link: &Link, outcome: Result<Value, RedisError>) -> Result<Value, ReplyError> {
        outcome.inspect(|_| link.prove()).map_err(|error| {
            let error = ReplyError::from(error);
            if let ReplyError::NotPrimary(_) = error {
                self.dialer.source().report_stale(link.target());
            }
            error
        })
    }

    /// Waits for an answer, and records the outcome on the link.
    async fn receive<T>(
        &self,
        link: &Link,
        sending: impl Future<Output = Result<T, RedisError>>,
        limit: Limit,
    ) -> Result<T, ReplyError> {
        let mut sending = pin!(sending);
        let outcome = match limit.at_most(PROMPT).bound(sending.as_mut()).await {
            Ok(outcome) => Ok(outcome),
            Err(_) => tokio::select! {
                biased;
                outcome = limit.bound(sending.as_mut()) => outcome,
                // A server that was deposed while it hung is not waited for: its late effects do not count
                // any more. To watch for that costs as much as a request, so prompt answers are not watched.
                () = self.dialer.source().superseded(link.target()) => {
                    return Err(ReplyError::Failed(Failure::unanswered(format!(
                        "{} had not answered when another server took over from it",
                        link.target().endpoint
                    ))));
                }
            },
        };
        // A caller that was not polled for long looks once more: the server has not been silent.
        let outcome = match outcome {
            Err(elapsed) => {
                link.pipe().read_arrived().await;
                tokio::task::unconstrained(sending).now_or_never().ok_or(elapsed)
            }
            in_time => in_time,
        };
        match outcome {
            Ok(Ok(answer)) => {
                link.answered();
                Ok(answer)
            }
            Ok(Err(error)) => {
                // Also one that takes no more requests.
                if error.is_unrecoverable_error() || error.is_connection_refusal() {
                    link.broke();
                }
                Err(ReplyError::from(error))
            }
            Err(elapsed) => {
                link.stayed_silent();
                Err(ReplyError::Failed(
                    Failure::unanswered(format!(
                        "{} did not answer within {limit}: check for a hung server, and for a network that is down",
                        link.target().endpoint
                    ))
                    .because(elapsed),
                ))
            }
        }
    }

    /// Returns a connection. All requests wait for the same attempt to make one.
    async fn connected(&self, limit: Limit) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.present() {
            return Ok(link);
        }
        for _ in 0..MAX_DIALS {
            let dialing = self.dialing(limit);
            match limit.bound(dialing.clone()).await {
                Ok(Ok(link)) if link.is_usable() && self.dialer.source().is_current(link.target()) => {
                    return Ok(link);
                }
                Ok(Ok(_discarded)) => self.discard(&dialing),
                Ok(Err(failure)) => {
                    self.discard(&dialing);
                    return Err(failure);
                }
                Err(_) => return Err(self.unreached(limit)),
            }
        }
        Err(Failure::unavailable(format!("{} ends every connection as soon as it is made", self.address())))
    }

    /// Returns the connection if it is there and can be used.
    fn present(&self) -> Option<Arc<Link>> {
        // The look may end the connection, which wakes others: not under the lock.
        let link = self.state().dialing.as_ref()?.peek()?.as_ref().ok()?.clone();
        self.is_current(&link).then_some(link)
    }

    /// Returns `true` if new requests go over this connection.
    fn is_current(&self, link: &Link) -> bool {
        link.is_usable() && self.dialer.source().is_current(link.target())
    }

    /// Returns the existing connection, or the attempt to make one, which begins in time for `limit`.
    fn dialing(&self, limit: Limit) -> Dialing {
        let mut state = self.state();
        // A request that arrives after an attempt has failed starts another.
        if let Some(discarded) = state.dialing.take_if(|dialing| matches!(dialing.peek(), Some(Err(_)))) {
            state.record_outcome(&discarded);
        }
        if let Some(dialing) = state.dialing.clone() {
            if dialing.peek().is_none() {
                state.shorten_pause(limit);
            }
            return dialing;
        }
        state.pause = state.outage.opens_at().map(Pause::until);
        state.shorten_pause(limit);
        let (dialer, pause) = (self.dialer.clone(), state.pause.as_ref().map(Pause::over));
        // A task of its own, so that requests that leave do not take the attempt with them.
        let task = leasehold_machine::spawn(async move {
            if let Some(pause) = pause {
                pause.await;
            }
            dialer.link().await.map(Arc::new)
        });
        let ended = |_| Err(Failure::unavailable("the runtime ended while a connection was made in it"));
        let dialing = task.map(move |outcome| outcome.unwrap_or_else(ended)).boxed().shared();
        state.dialing.insert(dialing).clone()
    }

    /// Gives up a connection, or an attempt that has failed.
    fn discard(&self, discarded: &Dialing) {
        let mut state = self.state();
        if let Some(discarded) = state.dialing.take_if(|dialing| dialing.ptr_eq(discarded)) {
            state.record_outcome(&discarded);
        }
    }

    /// Returns the failure of a request that could not wait for a connection any longer.
    fn unreached(&self, limit: Limit) -> Failure {
        self.state().last.clone().unwrap_or_else(|| {
            Failure::unavailable(format!(
                "{} accepted no connection within {limit}: check for a hung server, and for a firewall in between",
                self.address()
            ))
        })
    }

    fn state(&self) -> MutexGuard<'_, DialState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, or the attempt to make one.
type Dialing = Shared<BoxFuture<'static, Result<Arc<Link>, Failure>>>;

/// The state that all requests share.
#[derive(Debug)]
struct DialState {
    dialing: Option<Dialing>,
    outage: Outage,
    /// The pause before the attempt.
    pause: Option<Pause>,
    /// The failure of the last attempt, for requests that cannot wait for the next.
    last: Option<Failure>,
}

impl DialState {
    fn shorten_pause(&self, limit: Limit) {
        if let Some(pause) = &self.pause {
            pause.shorten_for(limit.whole(), timer::now());
        }
    }

    /// Records whether the connection was useful, which decides how soon the next may be made.
    fn record_outcome(&mut self, discarded: &Dialing) {
        match discarded.peek() {
            Some(Ok(link)) if link.is_proved() => {
                self.outage.worked();
                self.last = None;
            }
            outcome => {
                self.outage.failed(timer::now());
                self.last = outcome.and_then(|outcome| outcome.as_ref().err().cloned());
            }
        }
    }
}

/// The time within which servers answer that are well.
const PROMPT: Duration = Duration::from_millis(20);

/// The time after the requested limit within which a server may answer that it has waited: an idle one
/// looks at its timeouts ten times a second.
const ANSWER_SLACK: Duration = Duration::from_millis(500);

/// A call connects anew at most this often before it gives up: once where the old connection is dead,
/// once where an attempt before it failed.
const MAX_DIALS: usize = 3;

/// Pauses between attempts to connect. The longest is short compared to a lease.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::RedisConfig;
    use crate::net::endpoint::Fixed;

    fn receive(server: &mut TcpStream) -> String {
        let mut bytes = [0; 256];
        let length = server.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Returns a connection, and what is a server to it.
    async fn connected() -> (CommandConn, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let config = RedisConfig::parse(&format!("redis://{}", listener.local_addr().unwrap())).unwrap();
        let source = Arc::new(Fixed::new(config.endpoint.clone()));
        let conn = CommandConn::new(Arc::new(Dialer::new(config, source)));
        let login = std::thread::spawn(move || {
            let mut server = listener.accept().unwrap().0;
            assert!(receive(&mut server).contains("PING"));
            server.write_all(b"+PONG\r\n").unwrap();
            // A test that waits for a request in vain fails.
            server.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            server
        });
        conn.connect(Duration::from_secs(30)).await.unwrap();
        (conn, login.join().unwrap())
    }

    /// Another task has asked first, so that the task of the connection is to read. It runs after this one, which is
    /// woken with it.
    #[tokio::test]
    async fn answer_that_arrived_while_its_caller_slept_is_no_silence() {
        let (conn, mut server) = connected().await;
        let (limit, first, second) = (Duration::from_millis(50), cmd("FIRST"), cmd("SECOND"));
        let mut slept = Box::pin(conn.command(&first, limit));
        assert!(slept.as_mut().now_or_never().is_none());
        let mut joining = Box::pin(conn.command(&second, Duration::from_secs(30)));
        assert!(joining.as_mut().now_or_never().is_none());
        tokio::time::sleep(2 * limit).await;
        let mut received = String::new();
        while !received.contains("SECOND") {
            received += &receive(&mut server);
        }
        server.write_all(b":1\r\n").unwrap();
        tokio::task::yield_now().await;
        assert_eq!(slept.now_or_never().unwrap().unwrap(), Value::Int(1));
        server.write_all(b":2\r\n").unwrap();
        assert_eq!(joining.await.unwrap(), Value::Int(2));
    }

    /// A connection that is given up cannot be replaced here: nothing listens any more.
    #[tokio::test]
    async fn answer_ends_a_row_of_silences() {
        let (conn, mut server) = connected().await;
        for _ in 0..3 {
            conn.command(&cmd("SILENT"), Duration::from_millis(50)).await.unwrap_err();
            let serving = async {
                let mut received = String::new();
                while !received.contains("ANSWERED") {
                    tokio::task::yield_now().await;
                    received += &receive(&mut server);
                }
                server.write_all(b":1\r\n:2\r\n").unwrap();
            };
            let answered = cmd("ANSWERED");
            let (answer, ()) = tokio::join!(conn.command(&answered, Duration::from_secs(30)), serving);
            assert_eq!(answer.unwrap(), Value::Int(2));
        }
    }

    /// The server has carried the first one out.
    #[tokio::test]
    async fn each_of_several_requests_has_its_own_outcome_at_the_end() {
        let (conn, mut server) = connected().await;
        let request = || Request {
            script: &crate::protocol::scripts::RELEASE,
            keys: Vec::new(),
            args: Vec::new(),
            confirm: None,
        };
        let requests = [request(), request()];
        let serving = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut received = String::new();
            while received.matches("EVALSHA").count() < 2 {
                received += &receive(&mut server);
            }
            server.write_all(b":1\r\n").unwrap();
            drop(server);
        };
        let (outcomes, ()) = tokio::join!(conn.run_all(&requests, Duration::from_secs(30)), serving);
        assert_eq!(outcomes[0].as_ref().unwrap(), &Value::Int(1));
        assert_eq!(outcomes[1].as_ref().unwrap_err().effect, Effect::Unknown);
    }
}
