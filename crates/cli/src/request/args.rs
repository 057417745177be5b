//! The command line as it is written: every flag once, with its help.
//!
//! Ground rules: a value that can be judged by itself becomes a type here. What depends on other values,
//! on the environment or on the disk is decided by the command that it belongs to. The URL of a store
//! stays raw text and is parsed elsewhere, because the parser's own errors would repeat it, password and
//! all.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{ArgAction, Parser, Subcommand};
use clap_complete::Shell;
use leasehold::{Fence, Note, Resource};

use crate::request::help_text;

pub(crate) mod hold;
#[cfg(feature = "serve")]
pub(crate) mod serve;
#[cfg(feature = "torture")]
pub(crate) mod torture;

use hold::{AcquireArgs, ReleaseArgs, ReportArgs, RunArgs};
#[cfg(feature = "serve")]
use serve::ServeArgs;
#[cfg(feature = "torture")]
use torture::TortureArgs;

/// Hold a lock while a command runs.
///
/// A lock has a name. Of all the commands that run under one name, on one machine or on many, only one
/// runs at a time (or up to N, or many readers). Without a server, these are the commands of this user on
/// this machine; with --store, they are the commands on all machines that use the same server.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = help_text::EXAMPLES, after_long_help = help_text::EXAMPLES_LONG, styles = STYLES)]
#[command(arg_required_else_help = true, subcommand_required = true, max_term_width = 100)]
pub(crate) struct Args {
    /// Log more on stderr: -v grants and releases, -vv also failures and retries, -vvv everything; the
    /// default is warnings [env: LEASEHOLD_LOG]
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(Box<RunArgs>),
    Acquire(Box<AcquireArgs>),
    Release(ReleaseArgs),
    /// Show the holders and the waiters of a lock
    #[command(after_help = help_text::SHOW_EXAMPLES)]
    Show(ShowArgs),
    Ls(ListArgs),
    #[cfg(feature = "top")]
    Top(TopArgs),
    #[cfg(feature = "serve")]
    Serve(Box<ServeArgs>),
    /// Print a line for every change of a lock until interrupted
    #[command(after_help = help_text::WATCH_EXAMPLES)]
    Watch(LookArgs),
    Revoke(RevokeArgs),
    Break(BreakArgs),
    Elect(Box<ElectArgs>),
    Doctor(DoctorArgs),
    /// Compare fences with a file that a lock protects
    #[command(subcommand)]
    Fence(FenceVerb),
    Schema(SchemaArgs),
    Sweep(SweepArgs),
    #[cfg(feature = "torture")]
    Torture(Box<TortureArgs>),
    /// Maintain the servers of a redlock:// store
    #[command(subcommand)]
    Redlock(RedlockVerb),
    Completions(CompletionsArgs),
    #[command(hide = true)]
    Man(ManArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceVerb {
    /// Refuse an older holder than the newest that was here
    ///
    /// The newest fence is kept in FILE.fence beside the file, which need not exist. A fence that is not
    /// older is written there, and every older one is refused from then on.
    #[command(after_help = help_text::FENCE_CHECK_EXAMPLES)]
    Check(FenceArgs),
    /// Replace a file by the standard input, unless a newer holder was here
    ///
    /// The fence is compared, and the file replaced, in one step. After a crash the file has the old content
    /// or the new, never a mixture.
    #[command(after_help = help_text::FENCE_WRITE_EXAMPLES)]
    Write(FenceArgs),
}

/// A file that a lock protects.
#[derive(Debug, clap::Args)]
pub(crate) struct FenceArgs {
    /// The fence of this holder [env: LEASEHOLD_FENCE]
    #[arg(long, value_name = "FENCE")]
    pub(crate) fence: Option<Fence>,

    /// The file
    pub(crate) file: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RedlockVerb {
    Rearm(RearmArgs),
}

/// The store that keeps the locks.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// The store that keeps the locks [env: LEASEHOLD_URL] [default: files on this machine]
    ///
    ///   prod                       a store that the configuration file names so
    ///   file:                      files of this user, for the processes of this machine
    ///   file:///a/directory        files in this directory
    ///   sqlite:/a/file.db          a database file of this machine
    ///   redis://host:6379/0        a Redis or Valkey server
    ///   rediss://host              the same over TLS
    ///   redis+unix:///a/socket     the same over a Unix socket
    ///   redis+sentinel://h1,h2/n   the primary that Sentinels report for n
    ///   redis+cluster://h1,h2      a cluster, found through any of its servers
    ///   redlock://h1,h2,h3         a majority of several Redis servers
    ///   etcd://h1,h2,h3            an etcd cluster; etcds:// over TLS
    ///   zk://h1,h2,h3/chroot       a ZooKeeper ensemble; zks:// over TLS
    ///   postgres://user@host/db    a PostgreSQL database
    ///   mysql://user@host/db       a MariaDB or MySQL database
    ///   memcached://h1,h2          caches, which may forget a lock at any moment
    ///
    /// A password in a URL on the command line is visible to everyone on the machine.
    /// Put the URL into LEASEHOLD_URL, or name a password file:
    ///   redis://host?password-file=/path
    /// or in the configuration file: $LEASEHOLD_CONFIG, else
    /// ~/.config/leasehold/config.toml and /etc/leasehold/config.toml:
    ///   [stores.prod]
    ///   url = "redis://host"
    ///   password-file = "/path"
    #[arg(long = "store", value_name = "URL", verbatim_doc_comment)]
    pub(crate) url: Option<String>,
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

/// One lock to show.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,

    /// Print nothing; exit with 0 if the lock is held, and with 1 if it is free
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
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

    /// List deadlocks instead of locks
    ///
    /// Only announced waits are seen: those of nested `run` and `elect`, and of
    /// programs that use `detect_deadlocks` or `announce_wait`.
    #[arg(long, conflicts_with = "prefix")]
    pub(crate) deadlocks: bool,

    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// Show all locks in the terminal, live, and revoke or break them
///
/// The list has the holder of each lock, the time since its grant, the time left of its lease and the length
/// of its queue. Enter shows one lock, ? the keys. The list is refreshed less often if the store has many locks
/// or is slow.
#[cfg(feature = "top")]
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::TOP_EXAMPLES)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// The shortest time between two listings
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "2s")]
    pub(crate) interval: Duration,

    /// Look only: nothing can be revoked or broken
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// Ask the holders of a lock to release it
///
/// A holder that listens for the request is notified and decides for itself; the lock is not taken away.
/// Later holders are not asked.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::REVOKE_EXAMPLES)]
pub(crate) struct RevokeArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// The reason, up to 256 bytes; the holders see it
    #[arg(long, value_name = "TEXT", default_value = "no reason given")]
    pub(crate) reason: String,

    /// Wait at most this long until the asked holders have released the lock; exit with 75 if one has not
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Print JSON instead: the holders that were asked
    #[arg(long)]
    pub(crate) json: bool,

    /// Name of the lock
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,
}

/// Take a lock away from its holders
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::BREAK_EXAMPLES)]
pub(crate) struct BreakArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Do not ask for confirmation (required without a terminal)
    #[arg(long)]
    pub(crate) yes: bool,

    /// Ask the holders first, as `leasehold revoke` does, and break what is still held after this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) after: Option<Duration>,

    /// Also cancel queued waiters
    #[arg(long)]
    pub(crate) waiting: bool,

    /// Print JSON instead: what was broken
    #[arg(long, requires = "yes")]
    pub(crate) json: bool,

    /// Name of the lock
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,
}

/// Run a command or hook while this instance is the elected leader
///
/// The instance campaigns until it is the leader, and then runs COMMAND or the --on-elected hook. If it loses
/// leadership, it stops the program and campaigns again. On TERM, INT, HUP or QUIT it resigns.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::ELECT_EXAMPLES)]
#[command(override_usage = ELECT_USAGE)]
#[command(group = clap::ArgGroup::new("duty").required(true).args(["command", "on_elected"]))]
pub(crate) struct ElectArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// A shell command to run after each election; the instance leads while the command runs and after
    /// it succeeds
    #[arg(long, value_name = "CMD", conflicts_with = "command")]
    pub(crate) on_elected: Option<OsString>,

    /// A shell command to run each time this instance ceases to lead, after a loss or a resignation
    #[arg(long, value_name = "CMD")]
    pub(crate) on_demoted: Option<OsString>,

    /// The time for which the election has no leader after this machine dies or is cut off [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// The time that a command has to end after leadership is lost, before it is killed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,

    /// Text that identifies this leader to observers, such as an address [default: host, user, process
    /// id and the program's name]
    #[arg(long, value_name = "TEXT", value_parser = note)]
    pub(crate) value: Option<Note>,

    #[command(flatten)]
    pub(crate) report: ReportArgs,

    /// Name of the election
    #[arg(value_parser = resource)]
    pub(crate) name: Resource,

    /// The command to run while this instance leads, after --. When it ends by itself, `elect` resigns
    /// and exits
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Print the SQL that creates the lock tables and grants
///
/// For databases where programs may not create tables. The output has the statements that create the
/// tables, and the grants that the user of the URL needs. The statements can be run again, also while
/// clients are at work. Nothing is sent to the database.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::SCHEMA_EXAMPLES)]
pub(crate) struct SchemaArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Remove the remains of unused locks
///
/// Each name that was ever locked has a row in a database, or a key on Redis, which keeps the fence.
/// Locks work without a sweep: the next client that uses a name removes what is over. A sweep is for
/// names that no client uses any more; run it from time to time. On PostgreSQL it deletes their rows,
/// and needs the privilege to do so; on MySQL, MariaDB and SQLite the rows stay and are emptied; on
/// Redis it deletes their keys. Names that are held or waited for are not touched, and fences keep
/// rising.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::SWEEP_EXAMPLES)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Only remove locks that were unused for at least this long
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30d")]
    pub(crate) unused_for: Duration,

    /// Print JSON instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check a store's configuration for problems that affect locks
///
/// It acquires and releases the lock leasehold-doctor a few times, and asks the server for its version and
/// configuration. It changes nothing else, and creates no tables unless the URL has create=yes.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::DOCTOR_EXAMPLES)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// The ttl that locks are going to have; the limits for latency depend on it
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) ttl: Duration,

    /// Print JSON instead, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Re-enable new or wiped servers of a redlock:// store
///
/// A server that starts without its data no longer counts. As long as a majority still has its data, the
/// server is re-enabled without help. If a majority has lost its data, nothing is granted until this
/// command is run. With it, new servers also serve a little sooner.
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::REARM_EXAMPLES)]
pub(crate) struct RearmArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Do not ask for confirmation (required without a terminal)
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = help_text::COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    pub(crate) shell: Shell,
}

/// Write the man pages, or the reference of all commands in Markdown
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write a page for each command into this directory, which is created if missing
    #[arg(long, value_name = "DIR", required_unless_present_any = ["markdown", "urls"])]
    pub(crate) dir: Option<PathBuf>,

    /// Print the reference in Markdown instead
    #[arg(long, conflicts_with = "dir")]
    pub(crate) markdown: bool,

    /// Print the URLs of all stores and their options in Markdown instead
    #[arg(long, conflicts_with_all = ["dir", "markdown"])]
    pub(crate) urls: bool,
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 30s, 500ms or 1h30m"))
}

#[cfg(feature = "top")]
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    match interval < SHORTEST_INTERVAL || interval > LONGEST_INTERVAL {
        true => Err("write a time from 200ms to 1h".to_owned()),
        false => Ok(interval),
    }
}

pub(crate) fn resource(text: &str) -> Result<Resource, leasehold::backend::InvalidResource> {
    Resource::new(text)
}

pub(crate) fn note(text: &str) -> Result<Note, leasehold::backend::NoteTooLong> {
    Note::new(text)
}

#[cfg(feature = "top")]
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
#[cfg(feature = "top")]
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);

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
    fn duration_without_a_unit_is_an_error_that_says_so() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert!(duration("30").unwrap_err().contains("30s"));
    }
}
