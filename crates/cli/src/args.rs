//! The command line as it is written: every flag once, with its help.
//!
//! Ground rules: a value that can be judged by itself becomes a type here. What depends on other values, on the
//! environment or on the disk is decided by the command that it belongs to. The URL of a store stays raw text and is
//! parsed elsewhere, because the parser's own errors would repeat it, password and all.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use leasehold::{Note, Resource};

use crate::help_text;

/// Hold a lock while a command runs.
///
/// A lock has a name. Of all the commands that run under one name, on one machine or on many, one runs at a time (or
/// up to N, or many readers). Without a server, the lock holds among the processes of this machine; with --store, among
/// all machines that name the same server.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = help_text::EXAMPLES, after_long_help = help_text::EXAMPLES_LONG, styles = STYLES)]
#[command(arg_required_else_help = true, subcommand_required = true, max_term_width = 100)]
pub(crate) struct Args {
    /// Log more on stderr: -v grants and releases, -vv what fails and is tried again, -vvv everything; warnings are shown without [env: LEASEHOLD_LOG]
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(Box<RunArgs>),
    /// Show who holds a lock and who waits for it
    #[command(after_help = help_text::SHOW_EXAMPLES)]
    Show(LookArgs),
    Ls(ListArgs),
    /// Print a line for every change of a lock, until interrupted
    #[command(after_help = help_text::WATCH_EXAMPLES)]
    Watch(LookArgs),
    Revoke(RevokeArgs),
    Break(BreakArgs),
    Elect(Box<ElectArgs>),
    Doctor(DoctorArgs),
    Schema(SchemaArgs),
    Sweep(SweepArgs),
    /// Look after the servers of a redlock:// store
    #[command(subcommand)]
    Redlock(RedlockVerb),
    Completions(CompletionsArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RedlockVerb {
    Rearm(RearmArgs),
}

/// Where the locks are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// The store that keeps the locks [env: LEASEHOLD_URL] [default: files on this machine]
    ///
    ///   file:                      files of this user, for the processes of this machine
    ///   file:///a/directory        files there
    ///   sqlite:/a/file.db          a database file of this machine
    ///   redis://host:6379/0        a Redis or Valkey server
    ///   rediss://host              the same over TLS
    ///   redis+unix:///a/socket     the same over a Unix socket
    ///   redis+sentinel://h1,h2/n   the primary that Sentinels name for n
    ///   redis+cluster://h1,h2      a cluster, found by way of any of its servers
    ///   redlock://h1,h2,h3         the majority of several Redis servers
    ///   etcd://h1,h2,h3            an etcd cluster; etcds:// over TLS
    ///   zk://h1,h2,h3/chroot       a ZooKeeper ensemble; zks:// over TLS
    ///   postgres://user@host/db    a PostgreSQL database
    ///   mysql://user@host/db       a MariaDB or MySQL database
    ///   memcached://h1,h2          caches, which may forget a lock at any moment
    ///
    /// A password in a URL on the command line is seen by everyone on the machine.
    /// Put the URL into LEASEHOLD_URL, or name a file:
    ///   redis://host?password-file=/path
    #[arg(long = "store", value_name = "URL", verbatim_doc_comment)]
    pub(crate) url: Option<String>,
}

/// Hold a lock while a command runs
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::RUN_EXAMPLES, after_long_help = help_text::RUN_EXAMPLES_LONG)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Wait for the lock this long, then exit with 75 [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit with 75 at once if the lock is not free
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Hold it together with others that say --shared, but with no one who does not
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,

    /// Let up to N commands run at a time
    ///
    /// All who use one name should say the same N. Where they differ, the smallest among those that hold or wait counts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,

    /// How long the lock stays taken when this machine dies or is cut off [default: 30s]
    ///
    /// It is no limit to how long the command may run: while it runs, the lock is renewed every third of this. Shorter
    /// frees the lock sooner after a crash; longer survives longer pauses of the network. A file store needs none: it
    /// sees at once when a process has ended.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// What becomes of the command when the lock is lost
    ///
    /// A lock is lost when it could not be renewed in time, when somebody broke it, when the server forgot it, or when
    /// --max-hold is over. Somebody else may hold it then.
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnLost::Term)]
    pub(crate) on_lost: OnLost,

    /// With --on-lost=term: how long the command has to end before it is killed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,

    /// What the command is sent when somebody asks for the lock back, with `leasehold revoke`
    ///
    /// It is a request: the lock stays held until the command ends, and a command that does nothing about it goes on.
    #[arg(long, value_name = "SIGNAL", value_enum, default_value_t = OnRevoke::Ignore)]
    pub(crate) on_revoke: OnRevoke,

    /// Hold the lock no longer than this; then it counts as lost
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,

    /// Hold the lock at least this long, even where the command ends sooner
    ///
    /// For jobs that several machines start by the clock: the one that comes a little later must still find it taken.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,

    /// What others see of this holder [default: host, user, process id and the program's name]
    #[arg(long, value_name = "TEXT", value_parser = note)]
    pub(crate) note: Option<Note>,

    /// Name of the lock
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,

    /// The command and its arguments, after --. It is started directly, without a shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// One lock to look at, and how to print it.
#[derive(Debug, clap::Args)]
pub(crate) struct LookArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print JSON instead, one object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Name of the lock
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,
}

/// List the locks that are held or waited for
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::LS_EXAMPLES)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print JSON instead, one object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// List who waits for each other so that nobody can go on, instead
    ///
    /// Of those who wait, the ones are seen that announce it: programs that say `detect_deadlocks`.
    #[arg(long, conflicts_with = "prefix")]
    pub(crate) deadlocks: bool,

    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// Ask those who hold a lock to let go
///
/// A holder that listens hears of it and decides for itself; the lock is not taken away. Who holds it later is not asked.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::REVOKE_EXAMPLES)]
pub(crate) struct RevokeArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Why, up to 256 bytes: holders are told
    #[arg(long, value_name = "TEXT", default_value = "no reason given")]
    pub(crate) reason: String,

    /// Print JSON instead: who was asked
    #[arg(long)]
    pub(crate) json: bool,

    /// Name of the lock
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,
}

/// Take a lock away from those who hold it
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::BREAK_EXAMPLES)]
pub(crate) struct BreakArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Do not ask. Required where there is no terminal to ask on
    #[arg(long)]
    pub(crate) yes: bool,

    /// Turn away those who wait, too
    #[arg(long)]
    pub(crate) waiting: bool,

    /// Print JSON instead: what was broken
    #[arg(long, requires = "yes")]
    pub(crate) json: bool,

    /// Name of the lock
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,
}

/// Lead, whenever no other candidate of this name does
///
/// It campaigns until it leads, and does then what it is told to. When it loses leadership it stops that and campaigns
/// again; when it is told to end (TERM, INT, HUP, QUIT) it resigns.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::ELECT_EXAMPLES)]
#[command(override_usage = ELECT_USAGE)]
#[command(group = clap::ArgGroup::new("duty").required(true).args(["command", "on_elected"]))]
pub(crate) struct ElectArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// A shell command to run each time it was elected. While it runs, and after it has ended well, it leads
    #[arg(long, value_name = "CMD", conflicts_with = "command")]
    pub(crate) on_elected: Option<OsString>,

    /// A shell command to run each time it has stopped leading, whether it lost or resigned
    #[arg(long, value_name = "CMD")]
    pub(crate) on_demoted: Option<OsString>,

    /// How long nobody leads when this machine dies or is cut off [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// How long a command has to end when leadership is lost, before it is killed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,

    /// What observers see of this leader, an address for instance [default: host, user, process id and the program's name]
    #[arg(long, value_name = "TEXT", value_parser = note)]
    pub(crate) value: Option<Note>,

    /// Name of the election
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,

    /// A command to run while it leads, after --. When it ends by itself, so does this
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Print what creates a database's tables for locks
///
/// For those who may not let a program create tables: the statements, and what the user of the URL needs to be granted.
/// They can be run again, also beside clients that are at work. Nothing is sent anywhere.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::SCHEMA_EXAMPLES)]
pub(crate) struct SchemaArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Remove what is left of locks that nobody uses any more
///
/// Each name that was ever locked has a row in a database, or a key on Redis, which keeps the fence. Locks do not need a sweep:
/// whoever comes next removes what is over. It is for names that nobody comes by any more; run it from time to time. On
/// PostgreSQL it deletes their rows, and needs the right to; on MySQL, MariaDB and SQLite rows stay and are emptied; on Redis it
/// deletes their keys. What is held or waited for is not touched, and fences rise as ever.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::SWEEP_EXAMPLES)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Spare what was used within this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30d")]
    pub(crate) unused_for: Duration,

    /// Print JSON instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// Find out what of a store's set-up helps or hurts locks
///
/// It takes and gives back the lock leasehold-doctor a few times, and asks the server what it is and how it is set up. It
/// changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::DOCTOR_EXAMPLES)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// The ttl that locks are going to have: what is too slow depends on it
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) ttl: Duration,

    /// Print JSON instead, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Put servers to use that are new, or have forgotten what they granted
///
/// A server that starts without its data is not counted any more. As long as a majority remembers, it comes back by
/// itself. When a majority has forgotten, nothing is granted until this is said; and new servers serve a little sooner.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::REARM_EXAMPLES)]
pub(crate) struct RearmArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Do not ask. Required where there is no terminal to ask on
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    pub(crate) shell: Shell,
}

/// What becomes of the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Send TERM, and KILL after --grace; exit with 76
    Term,
    /// Send KILL at once; exit with 76
    Kill,
    /// Say so and let it go on; exit with the command's own code
    Ignore,
}

/// What the command is sent when the lock is asked back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnRevoke {
    /// Nothing: requests are not listened to
    Ignore,
    Term,
    Int,
    Hup,
    Quit,
    Usr1,
    Usr2,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 30s, 500ms or 1h30m"))
}

fn resource(text: &str) -> Result<Resource, leasehold::core::InvalidResource> {
    Resource::new(text)
}

fn note(text: &str) -> Result<Note, leasehold::core::NoteTooLong> {
    Note::new(text)
}

const ELECT_USAGE: &str = "leasehold elect [OPTIONS] <NAME> -- <COMMAND>...\n       leasehold elect [OPTIONS] --on-elected <CMD> <NAME>";

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_list_of_flags_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations_need_a_unit_and_the_error_says_so() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert!(duration("30").unwrap_err().contains("30s"));
    }
}
