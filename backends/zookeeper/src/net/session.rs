//! Sessions: ZooKeeper keeps claims for as long as their session lives, and a session outlives connections.
//!
//! Ground rules: a session that ended is never used again, and everything that was held by it is
//! notified of that once. A task opens the next one; it ends when no user of sessions is left. The
//! client crate keeps requests while the connection is down, without a limit, so nothing is asked of it
//! then. Each request has a limit of its own; one that was not answered in time may still be carried
//! out.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::random;
use leasehold_backend::url::{Host, reveal};
use leasehold_core::{Backoff, Effect, Failure, FailureKind, LossCause, LossSignal, LossTrigger};
use leasehold_machine::since_boot;
use tokio::net::TcpStream;
use tokio::sync::watch;
use zookeeper_client::{Client, Error, SessionState, Stat};

use crate::config::ZooKeeperConfig;
use crate::net::pulse::{Missing, Pulse};
use crate::net::tunnel::Tunnel;
use crate::net::watching::{WatchCapacity, Watching};
use crate::protocol::layout;

/// One session with the ensemble.
pub(crate) struct EnsembleSession {
    pub(crate) client: Client,
    pub(crate) id: i64,
    /// The time for which the servers keep it without hearing of it, as they said.
    pub(crate) timeout: Duration,
    pub(crate) watches: WatchCapacity,
    pulse: Pulse,
    trigger: LossTrigger,
    signal: LossSignal,
}

/// The present session, replaced as sessions end.
#[derive(Clone)]
pub(crate) struct Sessions {
    present: watch::Receiver<Present>,
    tunnel: Option<Arc<Tunnel>>,
}

#[derive(Clone)]
enum Present {
    Open(Arc<EnsembleSession>),
    /// There is none now; why the last attempt failed.
    Down(Failure),
}

/// Describes the outcome of a connection to one of these servers, which the client does not report: for a
/// person who has to correct a name, a port or a server.
async fn reachable(hosts: &[Host]) -> String {
    let Some(host) = hosts.first() else { return String::new() };
    let place = host.to_string();
    match tokio::time::timeout(REACHABLE_LIMIT, TcpStream::connect(&place)).await {
        Ok(Err(error)) => format!(": {place}: {error}"),
        Ok(Ok(_)) => {
            format!(
                ": {place} accepts connections: check that it is ZooKeeper, with a quorum, and without TLS"
            )
        }
        Err(_) => format!(": {place} accepts no connection"),
    }
}

impl EnsembleSession {
    async fn open(config: &ZooKeeperConfig, tunnel: Option<&Tunnel>) -> Result<EnsembleSession, Failure> {
        let last_error = || async {
            match tunnel {
                Some(tunnel) => tunnel.last_error(),
                None => reachable(&config.hosts).await,
            }
        };
        // The servers may have opened the session some time before their answer is read.
        let pulse = Pulse::of(config.session);
        let opened = tokio::select! {
            opened = tokio::time::timeout(config.timeout, EnsembleSession::connect(config, tunnel)) => opened,
            never = pulse.beat() => match never {},
        };
        let client = match opened {
            Ok(Ok(client)) => client,
            // A session that was opened without our knowledge holds nothing and ends by itself.
            Ok(Err(failure)) if failure.kind == FailureKind::Invalid => return Err(failure),
            Ok(Err(failure)) => {
                let why = last_error().await;
                let text = format!("no session with {config}: the servers refused, or none is there{why}");
                return Err(Failure::new(failure.kind, Effect::None, text).because(failure));
            }
            Err(_) => {
                let (limit, why) = (config.timeout, last_error().await);
                return Err(Failure::unavailable(format!("no session with {config} within {limit:?}{why}")));
            }
        };
        let (trigger, signal) = LossTrigger::new();
        let (id, timeout) = (client.session_id().0, client.session_timeout());
        Ok(EnsembleSession { client, id, timeout, watches: WatchCapacity::new(), pulse, trigger, signal })
    }

    /// Tries each server in turn. If one was silent, all of them are tried again, until the caller's
    /// limit: a server that is busy, or speaks TLS for the first time, may need longer than the silence
    /// after which a live session leaves a server for another.
    async fn connect(config: &ZooKeeperConfig, tunnel: Option<&Tunnel>) -> Result<Client, Failure> {
        let silence = (config.session / SILENCES).max(SILENCE_MIN);
        let hosts: Vec<String> = config.hosts.iter().map(Host::to_string).collect();
        let servers = tunnel.map_or_else(|| hosts.join(","), Tunnel::connect_string);
        loop {
            let mut connector =
                Client::connector().with_session_timeout(config.session).with_connection_timeout(silence);
            if let Some(login) = config.login()? {
                connector = connector.with_auth("digest", reveal(&login).as_bytes());
            }
            let mut connecting = pin!(connector.connect(&servers));
            let soon = tokio::time::timeout(silence.mul_f64(SILENT_PART), connecting.as_mut()).await;
            let was_silent = soon.is_err();
            let connected = match soon {
                Ok(connected) => connected,
                Err(_) => connecting.await,
            };
            match connected.map_err(|error| layout::failure(error, "")) {
                // A server that refuses at once is reported at once.
                Err(failure) if was_silent && failure.is_transient() => {}
                connected => return connected,
            }
        }
    }

    /// Returns the signal of its end. It is one signal for all claims: they live and end with the session.
    pub(crate) fn lost(&self) -> LossSignal {
        self.signal.clone()
    }

    /// Returns `true` if requests can be sent now. A session outlives its connection for a while.
    pub(crate) fn is_connected(&self) -> bool {
        self.client.state() == SessionState::SyncConnected
    }

    /// Waits until requests can be sent; `false` where the session has ended.
    async fn connected(&self) -> bool {
        let mut states = self.client.state_watcher();
        let mut state = states.state();
        while state != SessionState::SyncConnected && !state.is_terminated() {
            state = states.changed().await;
        }
        state == SessionState::SyncConnected
    }

    /// Waits until requests can be sent, but not beyond `limit`. The client keeps requests while the
    /// connection is down, also those that have no waiter any more, and without a limit: so nothing is
    /// asked of it then.
    pub(crate) async fn ready(&self, limit: Duration) -> Result<(), Failure> {
        match tokio::time::timeout(limit, self.connected()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::unavailable("the session ended")),
            Err(_) => Err(Failure::unavailable("the connection is down; the session may live on")),
        }
    }

    /// Returns `true` if the leader has heard of this session lately, where a server takes up to `lag` to report it.
    pub(crate) fn is_settled(&self, lag: Duration) -> bool {
        self.pulse.missing(lag) == Missing::Nothing
    }

    /// Waits until the leader has heard of this session after a pause of this process, but not beyond `limit`.
    pub(crate) async fn settled(&self, lag: Duration, limit: Duration) -> Result<(), Failure> {
        let settling = async {
            loop {
                match self.pulse.missing(lag) {
                    Missing::Nothing => return Ok(()),
                    Missing::Time(left) => tokio::time::sleep(left).await,
                    Missing::Answer => {
                        let sent = since_boot();
                        match self.client.check_stat("/").await {
                            Ok(_) | Err(Error::NoAuth) => self.pulse.answered(sent),
                            Err(error) => return Err(layout::failure(error, "")),
                        }
                    }
                }
            }
        };
        match tokio::time::timeout(limit, settling).await {
            Ok(settled) => settled,
            Err(_) => {
                let text = "this process was paused, and the servers have not confirmed yet that they keep its session";
                Err(Failure::unavailable(text))
            }
        }
    }

    /// Waits for the answer of a request that was handed to the client already.
    pub(crate) async fn ask<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(limit, request).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Timeout),
        }
    }

    /// Sends a request that only a leader with a quorum can answer while the session lives, and that changes
    /// nothing: a multi of one `check`. It is sent at once; the next request sees all that was committed
    /// before.
    ///
    /// A `sync` is not enough: a leader that was deposed while it was paused answers it.
    pub(crate) fn prove(
        &self,
        path: &str,
    ) -> Result<impl Future<Output = Result<(), Error>> + use<'_>, Error> {
        let mut multi = self.client.new_multi_writer();
        multi.add_check_version(path, ANY_VERSION)?;
        let committed = multi.commit();
        Ok(async { committed.await.map(drop).map_err(Error::from) })
    }

    /// Waits until the session has ended.
    async fn ended(&self) -> SessionState {
        let mut states = self.client.state_watcher();
        let mut state = states.state();
        while !state.is_terminated() {
            state = states.changed().await;
        }
        state
    }
}

impl EnsembleSession {
    /// Returns the children of a node, and a watch on their next change.
    pub(crate) async fn watch_children(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<(Vec<String>, Stat, Watching), Error> {
        let Some(permit) = self.watches.take(path) else {
            let (names, stat) = self.ask(limit, self.client.get_children(path)).await?;
            return Ok((names, stat, self.watches.pause()));
        };
        let (names, stat, watcher) = self.ask(limit, self.client.get_and_watch_children(path)).await?;
        Ok((names, stat, Watching::Watch(watcher, permit)))
    }

    /// Returns whether a node exists, and a watch on its next change, making or end.
    pub(crate) async fn watch_stat(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<(Option<Stat>, Watching), Error> {
        let Some(permit) = self.watches.take(path) else {
            return Ok((self.ask(limit, self.client.check_stat(path)).await?, self.watches.pause()));
        };
        let (stat, watcher) = self.ask(limit, self.client.check_and_watch_stat(path)).await?;
        Ok((stat, Watching::Watch(watcher, permit)))
    }

    /// Returns the data of a node, and a watch on its next change.
    pub(crate) async fn watch_data(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<(Vec<u8>, Stat, Watching), Error> {
        let Some(permit) = self.watches.take(path) else {
            let (data, stat) = self.ask(limit, self.client.get_data(path)).await?;
            return Ok((data, stat, self.watches.pause()));
        };
        let (data, stat, watcher) = self.ask(limit, self.client.get_and_watch_data(path)).await?;
        Ok((data, stat, Watching::Watch(watcher, permit)))
    }
}

impl fmt::Debug for EnsembleSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Any client with the password of a session can take it over, so the client itself is not
        // shown.
        write!(f, "Session({:#x}, {:?})", self.id, self.timeout)
    }
}

impl Sessions {
    /// Opens the first session, and starts the task that opens all others.
    pub(crate) async fn start(
        mut config: ZooKeeperConfig,
    ) -> Result<(Sessions, Arc<EnsembleSession>), Failure> {
        let tunnel = match &config.tls {
            Some(files) => Some(Arc::new(Tunnel::open(&config.hosts, files, config.timeout).await?)),
            None => None,
        };
        let mut first = EnsembleSession::open(&config, tunnel.as_deref()).await?;
        if first.timeout != config.session {
            // The pace at which a client pings is derived from the timeout that it asks for, so it
            // asks for what it will get.
            config.session = first.timeout;
            first = EnsembleSession::open(&config, tunnel.as_deref()).await?;
        }
        let first = Arc::new(first);
        let (sender, present) = watch::channel(Present::Open(first.clone()));
        leasehold_machine::spawn(keep(config, tunnel.clone(), first.clone(), sender));
        Ok((Sessions { present, tunnel }, first))
    }

    /// Returns the addresses of the servers from here, in the order of the URL.
    pub(crate) fn addresses(&self, config: &ZooKeeperConfig) -> Vec<String> {
        match &self.tunnel {
            Some(tunnel) => tunnel.connect_string().split(',').map(str::to_owned).collect(),
            None => config.hosts.iter().map(Host::to_string).collect(),
        }
    }

    /// Returns the present session, if one is open.
    pub(crate) fn open(&self) -> Option<Arc<EnsembleSession>> {
        self.present.borrow().usable().cloned()
    }

    /// Returns the present session, connected; waits for that, but not beyond `limit`.
    pub(crate) async fn present(&self, limit: Duration) -> Result<Arc<EnsembleSession>, Failure> {
        // Nearly always there is nothing to wait for.
        if let Some(session) = self.open().filter(|session| session.is_connected()) {
            return Ok(session);
        }
        match tokio::time::timeout(limit, self.connected()).await {
            Ok(found) => found,
            Err(_) => Err(match &*self.present.borrow() {
                Present::Open(_) => Failure::unavailable("the connection is down; the session may live on"),
                Present::Down(failure) => failure.clone(),
            }),
        }
    }

    async fn connected(&self) -> Result<Arc<EnsembleSession>, Failure> {
        let mut present = self.present.clone();
        loop {
            let open = present.wait_for(|present| present.usable().is_some()).await;
            let gone = |_| Failure::unavailable("the runtime of this client has ended");
            let session = open.map_err(gone)?.usable().cloned();
            if let Some(session) = session
                && session.connected().await
            {
                return Ok(session);
            }
        }
    }
}

impl Present {
    /// Returns the session on which requests may be sent: not from the very moment at which the client
    /// has seen its end.
    fn usable(&self) -> Option<&Arc<EnsembleSession>> {
        match self {
            Present::Open(session) if !session.client.state().is_terminated() => Some(session),
            _ => None,
        }
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.present.borrow() {
            Present::Open(session) => session.fmt(f),
            Present::Down(failure) => write!(f, "no session: {failure}"),
        }
    }
}

/// Waits for the end of each session and opens the next one. Without a limit on its number: it is what
/// brings the client back after an outage of any length, at most once in [`RETRY_LAST`].
async fn keep(
    config: ZooKeeperConfig,
    tunnel: Option<Arc<Tunnel>>,
    mut session: Arc<EnsembleSession>,
    sender: watch::Sender<Present>,
) {
    loop {
        let state = tokio::select! {
            state = session.ended() => state,
            () = sender.closed() => return,
            never = session.pulse.beat() => match never {},
        };
        session.trigger.fire(LossCause::SessionEnded);
        tracing::warn!(servers = %config, ?state, "the session ended");
        sender.send_replace(Present::Down(Failure::unavailable(format!("the session with {config} ended"))));
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LAST);
        session = loop {
            let opened = tokio::select! {
                opened = EnsembleSession::open(&config, tunnel.as_deref()) => opened,
                () = sender.closed() => return,
            };
            let failure = match opened {
                Ok(session) if session.timeout >= config.session => break Arc::new(session),
                // Validity is counted by what the profile said when the client was made.
                Ok(session) => Failure::unavailable(format!(
                    "{config} gives sessions of {:?} now, and gave {:?} before: open a new client",
                    session.timeout, config.session
                )),
                Err(failure) => failure,
            };
            tracing::debug!(%failure, "no new session yet");
            sender.send_replace(Present::Down(failure));
            tokio::select! {
                () = tokio::time::sleep(backoff.failed(random::chance())) => {}
                () = sender.closed() => return,
            }
        };
        sender.send_replace(Present::Open(session.clone()));
    }
}

/// The longest time that finding out why no session is open may take.
const REACHABLE_LIMIT: Duration = Duration::from_millis(500);
/// The version that ZooKeeper takes for every version.
const ANY_VERSION: i32 = -1;
/// A server that is silent for this part of the session's timeout is left for another. Pings follow
/// from it, more than twice as often. It leaves time to confirm, elsewhere and before validity ends,
/// what was last confirmed a sixth of the timeout before the silence began.
const SILENCES: u32 = 6;
/// Not shorter than a pause that a healthy server may make.
const SILENCE_MIN: Duration = Duration::from_millis(500);
/// The part of that silence from which on a server was silent, and did not refuse.
const SILENT_PART: f64 = 0.9;
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(2);
