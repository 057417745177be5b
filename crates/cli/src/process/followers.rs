//! The nested runs and sections that rely on the lock of a section, as its keeper knows them.
//!
//! Ground rules: nothing here waits for any of them. A report that one does not take is dropped, and the next one is
//! newer; after a loss the connection is closed, which says the same.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::task::Poll;
use std::time::Duration;

use leasehold::backend::Moment;
use rustix::process::Pid;
use tokio::net::UnixStream;

use crate::process::section::{Report, WAITS};
use crate::system::rendezvous::send_with;

/// The connections of those that follow; each lasts as long as the process runs under the lock.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    streams: Vec<UnixStream>,
    reported: Option<Report>,
}

impl Followers {
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Takes one in, with what keeps a lock in files alive: it is not free before this follower has ended, even if
    /// the keeper is killed.
    pub(crate) fn add(&mut self, stream: UnixStream, report: &Report, life: Option<OwnedFd>) {
        if self.streams.len() < MOST && send_with(&stream, report.line().as_bytes(), life).is_ok() {
            self.streams.push(stream);
        }
    }

    /// Reports how long the lock is held, if that has changed.
    pub(crate) fn report(&mut self, report: &Report) {
        if self.reported.as_ref().is_some_and(|before| is_same(before, report)) {
            return;
        }
        for stream in &self.streams {
            let _ = send_with(stream, report.line().as_bytes(), None);
        }
        self.reported = Some(report.clone());
    }

    /// Reports the loss, and forgets all of them.
    pub(crate) fn lose(&mut self, cause: &str) {
        for stream in self.streams.drain(..) {
            let _ = send_with(&stream, Report::Lost(cause.to_owned()).line().as_bytes(), None);
        }
    }

    /// Waits until one of them has ended, and forgets it; for ever without one.
    pub(crate) async fn changed(&mut self) {
        poll_fn(|cx| {
            // They say nothing after their request, so what can be read is the end.
            let ended = self.streams.iter().position(|stream| stream.poll_read_ready(cx).is_ready());
            match ended {
                Some(ended) => {
                    drop(self.streams.swap_remove(ended));
                    Poll::Ready(())
                }
                None => Poll::Pending,
            }
        })
        .await;
    }

    /// Lists their processes.
    pub(crate) fn processes(&self) -> impl Iterator<Item = Pid> {
        let pid = |stream: &UnixStream| stream.peer_cred().ok()?.pid().and_then(Pid::from_raw);
        self.streams.iter().filter_map(pid)
    }
}

/// Tells those that wait for the release that it comes when all nested runs have ended.
pub(crate) fn hold_on(askers: &[UnixStream]) {
    for asker in askers {
        let _ = asker.try_write(WAITS.as_bytes());
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

/// The number of those that can follow at a time.
const MOST: usize = 4096;
/// The time by which the end of a lease may differ between two looks at it.
const CLOSE: Duration = Duration::from_millis(1);
