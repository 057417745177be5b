//! One connection whose locks live as long as it does.
//!
//! Ground rules: where the answer to a statement is not known, or its future is dropped, the session is over, and
//! nothing is ever sent over its connection again. The connection stays open until the session is dropped: the
//! holders know of the loss before the server can give their locks to others.

use std::fmt;
use std::time::Duration;

use leasehold_core::{Effect, Failure};
use mysql_async::{Row, Value};
use tokio::sync::{Mutex, watch};

use crate::error::Refusal;
use crate::net::dial::{Link, only, read};

/// A connection that is used by one statement after the other.
pub(crate) struct SessionLink {
    /// The connection, until it is closed. It is not used again when the session is over.
    link: Mutex<Option<Link>>,
    /// The server's number for it: another one would hold nothing of ours.
    pub(crate) number: u64,
    is_over: watch::Sender<bool>,
}

impl SessionLink {
    pub(crate) async fn of(mut link: Link) -> Result<SessionLink, Failure> {
        let (number, _) = sign_of_life(&mut link).await.map_err(Refusal::into_failure)?;
        Ok(SessionLink { link: Mutex::new(Some(link)), number, is_over: watch::Sender::new(false) })
    }

    /// Sends one statement with its parameters, and waits for its rows.
    pub(crate) async fn exec(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, Refusal> {
        self.ask(async |link: &mut Link| link.exec(sql, values).await).await
    }

    /// Sends statements without parameters, and waits for the rows of all of them.
    pub(crate) async fn run(&self, statements: &str) -> Result<Vec<Row>, Refusal> {
        self.run_within(statements, Duration::ZERO).await
    }

    /// Runs statements that may wait in the server for so long, as [`SessionLink::run`] does.
    pub(crate) async fn run_within(&self, statements: &str, wait: Duration) -> Result<Vec<Row>, Refusal> {
        self.ask(async |link: &mut Link| link.run_within(statements, wait).await).await
    }

    /// Asks over the connection, which may be used again only if it is known what became of it.
    async fn ask(
        &self,
        asking: impl AsyncFnOnce(&mut Link) -> Result<Vec<Row>, Refusal>,
    ) -> Result<Vec<Row>, Refusal> {
        let mut slot = self.link.lock().await;
        let link = self.usable(&mut slot)?;
        let guard = EndGuard::of(&self.is_over);
        let answer = asking(link).await;
        if !matches!(&answer, Err(Refusal::Failed(failure)) if failure.effect == Effect::Unknown) {
            guard.disarm();
        }
        answer
    }

    /// Asks for a sign of life of the session itself.
    pub(crate) async fn ping(&self) -> Result<(), Failure> {
        let mut slot = self.link.lock().await;
        let link = self.usable(&mut slot).map_err(Refusal::into_failure)?;
        let guard = EndGuard::of(&self.is_over);
        let (number, is_read_only) = sign_of_life(link).await.map_err(Refusal::into_failure)?;
        if number != self.number {
            return Err(Failure::unanswered(
                "something in between has put another session in the place of ours",
            ));
        }
        if is_read_only {
            return Err(read_only());
        }
        guard.disarm();
        Ok(())
    }

    /// Returns the connection, unless the session is over.
    fn usable<'a>(&self, slot: &'a mut Option<Link>) -> Result<&'a mut Link, Refusal> {
        slot.as_mut().filter(|_| self.is_open()).ok_or_else(closed)
    }

    /// Closes the connection of a session that has no holder, and so ends what it waits for.
    pub(crate) async fn close(&self) {
        let mut slot = self.link.lock().await;
        drop(slot.take());
        self.is_over.send_replace(true);
    }

    /// Waits until it is over.
    pub(crate) async fn closed(&self) {
        // The sender lives as long as this value, so it never closes.
        let _ = self.is_over.subscribe().wait_for(|is_over| *is_over).await;
    }

    pub(crate) fn is_open(&self) -> bool {
        !*self.is_over.borrow()
    }
}

impl fmt::Debug for SessionLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionLink").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A guard that ends the session when it is dropped, unless it is disarmed.
struct EndGuard<'a> {
    is_over: &'a watch::Sender<bool>,
    is_disarmed: bool,
}

impl<'a> EndGuard<'a> {
    fn of(is_over: &'a watch::Sender<bool>) -> EndGuard<'a> {
        EndGuard { is_over, is_disarmed: false }
    }

    fn disarm(mut self) {
        self.is_disarmed = true;
    }
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        if !self.is_disarmed {
            self.is_over.send_replace(true);
        }
    }
}

/// Returns the server's number for the connection, and whether the server is read-only.
async fn sign_of_life(link: &mut Link) -> Result<(u64, bool), Refusal> {
    let rows = link.exec(&format!("SELECT CONNECTION_ID(), {IS_READ_ONLY}"), Vec::new()).await?;
    let row = only(rows).map_err(Refusal::Failed)?;
    let number = read(&row, 0).map_err(Refusal::Failed)?;
    let is_read_only: u8 = read(&row, 1).map_err(Refusal::Failed)?;
    Ok((number, is_read_only != 0))
}

/// An expression that is 1 if the server was set read-only. It is compared as a text, because it is a switch on one
/// server, and a word on another.
pub(crate) const IS_READ_ONLY: &str = "CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF')";

/// Returns the failure of a session on a server that was set read-only. The session has to end.
pub(crate) fn read_only() -> Failure {
    Failure::unanswered(
        "the server was set read-only, so another one may decide by now: the session ends, and all its locks",
    )
}

fn closed() -> Refusal {
    Refusal::Failed(Failure::unavailable("the connection has ended, and all its locks with it"))
}

#[cfg(test)]
mod tests {
    use leasehold_testkit::MariaDbServer;

    use super::*;
    use crate::config::MySqlConfig;

    #[tokio::test]
    async fn ended_session_keeps_its_connection_until_its_drop() {
        let Some(server) = MariaDbServer::start_or_skip().await else { return };
        let config = MySqlConfig::parse(&server.url()).unwrap();
        let used = async || server.sql("SELECT COALESCE(IS_USED_LOCK('job'), 0)").await.unwrap();
        for how in ["a statement whose future is dropped", "a statement without an answer"] {
            let session = SessionLink::of(Link::dial(&config).await.unwrap()).await.unwrap();
            session.run("SELECT GET_LOCK('job', 0)").await.unwrap();
            if how.contains("dropped") {
                let asking = session.run("SELECT SLEEP(3)");
                assert!(tokio::time::timeout(Duration::from_millis(100), asking).await.is_err());
            } else {
                // An error of the session's end.
                session.run("SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1317").await.unwrap_err();
            }
            assert!(!session.is_open(), "{how}");
            assert!(session.run("SELECT 1").await.is_err() && session.ping().await.is_err(), "{how}");
            // Time for the server to notice a connection that was closed.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(used().await.trim(), session.number.to_string(), "{how}: the lock was given up");
            drop(session);
            for _ in 0..1_200 {
                if used().await.trim() == "0" {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(used().await.trim(), "0", "{how}: the connection outlives its session");
        }
    }
}
