//! The terminal that this process was started from, and its foreground group.
//!
//! Ground rules: the terminal belongs to one process group at a time. It is lent to the command's group
//! and taken back; it is never taken from a group that did not get it from this process. Only this file
//! changes the group that has it.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgrp, getpid, test_kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::system::kill_tree::is_warden_process;
use crate::system::processes;
use crate::system::signals::was_ignored;

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: OwnedFd,
    lent: Option<Pid>,
}

impl Terminal {
    /// Returns the controlling terminal, if one exists.
    pub(crate) fn controlling() -> Option<Terminal> {
        let flags = OFlags::NOCTTY.bits().cast_signed();
        let tty = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/tty").ok()?;
        Some(Terminal { tty: tty.into(), lent: None })
    }

    /// Returns `true` if this process's group is in the foreground and receives the input.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp())
    }

    /// Returns `true` if this process has lent the terminal to `group`.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some_and(|group| tcgetpgrp(&self.tty).is_ok_and(|now| now == group))
    }

    /// Lends the terminal to `group` if this process's group has it. Returns `true` if it was lent.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        let lent = self.is_ours() && self.give(group);
        if lent {
            self.lent = Some(group);
        }
        lent
    }

    /// Takes the terminal back from the group that it was lent to. Returns `true` if it was lent until now.
    pub(crate) fn take_back(&mut self) -> bool {
        let Some(group) = self.lent.take() else { return false };
        // A shell may have taken the terminal meanwhile; but a terminal whose group no longer exists is free.
        let returns = match tcgetpgrp(&self.tty) {
            Ok(now) => now == group || is_gone(test_kill_process_group(now)),
            Err(_) => true,
        };
        returns && self.give(getpgrp())
    }

    fn give(&self, group: Pid) -> bool {
        // A background process that changes this is stopped by TTOU unless it blocks the signal.
        without_ttou(|| tcsetpgrp(&self.tty, group).is_ok())
    }
}

/// Returns `true` if the result of sending signal 0 to a group shows that the group no longer exists. A
/// group to which no signal may be sent exists.
fn is_gone(sent: rustix::io::Result<()>) -> bool {
    sent == Err(Errno::SRCH)
}

/// Returns `true` if other processes are at work in the group of this process that would lose the terminal
/// when it is lent: members of a pipeline, or a script that did not wait. The ancestors of this process,
/// which wait for it, do not count, and neither does the warden of an outer `run`, which leads the group.
pub(crate) fn is_shared() -> bool {
    // This is how a script without job control starts a program that it does not wait for.
    if was_ignored(Signal::INT) {
        return true;
    }
    let (all, own) = (processes::all(), getpid());
    let waiting = processes::ancestors(&all, own);
    // As in the list: a group of another namespace of processes has no id here, which `getpgrp` does not expect.
    let group = all.iter().find(|process| process.pid == own).and_then(|process| process.group);
    all.iter().any(|process| {
        let is_member = process.group == group && !process.is_over;
        is_member && process.pid != own && !waiting.contains(&process.pid) && !is_warden_process(process)
    })
}

/// Returns `true` if this process is used interactively: one of its three streams is a terminal.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() || std::io::stderr().is_terminal() || std::io::stdout().is_terminal()
}

/// Runs `work`, which may write to the terminal or change it, without a stop in the background.
pub(crate) fn without_ttou<T>(work: impl FnOnce() -> T) -> T {
    let mut ttou = SigSet::empty();
    ttou.add(NixSignal::SIGTTOU);
    let before = ttou.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
    let done = work();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_another_user_exists() {
        assert!(is_gone(Err(Errno::SRCH)));
        assert!(!is_gone(Err(Errno::PERM)) && !is_gone(Ok(())));
    }
}
