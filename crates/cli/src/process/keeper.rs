//! The keeper: the process that holds a lock for a section of a script.
//!
//! Ground rules: it follows the caller: it releases the lock when it is asked to, and when the caller has ended, but
//! not before the nested runs have ended that rely on it. Signals to it mean nothing, because a signal to a whole
//! group or service is meant for the script, whose cleaning up may need the lock. If it is killed itself, its warden
//! sends the caller the signal of a loss.

use std::pin::pin;
use std::time::Duration;

use leasehold::SystemClock;
use leasehold::backend::{Clock, Moment};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};

use crate::exit::Exit;
use crate::output::status::{Event, Status};
use crate::output::stderr::Stderr;
use crate::output::text::{visible, visible_name};
use crate::process::followers::{Followers, peer, refuse, report_waiting};
use crate::process::keeper_lines::{Answer, Refusal, Report, Request as KeeperRequest};
use crate::process::keeper_listener::KeeperListener;
use crate::process::lease_watch::{LeaseWatch, LockLoss};
use crate::process::lock_hold::{LockHold, ReleaseOutcome};
use crate::process::select::first_of;
use crate::request::Request;
use crate::system::caller::Caller;
use crate::system::keeper_socket::send_with;
use crate::system::processes::{self, Identity, lineage};
use crate::system::script_fd::ScriptFd;
use crate::system::signals::Signals;
use crate::system::warden::{Message, Warden};

/// A hold of a section, with all that is needed to keep it.
pub(crate) struct Keeper<'a> {
    pub(crate) request: &'a Request,
    pub(crate) caller: &'a Caller,
    /// The descriptor with which the section ends, instead of the caller.
    pub(crate) script_fd: Option<ScriptFd>,
    /// The signal that the caller is sent if the lock is lost.
    pub(crate) on_lost: Option<Signal>,
    pub(crate) listener: UnixListener,
    /// `None` if nothing is to happen when this process is killed.
    pub(crate) warden: Option<Warden>,
    pub(crate) stderr: &'a Stderr,
    pub(crate) status: &'a Status,
}

/// The state of a section until its lock is released.
struct WatchedSection<'a> {
    request: &'a Request,
    caller: &'a Caller,
    on_lost: Option<Signal>,
    warden: Option<Warden>,
    stderr: &'a Stderr,
    status: &'a Status,
    hold: &'a LockHold,
    leases: LeaseWatch<'a>,
    /// The nested runs, under the lock of this section.
    followers: Followers,
    /// The connections of those that wait for the release.
    requesters: Vec<UnixStream>,
    /// The time of the next report to them that the release is still to come.
    next_waiting_report: Moment,
    /// `true` once the release was asked for, or the caller has ended.
    is_over: bool,
}

impl Keeper<'_> {
    /// Keeps the locks to the end of the section, and of what runs inside it, and releases them.
    pub(crate) async fn keep(self, hold: LockHold, signals: &mut Signals) -> Exit {
        let Keeper { request, caller, script_fd, on_lost, listener, warden, stderr, status } = self;
        let mut section = WatchedSection {
            request,
            caller,
            on_lost,
            warden,
            stderr,
            status,
            hold: &hold,
            leases: LeaseWatch::new(&hold, stderr, status),
            followers: Followers::new(),
            requesters: Vec::new(),
            next_waiting_report: SystemClock.now(),
            is_over: false,
        };
        let mut listener = KeeperListener::open(listener);
        section.watch(&mut listener, script_fd, signals).await;
        // A connection from now on is refused, and not left unanswered.
        listener.close().await;
        let was_lost = section.leases.is_lost();
        let WatchedSection { warden, requesters, followers, .. } = section;
        let outcome = hold.release_lock(request, was_lost, stderr, status).await;
        let is_lost = was_lost || outcome == ReleaseOutcome::Lost;
        for requester in requesters {
            answer(requester, if is_lost { Answer::Lost } else { Answer::Released }).await;
        }
        drop(followers);
        if let Some(warden) = warden {
            warden.end().await;
        }
        if is_lost { Exit::Lost } else { Exit::Done }
    }
}

impl WatchedSection<'_> {
    /// Watches over the section until its lock may be released.
    async fn watch(
        &mut self,
        listener: &mut KeeperListener,
        script_fd: Option<ScriptFd>,
        signals: &mut Signals,
    ) {
        let listen =
            |guard| Box::pin(async move { (leasehold::Guard::resource(guard), guard.revoked().await) });
        let listens = self.request.on_revoke.is_some();
        let mut revocations: Vec<_> = self.hold.guards().iter().filter(|_| listens).map(listen).collect();
        let mut ended = pin!(ended(self.caller, script_fd));
        loop {
            self.check();
            if self.is_over && (self.followers.is_empty() || self.leases.is_lost()) {
                return;
            }
            self.report_waiting_if_due();
            let pause = self.pause();
            tokio::select! {
                biased;
                () = self.leases.lost() => {}
                () = &mut ended, if !self.is_over => self.is_over = true,
                // One that has ended before a request came is not inside any more.
                () = self.followers.changed() => {}
                (request, stream) = listener.next() => self.handle(request, stream).await,
                (lock, received) = first_of(&mut revocations) => {
                    if let (Ok(revocation), Some(signal)) = (received, self.request.on_revoke) {
                        revocations.clear();
                        self.caller.signal(signal);
                        let (name, reason) = (visible_name(lock.as_str()), visible(&revocation.reason));
                        self.stderr.print_line(&format!("{name} is revoked: {reason}; the shell was sent a signal"));
                        self.status.report(&Event::Revoked { lock: lock.clone(), reason });
                    }
                }
                _ = signals.next() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reports to those that wait for the release that it is still to come, if it is time for that, however much happens
    /// in between.
    fn report_waiting_if_due(&mut self) {
        let now = SystemClock.now();
        if now >= self.next_waiting_report {
            report_waiting(&self.requesters);
            self.next_waiting_report = now.after(WAITING_REPORT_INTERVAL);
        }
    }

    /// Looks at the clock, acts on a loss, and reports to all that depend on the lock.
    fn check(&mut self) {
        if let Some(loss) = self.leases.check() {
            self.lose(&loss);
        }
        if let Some(warden) = &mut self.warden {
            // A script that has left its section is not to be ended while the release takes its time.
            let is_left = self.is_over && !self.leases.is_lost();
            warden.send(if is_left { Message::Wait } else { message(self.leases.end()) });
        }
        if !self.leases.is_lost() {
            self.followers.report(&report(&self.leases));
        }
    }

    /// Handles a request.
    async fn handle(&mut self, request: KeeperRequest, stream: UnixStream) {
        match request {
            KeeperRequest::Release => match self.is_inside(&stream) {
                true => answer(stream, Answer::Inside).await,
                false => {
                    self.is_over = true;
                    self.requesters.push(stream);
                }
            },
            KeeperRequest::Follow { tag, callers } => self.add_follower(&tag, callers, stream),
        }
    }

    /// Adds a follower, or refuses it. A section that has lost its lock refuses all. One that is over accepts only what
    /// runs inside a nested run, which would otherwise wait for a lock that is kept until it has ended.
    fn add_follower(&mut self, tag: &str, callers: Vec<Identity>, stream: UnixStream) {
        let is_own = self.hold.own_tags().iter().any(|own| own == tag);
        if !is_own || self.leases.is_lost() {
            let _ = send_with(&stream, Report::Lost(LOST.to_owned()).line().as_bytes(), None);
        } else if self.is_over && !self.is_inside(&stream) {
            refuse(&stream, Refusal::Over);
        } else {
            self.followers.add(stream, callers, &report(&self.leases), self.hold.liveness_fd_of(tag));
        }
    }

    /// Returns `true` if the other side of the connection descends from a nested run, or from the script of an inner
    /// section. Either would have to end before the release that it waits for.
    fn is_inside(&self, stream: &UnixStream) -> bool {
        let Some(requester) = peer(stream).filter(|_| !self.followers.is_empty()) else { return false };
        self.followers.depend_on(&lineage(&processes::all(), requester))
    }

    fn lose(&mut self, loss: &LockLoss<'_>) {
        let what = match self.on_lost {
            _ if self.is_over => "its section was over, and what ran inside it is ended",
            Some(signal) => {
                if self.warden.as_ref().is_none_or(Warden::takes_signal) {
                    self.caller.signal(signal);
                }
                "the shell was sent a signal"
            }
            None => "the script continues WITHOUT the lock, because of --on-lost=ignore",
        };
        self.followers.lose(&loss.cause);
        self.stderr.print_line(&format!(
            "{} was lost: {}; {what}",
            visible_name(loss.lock.as_str()),
            loss.cause
        ));
    }

    /// Returns the time until the next look at the clock.
    fn pause(&self) -> Duration {
        let longest = match self.requesters.is_empty() {
            true => LONGEST_PAUSE,
            false => SystemClock.now().until(self.next_waiting_report),
        };
        self.leases.pause().min(longest)
    }
}

/// Waits until the caller has ended; if the section follows a descriptor, until that is closed.
async fn ended(caller: &Caller, script_fd: Option<ScriptFd>) {
    let Some(mut script_fd) = script_fd else { return caller.ended().await };
    tokio::select! {
        biased;
        () = script_fd.opened() => script_fd.closed().await,
        // A caller that ends before it has the descriptor never has it.
        () = caller.ended() => {}
    }
}

/// Returns what the warden is to do next, by the end of the leases.
pub(crate) fn message(end: Option<Moment>) -> Message {
    match end {
        Some(Moment::NEVER) => Message::Wait,
        Some(end) => Message::Until(end, Duration::ZERO),
        // After a loss, the caller was sent its signal.
        None => Message::Done,
    }
}

/// Returns what those that follow this section may rely on.
fn report(leases: &LeaseWatch<'_>) -> Report {
    match leases.end() {
        Some(Moment::NEVER) | None => Report::Held,
        Some(end) => Report::Until(end),
    }
}

async fn answer(mut stream: UnixStream, answer: Answer) {
    let _ = tokio::time::timeout(ANSWER_LIMIT, stream.write_all(answer.line().as_bytes())).await;
}

/// The time in which an answer has to be taken.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two reports that the release is still to come.
const WAITING_REPORT_INTERVAL: Duration = Duration::from_secs(3);
const LOST: &str = "its section has no such lock any more";
/// The longest time between two looks at the clock, which also counts suspended time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
