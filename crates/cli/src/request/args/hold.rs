//! The flags of the commands that hold a lock: `run`, and what it shares with others.
//!
//! Ground rules: those of the flags as a whole. A descriptor becomes a value here, because its number means
//! something else as soon as this process opens a file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use leasehold::{Note, Resource};
use rustix::process::Signal;

use super::{StoreArgs, duration, note, resource};
use crate::request::help_text;
use crate::system::descriptors::InheritedFd;

/// Hold a lock while a command runs
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::RUN_EXAMPLES, after_long_help = help_text::RUN_EXAMPLES_LONG)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// What to do with the command if the lock is lost
    ///
    /// A lock is lost if it could not be renewed in time, if it was broken with `leasehold break`, if
    /// the server forgot it, or if --max-hold is over. Another command may hold it then.
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnLost::Term)]
    pub(crate) on_lost: OnLost,

    /// With --on-lost=term: the time that the command has to end before it is killed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,

    /// The signal to send to the command when the lock is revoked with `leasehold revoke`
    ///
    /// It is a request: the lock stays held until the command ends, and a command that ignores the
    /// signal continues.
    #[arg(long, value_name = "SIGNAL", value_enum, default_value_t = OnRevoke::Ignore)]
    pub(crate) on_revoke: OnRevoke,

    /// Hold the lock at least this long, even if the command ends sooner
    ///
    /// For jobs that several machines start at the same time of day: a machine that starts a little
    /// later must still find the lock taken.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,

    /// Hold the lock until all processes have ended that the command has started
    ///
    /// Without it, the lock is released when the command itself ends, and what it left in the background
    /// continues without the lock. The exit code is still that of the command. Processes that were children of
    /// leasehold before the command started do not count.
    #[arg(long)]
    pub(crate) wait_group: bool,

    /// Leave the command in the process group of the caller, as flock does
    ///
    /// The terminal then stays as it is, and Ctrl-C and Ctrl-Z reach the whole job at once. The price: if
    /// leasehold is killed, a process whose parent has ended before is not found and continues.
    #[arg(long)]
    pub(crate) same_group: bool,

    /// Replace leasehold by the command, which keeps the lock (file: only)
    ///
    /// The command has the process id of leasehold, and nothing runs beside it. The lock is a descriptor
    /// that the command inherits. It lasts until the command and all that inherited the descriptor have
    /// ended. Nobody watches the lock then: a `leasehold break` is not noticed.
    #[arg(long, conflicts_with_all = ["on_lost", "grace", "on_revoke", "max_hold", "min_hold", "wait_group", "same_group"])]
    pub(crate) exec: bool,

    #[command(flatten)]
    pub(crate) report: ReportArgs,

    /// Name of the lock
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,

    /// The command and its arguments, after --. It is started directly, without a shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Hold a lock for a section of a shell script
///
/// Prints variables for the shell, and leaves a keeper behind: a process that renews the lock until
/// `leasehold release`, or until the shell has ended, also by KILL.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::ACQUIRE_EXAMPLES)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// The signal to send to the shell if the lock is lost; it is sent once
    ///
    /// A script that ignores it, or has a trap for it, learns of the loss from `leasehold release`, which
    /// then exits with 76.
    #[arg(long, value_name = "SIGNAL", value_enum, default_value_t = SectionSignal::Term)]
    pub(crate) on_lost: SectionSignal,

    /// The signal to send to the shell when the lock is revoked with `leasehold revoke`
    #[arg(long, value_name = "SIGNAL", value_enum, default_value_t = OnRevoke::Ignore)]
    pub(crate) on_revoke: OnRevoke,

    /// The process for which the lock is held [default: the script that has started this command]
    ///
    /// It is an ancestor of this command. Subshells count as their script, as for $$; one in the background keeps
    /// the lock even if it outlives the script. If another program is in between, give $$.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,

    /// Hold the lock until this descriptor is closed, from 3 to 9, as flock does
    ///
    /// The output opens it in the shell. The lock is held until the shell and all that have inherited the
    /// descriptor have closed it or have ended. A signal of --on-lost still goes to the shell alone.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(3..=9), conflicts_with = "json")]
    pub(crate) fd: Option<u8>,

    /// Print JSON instead
    #[arg(long)]
    pub(crate) json: bool,

    /// Name of the lock
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,
}

/// End a section that `leasehold acquire` has begun
///
/// Exits with 76 if the lock was lost meanwhile: then the section was perhaps not alone.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::RELEASE_EXAMPLES)]
pub(crate) struct ReleaseArgs {
    /// Name of the lock, if this script has several, or if a script around it has it
    #[arg(value_parser = resource)]
    pub(crate) name: Option<Resource>,
}

/// The options of acquiring and keeping a lock.
#[derive(Debug, clap::Args)]
pub(crate) struct LockArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Wait at most this long for the lock, then exit with 75 [default: no limit]
    ///
    /// The last answer of the store may take two seconds more.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit with 75 at once if the lock is not free
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// The exit code if the lock is not free, instead of 75
    ///
    /// For a command that uses 75 itself, or for a caller that takes a lock held by another for a success: 0.
    #[arg(long, value_name = "N", default_value_t = BUSY, hide_default_value = true)]
    pub(crate) conflict_exit_code: u8,

    /// Hold the lock together with other commands that use --shared, and with no others
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,

    /// Let up to N commands run at a time
    ///
    /// Use the same N everywhere for one name. If the numbers differ, the smallest N among the holders,
    /// the waiters ahead and this command counts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,

    /// Hold this lock too; may be repeated
    ///
    /// All of them are held, or none. They are acquired in the order of their names, not in that of the
    /// command line, so that commands with overlapping names never wait for each other in a circle.
    /// The other options apply to each. The loss of one counts as the loss of all.
    #[arg(long, value_name = "NAME", value_parser = resource)]
    pub(crate) also: Vec<Resource>,

    /// The time for which the lock stays taken after this machine dies or is cut off [default: 30s]
    ///
    /// This does not limit how long the command may run: while it runs, the lock is renewed every third
    /// of this time. A shorter time frees the lock sooner after a crash; a longer time survives longer
    /// network outages. A file store needs none: it notices at once when a process has ended. On
    /// ZooKeeper it is the timeout of the session, 4s at least, unless the URL has ?session=.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// The time after --ttl for which a lost lock stays taken, so that what its holder has sent can end
    ///
    /// For work that continues elsewhere after its holder has ended: a request on its way, a copy on another
    /// machine. A release frees the lock at once. Not for stores whose locks end with a session or a
    /// process: file:, ZooKeeper, and connections that hold locks.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) lock_delay: Option<Duration>,

    /// Hold the lock at most this long; after that it counts as lost
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,

    /// Text that identifies this holder to others [default: host, user, process id and the program's name]
    #[arg(long, value_name = "TEXT", value_parser = note)]
    pub(crate) note: Option<Note>,
}

/// The places to which the state of the lock is reported.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ReportArgs {
    /// Keep the state of the lock in this file, as one JSON object
    ///
    /// The file is replaced as a whole with each change, so a reader never sees half of one. It stays
    /// when leasehold ends, and then has the exit code. A link of another user is refused.
    #[arg(long, value_name = "PATH")]
    pub(crate) status_file: Option<PathBuf>,

    /// Write each change of the lock's state to this open descriptor, one JSON object a line
    ///
    /// The command does not inherit the descriptor. A reader that does not read delays nothing: lines that
    /// do not fit are dropped.
    #[arg(long, value_name = "N")]
    pub(crate) status_fd: Option<InheritedFd>,

    /// Report to the service manager: ready when the lock is held, with a status line (systemd, Type=notify)
    ///
    /// The command then has no NOTIFY_SOCKET. Without this flag leasehold sends nothing, and the command
    /// may report for itself, with NotifyAccess=all.
    #[arg(long)]
    pub(crate) sd_notify: bool,
}

/// The action on the command if the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Send TERM, and KILL after --grace; exit with 76
    Term,
    /// Send KILL at once; exit with 76
    Kill,
    /// Print a warning and let the command continue; exit with the command's own code
    Ignore,
}

/// The signal to send to a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SectionSignal {
    /// Send no signal
    Ignore,
    Term,
    Int,
    Hup,
    Quit,
    Usr1,
    Usr2,
    Kill,
}

impl SectionSignal {
    /// Returns the signal, if one is to be sent.
    pub(crate) fn signal(self) -> Option<Signal> {
        match self {
            SectionSignal::Ignore => None,
            SectionSignal::Term => Some(Signal::TERM),
            SectionSignal::Int => Some(Signal::INT),
            SectionSignal::Hup => Some(Signal::HUP),
            SectionSignal::Quit => Some(Signal::QUIT),
            SectionSignal::Usr1 => Some(Signal::USR1),
            SectionSignal::Usr2 => Some(Signal::USR2),
            SectionSignal::Kill => Some(Signal::KILL),
        }
    }
}

impl OnRevoke {
    /// Returns the signal, if one is to be sent.
    pub(crate) fn signal(self) -> Option<Signal> {
        match self {
            OnRevoke::Ignore => None,
            OnRevoke::Term => Some(Signal::TERM),
            OnRevoke::Int => Some(Signal::INT),
            OnRevoke::Hup => Some(Signal::HUP),
            OnRevoke::Quit => Some(Signal::QUIT),
            OnRevoke::Usr1 => Some(Signal::USR1),
            OnRevoke::Usr2 => Some(Signal::USR2),
        }
    }
}

/// The signal to send to the command when the lock is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnRevoke {
    /// Send no signal: requests are ignored
    Ignore,
    Term,
    Int,
    Hup,
    Quit,
    Usr1,
    Usr2,
}

/// The exit code if the lock is not free, unless another one is asked for.
pub(crate) const BUSY: u8 = 75;
