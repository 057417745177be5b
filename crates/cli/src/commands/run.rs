//! `run`: hold a lock while a command runs.
//!
//! Ground rules: a request that can be refused without the lock is refused before the lock is asked
//! for. Every way out of here releases what was taken, and waits for that within a limit.

use std::process::Stdio;
use std::time::Duration;

use leasehold::local::LivenessHandle;
use leasehold::{Client, Guard, SystemClock, backend::Clock};
use rustix::process::Signal;

use crate::exit::{Exit, Problem};
use crate::output::describe::held_by;
use crate::output::progress::Progress;
use crate::output::stderr::Stderr;
use crate::output::text::{duration, visible};
use crate::process::child::Child;
use crate::process::environment::{Variables, variables};
use crate::process::hook;
use crate::process::job::{Job, Outcome};
use crate::request::args::RunArgs;
use crate::request::reentry::{Outer, Tags};
use crate::request::{After, Loss, Request, WaitLimit};
use crate::system::signals::Signals;
use crate::system::warden::Warden;

/// Runs `leasehold run`.
///
/// # Errors
/// Each of the table in `exit.rs`.
pub(crate) async fn run(args: RunArgs) -> Result<Exit, Problem> {
    let request = Request::new(args)?;
    let cannot_start = |error| Problem::new(Exit::NotStarted, format!("cannot start: {error}"));
    let stderr = Stderr::start().map_err(cannot_start)?;
    let mut signals = Signals::listen().map_err(cannot_start)?;
    let ended = hold_and_run(&request, &mut signals, &stderr).await;
    if let Err(problem) = &ended {
        stderr.print_line(&problem.to_string());
    }
    stderr.flush().await;
    Ok(ended.map_or_else(|problem| problem.exit, |ended| ended.exit))
}

/// The end of one hold, or of the wait for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    /// `true` if the lock was held at all.
    pub(crate) was_held: bool,
}

impl Ended {
    fn waiting(signal: Signal) -> Ended {
        Ended { exit: Exit::by(signal), was_held: false }
    }
}

/// Waits for the lock, runs the command under it, and releases it.
///
/// # Errors
/// Each of the table in `exit.rs`.
pub(crate) async fn hold_and_run(
    request: &Request,
    signals: &mut Signals,
    stderr: &Stderr,
) -> Result<Ended, Problem> {
    let file = request.program.find()?;
    let opened = tokio::select! {
        biased;
        signal = signals.sent() => return Ok(Ended::waiting(signal)),
        opened = request.store.open(request.note.clone()) => opened,
    };
    let locks = opened?;
    tracing::debug!(store = request.store.shown(), "the store is open");
    let ended = match LockHold::take(request, &locks, signals, stderr).await {
        Ok(Taken::Held(hold)) => {
            let exit = run_command(request, file, hold, signals, stderr).await;
            exit.map(|exit| Ended { exit, was_held: true })
        }
        Ok(Taken::Interrupted(signal)) => Ok(Ended::waiting(signal)),
        Err(problem) => Err(problem),
    };
    // The hook does not wait for a store that may be away: another may hold the lock by now.
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
    ended
}

/// Starts the command under the lock, attends to it, and releases the lock.
async fn run_command(
    request: &Request,
    file: std::path::PathBuf,
    hold: LockHold,
    signals: &mut Signals,
    stderr: &Stderr,
) -> Result<Exit, Problem> {
    let began = SystemClock.now();
    let outcome = start(request, file, &hold, signals, stderr).await;
    let interrupted = match &outcome {
        Ok(outcome) if request.after == After::Stay && outcome.is_success() => stay(&hold, signals).await,
        Ok(outcome) => wait_min_hold(request, &hold, began.after(request.min_hold), signals, outcome).await,
        Err(_) => None,
    };
    let lost = matches!(&outcome, Ok(outcome) if outcome.lost);
    let returned = hold.release_lock(request, lost, stderr).await;
    let exit = interrupted.map_or(outcome?.exit(), Exit::by);
    match (lost || returned == Returned::Lost, request.on_lost) {
        (true, Loss::Ignore) | (false, _) => Ok(exit),
        (true, _) => Ok(Exit::Lost),
    }
}

async fn start(
    request: &Request,
    file: std::path::PathBuf,
    hold: &LockHold,
    signals: &mut Signals,
    stderr: &Stderr,
) -> Result<Outcome, Problem> {
    let refused = |error| request.program.refusal(&error);
    let life =
        hold.guard().and_then(|guard| guard.proof().get::<LivenessHandle>()).and_then(LivenessHandle::copy);
    let warden = Warden::start(life)
        .map_err(|error| Problem::new(Exit::NotStarted, format!("cannot start a second process: {error}")))?;
    let job = Job::new(request, hold.guard(), warden, stderr);
    let child =
        Child::start(&request.program, file, hold.variables(request), job.group(), Stdio::inherit()).await;
    match child {
        Ok(child) => Ok(job.supervise(child, signals).await),
        Err(error) => {
            job.abandon().await;
            Err(refused(error))
        }
    }
}

/// Holds the lock until `--min-hold` is over. The signal that ended it before, where one did.
async fn wait_min_hold(
    request: &Request,
    hold: &LockHold,
    end: leasehold::Moment,
    signals: &mut Signals,
    outcome: &Outcome,
) -> Option<Signal> {
    let guard = hold.guard()?;
    // A signal that has ended the command by way of this process is meant for this process, too.
    let is_asked = signals.ending(request.grace()).is_some();
    if outcome.lost || request.min_hold.is_zero() || is_asked {
        return None;
    }
    tokio::select! {
        biased;
        _ = guard.lost() => None,
        signal = signals.sent() => Some(signal),
        () = tokio::time::sleep(SystemClock.now().until(end)) => None,
    }
}

/// Holds the lock until it is lost, or a signal comes, which is returned.
async fn stay(hold: &LockHold, signals: &mut Signals) -> Option<Signal> {
    let lost = async {
        match hold.guard() {
            Some(guard) => drop(guard.lost().await),
            // An outer `run` holds it: its loss ends the whole group.
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = lost => None,
        signal = signals.sent() => Some(signal),
    }
}

/// The right to run the command.
#[derive(Debug)]
enum LockHold {
    /// Our own.
    Own(Box<Guard>, Tags),
    /// An outer `run`'s, under which this one runs.
    Outer(Outer, Tags),
}

enum Taken {
    Held(LockHold),
    Interrupted(Signal),
}

/// The outcome of the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returned {
    Freed,
    Lost,
}

impl LockHold {
    async fn take(
        request: &Request,
        locks: &Client,
        signals: &mut Signals,
        stderr: &Stderr,
    ) -> Result<Taken, Problem> {
        let tags = Tags::inherited();
        let outer = tokio::select! {
            biased;
            signal = signals.sent() => return Ok(Taken::Interrupted(signal)),
            outer = tags.find(locks, &request.name, request.share()?) => outer?,
        };
        if let Some(outer) = outer {
            return Ok(Taken::Held(LockHold::Outer(outer, tags)));
        }
        let progress = (request.patience != WaitLimit::None)
            .then(|| Progress::start(stderr, locks, &request.name, &request.note));
        let taken = tokio::select! {
            biased;
            signal = signals.sent() => return Ok(Taken::Interrupted(signal)),
            taken = request.take(locks, &tags) => taken,
        };
        if let Some(progress) = progress {
            progress.end().await;
        }
        match taken {
            Ok(Some(guard)) => {
                let fence = guard.fence().map(|fence| fence.to_string()).unwrap_or_default();
                tracing::info!(name = visible(request.name.as_str()), fence, "granted");
                Ok(Taken::Held(LockHold::Own(Box::new(guard), tags)))
            }
            Ok(None) => {
                let waited = match request.patience {
                    WaitLimit::Limit(limit) => format!("was not free within {}", duration(limit)),
                    _ => "is busy".to_owned(),
                };
                Err(busy(request, locks, &waited).await)
            }
            Err(error) => Err(Problem::from(error).hint(format!("the store is {}", request.store.shown()))),
        }
    }

    fn guard(&self) -> Option<&Guard> {
        match self {
            LockHold::Own(guard, _) => Some(guard),
            LockHold::Outer(..) => None,
        }
    }

    /// Returns what the command's environment is to hold, or not to hold.
    fn variables(&self, request: &Request) -> Variables {
        let (fence, owner) = match self {
            LockHold::Own(guard, tags) => (guard.fence(), tags.with(Some(guard.tag()))),
            LockHold::Outer(outer, tags) => (outer.fence, tags.with(None)),
        };
        variables(request, fence, owner)
    }

    /// Gives it back and waits for the answer, up to a limit.
    async fn release_lock(self, request: &Request, was_lost: bool, stderr: &Stderr) -> Returned {
        let LockHold::Own(guard, _) = self else { return Returned::Freed };
        let name = visible(request.name.as_str());
        match tokio::time::timeout(RELEASE_LIMIT, guard.release()).await {
            Ok(Ok(())) => {
                tracing::info!(name, "released");
                Returned::Freed
            }
            Ok(Err(error)) if error.is_lost() => {
                // A loss that was seen while the command ran was reported then.
                if !was_lost {
                    stderr.print_line(&format!("{error}: the command may not have been alone under {name}"));
                }
                Returned::Lost
            }
            // An answer that did not come is reported once, when the client is closed.
            Ok(Err(_)) | Err(_) => Returned::Freed,
        }
    }
}

/// Builds the refusal of a busy lock, with its holder where that is known.
async fn busy(request: &Request, locks: &Client, how: &str) -> Problem {
    let name = visible(request.name.as_str());
    let inspected = tokio::time::timeout(INSPECT_LIMIT, locks.inspect(request.name.as_str())).await;
    let holder = match inspected {
        Ok(Ok(snapshot)) if !snapshot.holders.is_empty() => {
            // The waiters are not shown: our own place may still be among them.
            format!(": {}", held_by(&snapshot))
        }
        _ => String::new(),
    };
    Problem::new(Exit::Busy, format!("{name} {how}{holder}"))
}

/// The time for which a release is waited for before the command's code is reported all the same.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
const CLOSE_LIMIT: Duration = Duration::from_secs(3);
const INSPECT_LIMIT: Duration = Duration::from_secs(2);
