//! As many sessions as the claims of one client need.
//!
//! When a session ends without its client, the servers write down the paths of all its nodes as one transaction. One that is longer
//! than they read, `jute.maxbuffer`, which is 1 MiB unless set, takes the whole ensemble down, and keeps it from starting
//! again (ZOOKEEPER-4306, open in all versions). No server refuses the node that makes it too long, so a session is given
//! no more of them here than fit, and the next claim is made in another one.
//!
//! Ground rules: a claim stays in the session that its node was made in. Sessions stay open for as long as the client lives.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::Failure;
use tokio::sync::Mutex as Turn;

use crate::config::ZooKeeperConfig;
use crate::places::{Places, ROOM};
use crate::session::{Session, Sessions};

/// All sessions of one client.
#[derive(Debug)]
pub(crate) struct Fleet {
    config: ZooKeeperConfig,
    /// What the first session was given, and what validity is counted by.
    timeout: Duration,
    lanes: Mutex<Vec<Sessions>>,
    opening: Turn<()>,
}

impl Fleet {
    pub(crate) fn new(config: ZooKeeperConfig, timeout: Duration, first: Sessions) -> Fleet {
        Fleet { config, timeout, lanes: Mutex::new(vec![first]), opening: Turn::new(()) }
    }

    /// The session of that number, while it lives.
    pub(crate) fn session(&self, id: i64) -> Option<Arc<Session>> {
        self.lanes().iter().filter_map(Sessions::open).find(|session| session.id == id)
    }

    /// A session that has room for one more node of that length, the first that has.
    pub(crate) async fn roomy(&self, places: &Places, bytes: usize) -> Result<Arc<Session>, Failure> {
        for _ in 0..=SESSIONS_MAX {
            let lanes = self.lanes();
            let open: Vec<_> = lanes.iter().filter_map(Sessions::open).collect();
            if let Some(session) = open.iter().find(|session| places.has_room(session.id, bytes)) {
                return Ok(session.clone());
            }
            if let Some(down) = lanes.iter().find(|lane| lane.open().is_none()) {
                // It comes back, or says why it does not.
                let session = down.present(self.config.timeout).await?;
                if places.has_room(session.id, bytes) {
                    return Ok(session);
                }
                continue;
            }
            self.open_another(lanes.len()).await?;
        }
        Err(full())
    }

    /// Opens one more, unless somebody has done so since there were `before`.
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

fn full() -> Failure {
    let claims = SESSIONS_MAX * ROOM;
    Failure::unavailable(format!(
        "the nodes of this client's claims take {claims} bytes of names already, in {SESSIONS_MAX} sessions: hold fewer locks in one client"
    ))
}

/// The most sessions of one client. Servers accept 60 connections from one address unless they are told otherwise.
const SESSIONS_MAX: usize = 24;
