//! The warden: a small process that ends the command when leasehold itself no longer can.
//!
//! A command may not continue unprotected when leasehold is killed or stopped. The warden is this same
//! program, as the leader of the process group into which the command is started: a [`Spare`] fork, or a
//! program that was started once more. It waits at the end of a socket or a pipe whose other end only
//! leasehold holds. If that closes without a message, leasehold was killed: the whole group is killed, with
//! everything that the command has started and that has not left the group. If a lease ends without a new
//! message, leasehold is stopped or hangs: the group is sent TERM, and KILL after the grace period.
//!
//! The kernel's parent-death signal would do less: it reaches the command alone and nothing that the
//! command started.
//!
//! Ground rules: it blocks every signal, from before its first instruction, because signals to the
//! group are meant for the command. It holds no descriptor of the user's, no environment, no directory.
//! Its name differs from ours, so that a kill of leasehold by name does not end the warden with it.
//!
//! The warden of a keeper ends nothing: it sends a script the signal of a loss. The keeper sends that signal too, so
//! the two share a [`Token`], and only the one that gets it sends.
//!
//! The warden cannot end a process that has left the group (a daemon, or an interactive shell's jobs), and
//! cannot act after it was killed itself. Nor can it end a process of another user, but it waits for the end of that.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::SystemClock;
use leasehold::backend::{Clock, Moment};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgrp, getpid, kill_current_process_group, kill_process, kill_process_group,
    waitpid,
};
use rustix::time::Timespec;
use tokio::signal::unix::{SignalKind, signal};

use crate::system::caller::{Caller, handle_by, send};
use crate::system::descriptors::inheritable;
use crate::system::fork::{Fork, Spare};
use crate::system::kill_tree::{
    END_LIMIT, LEADER, WARDEN_NAME, handle, is_running, kill_group, kill_tree, take_name,
};
use crate::system::processes::{self, Identity};
use crate::system::token::{Token, take_from};

/// Leasehold's end of the connection to the warden.
#[derive(Debug)]
pub(crate) struct Warden {
    pid: Pid,
    pipe: Option<OwnedFd>,
    last_sent: Cell<Option<Message>>,
    /// The token of a warden that sends a signal.
    token: Option<Token>,
}

/// The task of the warden of a keeper.
struct Notice<'a> {
    caller: &'a Caller,
    signal: Signal,
    token: &'a Token,
}

/// The messages to the warden. The newest one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Do nothing until the next message.
    Wait,
    /// Without another message by then: TERM, and KILL after the grace period.
    Until(Moment, Duration),
    /// The lease is over and TERM was sent: KILL at this time, or earlier if the warden has sent TERM before.
    Kill(Moment),
    /// The command is this process, and is not in the warden's group.
    Command(Pid),
    /// The command has ended: the warden ends too, and kills nothing.
    Done,
}

impl Warden {
    /// Starts a warden that sends this caller a signal, instead of ending a group.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn of_caller(
        liveness_fds: Vec<OwnedFd>,
        caller: &Caller,
        signal: Signal,
    ) -> io::Result<Warden> {
        let token = Token::new()?;
        let warden = Warden::spawn(liveness_fds, Some(Notice { caller, signal, token: &token }))?;
        Ok(Warden { token: Some(token), ..warden })
    }

    /// Makes a warden of the spare process, or starts one, and with it the group. The warden keeps `liveness_fds` open
    /// to its own end, so that a lock that depends on one of these descriptors is not free before the group was killed.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn start(liveness_fds: Vec<OwnedFd>, spare: Option<Spare>) -> io::Result<Warden> {
        match spare.and_then(|spare| spare.engage(&liveness_fds).ok()) {
            Some((pid, socket)) => {
                Ok(Warden { pid, pipe: Some(socket), last_sent: Cell::new(None), token: None })
            }
            None => Warden::spawn(liveness_fds, None),
        }
    }

    fn spawn(liveness_fds: Vec<OwnedFd>, notice: Option<Notice<'_>>) -> io::Result<Warden> {
        let (reader, pipe) = io::pipe()?;
        // A message that does not fit into the pipe is dropped: leasehold must never wait for the warden,
        // which could be stopped.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let mut command = Command::new(own_program()?);
        command.arg0(WARDEN_NAME).arg(getpid().to_string()).env_clear().current_dir("/").process_group(0);
        // By this an outer warden finds it, even if both runs are gone.
        command.arg(processes::leader().map(|leader| leader.to_string()).unwrap_or_default());
        command.stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
        // This process starts no other one meanwhile, which would inherit them too.
        let _liveness_fds = inheritable(liveness_fds)?;
        if let Some(Notice { caller, signal, token }) = notice {
            command.arg(signal.as_raw().to_string());
            command.args(caller.copies().iter().map(Identity::to_string));
            command.stdout(token.copy()?).stderr(caller.copy()?);
        }
        // A child inherits the mask. So at no moment can a signal to the group end the warden.
        let before = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
        let child = command.spawn();
        before.thread_set_mask()?;
        Ok(Warden {
            pid: Pid::from_child(&child?),
            pipe: Some(pipe.into()),
            last_sent: Cell::new(None),
            token: None,
        })
    }

    /// Returns `true` if the signal of the loss is this process's to send: the warden has not sent it, and will not.
    pub(crate) fn takes_signal(&self) -> bool {
        self.token.as_ref().is_some_and(Token::take)
    }

    /// Returns the process group for the command. It exists as long as the warden was not reaped.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the command and to everything that it has started in the group.
    pub(crate) fn signal(&self, signal: Signal) {
        // The group exists: the warden in it is reaped by `end` only, which consumes it.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Sends the message to the warden, unless it equals the last one sent.
    pub(crate) fn send(&self, message: Message) {
        if self.last_sent.get() != Some(message)
            && let Some(pipe) = &self.pipe
            && rustix::io::write(pipe, message.line().as_bytes()).is_ok()
        {
            self.last_sent.set(Some(message));
        }
    }

    /// Ends the warden, and waits for that up to a limit.
    pub(crate) async fn end(mut self) {
        // Before the message, so that no end of a child goes unnoticed. Without it, pauses are all there is.
        let mut children = signal(SignalKind::child()).ok();
        self.send(Message::Done);
        self.pipe = None;
        // After a short command the warden is still being loaded, and that takes longer than to end it.
        let _ = kill_process(self.pid, Signal::KILL);
        let reaped = async {
            while let Ok(None) = waitpid(Some(self.pid), WaitOptions::NOHANG) {
                let pause = tokio::time::sleep(END_PAUSE);
                match &mut children {
                    Some(children) => tokio::select! {
                        _ = children.recv() => {}
                        () = pause => {}
                    },
                    None => pause.await,
                }
            }
        };
        let _ = tokio::time::timeout(END_LIMIT, reaped).await;
    }
}

impl Message {
    pub(crate) fn line(self) -> String {
        match self {
            Message::Wait => "wait\n".to_owned(),
            Message::Until(end, grace) => {
                let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                format!("until {} {grace}\n", end.as_nanos())
            }
            Message::Kill(at) => format!("kill {}\n", at.as_nanos()),
            Message::Command(pid) => format!("command {}\n", pid.as_raw_pid()),
            Message::Done => "done\n".to_owned(),
        }
    }

    pub(crate) fn read(line: &str) -> Option<Message> {
        let mut parts = line.split(' ');
        match (parts.next()?, parts.next(), parts.next()) {
            ("wait", None, None) => Some(Message::Wait),
            ("done", None, None) => Some(Message::Done),
            ("command", Some(pid), None) => {
                let pid = pid.parse().ok().filter(|pid| *pid > 0);
                pid.and_then(Pid::from_raw).map(Message::Command)
            }
            ("kill", Some(nanos), None) => {
                nanos.parse().ok().map(|nanos| Message::Kill(Moment::from_nanos(nanos)))
            }
            ("until", Some(nanos), Some(grace)) => Some(Message::Until(
                Moment::from_nanos(nanos.parse().ok()?),
                Duration::from_millis(grace.parse().ok()?),
            )),
            _ => None,
        }
    }
}

/// Returns `true` if this process was started as a warden.
pub(crate) fn is_warden() -> bool {
    // The group is the proof: this program, started under that name by hand, does not lead such a group.
    std::env::args_os().next().is_some_and(|name| name == WARDEN_NAME) && getpgrp() == getpid()
}

/// Runs a warden that was started as a program, to its end.
pub(crate) fn serve() -> u8 {
    let _ = SigSet::all().thread_block();
    take_name();
    end_in_time(Target::of_arguments());
    0
}

/// Runs a fork to its end: as a warden, if one is needed.
pub(crate) fn serve_as(fork: Fork) -> u8 {
    if let Some(_liveness_fds) = fork.become_warden() {
        end_in_time(Target::Group);
    }
    0
}

/// Handles the messages, and ends the target when it is time.
fn end_in_time(target: Target) {
    let mut warden_loop = WardenLoop { clock: SystemClock, next: Next::Never, unread: Vec::new(), target };
    while warden_loop.listen(rustix::stdio::stdin()) {}
}

/// The state of the warden.
struct WardenLoop {
    clock: SystemClock,
    next: Next,
    unread: Vec<u8>,
    target: Target,
}

/// The processes that the warden ends.
#[derive(Debug)]
enum Target {
    /// Those of its own group.
    Group,
    /// A process, with its descendants.
    Tree(Pid, Option<OwnedFd>),
    /// Nothing is ended: the process whose handle is stderr is sent a signal, if the token at stdout was not taken.
    Caller(Signal),
}

/// The next step of the warden if no other message comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Never,
    Term(Moment, Duration),
    Kill(Moment),
}

impl Next {
    /// Returns the step after leasehold has said when to kill. A grace period that runs already is not put off: a
    /// leasehold that was stopped sees the loss later than the warden.
    fn kill(self, at: Moment) -> Next {
        let at = at.after(PRECEDENCE);
        match self {
            Next::Kill(earlier) => Next::Kill(earlier.min(at)),
            Next::Never | Next::Term(..) => Next::Kill(at),
        }
    }
}

impl WardenLoop {
    /// Waits for messages or for the time to act. Returns `false` if all is done.
    fn listen(&mut self, messages: impl AsFd) -> bool {
        let mut pause = self.pause();
        // All are read before it acts: after a stop many are there, and the first of them are old.
        loop {
            let ready = poll(&mut [PollFd::new(&messages, PollFlags::IN)], pause.as_ref());
            match ready {
                Ok(0) => break,
                Err(Errno::INTR) => {}
                _ if !self.read(&messages) => return false,
                Ok(_) => {}
                Err(_) => break,
            }
            pause = Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        self.act();
        true
    }

    /// Reads what has arrived, and handles the messages that are complete. Returns `false` if all is done.
    fn read(&mut self, messages: impl AsFd) -> bool {
        let mut bytes = [0; 512];
        match rustix::io::read(messages, &mut bytes) {
            Ok(0) => self.target.kill_all(),
            Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.target.kill_all(),
        }
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            let message = std::str::from_utf8(&line[..end]).ok().and_then(Message::read);
            match message {
                Some(Message::Done) => return false,
                Some(Message::Until(end, grace)) => self.next = Next::Term(end.after(PRECEDENCE), grace),
                Some(Message::Kill(at)) => self.next = self.next.kill(at),
                Some(Message::Wait) => self.next = Next::Never,
                // A process that has ended has no handle, and its id may be another's by now.
                Some(Message::Command(pid)) => match handle(pid) {
                    None if cfg!(target_os = "linux") => {}
                    handle => self.target = Target::Tree(pid, handle),
                },
                None => {}
            }
        }
        // No message is this long: the rest is not a message, and must not grow.
        if self.unread.len() > MAX_MESSAGE {
            self.unread.clear();
        }
        true
    }

    fn act(&mut self) {
        let now = self.clock.now();
        match self.next {
            Next::Term(at, grace) if now >= at => {
                self.target.signal(Signal::TERM);
                // A stopped process has to continue in order to end.
                self.target.signal(Signal::CONT);
                self.next = Next::Kill(now.after(grace));
            }
            Next::Kill(at) if now >= at => self.target.kill_all(),
            _ => {}
        }
    }

    fn pause(&self) -> Option<Timespec> {
        let (Next::Term(at, _) | Next::Kill(at)) = self.next else { return None };
        // The kernel's timer stops while the machine is suspended; the lease does not.
        let pause = self.clock.now().until(at).min(LONGEST_PAUSE);
        Timespec::try_from(pause).ok()
    }
}

impl Target {
    fn of_arguments() -> Target {
        let signal =
            std::env::args().nth(LEADER + 1).and_then(|signal| Signal::from_named_raw(signal.parse().ok()?));
        signal.map_or(Target::Group, Target::Caller)
    }

    fn signal(&self, signal: Signal) {
        match self {
            Target::Group => drop(kill_current_process_group(signal)),
            Target::Tree(pid, handle) => {
                if is_running(*pid, handle.as_ref()) {
                    let _ = kill_process(*pid, signal);
                }
            }
            // Its own signal comes at the end.
            Target::Caller(_) => {}
        }
    }

    /// Ends all of them, and this process last.
    fn kill_all(&self) {
        match self {
            Target::Group => kill_group(),
            Target::Tree(pid, handle) => {
                kill_tree(*pid, handle.as_ref());
                kill_group();
            }
            Target::Caller(signal) => {
                notify_caller(*signal);
                std::process::exit(0);
            }
        }
    }
}

/// Sends the caller and its copies the signal of a loss, unless the keeper has done so. The lock in files is not
/// free before they have ended, if they end soon.
fn notify_caller(signal: Signal) {
    let caller = rustix::stdio::stderr();
    let copies: Vec<OwnedFd> = std::env::args()
        .skip(FIRST_COPY)
        .filter_map(|copy| handle_by(copy.parse::<Identity>().ok()?))
        .collect();
    let handles: Vec<_> = std::iter::once(caller.as_fd()).chain(copies.iter().map(AsFd::as_fd)).collect();
    if take_from(rustix::stdio::stdout()) {
        for handle in &handles {
            let _ = send(handle, signal);
        }
    }
    let end = SystemClock.now().after(CALLER_LIMIT);
    for handle in &handles {
        let limit = Timespec::try_from(SystemClock.now().until(end)).ok();
        let _ = poll(&mut [PollFd::new(handle, PollFlags::IN)], limit.as_ref());
    }
}

/// Returns this program's file, even if it was replaced by another since the start.
pub(crate) fn own_program() -> io::Result<std::path::PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() { Ok(link.to_owned()) } else { std::env::current_exe() }
}

/// The time that the warden gives leasehold to act first.
const PRECEDENCE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The time that a caller has to end after its signal, before the lock may be free.
const CALLER_LIMIT: Duration = Duration::from_secs(5);
const MAX_MESSAGE: usize = 256;
/// The argument that names the first copy of the caller, after the leader and the signal.
const FIRST_COPY: usize = LEADER + 2;
const END_PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn warden_messages_read_back_and_others_are_ignored() {
        for message in [
            Message::Wait,
            Message::Done,
            Message::Command(getpid()),
            Message::Until(Moment::from_nanos(u64::MAX), Duration::from_millis(7)),
            Message::Kill(Moment::from_nanos(u64::MAX)),
        ] {
            assert_eq!(Message::read(message.line().trim_end()), Some(message));
        }
        // A grace period that is longer than milliseconds can be counted is cut, and the message is not lost.
        let end = Moment::from_nanos(7);
        assert_eq!(
            Message::read(Message::Until(end, Duration::MAX).line().trim_end()),
            Some(Message::Until(end, Duration::from_millis(u64::MAX)))
        );
        for nonsense in
            ["", "until", "until 1", "until x 1", "kill", "kill 1 1", "done now", "wait 1", "DONE"]
        {
            assert_eq!(Message::read(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn grace_period_that_runs_is_not_put_off() {
        let at = |seconds| Moment::START.after(Duration::from_secs(seconds));
        let by_leasehold = |seconds| Next::Kill(at(seconds).after(PRECEDENCE));
        assert_eq!(Next::Term(at(1), Duration::from_secs(5)).kill(at(9)), by_leasehold(9));
        assert_eq!(Next::Never.kill(at(9)), by_leasehold(9));
        assert_eq!(Next::Kill(at(5)).kill(at(9)), Next::Kill(at(5)));
        assert_eq!(Next::Kill(at(5)).kill(at(3)), by_leasehold(3));
    }

    /// So many messages are there after a warden was stopped and continues.
    #[test]
    fn newest_of_many_messages_counts() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut send = |message: Message| writer.write_all(message.line().as_bytes()).unwrap();
        let until = |end| Message::Until(end, Duration::from_secs(60));
        let target = Target::Caller(Signal::TERM);
        let mut warden_loop =
            WardenLoop { clock: SystemClock, next: Next::Never, unread: Vec::new(), target };
        let end = Moment::from_nanos(u64::MAX / 2);
        (1..=100).map(Moment::from_nanos).chain([end]).map(until).for_each(&mut send);
        assert!(warden_loop.listen(&reader));
        assert_eq!(warden_loop.next, Next::Term(end.after(PRECEDENCE), Duration::from_secs(60)));
        // Leasehold has ended in order, although the pipe is closed.
        (1..=100).map(Moment::from_nanos).map(until).chain([Message::Done]).for_each(send);
        drop(writer);
        assert!(!warden_loop.listen(&reader));
    }
}
