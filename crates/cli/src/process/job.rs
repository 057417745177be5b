//! The command under its lock: from the start of its process group to its end.
//!
//! Ground rules: on every wake-up, this process looks at the clock first: a process that was stopped
//! past its lease acts on the loss before anything else. It acts first and prints afterwards. Nothing
//! here waits for anything but the next event.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use leasehold::backend::{Clock, LossCause, Moment};
use leasehold::{Guard, Revocation, State, SystemClock};
use rustix::process::{Pid, Signal, kill_current_process_group};

use crate::exit::Exit;
use crate::output::stderr::Stderr;
use crate::output::text::{duration, visible};
use crate::process::child::{Change, Child, Ending};
use crate::request::{Loss, Request};
use crate::system::orphans;
use crate::system::signals::{SignalEvent, Signals};
use crate::system::terminal::{Terminal, is_interactive, is_shared};
use crate::system::warden::{Message, Warden};

/// A command that is about to run, or runs.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    request: &'a Request,
    /// `None` if an outer `run` holds the lock: the outer one handles a loss.
    guard: Option<&'a Guard>,
    warden: Warden,
    terminal: Option<Terminal>,
    stderr: &'a Stderr,
    clock: SystemClock,
    lost: bool,
    /// `true` once it was reported that the lease is not renewed.
    is_suspect: bool,
    /// Ctrl-C was passed on, or an INT from another process.
    received_int: bool,
    kill_at: Option<Moment>,
}

/// The way in which a job has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    ending: Ending,
    /// The lock was lost while the command ran.
    pub(crate) lost: bool,
    /// Ctrl-C at our terminal has ended it.
    interrupted: bool,
}

impl Outcome {
    /// Returns `true` if the command has ended by itself, with the code 0.
    pub(crate) fn is_success(&self) -> bool {
        !self.interrupted && self.ending == Ending::Code(0)
    }

    pub(crate) fn exit(&self) -> Exit {
        match (self.interrupted, self.ending) {
            (true, _) => Exit::Interrupted,
            (false, Ending::Code(code)) => Exit::Command(code),
            (false, Ending::Signal(signal)) => Exit::Signal(signal),
        }
    }
}

type Listening<'a> = Pin<Box<dyn Future<Output = leasehold::Result<Revocation>> + 'a>>;

/// An event that wakes a job up.
enum Event {
    Lost,
    Revoked(leasehold::Result<Revocation>),
    SignalEvent(SignalEvent),
    Time,
}

impl<'a> Job<'a> {
    /// Prepares the process group, with the terminal if this process is in the foreground there: so the
    /// command never finds itself in the background.
    pub(crate) fn new(
        request: &'a Request,
        guard: Option<&'a Guard>,
        warden: Warden,
        stderr: &'a Stderr,
    ) -> Self {
        let mut terminal = Terminal::controlling();
        if let Some(terminal) = terminal.as_mut().filter(|_| is_interactive() && !is_shared()) {
            terminal.lend(warden.group());
        }
        let mut job = Job {
            request,
            guard,
            warden,
            terminal,
            stderr,
            clock: SystemClock,
            lost: false,
            is_suspect: false,
            received_int: false,
            kill_at: None,
        };
        job.update_warden();
        job
    }

    /// Returns the process group for the command.
    pub(crate) fn group(&self) -> Pid {
        self.warden.group()
    }

    /// Ends the job without a command.
    pub(crate) async fn abandon(mut self) {
        self.take_terminal_back();
        self.warden.end().await;
    }

    /// Attends to the command until it has ended.
    pub(crate) async fn supervise(mut self, child: Child, signals: &mut Signals) -> Outcome {
        let mut listening = self.listening();
        let ending = loop {
            self.check_lease();
            match child.change() {
                Some(Change::Ended(ending)) => break ending,
                Some(Change::Stopped(signal)) => {
                    self.stopped(signal, signals).await;
                    continue;
                }
                None => {}
            }
            self.update_warden();
            let event = self.event(signals, &mut listening).await;
            self.check_lease();
            match event {
                Event::Revoked(received) => {
                    // One answer is all that comes: a revocation, or the error that ends the listening.
                    listening = None;
                    self.revoked(received);
                }
                Event::SignalEvent(SignalEvent::Sent(signal)) => {
                    self.received_int |= signal == Signal::INT;
                    self.warden.signal(signal);
                }
                Event::SignalEvent(SignalEvent::Continued) => self.resume(),
                Event::SignalEvent(SignalEvent::Child) => orphans::reap(&[child.pid(), self.warden.group()]),
                Event::Lost | Event::Time => {}
            }
        };
        self.finish(ending).await
    }

    /// Returns a future of the request to release, if this job listens for one.
    fn listening(&self) -> Option<Listening<'a>> {
        let guard = self.guard.filter(|_| self.request.on_revoke.is_some())?;
        Some(Box::pin(guard.revoked()))
    }

    fn revoked(&self, received: leasehold::Result<Revocation>) {
        let name = visible(self.request.name.as_str());
        match (received, self.request.on_revoke) {
            (Ok(revocation), Some(signal)) => {
                self.warden.signal(signal);
                let reason = visible(&revocation.reason);
                self.stderr
                    .print_line(&format!("{name} is revoked: {reason}; the command was sent a signal"));
            }
            // A loss is reported as a loss.
            (Err(error), _) if !error.is_lost() => {
                self.stderr.print_line(&format!("{error}: revocations of {name} are no longer noticed"));
            }
            _ => {}
        }
    }

    async fn event(&self, signals: &mut Signals, listening: &mut Option<Listening<'a>>) -> Event {
        let revoked = async {
            match listening {
                Some(listening) => listening.await,
                None => std::future::pending().await,
            }
        };
        let lost = async {
            match self.guard.filter(|_| !self.lost) {
                Some(guard) => drop(guard.lost().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = lost => Event::Lost,
            received = signals.next() => Event::SignalEvent(received),
            received = revoked => Event::Revoked(received),
            () = tokio::time::sleep(self.pause()) => Event::Time,
        }
    }

    /// Checks the clock, and acts on the state of the lease.
    fn check_lease(&mut self) {
        if let Some(guard) = self.guard.filter(|_| !self.lost) {
            match guard.state() {
                State::Lost(cause) => self.lose(cause),
                state => self.report_suspect(state == State::Suspect, guard.remaining()),
            }
        }
        if self.kill_at.is_some_and(|at| self.clock.now() >= at) {
            self.kill_at = None;
            self.warden.signal(Signal::KILL);
            self.stderr.print_line("the command did not end within its grace period, and was killed");
        }
    }

    /// Reports when renewals begin to fail, and when they succeed again.
    fn report_suspect(&mut self, is_suspect: bool, remaining: Duration) {
        if is_suspect == std::mem::replace(&mut self.is_suspect, is_suspect) {
            return;
        }
        let name = visible(self.request.name.as_str());
        self.stderr.print_line(&match is_suspect {
            true => format!(
                "{name} could not be renewed, and is lost in {} unless a renewal succeeds",
                duration(remaining)
            ),
            false => format!("{name} was renewed again"),
        });
    }

    fn lose(&mut self, cause: LossCause) {
        self.lost = true;
        let what = match self.request.on_lost {
            Loss::Term(grace) => {
                self.warden.signal(Signal::TERM);
                // A stopped process has to continue in order to end.
                self.warden.signal(Signal::CONT);
                let end = self.clock.now().after(grace);
                self.kill_at = Some(end);
                // From now on the warden only enforces the end of the grace period.
                self.warden.send(Message::Until(end, Duration::ZERO));
                format!("the command was sent TERM, and is killed in {}", duration(grace))
            }
            Loss::Kill => {
                self.warden.signal(Signal::KILL);
                "the command was killed".to_owned()
            }
            Loss::Ignore => "the command continues WITHOUT the lock, because of --on-lost=ignore".to_owned(),
        };
        self.stderr.print_line(&format!("{} was lost: {cause}; {what}", visible(self.request.name.as_str())));
    }

    /// Reports the end of the lease to the warden, so that the warden acts when this process cannot.
    fn update_warden(&mut self) {
        let (Some(guard), false) = (self.guard, self.lost) else { return };
        let remaining = guard.remaining();
        let message = match self.request.on_lost {
            Loss::Ignore => Message::Wait,
            _ if remaining == Duration::MAX => Message::Wait,
            Loss::Term(grace) => Message::Until(self.clock.now().after(remaining), grace),
            Loss::Kill => Message::Until(self.clock.now().after(remaining), Duration::ZERO),
        };
        self.warden.send(message);
    }

    /// Returns the time until the next action, if no event comes before.
    fn pause(&self) -> Duration {
        let now = self.clock.now();
        let to_kill = self.kill_at.map_or(Duration::MAX, |at| now.until(at));
        let to_update = match self.guard.filter(|_| !self.lost).map(Guard::remaining) {
            Some(remaining) if remaining != Duration::MAX => (remaining / 3).clamp(UPDATE_MIN, UPDATE_MAX),
            _ => Duration::MAX,
        };
        to_kill.min(to_update).min(LONGEST_PAUSE)
    }

    /// Handles a command that was stopped: by Ctrl-Z, or because it used the terminal from the
    /// background.
    async fn stopped(&mut self, signal: Signal, signals: &mut Signals) {
        if self.lost && self.request.on_lost != Loss::Ignore {
            self.warden.signal(Signal::CONT);
            return;
        }
        let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        let Some(terminal) = self.terminal.as_mut() else { return };
        if wants_terminal && terminal.lend(self.warden.group()) {
            self.warden.signal(Signal::CONT);
            return;
        }
        // Without a person at a terminal, the command may stay stopped: the lock is held meanwhile.
        if !(wants_terminal || is_interactive()) {
            return;
        }
        terminal.take_back();
        // The job that the shell knows is this process's group. It stops as a whole, so that the shell takes
        // over.
        if kill_current_process_group(Signal::TSTP).is_ok() {
            // If no shell could ever continue the group, the kernel does not stop it; then this process
            // continues.
            drop(tokio::time::timeout(STOP_LIMIT, signals.continued()).await);
        }
        self.check_lease();
        self.resume();
    }

    /// Continues this process after a stop, and the command with it; with the terminal if this process is
    /// in the foreground there.
    fn resume(&mut self) {
        if let Some(terminal) =
            self.terminal.as_mut().filter(|terminal| is_interactive() && !terminal.is_lent() && !is_shared())
        {
            terminal.lend(self.warden.group());
        }
        self.warden.signal(Signal::CONT);
    }

    async fn finish(mut self, ending: Ending) -> Outcome {
        let had_terminal = self.take_terminal_back();
        if self.lost && self.request.on_lost != Loss::Ignore {
            // The processes that the command has left behind may not continue without the lock either.
            self.warden.signal(Signal::KILL);
        }
        let by_int = ending == Ending::Signal(Signal::INT.as_raw());
        if had_terminal && is_shared() {
            // A process that used the terminal while it was lent was stopped for that.
            let _ = kill_current_process_group(Signal::CONT);
        }
        // Without the terminal, Ctrl-C did not reach the command itself; it reached this process, which
        // passed it on.
        let is_passed_on = by_int && self.received_int && !had_terminal;
        let interrupted =
            by_int && had_terminal || is_passed_on && Exit::by(Signal::INT) == Exit::Interrupted;
        if interrupted && had_terminal {
            // Ctrl-C is meant for the whole job of the shell, a script around this process included. It
            // reached only the command, because the command had the terminal.
            let _ = kill_current_process_group(Signal::INT);
        }
        self.warden.end().await;
        Outcome { ending, lost: self.lost, interrupted }
    }

    fn take_terminal_back(&mut self) -> bool {
        self.terminal.as_mut().is_some_and(Terminal::take_back)
    }
}

/// The bounds of the interval at which renewals are reported to the warden: a third of the remaining time,
/// within these.
const UPDATE_MIN: Duration = Duration::from_millis(5);
const UPDATE_MAX: Duration = Duration::from_secs(5);
/// The longest time between two looks at the clock, which also counts suspended time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The time that a stop signal to this process's own group can take to have an effect.
const STOP_LIMIT: Duration = Duration::from_millis(200);
