//! The sessions of one client: as many as its claims need.
//!
//! When a session ends without its client, the servers write down the paths of all its nodes as one
//! transaction. One that is longer than they read, which is twice `jute.maxbuffer` unless set and so 2 MiB,
//! takes the whole ensemble down, and keeps it from starting again (ZOOKEEPER-4306, open in all versions).
//! No server refuses the node that makes it too long, so a session is given no more of them here than fit
//! into the half of that, and the next claim is made in another one.
//!
//! Ground rules: a claim stays in the session that its node was made in. Sessions stay open for as long
//! as the client lives.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::select_ok;
use leasehold_core::Failure;
use tokio::sync::Mutex as Turn;

use crate::config::ZooKeeperConfig;
use crate::net::session::{EnsembleSession, Sessions};
use crate::state::claim_table::{ClaimTable, SESSION_BYTES_MAX};

/// All sessions of one client.
#[derive(Debug)]
pub(crate) struct SessionPool {
    config: ZooKeeperConfig,
    /// The timeout that the first session was given, from which validity is counted.
    timeout: Duration,
    sessions: Mutex<Vec<Sessions>>,
    opening: Turn<()>,
}

impl SessionPool {
    pub(crate) fn new(config: ZooKeeperConfig, timeout: Duration, first: Sessions) -> SessionPool {
        SessionPool { config, timeout, sessions: Mutex::new(vec![first]), opening: Turn::new(()) }
    }

    /// Returns the session of that number, while it lives.
    pub(crate) fn session(&self, id: i64) -> Option<Arc<EnsembleSession>> {
        self.sessions().iter().filter_map(Sessions::open).find(|session| session.id == id)
    }

    /// Returns a session that has capacity for one more node of that length.
    pub(crate) async fn with_capacity(
        &self,
        claims: &ClaimTable,
        bytes: usize,
    ) -> Result<Arc<EnsembleSession>, Failure> {
        for _ in 0..=SESSIONS_MAX {
            let sessions = self.sessions();
            let open: Vec<_> = sessions.iter().map(Sessions::open).collect();
            let states: Vec<Availability> =
                open.iter().map(|session| Availability::of(session.as_deref(), claims, bytes)).collect();
            match choose(&states) {
                Choice::Use(index) => {
                    // It was open when it was looked at.
                    if let Some(session) = &open[index] {
                        return Ok(session.clone());
                    }
                }
                Choice::Another => self.open_another(sessions.len()).await?,
                Choice::Wait => {
                    // A session returns, or says why it does not.
                    let down = sessions.iter().filter(|session| session.open().is_none());
                    let waits: Vec<_> =
                        down.map(|session| Box::pin(session.present(self.config.timeout))).collect();
                    if !waits.is_empty() {
                        select_ok(waits).await?;
                    }
                }
                Choice::Full => return Err(full()),
            }
        }
        Err(full())
    }

    /// Opens one more, unless another caller has done so since there were `before`.
    async fn open_another(&self, before: usize) -> Result<(), Failure> {
        let _turn = self.opening.lock().await;
        if self.sessions().len() > before {
            return Ok(());
        }
        if before >= SESSIONS_MAX {
            return Err(full());
        }
        let (session, first) = Sessions::start(self.config.clone()).await?;
        if first.timeout < self.timeout {
            return Err(Failure::unavailable(format!(
                "{} gives sessions of {:?} now, and gave {:?} before: open a new client",
                self.config, first.timeout, self.timeout
            )));
        }
        tracing::debug!(sessions = before + 1, "one more session, for more nodes");
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        Ok(())
    }

    fn sessions(&self) -> Vec<Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The availability of one session for a new node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Availability {
    /// It has capacity.
    Available,
    /// It has capacity, and its connection is down.
    Disconnected,
    Full,
    /// The last one has ended, and the next does not exist yet.
    Down,
}

impl Availability {
    fn of(session: Option<&EnsembleSession>, claims: &ClaimTable, bytes: usize) -> Availability {
        match session {
            None => Availability::Down,
            Some(session) if !claims.has_capacity(session.id, bytes) => Availability::Full,
            Some(session) if session.is_connected() => Availability::Available,
            Some(_) => Availability::Disconnected,
        }
    }
}

/// The way to find a session.
#[derive(Debug, PartialEq)]
enum Choice {
    Use(usize),
    /// Open one more session.
    Another,
    /// Wait for one that is down.
    Wait,
    Full,
}

/// Chooses a session. Where one is open and full, the claim does not wait for another that is down:
/// servers can be reached, so one more can be opened.
fn choose(sessions: &[Availability]) -> Choice {
    let first = |wanted: Availability| sessions.iter().position(|session| *session == wanted);
    if let Some(index) = first(Availability::Available).or_else(|| first(Availability::Disconnected)) {
        return Choice::Use(index);
    }
    match (first(Availability::Full), first(Availability::Down)) {
        (Some(_), _) if sessions.len() < SESSIONS_MAX => Choice::Another,
        (_, Some(_)) => Choice::Wait,
        _ => Choice::Full,
    }
}

fn full() -> Failure {
    let claims = SESSIONS_MAX * SESSION_BYTES_MAX;
    Failure::unavailable(format!(
        "the nodes of this client's claims take {claims} bytes of names already, in {SESSIONS_MAX} sessions: hold fewer locks in one client"
    ))
}

/// The most sessions of one client. Servers accept 60 connections from one address by default.
const SESSIONS_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_does_not_wait_for_a_session_if_another_fits() {
        use Availability::{Available, Disconnected, Down, Full};
        for (sessions, choice) in [
            (vec![Down], Choice::Wait),
            (vec![Full], Choice::Another),
            (vec![Full, Down], Choice::Another),
            (vec![Down, Available], Choice::Use(1)),
            (vec![Disconnected, Available], Choice::Use(1)),
            (vec![Full, Disconnected], Choice::Use(1)),
            (vec![Down, Down], Choice::Wait),
            ([vec![Full; SESSIONS_MAX - 1], vec![Down]].concat(), Choice::Wait),
            (vec![Full; SESSIONS_MAX], Choice::Full),
        ] {
            assert_eq!(choose(&sessions), choice, "{sessions:?}");
        }
    }
}
