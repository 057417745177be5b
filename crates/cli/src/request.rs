//! The request to `run`, as types: parsed once, then trusted.

pub(crate) mod args;
pub(crate) mod help_text;
pub(crate) mod program;
pub(crate) mod reentry;
#[cfg(feature = "serve")]
pub(crate) mod serve_args;
pub(crate) mod store;

use std::time::Duration;

use leasehold::{Client, Guard, Lock, Note, Owner, Resource, Result, Share, kind};
use rustix::process::Signal;

use crate::exit::{Exit, Problem};
use crate::request::args::{ElectArgs, OnLost, OnRevoke, RunArgs};
use crate::request::program::Program;
use crate::request::reentry::Tags;
use crate::request::store::StoreUrl;

/// One `leasehold run`.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) store: StoreUrl,
    pub(crate) name: Resource,
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
    pub(crate) after: After,
    /// The program that is run each time the lock is no longer held.
    pub(crate) hook: Option<Program>,
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
    ttl: Option<Duration>,
    max_hold: Option<Duration>,
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
        Ok(Request {
            store: StoreUrl::named(args.store.url.as_deref())?.for_ttl(args.ttl),
            name: args.name,
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
            terms: Terms { ttl: args.ttl, max_hold: args.max_hold },
            note: args.note.unwrap_or_else(|| own_note(&program)),
            on_lost: match args.on_lost {
                OnLost::Term => Loss::Term(args.grace),
                OnLost::Kill => Loss::Kill,
                OnLost::Ignore => Loss::Ignore,
            },
            on_revoke: match args.on_revoke {
                OnRevoke::Ignore => None,
                OnRevoke::Term => Some(Signal::TERM),
                OnRevoke::Int => Some(Signal::INT),
                OnRevoke::Hup => Some(Signal::HUP),
                OnRevoke::Quit => Some(Signal::QUIT),
                OnRevoke::Usr1 => Some(Signal::USR1),
                OnRevoke::Usr2 => Some(Signal::USR2),
            },
            min_hold: args.min_hold.unwrap_or_default(),
            program,
            after: After::Release,
            hook: None,
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
            kind: Kind::Exclusive,
            patience: WaitLimit::Forever,
            terms: Terms { ttl: args.ttl, max_hold: None },
            note: args.value.unwrap_or_else(|| own_note(&program)),
            on_lost: Loss::Term(args.grace),
            on_revoke: None,
            min_hold: Duration::ZERO,
            program,
            after,
            hook: args.on_demoted.map(Program::shell),
        })
    }

    /// Takes the lock as it was asked for; `None` where it is busy. A long wait under claims of outer runs is
    /// announced, so that a deadlock of several such runs can be seen.
    ///
    /// # Errors
    /// As the library's locks.
    pub(crate) async fn take(&self, locks: &Client, outer: &Tags) -> Result<Option<Guard>> {
        let name = self.name.as_str();
        let owner = outer.owner().filter(|_| locks.profile().announces_waits().is_ok());
        let owner = owner.as_ref();
        match (self.kind, self.patience) {
            (Kind::Exclusive, WaitLimit::None) => self.with_terms(locks.mutex(name), owner)?.try_lock().await,
            (Kind::Exclusive, WaitLimit::Limit(limit)) => {
                self.with_terms(locks.mutex(name), owner)?.try_lock_for(limit).await
            }
            (Kind::Exclusive, WaitLimit::Forever) => {
                self.with_terms(locks.mutex(name), owner)?.lock().await.map(Some)
            }
            (Kind::Shared, WaitLimit::None) => self.with_terms(locks.rwlock(name), owner)?.try_read().await,
            (Kind::Shared, WaitLimit::Limit(limit)) => {
                self.with_terms(locks.rwlock(name), owner)?.try_read_for(limit).await
            }
            (Kind::Shared, WaitLimit::Forever) => {
                self.with_terms(locks.rwlock(name), owner)?.read().await.map(Some)
            }
            (Kind::Permits(permits), WaitLimit::None) => {
                self.with_terms(locks.semaphore(name, permits), owner)?.try_acquire().await
            }
            (Kind::Permits(permits), WaitLimit::Limit(limit)) => {
                self.with_terms(locks.semaphore(name, permits), owner)?.try_acquire_for(limit).await
            }
            (Kind::Permits(permits), WaitLimit::Forever) => {
                self.with_terms(locks.semaphore(name, permits), owner)?.acquire().await.map(Some)
            }
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
    pub(crate) fn share(&self) -> Result<Share> {
        match self.kind {
            Kind::Exclusive => Ok(Share::MUTEX),
            Kind::Shared => Ok(Share::READER),
            Kind::Permits(permits) => Ok(Share::permits(1, permits)?),
        }
    }

    fn with_terms<K: kind::Kind>(&self, mut lock: Lock<K>, owner: Option<&Owner>) -> Result<Lock<K>> {
        if let Some(owner) = owner {
            lock = lock.owner(owner).announce_wait(ANNOUNCED_AFTER);
        }
        if let Some(ttl) = self.terms.ttl.filter(|_| !self.store.takes_ttl()) {
            lock = lock.ttl(ttl);
        }
        if let Some(limit) = self.terms.max_hold {
            lock = lock.max_hold(limit);
        }
        // Better refused now than unnoticed when a revocation comes.
        if self.on_revoke.is_some() { lock.revocable() } else { Ok(lock) }
    }
}

/// Returns the note that identifies this process to people. The command's arguments are not part of it:
/// they could hold a password, and the note goes to the server.
fn own_note(program: &Program) -> Note {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    let pid = std::process::id();
    Note::clipped(&format!("host={host} user={user} pid={pid} cmd={}", program.short_name()))
}

/// The default grace period.
const GRACE: Duration = Duration::from_secs(5);
/// The time after which a wait under other claims is announced.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);
/// The default ttl, which is the library's.
const TTL: Duration = Duration::from_secs(30);
