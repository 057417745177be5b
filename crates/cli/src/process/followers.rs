//! The nested runs and sections that rely on the lock of a section, as its keeper knows them.
//!
//! Ground rules: nothing here waits for any of them. A report that one does not take is dropped, and the next one is
//! newer; after a loss the connection is closed, which says the same.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold::backend::Moment;
use rustix::process::Pid;
use tokio::net::UnixStream;

use crate::process::keeper_lines::{Refusal, Report, WAITS};
use crate::system::descriptors;
use crate::system::keeper_socket::send_with;
use crate::system::processes::Identity;

/// The nested runs and inner sections that follow a section.
#[derive(Debug)]
pub(crate) struct Followers {
    all: Vec<Follower>,
    /// The number of those that can follow at a time.
    most: usize,
    reported: Option<Report>,
}

/// A nested run, or an inner section.
#[derive(Debug)]
struct Follower {
    /// It lasts as long as the process runs under the lock.
    stream: UnixStream,
    /// The processes for which it is a section; none for a run.
    callers: Vec<Identity>,
}

impl Followers {
    /// Creates the list without followers. It holds as many as this process can have connections to.
    pub(crate) fn new() -> Followers {
        let most = descriptors::limit().saturating_sub(RESERVE).clamp(LEAST, MOST);
        Followers { all: Vec::new(), most, reported: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a follower, and sends it the descriptor that keeps a lock in files alive: the lock is not free before this
    /// follower has ended, even if the keeper is killed. Refuses it if there are too many.
    pub(crate) fn add(
        &mut self,
        stream: UnixStream,
        callers: Vec<Identity>,
        report: &Report,
        liveness_fd: Option<OwnedFd>,
    ) {
        if self.all.len() >= self.most {
            refuse(&stream, Refusal::Full);
        } else if send_with(&stream, report.line().as_bytes(), liveness_fd).is_ok() {
            self.all.push(Follower { stream, callers });
        }
    }

    /// Reports how long the lock is held, if that has changed.
    pub(crate) fn report(&mut self, report: &Report) {
        if self.reported.as_ref().is_some_and(|before| is_same(before, report)) {
            return;
        }
        for Follower { stream, .. } in &self.all {
            let _ = send_with(stream, report.line().as_bytes(), None);
        }
        self.reported = Some(report.clone());
    }

    /// Reports the loss to all of them, and removes them.
    pub(crate) fn lose(&mut self, cause: &str) {
        for Follower { stream, .. } in self.all.drain(..) {
            let _ = send_with(&stream, Report::Lost(cause.to_owned()).line().as_bytes(), None);
        }
    }

    /// Waits until one of them has ended, and removes it; for ever without one.
    pub(crate) async fn changed(&mut self) {
        poll_fn(|cx| {
            let ended = self.all.iter().position(|follower| has_ended(&follower.stream, cx));
            match ended {
                Some(ended) => {
                    drop(self.all.swap_remove(ended));
                    Poll::Ready(())
                }
                None => Poll::Pending,
            }
        })
        .await;
    }

    /// Returns `true` if one of them does not end before one of these processes has: it is that process, or is a
    /// section for it.
    pub(crate) fn depend_on(&self, processes: &[Identity]) -> bool {
        let is_among = |pid: Pid| processes.iter().any(|process| process.pid == pid);
        let has = |follower: &Follower| follower.callers.iter().any(|caller| processes.contains(caller));
        self.all.iter().any(|follower| peer(&follower.stream).is_some_and(is_among) || has(follower))
    }
}

/// Looks whether the other side has closed its connection; if not, the task is woken when it may have.
fn has_ended(stream: &UnixStream, cx: &mut Context<'_>) -> bool {
    // The request can have left the stream marked as ready, if it filled the buffer. A read that finds nothing takes
    // the mark away.
    while stream.poll_read_ready(cx).is_ready() {
        match stream.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Nothing follows a request, so a byte is an end, too.
            _ => return true,
        }
    }
    false
}

/// Returns the process at the other side of a connection, if this process may see it.
pub(crate) fn peer(stream: &UnixStream) -> Option<Pid> {
    stream.peer_cred().ok()?.pid().and_then(Pid::from_raw)
}

/// Reports to a process that it cannot follow.
pub(crate) fn refuse(stream: &UnixStream, refusal: Refusal) {
    let _ = send_with(stream, refusal.line().as_bytes(), None);
}

/// Reports to those that wait for the release that it comes when all nested runs have ended.
pub(crate) fn report_waiting(requesters: &[UnixStream]) {
    for requester in requesters {
        let _ = requester.try_write(WAITS.as_bytes());
    }
}

/// Returns `true` if two reports differ by no more than the clock did between them.
fn is_same(one: &Report, other: &Report) -> bool {
    let apart = |one: Moment, other: Moment| one.since(other).max(other.since(one));
    match (one, other) {
        (Report::Until(one), Report::Until(other)) => apart(*one, *other) < CLOSE,
        (one, other) => one == other,
    }
}

/// The bounds of the number of those that can follow at a time.
const LEAST: usize = 16;
const MOST: usize = 4096;
/// The number of descriptors that are for other uses: connections that are read, and those of the store.
const RESERVE: usize = 256;
/// The time by which the end of a lease may differ between two looks at it.
const CLOSE: Duration = Duration::from_millis(1);
