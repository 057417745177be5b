//! The cluster as a whole: chooses the server of a request, its time limit, and the next server.
//!
//! Ground rules: every request of this backend may be repeated, so it is, until the time for it is
//! over. A server that does not answer in its part of that time is left for the next one, and gets a
//! new connection. When no server answers, all requests wait for what one of them learns. Whether an
//! earlier try may have been carried out is never forgotten: it is returned as `Effect::Unknown`, or
//! with the answer as `doubt`.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_backend::url::{invalid, reveal};
use leasehold_core::{Effect, Failure, FailureKind};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};

use crate::config::{EtcdConfig, Order};
use crate::net::error::{Advice, Refusal, judge};
use crate::net::member::{Connection, Member, OTHER_CLUSTER};
use crate::net::outage::{Outage, Probe};
use crate::net::rounds::{Round, Rounds};
use crate::protocol::proto::{AuthenticateRequest, StatusResponse};

/// All servers.
#[derive(Debug)]
pub(crate) struct Cluster {
    config: EtcdConfig,
    members: Vec<Member>,
    /// The one that is asked first.
    preferred: AtomicUsize,
    login: Mutex<Arc<Login>>,
    outage: Outage,
}

/// One login. Requests that need the token while it is fetched wait for the same answer.
type Login = OnceCell<Option<MetadataValue<Ascii>>>;

/// An answer, and whether the same request may also have been carried out once before, or may still be later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<T> {
    pub(crate) value: T,
    pub(crate) doubt: bool,
}

/// The pace at which a request asks while no server answers.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// The pace of its turn among all requests.
    Shared,
    /// A fixed time after the last request of its kind.
    Fixed(Duration),
}

/// A server with its number, for continuing with the next.
pub(crate) struct Chosen<'a> {
    number: usize,
    member: &'a Member,
    connection: u64,
    login: Arc<Login>,
}

impl Cluster {
    pub(crate) fn new(config: EtcdConfig) -> Result<Cluster, Failure> {
        let members = Member::all(&config)?;
        // Clients that all began with the first server would all move on to the second one together.
        let first = match config.order {
            Order::Given => 0,
            Order::Random => getrandom::u32().unwrap_or_default() as usize % members.len(),
        };
        let preferred = AtomicUsize::new(first);
        Ok(Cluster { config, members, preferred, login: Mutex::default(), outage: Outage::default() })
    }

    /// Returns how long one request may take.
    pub(crate) fn limit(&self) -> Duration {
        self.config.timeout
    }

    /// Asks until there is an answer, at most for the configured time.
    pub(crate) async fn ask<T, F>(&self, ask: impl Fn(Connection) -> F) -> Result<Answer<T>, Refusal>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.ask_at(Pace::Shared, self.config.timeout, ask).await
    }

    /// Sends keep-alives, until there is an answer or `limit` is over.
    pub(crate) async fn ask_keepalive<T, F>(
        &self,
        limit: Duration,
        ask: impl Fn(Connection) -> F,
    ) -> Result<Answer<T>, Refusal>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.ask_at(Pace::Fixed(limit / KEEPALIVE_PACE), limit, ask).await
    }

    async fn ask_at<T, F>(
        &self,
        pace: Pace,
        limit: Duration,
        ask: impl Fn(Connection) -> F,
    ) -> Result<Answer<T>, Refusal>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let part = (limit / TRIES).max(MIN_PART);
        let mut over = std::pin::pin!(tokio::time::sleep(limit));
        let (mut doubt, mut logins, mut rounds) = (false, 0, Rounds::of(self.members.len()));
        let mut last_failure = None;
        let mut since = self.outage.answers();
        let mut probe = self.turn(pace, over.as_mut(), doubt).await?;
        loop {
            let chosen = self.choose();
            let asking = timeout(part.min(limit), self.ask_one(&chosen, &ask));
            let asked = match (rounds.tries(), logins) {
                // A part of the time cannot outlast the whole, and nearly always it is the only one:
                // one timer is enough.
                (0, 0) => asking.await.ok(),
                _ => tokio::select! {
                    asked = asking => asked.ok(),
                    () = &mut over => None,
                },
            };
            if !matches!(asked, None | Some(Err(Advice::TryElsewhere(_)))) {
                self.outage.answered();
            }
            let is_cut_off = asked.is_none() && over.is_elapsed();
            let failure = match asked {
                Some(Ok(value)) => return Ok(Answer { value, doubt }),
                Some(Err(Advice::GiveUp(refusal))) => return Err(given_up(refusal, doubt)),
                Some(Err(Advice::LogInAgain(failure))) => {
                    self.forget_login(&chosen.login);
                    logins += 1;
                    if logins <= LOGINS {
                        continue;
                    }
                    return Err(given_up(Refusal::Failed(failure), doubt));
                }
                Some(Err(Advice::TryElsewhere(failure))) => failure,
                None => {
                    chosen.member.reconnect(chosen.connection);
                    Failure::unanswered(format!("{} did not answer in time", chosen.member.name()))
                }
            };
            self.prefer_next(&chosen);
            doubt |= failure.effect == Effect::Unknown;
            tracing::debug!(server = chosen.member.name(), %failure, "a server did not answer as it should");
            let round = rounds.failed(&failure);
            match &round {
                Round::Open => {}
                Round::Over { is_answered } => {
                    self.end_round(*is_answered, since, &failure, probe.take());
                }
                Round::Foreign(foreign) => return Err(given_up(Refusal::Failed(foreign.clone()), doubt)),
            }
            if over.is_elapsed() {
                // A try that the limit has cut off says less than the one before it.
                let reported = last_failure.filter(|_| is_cut_off).unwrap_or(failure);
                return Err(given_up(Refusal::Failed(reported), doubt));
            }
            last_failure = Some(failure);
            if !matches!(round, Round::Open) {
                probe = self.turn(pace, over.as_mut(), doubt).await?;
                if probe.is_none() {
                    // Other requests are answered: it is this one that asks for too much.
                    tokio::time::sleep(PAUSE).await;
                }
                since = self.outage.answers();
            }
        }
    }

    /// Records a round in which no server did what was asked.
    fn end_round(&self, is_answered: bool, since: u64, failure: &Failure, probe: Option<Probe<'_>>) {
        match is_answered {
            true => self.outage.answered(),
            false => self.outage.failed(since, failure, probe.as_ref()),
        }
    }

    /// Waits until servers are worth asking; at once while requests are answered.
    async fn turn(
        &self,
        pace: Pace,
        over: std::pin::Pin<&mut tokio::time::Sleep>,
        doubt: bool,
    ) -> Result<Option<Probe<'_>>, Refusal> {
        let Some(failure) = self.outage.failure() else { return Ok(None) };
        let turn = async {
            match pace {
                Pace::Shared => self.outage.turn().await,
                Pace::Fixed(pace) => self.outage.keepalive_turn(pace).await,
            }
        };
        tokio::select! {
            biased;
            probe = turn => Ok(Some(probe)),
            () = over => Err(given_up(Refusal::Failed(failure), doubt)),
        }
    }

    /// Returns what is known about a cluster that does not answer.
    pub(crate) fn outage(&self) -> &Outage {
        &self.outage
    }

    /// Returns the state of each server that reports it soon, in order; `None` for the others.
    ///
    /// # Errors
    /// `Foreign` where they do not belong to one cluster.
    pub(crate) async fn states(&self) -> Result<Vec<Option<StatusResponse>>, Failure> {
        let asking = (0..self.members.len()).map(|number| async move {
            let chosen = self.chosen(number);
            let asked = async {
                let conn = self.connection(&chosen).await.ok()?;
                Some(conn.status().await)
            };
            match timeout(STATE_LIMIT, asked).await.ok().flatten() {
                Some(Ok(state)) => Ok(Some(state)),
                Some(Err(status)) if status.message().contains(OTHER_CLUSTER) => {
                    let names = format!("{} and {}", self.members[0].name(), chosen.name());
                    let advice = "name the servers of one cluster only";
                    let detail = format!("{names} do not belong together: {}: {advice}", status.message());
                    Err(Failure::new(FailureKind::Foreign, Effect::None, detail))
                }
                _ => Ok(None),
            }
        });
        join_all(asking).await.into_iter().collect()
    }

    /// Returns the names of the servers, in the order of the URL.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(Member::name)
    }

    /// Returns the user that logs in.
    pub(crate) fn user(&self) -> Option<&str> {
        self.config.user()
    }

    /// Returns `true` if this client shows a certificate.
    pub(crate) fn shows_certificate(&self) -> bool {
        self.config.tls.as_ref().is_some_and(|files| files.cert.is_some())
    }

    /// Returns the server that is asked first now.
    pub(crate) fn choose(&self) -> Chosen<'_> {
        self.chosen(self.preferred.load(Ordering::Relaxed) % self.members.len())
    }

    fn chosen(&self, number: usize) -> Chosen<'_> {
        let login = self.login.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let member = &self.members[number];
        Chosen { number, member, connection: member.connection_number(), login }
    }

    /// Returns a connection to a chosen server, logged in.
    pub(crate) async fn connection(&self, chosen: &Chosen<'_>) -> Result<Connection, Advice> {
        let token = chosen.login.get_or_try_init(|| self.log_in(chosen.member)).await?;
        Ok(chosen.member.connection(token.clone()))
    }

    /// Asks another server first from now on, unless another request has done that already.
    pub(crate) fn prefer_next(&self, chosen: &Chosen<'_>) {
        let next = (chosen.number + 1) % self.members.len();
        let _ = self.preferred.compare_exchange(chosen.number, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Drops the connection to a server that hangs.
    pub(crate) fn reconnect(&self, chosen: &Chosen<'_>) {
        chosen.member.reconnect(chosen.connection);
        self.prefer_next(chosen);
    }

    /// Makes the next request log in anew, unless another request has done that already.
    pub(crate) fn forget_login(&self, old: &Arc<Login>) {
        let mut login = self.login.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&login, old) {
            *login = Arc::default();
        }
    }

    async fn ask_one<T, F>(&self, chosen: &Chosen<'_>, ask: &impl Fn(Connection) -> F) -> Result<T, Advice>
    where
        F: Future<Output = Result<T, Status>>,
    {
        // A server of another cluster answers no request of this client, and knows other users, so the next request
        // is sent elsewhere.
        let conn = self.connection(chosen).await.inspect_err(|advice| {
            if matches!(advice, Advice::GiveUp(_)) {
                self.prefer_next(chosen);
            }
        })?;
        ask(conn).await.map_err(|status| {
            let advice = judge(&status);
            if matches!(&advice, Advice::GiveUp(refusal) if refusal.is_foreign()) {
                self.prefer_next(chosen);
            }
            advice
        })
    }

    async fn log_in(&self, member: &Member) -> Result<Option<MetadataValue<Ascii>>, Advice> {
        let failed = |failure| Advice::GiveUp(Refusal::Failed(failure));
        let Some((name, password)) = self.config.login().map_err(failed)? else { return Ok(None) };
        let request = AuthenticateRequest { name, password: reveal(&password).to_owned() };
        let answer =
            member.connection(None).authenticate(request).await.map_err(|status| match judge(&status) {
                // Nothing else was sent yet, and a login changes nothing.
                Advice::TryElsewhere(failure) => Advice::TryElsewhere(failure.with_effect(Effect::None)),
                Advice::LogInAgain(failure) => failed(failure),
                advice => advice,
            })?;
        let token = answer.token.parse().map_err(|_| failed(invalid("the cluster's token is not text")))?;
        Ok(Some(token))
    }
}

/// Marks the effect as unknown where an earlier try may have carried the request out, independent of
/// what the last try says.
fn given_up(refusal: Refusal, doubt: bool) -> Refusal {
    match refusal {
        Refusal::Failed(failure) if doubt => Refusal::Failed(failure.with_effect(Effect::Unknown)),
        // The earlier try may still be under way.
        Refusal::NoSpace(failure) if doubt => Refusal::Failed(failure),
        refusal => refusal,
    }
}

impl Chosen<'_> {
    pub(crate) fn login(&self) -> &Arc<Login> {
        &self.login
    }

    pub(crate) fn name(&self) -> &str {
        self.member.name()
    }

    /// Ends when the connection to this server was abandoned because requests on it were not answered.
    pub(crate) async fn replaced(&self) {
        self.member.replaced(self.connection).await;
    }
}

/// Into how many parts the time for one request is cut: a server that hangs costs one of them.
const TRIES: u32 = 3;
const MIN_PART: Duration = Duration::from_millis(100);
/// The most logins for one request.
const LOGINS: u32 = 2;
const PAUSE: Duration = Duration::from_millis(50);
/// The number of times that a keep-alive is sent within its time limit while no server answers.
const KEEPALIVE_PACE: u32 = 10;
/// The time by which a server that is down may delay the opening of a client.
const STATE_LIMIT: Duration = Duration::from_millis(500);
