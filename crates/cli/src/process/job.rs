//! The command under its lock: from the start of its process group to its end.
//!
//! Ground rules: on every wake-up, this process looks at the clock first: a process that was stopped
//! past its lease acts on the loss before anything else. It acts first and prints afterwards. Nothing
//! here waits for anything but the next event.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use leasehold::backend::{Clock, Moment};
use leasehold::{Guard, Resource, Revocation, SystemClock};
use rustix::process::{Pid, Signal, kill_current_process_group, kill_process};

use crate::exit::Exit;
use crate::output::status::{Event as Report, Status};
use crate::output::stderr::Stderr;
use crate::output::text::{duration, visible, visible_name};
use crate::process::child::{Change, Child, Ending};
use crate::process::descendants::Descendants;
use crate::process::lease_watch::{LeaseWatch, LockLoss};
use crate::process::lock_hold::LockHold;
use crate::process::select::first_of;
use crate::request::{Launch, Leftovers, Loss, Request};
use crate::system::kill_tree::is_out_of_reach;
use crate::system::orphans;
use crate::system::processes::{self, Process};
use crate::system::signals::{SignalEvent, Signals};
use crate::system::terminal::{Terminal, is_interactive, is_shared};
use crate::system::warden::{Message, Warden};

/// A command that is about to run, or runs.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    request: &'a Request,
    leases: LeaseWatch<'a>,
    warden: Warden,
    /// The command, until its end was seen.
    command: Option<Pid>,
    /// All that it has started, if that can be found.
    descendants: Option<Descendants>,
    /// `None` if the command stays in the group of the caller, which has the terminal or not.
    terminal: Option<Terminal>,
    stderr: &'a Stderr,
    status: &'a Status,
    clock: SystemClock,
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

/// The revocations that are waited for: one for each lock.
type Revocations<'a> = Vec<Pin<Box<dyn Future<Output = Received<'a>> + 'a>>>;
type Received<'a> = (&'a Resource, leasehold::Result<Revocation>);

/// An event that wakes a job up.
enum Event<'a> {
    Lost,
    Revoked(Received<'a>),
    SignalEvent(SignalEvent),
    Time,
}

impl<'a> Job<'a> {
    /// Prepares the process group, with the terminal if this process is in the foreground there: so the
    /// command never finds itself in the background.
    pub(crate) fn new(
        request: &'a Request,
        hold: &'a LockHold,
        warden: Warden,
        stderr: &'a Stderr,
        status: &'a Status,
    ) -> Self {
        let has_own_group = !matches!(request.launch, Launch::SameGroup(_));
        if !has_own_group || request.leftovers() == Leftovers::Await {
            orphans::adopt();
        }
        let descendants = orphans::are_adopted().then(|| Descendants::from_now_on(warden.group()));
        let mut terminal = if has_own_group { Terminal::controlling() } else { None };
        if let Some(terminal) = terminal.as_mut().filter(|_| is_interactive() && !is_shared()) {
            terminal.lend(warden.group());
        }
        let job = Job {
            request,
            leases: LeaseWatch::new(hold, stderr, status),
            warden,
            command: None,
            descendants,
            terminal,
            stderr,
            status,
            clock: SystemClock,
            received_int: false,
            kill_at: None,
        };
        job.update_warden();
        job
    }

    /// Returns the process group for the command; `None` if it stays in that of the caller.
    pub(crate) fn group(&self) -> Option<Pid> {
        match self.request.launch {
            Launch::SameGroup(_) => None,
            Launch::OwnGroup(_) | Launch::InPlace => Some(self.warden.group()),
        }
    }

    /// Tells the warden which process it has to end, in the group of the caller.
    pub(crate) fn tell_warden(&self, command: Pid) {
        self.warden.send(Message::Command(command));
    }

    /// Waits for the start of the command, which takes until the program is loaded. The warden gets the renewals that
    /// come meanwhile: it acts on the end of the lease that it knows.
    pub(crate) async fn await_start<T>(&self, start: impl Future<Output = T>) -> T {
        let mut start = pin!(start);
        loop {
            self.update_warden();
            tokio::select! {
                biased;
                started = &mut start => return started,
                () = tokio::time::sleep(self.pause()) => {}
            }
        }
    }

    /// Sends a signal to the command and to what it has started: all of its group, or, in the group of the
    /// caller, the command alone. Once the command has ended, it goes to all that is waited for.
    fn signal(&mut self, signal: Signal) {
        match (self.group(), self.command) {
            (_, None) if self.request.leftovers() == Leftovers::Await => {
                self.signal_descendants(signal);
            }
            (Some(_), _) => self.warden.signal(signal),
            // It is a child whose end was not seen, so the id is its own.
            (None, Some(command)) => drop(kill_process(command, signal)),
            (None, None) => {}
        }
    }

    /// Sends a signal to all that the command has started, and returns `true` if there was something.
    fn signal_descendants(&mut self, signal: Signal) -> bool {
        self.descendants.as_mut().is_some_and(|descendants| descendants.signal(signal))
    }

    /// Returns a process of the command that this one may not signal, since it runs as another user: a signal to a whole
    /// group leaves it out without an error.
    fn out_of_reach(&mut self) -> Option<Pid> {
        let (all, group) = (processes::all(), self.group());
        let is_in = |process: &&Process| group.is_some() && process.group == group && !process.is_over;
        let descendants =
            self.descendants.as_mut().map(|descendants| descendants.living(&all)).unwrap_or_default();
        let members = all.iter().filter(is_in).map(|process| process.pid);
        // The command is there also where this process may not list those of others; one that has ended is left out.
        let is_over = |pid: Pid| all.iter().any(|process| process.pid == pid && process.is_over);
        let command = self.command.filter(|command| !is_over(*command));
        let mut found = command.into_iter().chain(members).chain(descendants);
        found.find(|pid| is_out_of_reach(*pid))
    }

    /// Returns what was not done to the command, if a process of it can be neither signalled nor ended.
    fn what_continues(&mut self, signal: &str) -> Option<String> {
        let pid = self.out_of_reach()?.as_raw_pid();
        Some(format!(
            "process {pid} runs as another user, cannot be signalled, and continues WITHOUT the lock; {signal} was sent \
             to any other process of the command"
        ))
    }

    /// Returns `true` if a loss was acted on, and nothing may continue any more.
    fn is_to_end(&self) -> bool {
        self.leases.is_lost() && self.request.on_lost != Loss::Ignore && self.kill_at.is_none()
    }

    /// Ends the command and everything that it has started and that can still be found.
    fn kill_all(&mut self) {
        self.signal(Signal::KILL);
        let mut passes = KILL_PASSES;
        // A process may start another one after the list was read.
        while passes > 0 && self.signal_descendants(Signal::KILL) {
            orphans::reap(&self.own_children());
            passes -= 1;
        }
    }

    /// Looks at the clock before the command begins. Returns `true` if it may not, since a lock is lost.
    pub(crate) fn is_too_late(&mut self) -> bool {
        if self.request.on_lost == Loss::Ignore {
            return false;
        }
        let Some(LockLoss { lock, cause }) = self.leases.check() else { return false };
        let name = visible_name(lock.as_str());
        self.stderr.print_line(&format!("{name} was lost: {cause}; the command was not started"));
        true
    }

    /// Ends the job of a command that is not started, since the lock is lost.
    pub(crate) async fn end_by_loss(mut self) -> Outcome {
        let had_terminal = self.take_terminal_back();
        // The loss decides, and not the code.
        self.finish(Ending::Code(0), had_terminal).await
    }

    /// Ends the job of a command that could not be started.
    pub(crate) async fn end_after_failed_start(mut self) {
        self.take_terminal_back();
        self.warden.end().await;
    }

    /// Attends to the command until it has ended, and to what it has left behind.
    pub(crate) async fn supervise(mut self, child: Child, signals: &mut Signals) -> Outcome {
        self.command = Some(child.pid());
        let mut revocations = self.revocations();
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
            self.attend(signals, &mut revocations).await;
        };
        self.command = None;
        let by_int = ending == Ending::Signal(Signal::INT.as_raw());
        if by_int && !self.received_int && self.was_typed(Signal::INT) {
            // The terminal has sent it to this process, too, whose threads may be behind.
            let received = tokio::time::timeout(TYPED_LIMIT, signals.received(Signal::INT));
            self.received_int = received.await.is_ok();
        }
        let had_terminal = self.take_terminal_back();
        if self.request.leftovers() == Leftovers::Await {
            while self.has_descendants() && !self.is_to_end() {
                self.attend(signals, &mut revocations).await;
            }
        }
        self.finish(ending, had_terminal).await
    }

    /// Waits for one event, and acts on it.
    async fn attend(&mut self, signals: &mut Signals, revocations: &mut Revocations<'a>) {
        self.update_warden();
        let event = self.event(signals, revocations).await;
        self.check_lease();
        match event {
            Event::Revoked(received) => {
                // One request is passed on, for any of the locks.
                if received.1.is_ok() {
                    revocations.clear();
                }
                self.revoked(received);
            }
            Event::SignalEvent(SignalEvent::Sent(signal)) => {
                self.received_int |= signal == Signal::INT;
                if !self.was_typed(signal) {
                    self.signal(signal);
                    if let Some(pid) = self.out_of_reach() {
                        let pid = pid.as_raw_pid();
                        let text = format!(
                            "a signal could not be passed on to process {pid}: it runs as another user"
                        );
                        self.stderr.print_line(&text);
                    }
                }
            }
            Event::SignalEvent(SignalEvent::Continued) => self.resume(),
            Event::SignalEvent(SignalEvent::Child) => {
                orphans::reap(&self.own_children());
            }
            Event::Lost | Event::Time => {}
        }
    }

    /// Returns the children that are waited for one by one.
    fn own_children(&self) -> Vec<Pid> {
        self.command.into_iter().chain([self.warden.group()]).collect()
    }

    /// Returns `true` if a process may live that the command has started.
    fn has_descendants(&mut self) -> bool {
        orphans::reap(&[self.warden.group()]);
        self.descendants.as_mut().is_some_and(Descendants::may_live)
    }

    /// Returns `true` if the signal was probably typed at the terminal of the caller's group, and has reached
    /// the command without this process.
    fn was_typed(&self, signal: Signal) -> bool {
        let may_be = self.group().is_none() && matches!(signal, Signal::INT | Signal::QUIT);
        may_be && Terminal::controlling().is_some_and(|terminal| terminal.is_ours())
    }

    /// Returns the futures of the revocations, if the command is to be sent a signal by them.
    fn revocations(&self) -> Revocations<'a> {
        let guards = if self.request.on_revoke.is_some() { self.leases.guards() } else { &[] };
        let listen = |guard: &'a Guard| -> Pin<Box<dyn Future<Output = Received<'a>> + 'a>> {
            Box::pin(async move { (guard.resource(), guard.revoked().await) })
        };
        guards.iter().map(listen).collect()
    }

    fn revoked(&mut self, (lock, received): Received<'_>) {
        let name = visible_name(lock.as_str());
        match (received, self.request.on_revoke) {
            (Ok(revocation), Some(signal)) => {
                self.signal(signal);
                let sent = match self.out_of_reach() {
                    None => "the command was sent a signal".to_owned(),
                    Some(pid) => {
                        format!("process {} runs as another user, and was sent no signal", pid.as_raw_pid())
                    }
                };
                self.status
                    .report(&Report::Revoked { lock: lock.clone(), reason: revocation.reason.clone() });
                let reason = visible(&revocation.reason);
                self.stderr.print_line(&format!("{name} is revoked: {reason}; {sent}"));
            }
            // A loss is reported as a loss.
            (Err(error), _) if !error.is_lost() => {
                self.stderr.print_line(&format!("{error}: revocations of {name} are no longer noticed"));
            }
            _ => {}
        }
    }

    async fn event(&self, signals: &mut Signals, revocations: &mut Revocations<'a>) -> Event<'a> {
        let lost = self.leases.lost();
        let revoked = first_of(revocations);
        tokio::select! {
            biased;
            () = lost => Event::Lost,
            received = signals.next() => Event::SignalEvent(received),
            received = revoked => Event::Revoked(received),
            () = tokio::time::sleep(self.pause()) => Event::Time,
        }
    }

    /// Checks the clock, and acts on the state of the leases.
    fn check_lease(&mut self) {
        if let Some(loss) = self.leases.check() {
            self.lose(&loss);
        }
        if self.kill_at.is_some_and(|at| self.clock.now() >= at) {
            self.kill_at = None;
            self.kill_all();
            let text = match self.what_continues("KILL") {
                None => "the command did not end within its grace period, and was killed".to_owned(),
                Some(text) => format!("the grace period is over: {text}"),
            };
            self.stderr.print_line(&text);
        }
    }

    fn lose(&mut self, LockLoss { lock, cause }: &LockLoss<'_>) {
        let what = match self.request.on_lost {
            Loss::Term(grace) => {
                self.signal(Signal::TERM);
                // A stopped process has to continue in order to end.
                self.signal(Signal::CONT);
                let end = self.clock.now().after(grace);
                self.kill_at = Some(end);
                // From now on the warden only enforces the end of the grace period. If this process was stopped, the
                // warden has sent TERM already, and kills when the grace period since then is over.
                self.warden.send(Message::Kill(end));
                self.what_continues("TERM").unwrap_or_else(|| {
                    format!("the command was sent TERM, and is killed within {}", duration(grace))
                })
            }
            Loss::Kill => {
                self.kill_all();
                self.what_continues("KILL").unwrap_or_else(|| "the command was killed".to_owned())
            }
            Loss::Ignore => "the command continues WITHOUT the lock, because of --on-lost=ignore".to_owned(),
        };
        self.stderr.print_line(&format!("{} was lost: {cause}; {what}", visible_name(lock.as_str())));
    }

    /// Reports the end of the lease to the warden, so that the warden acts when this process cannot.
    fn update_warden(&self) {
        // Of a lease that is over it knows the end already: a later one would only delay what it does.
        if self.leases.remaining().is_some_and(|remaining| remaining.is_zero()) {
            return;
        }
        let Some(end) = self.leases.end() else { return };
        let message = match self.request.on_lost {
            Loss::Ignore => Message::Wait,
            _ if end == Moment::NEVER => Message::Wait,
            Loss::Term(grace) => Message::Until(end, grace),
            Loss::Kill => Message::Until(end, Duration::ZERO),
        };
        self.warden.send(message);
    }

    /// Returns the time until the next action, if no event comes before.
    fn pause(&self) -> Duration {
        let now = self.clock.now();
        let to_kill = self.kill_at.map_or(Duration::MAX, |at| now.until(at));
        to_kill.min(self.leases.pause()).min(LONGEST_PAUSE)
    }

    /// Handles a command that was stopped: by Ctrl-Z, or because it used the terminal from the
    /// background.
    async fn stopped(&mut self, signal: Signal, signals: &mut Signals) {
        if self.leases.is_lost() && self.request.on_lost != Loss::Ignore {
            self.signal(Signal::CONT);
            return;
        }
        let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        let Some(terminal) = self.terminal.as_mut() else { return };
        if wants_terminal && terminal.lend(self.warden.group()) {
            self.signal(Signal::CONT);
            return;
        }
        // Without a person at a terminal, the command may stay stopped: the lock is held meanwhile.
        if !(wants_terminal || terminal.is_lent() || is_interactive()) {
            return;
        }
        terminal.take_back();
        // The job that the shell knows is this process's group. It stops as a whole, so that the shell takes
        // over; or an outer `run`, which lends the terminal if the signal says that it is wanted.
        let stop = if wants_terminal { signal } else { Signal::TSTP };
        if kill_current_process_group(stop).is_ok() {
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
        if self.command.is_some()
            && let Some(terminal) = self
                .terminal
                .as_mut()
                .filter(|terminal| is_interactive() && !terminal.is_lent() && !is_shared())
        {
            terminal.lend(self.warden.group());
        }
        self.signal(Signal::CONT);
    }

    async fn finish(mut self, ending: Ending, had_terminal: bool) -> Outcome {
        if self.leases.is_lost() && self.request.on_lost != Loss::Ignore {
            // The processes that the command has left behind may not continue without the lock either.
            self.kill_all();
        }
        let by_int = ending == Ending::Signal(Signal::INT.as_raw());
        if had_terminal && is_shared() {
            // A process that used the terminal while it was lent was stopped for that.
            let _ = kill_current_process_group(Signal::CONT);
        }
        // Without the terminal, Ctrl-C did not reach the command itself; it reached this process, which
        // passed it on.
        // A `run` that is the command itself ends with the code then, since another group is in the foreground.
        let is_nested = ending == Ending::Code(Exit::Signal(Signal::INT.as_raw()).code());
        let is_passed_on = (by_int || is_nested) && self.received_int && !had_terminal;
        let interrupted =
            by_int && had_terminal || is_passed_on && Exit::by(Signal::INT) == Exit::Interrupted;
        if interrupted && had_terminal {
            // Ctrl-C is meant for the whole job of the shell, a script around this process included. It
            // reached only the command, because the command had the terminal.
            let _ = kill_current_process_group(Signal::INT);
        }
        self.warden.end().await;
        Outcome { ending, lost: self.leases.is_lost(), interrupted }
    }

    fn take_terminal_back(&mut self) -> bool {
        self.terminal.as_mut().is_some_and(Terminal::take_back)
    }
}

/// The number of times that the list of descendants is read to end all of them.
const KILL_PASSES: u32 = 5;
/// The longest time between two looks at the clock, which also counts suspended time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The time in which a typed signal that has ended the command reaches this process.
const TYPED_LIMIT: Duration = Duration::from_millis(200);
/// The time that a stop signal to this process's own group can take to have an effect.
const STOP_LIMIT: Duration = Duration::from_millis(200);
