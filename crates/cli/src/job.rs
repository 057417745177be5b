//! The command under its lock: from the start of its process group to its end.
//!
//! Ground rules: on every wake-up, this process looks at the clock first: a process that was stopped
//! past its lease acts on the loss before anything else. It acts first and speaks afterwards. Nothing
//! in here waits for anything but the next event.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use leasehold::core::{Clock, LossCause, Moment};
use leasehold::{Guard, Revocation, State, SystemClock};
use rustix::process::{Pid, Signal, kill_current_process_group};

use crate::child::{Change, Child, Ending};
use crate::exit::Exit;
use crate::orphans;
use crate::request::{Loss, Request};
use crate::signals::{Heard, Signals};
use crate::stderr::Stderr;
use crate::terminal::{Terminal, is_interactive, is_shared};
use crate::text::{duration, visible};
use crate::warden::{Warden, Word};

/// A command that is about to run, or runs.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    request: &'a Request,
    /// None where an outer `run` holds the lock: its loss is that one's business.
    guard: Option<&'a Guard>,
    warden: Warden,
    terminal: Option<Terminal>,
    voice: &'a Stderr,
    clock: SystemClock,
    lost: bool,
    /// `true` once it was reported that the lease is not renewed.
    is_suspect: bool,
    /// Ctrl-C was passed on, or an INT from another process.
    heard_int: bool,
    kill_at: Option<Moment>,
}

/// The way in which it has ended.
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

/// An event that wakes it up.
enum Event {
    Lost,
    Revoked(leasehold::Result<Revocation>),
    Heard(Heard),
    Time,
}

impl<'a> Job<'a> {
    /// Prepares the process group, with the terminal if it is our turn there: so the command never
    /// finds itself in the background.
    pub(crate) fn new(
        request: &'a Request,
        guard: Option<&'a Guard>,
        warden: Warden,
        voice: &'a Stderr,
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
            voice,
            clock: SystemClock,
            lost: false,
            is_suspect: false,
            heard_int: false,
            kill_at: None,
        };
        job.tell_warden();
        job
    }

    /// Returns the process group for the command.
    pub(crate) fn group(&self) -> Pid {
        self.warden.group()
    }

    /// Ends it without a command.
    pub(crate) async fn abandon(mut self) {
        self.take_terminal_back();
        self.warden.end().await;
    }

    /// Attends to the command until it has ended.
    pub(crate) async fn attend(mut self, child: Child, signals: &mut Signals) -> Outcome {
        let mut listening = self.listening();
        let ending = loop {
            self.look();
            match child.change() {
                Some(Change::Ended(ending)) => break ending,
                Some(Change::Stopped(signal)) => {
                    self.stopped(signal, signals).await;
                    continue;
                }
                None => {}
            }
            self.tell_warden();
            let event = self.event(signals, &mut listening).await;
            self.look();
            match event {
                Event::Revoked(heard) => {
                    // It is listened to once: the lock is revoked, or it cannot be heard.
                    listening = None;
                    self.revoked(heard);
                }
                Event::Heard(Heard::Sent(signal)) => {
                    self.heard_int |= signal == Signal::INT;
                    self.warden.signal(signal);
                }
                Event::Heard(Heard::Continued) => self.resume(),
                Event::Heard(Heard::Child) => orphans::reap(&[child.pid(), self.warden.group()]),
                Event::Lost | Event::Time => {}
            }
        };
        self.finish(ending).await
    }

    /// Returns the request to release, where it is listened to.
    fn listening(&self) -> Option<Listening<'a>> {
        let guard = self.guard.filter(|_| self.request.on_revoke.is_some())?;
        Some(Box::pin(guard.revoked()))
    }

    fn revoked(&self, heard: leasehold::Result<Revocation>) {
        let name = visible(self.request.name.as_str());
        match (heard, self.request.on_revoke) {
            (Ok(revocation), Some(signal)) => {
                self.warden.signal(signal);
                let reason = visible(&revocation.reason);
                self.voice.say(&format!("{name} is asked back: {reason}; the command is told by a signal"));
            }
            // A loss is reported as a loss.
            (Err(error), _) if !error.is_lost() => {
                self.voice.say(&format!("{error}: nobody hears whether {name} is asked back"));
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
            heard = signals.next() => Event::Heard(heard),
            heard = revoked => Event::Revoked(heard),
            () = tokio::time::sleep(self.pause()) => Event::Time,
        }
    }

    /// Looks at the clock, and acts on what it says.
    fn look(&mut self) {
        if let Some(guard) = self.guard.filter(|_| !self.lost) {
            match guard.state() {
                State::Lost(cause) => self.lose(cause),
                state => self.doubt(state == State::Suspect, guard.remaining()),
            }
        }
        if self.kill_at.is_some_and(|at| self.clock.now() >= at) {
            self.kill_at = None;
            self.warden.signal(Signal::KILL);
            self.voice.say("the command has not ended in its grace, and was killed");
        }
    }

    /// Says when renewals begin to fail, and when they succeed again.
    fn doubt(&mut self, is_suspect: bool, remaining: Duration) {
        if is_suspect == std::mem::replace(&mut self.is_suspect, is_suspect) {
            return;
        }
        let name = visible(self.request.name.as_str());
        self.voice.say(&match is_suspect {
            true => format!(
                "{name} could not be renewed, and is lost in {} unless that succeeds",
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
                // From here on the warden only sees to it that the grace has an end.
                self.warden.tell(Word::Until(end, Duration::ZERO));
                format!("the command is told to end, and killed in {}", duration(grace))
            }
            Loss::Kill => {
                self.warden.signal(Signal::KILL);
                "the command was killed".to_owned()
            }
            Loss::Ignore => "the command goes on WITHOUT the lock, as --on-lost=ignore says".to_owned(),
        };
        self.voice.say(&format!("{} was lost: {cause}; {what}", visible(self.request.name.as_str())));
    }

    /// Tells the warden until when the lease is good, so that it acts where this process cannot.
    fn tell_warden(&mut self) {
        let (Some(guard), false) = (self.guard, self.lost) else { return };
        let remaining = guard.remaining();
        let word = match self.request.on_lost {
            Loss::Ignore => Word::Wait,
            _ if remaining == Duration::MAX => Word::Wait,
            Loss::Term(grace) => Word::Until(self.clock.now().after(remaining), grace),
            Loss::Kill => Word::Until(self.clock.now().after(remaining), Duration::ZERO),
        };
        self.warden.tell(word);
    }

    /// Returns how long nothing needs to be done unless something happens.
    fn pause(&self) -> Duration {
        let now = self.clock.now();
        let to_kill = self.kill_at.map_or(Duration::MAX, |at| now.until(at));
        let to_tell = match self.guard.filter(|_| !self.lost).map(Guard::remaining) {
            Some(remaining) if remaining != Duration::MAX => (remaining / 3).clamp(TELL_MIN, TELL_MAX),
            _ => Duration::MAX,
        };
        to_kill.min(to_tell).min(LONGEST_PAUSE)
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
        // Without a person, the command may well stay stopped: the lock is held meanwhile.
        if !(wants_terminal || is_interactive()) {
            return;
        }
        terminal.take_back();
        // The job that the shell knows is our group. It stops as a whole, so that the shell takes over.
        if kill_current_process_group(Signal::TSTP).is_ok() {
            // If no shell could ever continue it, the kernel does not stop it; then this process just
            // continues.
            drop(tokio::time::timeout(STOP_LIMIT, signals.continued()).await);
        }
        self.look();
        self.resume();
    }

    /// Continues this process after a stop, and the command with it; with the terminal if it is our
    /// turn there.
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
        // Without the terminal the command was not reached by Ctrl-C itself; then this process was, and
        // passed it on.
        let is_passed_on = by_int && self.heard_int && !had_terminal;
        let interrupted =
            by_int && had_terminal || is_passed_on && Exit::by(Signal::INT) == Exit::Interrupted;
        if interrupted && had_terminal {
            // Ctrl-C is meant for the whole job of the shell, a script around this process included. It
            // reached only the command, because that one had the terminal.
            let _ = kill_current_process_group(Signal::INT);
        }
        self.warden.end().await;
        Outcome { ending, lost: self.lost, interrupted }
    }

    fn take_terminal_back(&mut self) -> bool {
        self.terminal.as_mut().is_some_and(Terminal::take_back)
    }
}

/// The interval at which the warden hears that the lease is renewed: a third of what is left, within
/// these.
const TELL_MIN: Duration = Duration::from_millis(5);
const TELL_MAX: Duration = Duration::from_secs(5);
/// The clock that counts suspend is looked at this often at least.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The time that it can take until a stop signal that was sent to oneself has worked.
const STOP_LIMIT: Duration = Duration::from_millis(200);
