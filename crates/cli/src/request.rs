//! The request to `run`, as types: parsed once, then trusted.

pub(crate) mod args;
pub(crate) mod config;
pub(crate) mod help_text;
pub(crate) mod keepers;
pub(crate) mod program;
pub(crate) mod reentry;
pub(crate) mod store;
pub(crate) mod url_option;

use std::time::Duration;

use leasehold::{Note, Resource, Share};
use rustix::process::{Pid, Signal, getpid};

use crate::exit::{Exit, Problem};
use crate::output::text::visible_name;
use crate::request::args::ElectArgs;
use crate::request::args::hold::{AcquireArgs, BUSY, LockArgs, OnLost, ReportArgs, RunArgs};
use crate::request::program::Program;
use crate::request::store::StoreUrl;
use crate::system::caller::Caller;
use crate::system::processes::Identity;

/// One `leasehold run`.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) store: StoreUrl,
    pub(crate) name: Resource,
    /// More locks, which are held with it: none of them is `name`.
    pub(crate) also: Vec<Resource>,
    pub(crate) kind: Kind,
    pub(crate) patience: WaitLimit,
    pub(crate) terms: Terms,
    pub(crate) note: Note,
    pub(crate) on_lost: Loss,
    /// The signal that the command is sent when the lock is revoked; `None` where revocations are
    /// ignored.
    pub(crate) on_revoke: Option<Signal>,
    pub(crate) min_hold: Duration,
    pub(crate) program: Program,
    pub(crate) launch: Launch,
    pub(crate) after: After,
    /// The exit code if the lock is not free.
    pub(crate) conflict: Exit,
    pub(crate) report: ReportArgs,
    /// The program that is run each time the lock is no longer held.
    pub(crate) hook: Option<Program>,
    /// The processes for which a section holds it; none without a section.
    pub(crate) callers: Vec<Identity>,
}

/// The way in which the command is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launch {
    /// In a process group of its own.
    OwnGroup(Leftovers),
    /// In the process group of the caller.
    SameGroup(Leftovers),
    /// In place of this process.
    InPlace,
}

/// The treatment of the processes that the command leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// They continue without the lock.
    Leave,
    /// The lock is held until they have ended.
    Await,
}

/// The treatment of the lock after the command has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It is released.
    Release,
    /// It is held until a signal says otherwise.
    Stay,
}

/// The kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exclusive,
    Shared,
    Permits(u32),
}

/// The time for which it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    None,
    Limit(Duration),
    Forever,
}

/// The time for which it is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lock_delay: Option<Duration>,
}

/// The treatment of the command after the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// TERM, and KILL after this.
    Term(Duration),
    Kill,
    Ignore,
}

impl Request {
    /// Reads the options of `leasehold run`.
    ///
    /// # Errors
    /// As [`StoreUrl::named`]; usage, for an empty command.
    pub(crate) fn new(args: RunArgs) -> Result<Request, Problem> {
        let program = Program::new(args.command)
            .ok_or_else(|| Problem::new(Exit::Usage, "the command is missing: write it after --"))?;
        let leftovers = if args.wait_group { Leftovers::Await } else { Leftovers::Leave };
        let request = Request::of_lock(args.lock, args.name, program, args.report)?;
        if args.exec && !request.store.is_files() {
            let text = "--exec is for file: stores, where the command inherits the lock; on this store the lock has \
                        to be renewed: omit --exec";
            return Err(Problem::new(Exit::Refused, text));
        }
        Ok(Request {
            on_lost: match args.on_lost {
                OnLost::Term => Loss::Term(args.grace),
                OnLost::Kill => Loss::Kill,
                OnLost::Ignore => Loss::Ignore,
            },
            on_revoke: args.on_revoke.signal(),
            min_hold: args.min_hold.unwrap_or_default(),
            launch: match (args.exec, args.same_group) {
                (true, _) => Launch::InPlace,
                (false, true) => Launch::SameGroup(leftovers),
                (false, false) => Launch::OwnGroup(leftovers),
            },
            ..request
        })
    }

    /// Reads the options of `leasehold acquire`, for a section of this caller. No command is started under this
    /// request.
    ///
    /// # Errors
    /// As [`StoreUrl::named`].
    pub(crate) fn of_section(args: AcquireArgs, caller: &Caller) -> Result<Request, Problem> {
        if args.lock.conflict_exit_code == 0 {
            let text =
                "--conflict-exit-code 0 is for run: after acquire, a script would continue without the lock";
            return Err(Problem::new(Exit::Usage, text));
        }
        let (pid, name) = caller.identity();
        let note = note_of(pid, &name);
        let on_revoke = args.on_revoke.signal();
        let lock = LockArgs { note: args.lock.note.or(Some(note)), ..args.lock };
        let request = Request::of_lock(lock, args.name, Program::shell("".into()), ReportArgs::default())?;
        Ok(Request { on_revoke, callers: caller.identities(), ..request })
    }

    /// Reads the options that say how a lock is acquired and kept.
    fn of_lock(
        args: LockArgs,
        name: Resource,
        program: Program,
        report: ReportArgs,
    ) -> Result<Request, Problem> {
        let mut also = args.also;
        also.sort();
        also.dedup();
        also.retain(|other| *other != name);
        Ok(Request {
            store: StoreUrl::named(args.store.url.as_deref())?.for_ttl(args.ttl),
            name,
            also,
            kind: match (args.shared, args.permits) {
                (true, _) => Kind::Shared,
                (false, Some(permits)) => Kind::Permits(permits),
                (false, None) => Kind::Exclusive,
            },
            patience: match (args.no_wait, args.wait) {
                (true, _) => WaitLimit::None,
                (false, Some(limit)) if limit.is_zero() => WaitLimit::None,
                (false, Some(limit)) => WaitLimit::Limit(limit),
                (false, None) => WaitLimit::Forever,
            },
            terms: Terms { ttl: args.ttl, max_hold: args.max_hold, lock_delay: args.lock_delay },
            note: args.note.unwrap_or_else(|| own_note(&program)),
            on_lost: Loss::Term(GRACE),
            on_revoke: None,
            min_hold: Duration::ZERO,
            program,
            launch: Launch::OwnGroup(Leftovers::Leave),
            after: After::Release,
            conflict: match args.conflict_exit_code {
                BUSY => Exit::Busy,
                code => Exit::Conflict(code),
            },
            report,
            hook: None,
            callers: Vec::new(),
        })
    }

    /// Builds the request of one candidate of an election.
    ///
    /// # Errors
    /// As [`Request::new`].
    pub(crate) fn of_candidate(args: ElectArgs) -> Result<Request, Problem> {
        let (program, after) = match args.on_elected {
            Some(script) => (Some(Program::shell(script)), After::Stay),
            None => (Program::new(args.command), After::Release),
        };
        let program =
            program.ok_or_else(|| Problem::new(Exit::Usage, "the command is missing: write it after --"))?;
        Ok(Request {
            store: StoreUrl::named(args.store.url.as_deref())?.for_ttl(args.ttl),
            name: args.name,
            also: Vec::new(),
            kind: Kind::Exclusive,
            patience: WaitLimit::Forever,
            terms: Terms { ttl: args.ttl, max_hold: None, lock_delay: None },
            note: args.value.unwrap_or_else(|| own_note(&program)),
            on_lost: Loss::Term(args.grace),
            on_revoke: None,
            min_hold: Duration::ZERO,
            program,
            launch: Launch::OwnGroup(Leftovers::Leave),
            after,
            conflict: Exit::Busy,
            report: args.report,
            hook: args.on_demoted.map(Program::shell),
            callers: Vec::new(),
        })
    }

    /// Returns the names of all its locks, the first one first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Resource> {
        std::iter::once(&self.name).chain(&self.also)
    }

    /// Returns the names for people.
    pub(crate) fn shown(&self) -> String {
        self.names().map(|name| visible_name(name.as_str())).collect::<Vec<_>>().join(", ")
    }

    /// Returns the treatment of the processes that the command leaves behind.
    pub(crate) fn leftovers(&self) -> Leftovers {
        match self.launch {
            Launch::OwnGroup(leftovers) | Launch::SameGroup(leftovers) => leftovers,
            Launch::InPlace => Leftovers::Leave,
        }
    }

    /// Returns the time that a started program has to end.
    pub(crate) fn grace(&self) -> Duration {
        match self.on_lost {
            Loss::Term(grace) => grace,
            Loss::Kill | Loss::Ignore => GRACE,
        }
    }

    /// Returns the time for which the lock stays taken when this machine dies.
    pub(crate) fn ttl(&self) -> Duration {
        self.terms.ttl.unwrap_or(TTL)
    }

    /// Returns the share of the lock that is requested.
    ///
    /// # Errors
    /// `Invalid` for permits of none, which the command line refuses before.
    pub(crate) fn share(&self) -> leasehold::Result<Share> {
        match self.kind {
            Kind::Exclusive => Ok(Share::MUTEX),
            Kind::Shared => Ok(Share::READER),
            Kind::Permits(permits) => Ok(Share::permits(1, permits)?),
        }
    }
}

/// Returns the note that identifies this process to people.
fn own_note(program: &Program) -> Note {
    note_of(getpid(), &program.short_name())
}

/// Returns the note that identifies a process to people. The command's arguments are not part of it: they could
/// hold a password, and the note goes to the server.
fn note_of(pid: Pid, name: &str) -> Note {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    Note::clipped(&format!("host={host} user={user} pid={} cmd={name}", pid.as_raw_pid()))
}

/// The default grace period.
const GRACE: Duration = Duration::from_secs(5);
/// The default ttl, which is the library's.
const TTL: Duration = Duration::from_secs(30);
