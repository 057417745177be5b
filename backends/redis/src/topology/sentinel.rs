//! The primary that Sentinels name, as the source of targets.
//!
//! Ground rules: address and epoch are taken from one answer of one Sentinel, and only where a majority
//! of the Sentinels in the URL has answered. A view is never older than one that this client has had.
//! Hints (a message of a Sentinel, a refusal of a server) never bring a new address in; they only end
//! the current view, so that the Sentinels are asked anew.

mod verdict;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leasehold_backend::url::{Host, invalid};
use leasehold_core::Failure;
use redis::{Value, cmd};
use tokio::task::JoinHandle;

use crate::config::{Group, RedisConfig};
use crate::net::command_conn::CommandConn;
use crate::net::connection::Dialer;
use crate::net::endpoint::{Fixed, Source, Target, Views};
use crate::net::pipe::Pipe;
use crate::net::timer;
use crate::protocol::error;
use verdict::{Answer, Named, Verdict};

/// Returns the primary that an answer to `SENTINEL MASTER` names, if it is understood; for a fuzz target.
#[cfg(test)]
pub(crate) fn named_by(answer: Value) -> Option<(Host, u64)> {
    let named = Answer::read(answer).ok()?.settled()?.clone();
    Some((named.host, named.epoch))
}

/// The Sentinels of one primary.
#[derive(Debug)]
pub(crate) struct Sentinels {
    shared: Arc<Shared>,
    watches: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    config: RedisConfig,
    group: Group,
    sentinels: Vec<Sentinel>,
    /// The newest answer that was accepted, and the view that began with it.
    named: Mutex<Option<(Named, u64)>>,
    /// Ended by reports of stale targets. A target of a former view is not current.
    views: Views,
}

#[derive(Debug)]
struct Sentinel {
    host: Host,
    dialer: Arc<Dialer>,
    /// The connection for requests: open until a primary has been found.
    conn: CommandConn,
}

impl Sentinels {
    /// Creates the Sentinels that `config` names, none of which was asked yet.
    pub(crate) fn new(config: RedisConfig, group: Group) -> Sentinels {
        let sentinel = |host: &Host| {
            let config = config.for_sentinel(&group, host);
            let fixed = Arc::new(Fixed::new(config.endpoint.clone()));
            let dialer = Arc::new(Dialer::new(config, fixed));
            Sentinel { host: host.clone(), conn: CommandConn::new(dialer.clone()), dialer }
        };
        let sentinels = group.sentinels.iter().map(sentinel).collect();
        let views = Views::default();
        let shared = Shared { config, group, sentinels, named: Mutex::default(), views };
        Sentinels { shared: Arc::new(shared), watches: Mutex::default() }
    }

    /// Listens to every Sentinel.
    fn ensure_watching(&self) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        // A runtime that was shut down took its tasks with it.
        if watches.is_empty() || watches.iter().any(JoinHandle::is_finished) {
            watches.drain(..).for_each(|watch| watch.abort());
            let numbers = 0..self.shared.sentinels.len();
            watches.extend(
                numbers.map(|number| leasehold_machine::spawn(watch::run(self.shared.clone(), number))),
            );
        }
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.drain(..).for_each(|watch| watch.abort());
    }
}

#[async_trait]
impl Source for Sentinels {
    fn describe(&self) -> String {
        format!("the primary of {}", self.shared.group.name)
    }

    async fn target(&self) -> Result<Target, Failure> {
        self.ensure_watching();
        // Read before the request: a report that comes while it is under way concerns its answer, too.
        let view = self.shared.views.now();
        let named = self.shared.ask().await?;
        let view = self.shared.accept(&named, view)?;
        // Epochs of Sentinels begin at 0, which is the epoch in fences of servers without an election.
        let epoch = named.epoch.saturating_add(1);
        Ok(Target { endpoint: self.shared.config.endpoint_at(&named.host), epoch, view })
    }

    async fn admit(&self, connection: Pipe, target: &Target) -> Result<(), Failure> {
        let address = target.endpoint.to_string();
        let answer = connection.command(&cmd("ROLE")).await.and_then(Value::extract_error);
        let role = answer.map_err(|error| error::of_request(&error, &address))?;
        let parts: Vec<Value> = redis::from_redis_value(role).unwrap_or_default();
        let text_of =
            |part: Option<&Value>| part.and_then(|part| redis::from_redis_value_ref::<String>(part).ok());
        match text_of(parts.first()).as_deref() {
            Some("master") => {
                // They are seldom asked, so nothing is kept open for the next time.
                self.shared.sentinels.iter().for_each(|sentinel| sentinel.conn.hang_up());
                Ok(())
            }
            role => {
                // Perhaps it has just been deposed: the next attempt asks the Sentinels anew.
                self.report_stale(target);
                Err(Failure::unavailable(format!(
                    "{address} was named as {} by its Sentinels, and says that it is {}: a failover is under way",
                    self.describe(),
                    match (role, text_of(parts.get(1))) {
                        (Some("slave"), Some(primary)) => format!("a replica of {primary}"),
                        (role, _) => format!("a {}", role.unwrap_or("server that keeps its role to itself")),
                    }
                )))
            }
        }
    }

    fn changes(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        Some(self.shared.views.changes())
    }

    fn is_current(&self, target: &Target) -> bool {
        target.view == self.shared.views.now()
    }

    fn report_stale(&self, target: &Target) {
        self.shared.views.report_stale(target);
    }
}

/// The time to wait for Sentinels that have not answered, once a majority has.
const GRACE: Duration = Duration::from_millis(200);

impl Shared {
    /// Asks all Sentinels at once which primary they name.
    async fn ask(&self) -> Result<Named, Failure> {
        let limit = self.config.timeout;
        let mut asking: FuturesUnordered<_> = self
            .sentinels
            .iter()
            .map(|sentinel| async { (sentinel.host.clone(), self.ask_one(sentinel, limit).await) })
            .collect();
        let mut verdict = Verdict::new(&self.group.name, self.sentinels.len());
        let mut grace = None;
        loop {
            let until = grace.unwrap_or_else(|| timer::after(2 * limit));
            tokio::select! {
                answer = asking.next() => match answer {
                    Some((host, answer)) => verdict.add(host, answer),
                    None => break,
                },
                () = tokio::time::sleep_until(until) => break,
            }
            if verdict.has_majority() {
                grace.get_or_insert_with(|| timer::after(GRACE));
            }
        }
        verdict.decide()
    }

    async fn ask_one(&self, sentinel: &Sentinel, limit: Duration) -> Result<Answer, Failure> {
        let mut question = cmd("SENTINEL");
        question.arg("MASTER").arg(&self.group.name);
        match sentinel.conn.command(&question, limit).await {
            Err(failure) if failure.detail().contains("No such master") => {
                Err(invalid(format!("{} watches no primary of that name", sentinel.host)))
            }
            answer => Ok(Answer::read(answer?)?.resolved().await),
        }
    }

    /// Accepts an answer that was asked for in `view`, unless it is older than the newest. One that is newer ends the
    /// current view, and with it the connections to the earlier primary. Returns the view of the answer.
    fn accept(&self, named: &Named, view: u64) -> Result<u64, Failure> {
        let mut newest = self.newest();
        let view = match &*newest {
            Some((newest, _))
                if named.epoch < newest.epoch || named.epoch == newest.epoch && !named.is_same(newest) =>
            {
                return Err(Failure::unavailable(format!(
                    "the Sentinels name {} as the primary of {} in epoch {}, but named {} in epoch {} before: check \
                     whether they are cut off, or were set up anew",
                    named.host, self.group.name, named.epoch, newest.host, newest.epoch
                )));
            }
            Some((newest, since)) if named.epoch == newest.epoch => view.max(*since),
            Some(_) => self.views.replace(view),
            None => view,
        };
        *newest = Some((named.clone(), view));
        Ok(view)
    }

    fn newest(&self) -> MutexGuard<'_, Option<(Named, u64)>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the newest answer that was accepted.
    fn named(&self) -> Option<Named> {
        self.newest().as_ref().map(|(named, _)| named.clone())
    }

    /// Ends the current view, unless it leads to `host`.
    fn invalidate_unless(&self, host: &Host) {
        let known = self.named().is_some_and(|named| named.host == *host);
        if !known {
            self.views.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::Deployment;

    /// The primary that a Sentinel of this test names.
    #[derive(Debug, Default)]
    struct Announced {
        port: AtomicU16,
        epoch: AtomicU64,
    }

    /// Answers as a Sentinel that lets nobody listen.
    async fn answer(mut stream: TcpStream, announced: Arc<Announced>) {
        let mut received = Vec::new();
        while stream.read_buf(&mut received).await.is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&received).into_owned();
            let answer = if text.ends_with("PING\r\n") {
                "+PONG\r\n".to_owned()
            } else if text.ends_with("locks\r\n") {
                let (port, epoch) =
                    (announced.port.load(Ordering::SeqCst), announced.epoch.load(Ordering::SeqCst));
                let fields =
                    ["ip", "127.0.0.1", "flags", "master", "port", &port.to_string(), "config-epoch"];
                format!("*8\r\n+{}\r\n+{epoch}\r\n", fields.join("\r\n+"))
            } else if text.contains("SUBSCRIBE") {
                "-ERR no\r\n".to_owned()
            } else {
                continue;
            };
            received.clear();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn newer_answer_ends_the_view_of_an_earlier_primary() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis+sentinel://{}/locks", listener.local_addr().unwrap());
        let announced = Arc::new(Announced::default());
        announced.port.store(1, Ordering::SeqCst);
        tokio::spawn({
            let announced = announced.clone();
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(answer(stream, announced.clone()));
                }
            }
        });
        let config = RedisConfig::parse(&url).unwrap();
        let Deployment::Sentinel(group) = config.deployment.clone() else { panic!("{config:?}") };
        let sentinels = Sentinels::new(config, group);
        let first = sentinels.target().await.unwrap();
        assert!(sentinels.is_current(&sentinels.target().await.unwrap()) && sentinels.is_current(&first));
        announced.port.store(2, Ordering::SeqCst);
        announced.epoch.store(2, Ordering::SeqCst);
        let second = sentinels.target().await.unwrap();
        assert_ne!(second.endpoint, first.endpoint);
        assert!(!sentinels.is_current(&first), "connections to the earlier primary stay");
        assert!(sentinels.is_current(&second));
    }
}
