//! As many sessions as the claims of one client need.
//!
//! When a session ends without its client, the servers write down the paths of all its nodes as one
//! transaction. One that is longer than they read, `jute.maxbuffer`, which is 1 MiB unless set, takes
//! the whole ensemble down, and keeps it from starting again (ZOOKEEPER-4306, open in all versions). No
//! server refuses the node that makes it too long, so a session is given no more of them here than fit,
//! and the next claim is made in another one.
//!
//! Ground rules: a claim stays in the session that its node was made in. Sessions stay open for as long
//! as the client lives.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::select_ok;
use leasehold_core::Failure;
use tokio::sync::Mutex as Turn;

use crate::config::ZooKeeperConfig;
use crate::net::session::{Session, Sessions};
use crate::state::places::{Places, ROOM};

/// All sessions of one client.
#[derive(Debug)]
pub(crate) struct SessionPool {
    config: ZooKeeperConfig,
    /// The timeout that the first session was given, from which validity is counted.
    timeout: Duration,
    lanes: Mutex<Vec<Sessions>>,
    opening: Turn<()>,
}

impl SessionPool {
    pub(crate) fn new(config: ZooKeeperConfig, timeout: Duration, first: Sessions) -> SessionPool {
        SessionPool { config, timeout, lanes: Mutex::new(vec![first]), opening: Turn::new(()) }
    }

    /// Returns the session of that number, while it lives.
    pub(crate) fn session(&self, id: i64) -> Option<Arc<Session>> {
        self.lanes().iter().filter_map(Sessions::open).find(|session| session.id == id)
    }

    /// Returns a session that has room for one more node of that length.
    pub(crate) async fn roomy(&self, places: &Places, bytes: usize) -> Result<Arc<Session>, Failure> {
        for _ in 0..=SESSIONS_MAX {
            let lanes = self.lanes();
            let open: Vec<_> = lanes.iter().map(Sessions::open).collect();
            let states: Vec<Lane> =
                open.iter().map(|session| Lane::of(session.as_deref(), places, bytes)).collect();
            match choose(&states) {
                Choice::Use(index) => {
                    // It was open when it was looked at.
                    if let Some(session) = &open[index] {
                        return Ok(session.clone());
                    }
                }
                Choice::Another => self.open_another(lanes.len()).await?,
                Choice::Wait => {
                    // A session returns, or says why it does not.
                    let down = lanes.iter().filter(|lane| lane.open().is_none());
                    let waits: Vec<_> =
                        down.map(|lane| Box::pin(lane.present(self.config.timeout))).collect();
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
        if self.lanes().len() > before {
            return Ok(());
        }
        if before >= SESSIONS_MAX {
            return Err(full());
        }
        let (lane, first) = Sessions::start(self.config.clone()).await?;
        if first.timeout < self.timeout {
            return Err(Failure::unavailable(format!(
                "{} gives sessions of {:?} now, and gave {:?} before: open a new client",
                self.config, first.timeout, self.timeout
            )));
        }
        tracing::debug!(sessions = before + 1, "one more session, for more nodes");
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
        Ok(())
    }

    fn lanes(&self) -> Vec<Sessions> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The use of one session, where a node is to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lane {
    /// It has room.
    Roomy,
    /// It has room, and its connection is down.
    Cut,
    Full,
    /// The last one has ended, and the next does not exist yet.
    Down,
}

impl Lane {
    fn of(session: Option<&Session>, places: &Places, bytes: usize) -> Lane {
        match session {
            None => Lane::Down,
            Some(session) if !places.has_room(session.id, bytes) => Lane::Full,
            Some(session) if session.is_connected() => Lane::Roomy,
            Some(_) => Lane::Cut,
        }
    }
}

/// The way to find room.
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
fn choose(lanes: &[Lane]) -> Choice {
    let first = |wanted: Lane| lanes.iter().position(|lane| *lane == wanted);
    if let Some(index) = first(Lane::Roomy).or_else(|| first(Lane::Cut)) {
        return Choice::Use(index);
    }
    match (first(Lane::Full), first(Lane::Down)) {
        (Some(_), _) if lanes.len() < SESSIONS_MAX => Choice::Another,
        (_, Some(_)) => Choice::Wait,
        _ => Choice::Full,
    }
}

fn full() -> Failure {
    let claims = SESSIONS_MAX * ROOM;
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
    fn nobody_waits_for_a_session_where_another_helps() {
        use Lane::{Cut, Down, Full, Roomy};
        for (lanes, choice) in [
            (vec![Down], Choice::Wait),
            (vec![Full], Choice::Another),
            (vec![Full, Down], Choice::Another),
            (vec![Down, Roomy], Choice::Use(1)),
            (vec![Cut, Roomy], Choice::Use(1)),
            (vec![Full, Cut], Choice::Use(1)),
            (vec![Down, Down], Choice::Wait),
            ([vec![Full; SESSIONS_MAX - 1], vec![Down]].concat(), Choice::Wait),
            (vec![Full; SESSIONS_MAX], Choice::Full),
        ] {
            assert_eq!(choose(&lanes), choice, "{lanes:?}");
        }
    }
}
