//! Exit codes, and the messages of failures.
//!
//! Ground rules: this is the only table of exit codes and the only mapping from the library's errors.
//! The codes are an interface: scripts branch on them. They follow `sysexits.h` where that has a word
//! for it.

use std::fmt;

use leasehold::{Error, ErrorKind};
use rustix::process::Signal;

use crate::system::terminal::Terminal;

/// The way in which this process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is done.
    Done,
    /// `break` broke nothing; `revoke` found no holder to ask.
    NothingBroken,
    /// `show --quiet` found the lock free.
    Free,
    /// `doctor` found a risk, or `torture` a store that forgets.
    RiskFound,
    /// `ls --deadlocks` found some.
    DeadlockFound,
    /// The command line cannot be understood.
    Usage,
    /// The store cannot be reached.
    Unavailable,
    /// The output cannot be written.
    Output,
    /// `torture` saw a promise broken.
    PromiseBroken,
    /// Busy, or not free in time.
    Busy,
    /// The same, with the code that the caller has chosen for it.
    Conflict(u8),
    /// The lock was lost.
    Lost,
    /// `torture` saw too little to judge.
    Unjudged,
    /// Refused as unsafe: the configuration of the store or of the lock.
    Refused,
    /// The command exists but cannot be started.
    NotStarted,
    /// The command does not exist.
    NotFound,
    /// A signal ended it, by its number.
    Signal(i32),
    /// Ctrl-C at a terminal. The process ends by the signal itself, since only then does a shell script
    /// end, too; what a shell shows for it is 130, as for [`Exit::Signal`].
    Interrupted,
    /// The command's own code.
    Command(u8),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::NothingBroken | Exit::Free | Exit::RiskFound | Exit::DeadlockFound => 1,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::PromiseBroken => 70,
            Exit::Output => 74,
            Exit::Busy => 75,
            Exit::Lost => 76,
            Exit::Unjudged => 77,
            Exit::Refused => 78,
            Exit::NotStarted => 126,
            Exit::NotFound => 127,
            Exit::Signal(signal) => u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX),
            Exit::Interrupted => Exit::Signal(Signal::INT.as_raw()).code(),
            Exit::Command(code) | Exit::Conflict(code) => code,
        }
    }

    /// Returns the end of this process by `signal`, which was sent to it while it held or waited.
    pub(crate) fn by(signal: Signal) -> Exit {
        // None of the three streams needs to be the terminal that Ctrl-C is typed at.
        let is_typed = || Terminal::controlling().is_some_and(|terminal| terminal.is_ours());
        match signal == Signal::INT && is_typed() {
            true => Exit::Interrupted,
            false => Exit::Signal(signal.as_raw()),
        }
    }

    /// Returns the exit code for an error of the library.
    fn of(error: &Error) -> Exit {
        match error.kind() {
            ErrorKind::Timeout => Exit::Busy,
            ErrorKind::Lost(_) => Exit::Lost,
            ErrorKind::Unsupported | ErrorKind::Denied | ErrorKind::Deadlock => Exit::Refused,
            // Data of another program under this name is not a mistake on the command line.
            ErrorKind::Invalid if error.is_foreign() => Exit::Refused,
            ErrorKind::Invalid => Exit::Usage,
            _ => Exit::Unavailable,
        }
    }
}

/// The reason why this process ends otherwise than by success, with the text for the person.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) exit: Exit,
    text: String,
}

impl Problem {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Problem { exit, text: text.into() }
    }

    /// Adds what the person can do about it.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.text = format!("{}\n{hint}", self.text);
        self
    }

    /// Returns `true` if the reader of the output has closed it, which is not an error and needs no message.
    pub(crate) fn is_silent(&self) -> bool {
        self.text.is_empty()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Problem::new(Exit::of(&error), error.to_string())
    }
}

impl From<std::io::Error> for Problem {
    /// Converts an error of writing to stdout.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Problem::new(Exit::Done, "");
        }
        Problem::new(Exit::Output, format!("cannot write the output: {error}"))
    }
}

/// Takes output whose reader has closed it as written: a reader that has seen enough does not change the verdict of a
/// command.
///
/// # Errors
/// Of stdout.
pub(crate) fn even_unread(written: std::io::Result<()>) -> Result<(), Problem> {
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_an_interface() {
        let table = [
            (Exit::Done, 0),
            (Exit::NothingBroken, 1),
            (Exit::Free, 1),
            (Exit::RiskFound, 1),
            (Exit::DeadlockFound, 1),
            (Exit::Usage, 64),
            (Exit::Unavailable, 69),
            (Exit::PromiseBroken, 70),
            (Exit::Output, 74),
            (Exit::Busy, 75),
            (Exit::Lost, 76),
            (Exit::Unjudged, 77),
            (Exit::Refused, 78),
            (Exit::NotStarted, 126),
            (Exit::NotFound, 127),
            (Exit::Signal(2), 130),
            (Exit::Signal(9), 137),
            (Exit::Signal(15), 143),
            (Exit::Signal(64), 192),
            (Exit::Interrupted, 130),
            (Exit::Command(3), 3),
            (Exit::Conflict(0), 0),
        ];
        for (exit, code) in table {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }
}
