//! `run`: hold a lock while a command runs.
//!
//! Ground rules: a request that can be refused without the lock is refused before the lock is asked
//! for. Every way out of here releases what was taken, and waits for that within a limit.

use std::future::Future;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use leasehold::backend::{Clock, Moment};
use leasehold::{Client, SystemClock};
use rustix::process::Signal;
use tokio::time::Instant;

use crate::exit::{Exit, Problem};
use crate::output::status::{Ender, Event, Sinks, Status};
use crate::output::stderr::Stderr;
use crate::process::child::{self, Child};
use crate::process::hook;
use crate::process::job::{Job, Outcome};
use crate::process::lock_hold::{LockHold, ReleaseOutcome, Taken};
use crate::request::args::hold::{ReportArgs, RunArgs};
use crate::request::{After, Launch, Loss, Request};
use crate::system::descriptors::{InheritedFd, inheritable};
use crate::system::fork::Spare;
use crate::system::signals::Signals;
use crate::system::warden::Warden;

/// Runs `leasehold run`. The spare process becomes the warden, unless the wait for the lock is long.
///
/// # Errors
/// Each of the table in `exit.rs`.
pub(crate) async fn run(args: RunArgs, spare: Option<Spare>) -> Result<Exit, Problem> {
    let request = Request::new(args)?;
    let cannot_start = |error| Problem::new(Exit::NotStarted, format!("cannot start: {error}"));
    let stderr = Stderr::start().map_err(cannot_start)?;
    let mut signals = Signals::listen().map_err(cannot_start)?;
    let status = Status::start(&request.name, sinks(&request.report)?)?;
    let ended = hold_and_run(&request, &mut signals, &stderr, &status, spare, || ()).await;
    if let Err(problem) = &ended {
        stderr.print_line(&problem.to_string());
    }
    let (exit, by) = match &ended {
        Ok(ended) => (ended.exit, ended.by),
        Err(problem) => (problem.exit, Ender::Leasehold),
    };
    status.report(&Event::Exit { code: exit.code(), by });
    tokio::join!(stderr.flush(), status.flush());
    Ok(exit)
}

/// Returns the places to which the state is to be reported.
///
/// # Errors
/// No descriptor is left.
pub(crate) fn sinks(report: &ReportArgs) -> Result<Sinks, Problem> {
    let descriptor = report.status_fd.as_ref().map(InheritedFd::copy).transpose();
    Ok(Sinks {
        file: report.status_file.clone(),
        descriptor: descriptor
            .map_err(|error| Problem::new(Exit::NotStarted, format!("cannot start: {error}")))?,
        service_manager: report.sd_notify,
    })
}

/// The end of one hold, or of the wait for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    /// The origin of its code.
    pub(crate) by: Ender,
    /// `true` if the lock was held at all.
    pub(crate) was_held: bool,
    /// The signal that has asked this process to end, by the end of the command or after it.
    pub(crate) asked: Option<Signal>,
}

impl Ended {
    fn waiting(signal: Signal) -> Ended {
        Ended { was_held: false, asked: Some(signal), ..Ended::holding(Exit::by(signal)) }
    }

    /// Builds the end of a hold that is not the command's own.
    fn holding(exit: Exit) -> Ended {
        Ended { exit, by: Ender::Leasehold, was_held: true, asked: None }
    }
}

/// Waits for the lock, runs the command under it, and releases it. `opened` is called when the store is open.
///
/// # Errors
/// Each of the table in `exit.rs`.
pub(crate) async fn hold_and_run(
    request: &Request,
    signals: &mut Signals,
    stderr: &Stderr,
    status: &Status,
    mut spare: Option<Spare>,
    opened: impl FnOnce(),
) -> Result<Ended, Problem> {
    let file = request.program.find()?;
    status.report(&Event::Waiting);
    let limit = Instant::now() + SPARE_LIMIT;
    let open = async {
        tokio::select! {
            biased;
            signal = signals.sent_to_childless() => Err(signal),
            store = request.store.open(request.note.clone()) => Ok(store),
        }
    };
    let locks = match spare_until(limit, &mut spare, open).await {
        Ok(store) => store?,
        Err(signal) => return Ok(Ended::waiting(signal)),
    };
    opened();
    tracing::debug!(store = request.store.shown(), "the store is open");
    let take = LockHold::take(request, &locks, signals, stderr, status);
    let taken = spare_until(limit, &mut spare, take).await;
    let ended = match taken {
        Ok(Taken::Held(hold)) => {
            let held = HeldRun { request, hold, signals, stderr, status };
            match request.launch {
                Launch::InPlace => {
                    drop(spare.take());
                    held.replace_this_process(file).await
                }
                _ => held.run_command(file, spare.take()).await,
            }
        }
        Ok(Taken::Interrupted(signal)) => Ok(Ended::waiting(signal)),
        Err(problem) => Err(problem),
    };
    close_and_run_hook(request, &locks, ended, signals, stderr).await
}

/// Closes the client, and runs the hook meanwhile if the lock was held. Returns the end of the hold, with the signal
/// that asked this process to end since then, if one did.
async fn close_and_run_hook(
    request: &Request,
    locks: &Client,
    ended: Result<Ended, Problem>,
    signals: &mut Signals,
    stderr: &Stderr,
) -> Result<Ended, Problem> {
    // The hook does not wait for a store that may be away: another may hold the lock by now.
    let hook_began = SystemClock.now();
    let hook = async {
        if let (Some(program), Ok(Ended { was_held: true, .. })) = (&request.hook, &ended) {
            hook::run(request, program, signals, stderr).await;
        }
    };
    // A claim that was abandoned while its grant was on its way is ended now, or the queue would have to
    // wait for its ttl. If nothing could be acquired, that error is reported, which is also the reason why
    // nothing is confirmed.
    let (is_confirmed, ()) = tokio::join!(locks.close(CLOSE_LIMIT), hook);
    if !is_confirmed && ended.is_ok() {
        stderr.print_line(
            "the store did not confirm all releases; what is left in the store ends with its ttl",
        );
    }
    // No command could have used a signal for something else that came during the hook.
    let asked = signals.ending_since(hook_began);
    ended.map(|ended| Ended { asked: asked.or(ended.asked), ..ended })
}

/// Waits for the store or the lock. Only a wait that is over by the limit keeps the spare process: many may wait long,
/// and each of them would be two processes.
async fn spare_until<T>(limit: Instant, spare: &mut Option<Spare>, wait: impl Future<Output = T>) -> T {
    let mut wait = pin!(wait);
    if spare.is_some() {
        tokio::select! {
            biased;
            taken = &mut wait => return taken,
            () = tokio::time::sleep_until(limit) => *spare = None,
        }
    }
    wait.await
}

/// A hold with all that is needed to run the command under it.
struct HeldRun<'a> {
    request: &'a Request,
    hold: LockHold,
    signals: &'a mut Signals,
    stderr: &'a Stderr,
    status: &'a Status,
}

impl HeldRun<'_> {
    /// Starts the command under the lock, attends to it, and releases the lock.
    async fn run_command(mut self, file: PathBuf, spare: Option<Spare>) -> Result<Ended, Problem> {
        let began = SystemClock.now();
        let outcome = self.start(file, spare).await;
        // The release and a hook take time, and do not make a HUP older.
        let asked = self.signals.ending(self.request.grace());
        let interrupted = match &outcome {
            Ok(outcome) if self.request.after == After::Stay && outcome.is_success() => self.stay().await,
            Ok(outcome) => self.wait_min_hold(began.after(self.request.min_hold), outcome).await,
            Err(_) => None,
        };
        let lost = matches!(&outcome, Ok(outcome) if outcome.lost);
        let HeldRun { request, hold, stderr, status, .. } = self;
        let released = hold.release_lock(request, lost, stderr, status).await;
        let of_command = Ended { by: Ender::Command, ..Ended::holding(outcome?.exit()) };
        let ended = match (lost || released == ReleaseOutcome::Lost, request.on_lost) {
            (true, Loss::Ignore) | (false, _) => {
                interrupted.map_or(of_command, |signal| Ended::holding(Exit::by(signal)))
            }
            (true, _) => Ended::holding(Exit::Lost),
        };
        Ok(Ended { asked: interrupted.or(asked), ..ended })
    }

    async fn start(&mut self, file: PathBuf, spare: Option<Spare>) -> Result<Outcome, Problem> {
        let request = self.request;
        let warden = Warden::start(self.hold.liveness_fds(), spare).map_err(|error| {
            Problem::new(Exit::NotStarted, format!("cannot start a second process: {error}"))
        })?;
        let mut job = Job::new(request, &self.hold, warden, self.stderr, self.status);
        // The warden may have taken longer to start than the lease lasts.
        if job.is_too_late() {
            return Ok(job.end_by_loss().await);
        }
        let (program, variables) = (&request.program, self.hold.variables(request));
        let child = match job.group() {
            Some(group) => {
                job.await_start(Child::start(program, file, variables, group, Stdio::inherit)).await
            }
            None => {
                let known = |command| job.tell_warden(command);
                job.await_start(Child::start_in_callers_group(program, file, variables, known)).await
            }
        };
        match child {
            Ok(child) => Ok(job.supervise(child, self.signals).await),
            Err(error) => {
                job.end_after_failed_start().await;
                Err(request.program.refusal(&error))
            }
        }
    }

    /// Becomes the command, which inherits the lock. It returns only if that fails.
    async fn replace_this_process(self, file: PathBuf) -> Result<Ended, Problem> {
        let HeldRun { request, hold, signals, stderr, status } = self;
        let mut command = child::command(&request.program, file, hold.variables(request));
        // All that is to be written has to be written before, because the threads that write end here.
        tokio::join!(stderr.flush(), status.flush());
        // A signal that this process has already received would be lost.
        let signal = tokio::select! {
            biased;
            signal = signals.sent_to_childless() => Some(signal),
            () = std::future::ready(()) => None,
        };
        if let Some(signal) = signal {
            hold.release_lock(request, false, stderr, status).await;
            return Ok(Ended::holding(Exit::by(signal)));
        }
        // Without the descriptor of each lock the command would run, and the lock would be free.
        let error = match hold.is_kept_alive_by_fds().then(|| inheritable(hold.liveness_fds())) {
            Some(Ok(_liveness_fds)) => command.exec(),
            Some(Err(error)) => error,
            None => std::io::Error::other("the lock has ended before the command began"),
        };
        hold.release_lock(request, false, stderr, status).await;
        Err(request.program.refusal(&error))
    }

    /// Holds the lock until `--min-hold` is over. Returns the signal that ended the wait before, if one did.
    async fn wait_min_hold(&mut self, end: Moment, outcome: &Outcome) -> Option<Signal> {
        let is_own = !self.hold.guards().is_empty();
        // A signal that has ended the command by way of this process is meant for this process, too.
        let is_asked = self.signals.ending(self.request.grace()).is_some();
        if !is_own || outcome.lost || self.request.min_hold.is_zero() || is_asked {
            return None;
        }
        tokio::select! {
            biased;
            () = self.hold.lost() => None,
            signal = self.signals.sent_to_childless() => Some(signal),
            () = tokio::time::sleep(SystemClock.now().until(end)) => None,
        }
    }

    /// Holds the lock until it is lost or a signal comes. Returns the signal, which may be one that the command has
    /// survived.
    async fn stay(&mut self) -> Option<Signal> {
        if let Some(signal) = self.signals.ending(self.request.grace()) {
            return Some(signal);
        }
        tokio::select! {
            biased;
            () = self.hold.lost() => None,
            signal = self.signals.sent_to_childless() => Some(signal),
        }
    }
}

const CLOSE_LIMIT: Duration = Duration::from_secs(3);
/// The longest wait for the store and the lock that keeps the spare process.
const SPARE_LIMIT: Duration = Duration::from_secs(1);
