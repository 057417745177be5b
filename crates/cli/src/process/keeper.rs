//! The keeper: the process that holds a lock for a section of a script.
//!
//! Ground rules: it follows one process, the caller, and nothing else: it releases the lock when it is asked to,
//! and when the caller has ended. Signals to it mean nothing, because a signal to a whole group or service is meant
//! for the script, whose cleaning up may need the lock. If it is killed itself, its warden sends the caller the
//! signal of a loss.

use std::io;
use std::pin::pin;
use std::time::Duration;

use leasehold::backend::{Clock, LossCause};
use leasehold::{Resource, SystemClock};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::exit::Exit;
use crate::output::status::{Event, Status};
use crate::output::stderr::Stderr;
use crate::output::text::visible;
use crate::process::lease_watch::LeaseWatch;
use crate::process::lock_hold::{LockHold, Returned, first};
use crate::request::Request;
use crate::system::caller::Caller;
use crate::system::rendezvous;
use crate::system::signals::Signals;
use crate::system::warden::{Message, Warden};

/// A hold of a section, with all that is needed to keep it.
pub(crate) struct Keeper<'a> {
    pub(crate) request: &'a Request,
    pub(crate) caller: &'a Caller,
    /// The signal that the caller is sent if the lock is lost.
    pub(crate) on_lost: Option<Signal>,
    pub(crate) listener: UnixListener,
    /// `None` if nothing is to happen when this process is killed.
    pub(crate) warden: Option<Warden>,
    pub(crate) stderr: &'a Stderr,
    pub(crate) status: &'a Status,
}

/// The answer to the request to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Released,
    Lost,
}

/// The end of a section.
enum End {
    /// The caller has ended.
    CallerEnded,
    /// It was asked for, over this connection.
    Asked(UnixStream),
}

impl Keeper<'_> {
    /// Keeps the locks to the end of the section, and releases them.
    pub(crate) async fn keep(mut self, hold: LockHold, signals: &mut Signals) -> Exit {
        let mut warden = self.warden.take();
        let (end, was_lost) = self.watch(&hold, &mut warden, signals).await;
        if let (Some(warden), End::Asked(_), false) = (&mut warden, &end, was_lost) {
            // The script has left its section, and is not to be ended while the store is slow to confirm that.
            warden.send(Message::Wait);
        }
        let returned = hold.release_lock(self.request, was_lost, self.stderr, self.status).await;
        let is_lost = was_lost || returned == Returned::Lost;
        if let End::Asked(stream) = end {
            answer(stream, if is_lost { Answer::Lost } else { Answer::Released }).await;
        }
        if let Some(warden) = warden {
            warden.end().await;
        }
        if is_lost { Exit::Lost } else { Exit::Done }
    }

    async fn watch(
        &self,
        hold: &LockHold,
        warden: &mut Option<Warden>,
        signals: &mut Signals,
    ) -> (End, bool) {
        // It lasts from event to event: a request that has arrived in part is not dropped.
        let mut asked = pin!(asked(&self.listener));
        let mut leases = LeaseWatch::new(hold.guards(), self.stderr, self.status);
        let listen =
            |guard| Box::pin(async move { (leasehold::Guard::resource(guard), guard.revoked().await) });
        let listens = self.request.on_revoke.is_some();
        let mut revocations: Vec<_> = hold.guards().iter().filter(|_| listens).map(listen).collect();
        loop {
            if let Some((lock, cause)) = leases.check() {
                self.lose(lock, cause);
            }
            if let Some(warden) = warden {
                warden.send(message(&leases));
            }
            tokio::select! {
                biased;
                () = leases.lost() => {}
                () = self.caller.ended() => return (End::CallerEnded, leases.is_lost()),
                stream = &mut asked => return (End::Asked(stream), leases.is_lost()),
                (lock, received) = first(&mut revocations) => {
                    if let (Ok(revocation), Some(signal)) = (received, self.request.on_revoke) {
                        revocations.clear();
                        self.caller.signal(signal);
                        let (name, reason) = (visible(lock.as_str()), visible(&revocation.reason));
                        self.stderr.print_line(&format!("{name} is revoked: {reason}; the shell was sent a signal"));
                        self.status.report(&Event::Revoked { lock: lock.clone(), reason });
                    }
                }
                _ = signals.next() => {}
                () = tokio::time::sleep(leases.pause().min(LONGEST_PAUSE)) => {}
            }
        }
    }

    fn lose(&self, lock: &Resource, cause: LossCause) {
        let what = match self.on_lost {
            Some(signal) => {
                self.caller.signal(signal);
                "the shell was sent a signal"
            }
            None => "the script continues WITHOUT the lock, because of --on-lost=ignore",
        };
        self.stderr.print_line(&format!("{} was lost: {cause}; {what}", visible(lock.as_str())));
    }
}

/// Waits for a connection that asks for the release.
async fn asked(listener: &UnixListener) -> UnixStream {
    loop {
        let accepted = match listener.accept().await {
            Ok((stream, _)) => rendezvous::trusted(stream),
            Err(error) => Err(error),
        };
        match accepted {
            Ok(mut stream) => {
                let mut word = [0; WORD.len()];
                let read = tokio::time::timeout(REQUEST_LIMIT, stream.read_exact(&mut word)).await;
                // A connection that says nothing only looks whether this keeper is alive.
                if matches!(read, Ok(Ok(_))) && word == *WORD {
                    return stream;
                }
            }
            // No descriptor is left, or it is one of another user.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Returns what the warden is to do next.
fn message(leases: &LeaseWatch<'_>) -> Message {
    match leases.remaining() {
        Some(remaining) if remaining != Duration::MAX => {
            Message::Until(SystemClock.now().after(remaining), Duration::ZERO)
        }
        Some(_) => Message::Wait,
        // After a loss, the caller was sent its signal. Without a lock, an outer `run` acts.
        None => Message::Done,
    }
}

async fn answer(mut stream: UnixStream, answer: Answer) {
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    let _ = tokio::time::timeout(REQUEST_LIMIT, stream.write_all(&text)).await;
}

/// Asks the keeper with this socket to release the lock.
///
/// # Errors
/// The keeper does not exist, or it ended without an answer.
pub(crate) async fn ask_to_release(socket: &str) -> io::Result<Answer> {
    let mut stream = rendezvous::connect(socket)?;
    stream.write_all(WORD).await?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

/// The request to release.
const WORD: &[u8; 8] = b"release\n";
/// The time in which a connection has to say what it is for.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The longest time between two looks at the clock, which also counts suspended time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
