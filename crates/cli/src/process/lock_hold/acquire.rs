//! The acquisition of the locks of a command: which of them are free, and the wait for those.
//!
//! Ground rules: all locks are acquired, or none is. A lock that an outer run or section holds is followed instead.

use std::time::Duration;

use leasehold::backend::Clock;
use leasehold::{
    Client, Guard, Lock, LockRequest, MultiLock, Note, Owner, Resource, Result, Snapshot, SystemClock, kind,
};

use super::{Held, LockHold, Taken};
use crate::exit::Problem;
use crate::output::describe::held_by;
use crate::output::progress::Progress;
use crate::output::status::Status;
use crate::output::stderr::Stderr;
use crate::output::text::{duration, visible_name};
use crate::process::outer_run;
use crate::process::section::{self, ClaimKeeper, Followed};
use crate::process::variable_lengths;
use crate::request::keepers::Keepers;
use crate::request::reentry::{Outer, Tags};
use crate::request::{Kind, Request, WaitLimit};
use crate::system::signals::Signals;

/// The locks of a request, divided by whether an outer run or section holds them.
#[derive(Debug, Default)]
struct Division {
    outer: Vec<(Resource, Outer)>,
    followed: Vec<Followed>,
    /// Those that no outer run or section holds, which have to be acquired.
    free: Vec<Resource>,
}

impl LockHold {
    /// Waits for the locks, as it is requested.
    ///
    /// # Errors
    /// Busy; as the library's locks, [`Tags::find`] and [`variable_lengths::tags_to_pass_on`].
    pub(crate) async fn take(
        request: &Request,
        locks: &Client,
        signals: &mut Signals,
        stderr: &Stderr,
        status: &Status,
    ) -> Result<Taken, Problem> {
        let tags = Tags::inherited();
        let found = tokio::select! {
            biased;
            signal = signals.sent_to_childless() => return Ok(Taken::Interrupted(signal)),
            found = divide(request, locks, &tags) => found?,
        };
        let Division { outer, followed, free: names } = found;
        let tags = variable_lengths::tags_to_pass_on(request, locks, &outer, names.len(), tags).await?;
        if names.is_empty() {
            let hold = LockHold { own: None, outer, followed, tags };
            hold.report(request, locks, status);
            return Ok(Taken::Held(hold));
        }
        let progress = (request.patience != WaitLimit::None)
            .then(|| Progress::start(stderr, locks, names.clone(), &request.note));
        let taken = tokio::select! {
            biased;
            signal = signals.sent_to_childless() => return Ok(Taken::Interrupted(signal)),
            taken = acquire(request, locks, &names, &tags) => taken,
        };
        if let Some(progress) = progress {
            progress.end().await;
        }
        match taken {
            Ok(Some(own)) => {
                let hold = LockHold { own: Some(own), outer, followed, tags };
                hold.report(request, locks, status);
                Ok(Taken::Held(hold))
            }
            Ok(None) => Err(busy(request, locks, &names).await),
            Err(error) => Err(Problem::from(error).hint(format!("the store is {}", request.store.shown()))),
        }
    }
}

/// Divides the names into those that are held around this process, and those that have to be acquired.
async fn divide(request: &Request, locks: &Client, tags: &Tags) -> Result<Division, Problem> {
    let (mut division, keepers) = (Division::default(), Keepers::inherited());
    for name in request.names() {
        let asked = SystemClock.now();
        let Some(outer) = tags.find(locks, name, request.share()?).await? else {
            division.free.push(name.clone());
            continue;
        };
        match section::follow(&keepers, name, &outer.tag, &request.callers).await? {
            ClaimKeeper::OuterRun => division.followed.push(outer_run::follow(locks, name, &outer, asked)),
            ClaimKeeper::Section(section) => division.followed.push(section),
            // It is acquired like any other, and is free when the claim that nobody keeps has ended.
            ClaimKeeper::Gone => {
                division.free.push(name.clone());
                continue;
            }
        }
        division.outer.push((name.clone(), outer));
    }
    Ok(division)
}

/// Acquires the locks; `None` where one is busy. A long wait under claims of outer runs is announced, so that
/// a deadlock of several such runs can be seen.
async fn acquire(
    request: &Request,
    locks: &Client,
    names: &[Resource],
    outer: &Tags,
) -> Result<Option<Held>> {
    let owner = outer.owner().filter(|_| locks.profile().announces_waits().is_ok());
    let owner = owner.as_ref();
    if let [name] = names {
        return Ok(acquire_one(request, locks, name, owner).await?.map(|guard| Held::One(Box::new(guard))));
    }
    let parts = names.iter().map(|name| lock_request(request, locks, name, owner));
    let all = parts.collect::<Result<Vec<_>>>()?.into_iter().fold(MultiLock::new(), MultiLock::and);
    let taken = match request.patience {
        WaitLimit::None => all.try_lock().await?,
        WaitLimit::Limit(limit) => all.try_lock_for(limit).await?,
        WaitLimit::Forever => Some(all.lock().await?),
    };
    Ok(taken.map(Held::Several))
}

/// Returns the request for one of several locks.
fn lock_request(
    request: &Request,
    locks: &Client,
    name: &Resource,
    owner: Option<&Owner>,
) -> Result<LockRequest> {
    Ok(match request.kind {
        Kind::Exclusive => with_terms(request, locks.mutex(name), owner)?.into(),
        Kind::Shared => with_terms(request, locks.rwlock(name), owner)?.read_request(),
        Kind::Permits(permits) => {
            with_terms(request, locks.semaphore(name, permits), owner)?.permits_request(1)
        }
    })
}

/// Acquires the only lock; `None` if it is busy.
async fn acquire_one(
    request: &Request,
    locks: &Client,
    name: &Resource,
    owner: Option<&Owner>,
) -> Result<Option<Guard>> {
    match request.kind {
        Kind::Exclusive => {
            let lock = with_terms(request, locks.mutex(name), owner)?;
            match request.patience {
                WaitLimit::None => lock.try_lock().await,
                WaitLimit::Limit(limit) => lock.try_lock_for(limit).await,
                WaitLimit::Forever => lock.lock().await.map(Some),
            }
        }
        Kind::Shared => {
            let lock = with_terms(request, locks.rwlock(name), owner)?;
            match request.patience {
                WaitLimit::None => lock.try_read().await,
                WaitLimit::Limit(limit) => lock.try_read_for(limit).await,
                WaitLimit::Forever => lock.read().await.map(Some),
            }
        }
        Kind::Permits(permits) => {
            let lock = with_terms(request, locks.semaphore(name, permits), owner)?;
            match request.patience {
                WaitLimit::None => lock.try_acquire().await,
                WaitLimit::Limit(limit) => lock.try_acquire_for(limit).await,
                WaitLimit::Forever => lock.acquire().await.map(Some),
            }
        }
    }
}

/// Returns the lock with the terms of the request.
fn with_terms<K: kind::Kind>(request: &Request, mut lock: Lock<K>, owner: Option<&Owner>) -> Result<Lock<K>> {
    if let Some(owner) = owner {
        lock = lock.owner(owner).announce_wait(ANNOUNCED_AFTER);
    }
    if let Some(ttl) = request.terms.ttl.filter(|_| !request.store.takes_ttl()) {
        lock = lock.ttl(ttl);
    }
    if let Some(limit) = request.terms.max_hold {
        lock = lock.max_hold(limit);
    }
    if let Some(delay) = request.terms.lock_delay {
        lock = lock.lock_delay(delay);
    }
    // Better refused now than unnoticed when a revocation comes.
    if request.on_revoke.is_some() { lock.revocable() } else { Ok(lock) }
}

/// Builds the refusal of a busy lock, with its holder where that is known.
async fn busy(request: &Request, locks: &Client, names: &[Resource]) -> Problem {
    let waited = match request.patience {
        WaitLimit::Limit(limit) => format!("was not free within {}", duration(limit)),
        _ => "is busy".to_owned(),
    };
    let blocker = match tokio::time::timeout(INSPECT_LIMIT, blocker(request, locks, names)).await {
        Ok(Some(snapshot)) => Some(snapshot),
        _ => None,
    };
    let text = match (&blocker, names) {
        // The waiters are not shown: the claim of this process may still be among them.
        (Some(snapshot), _) => {
            format!("{} {waited}: {}", visible_name(snapshot.resource.as_str()), held_by(snapshot))
        }
        (None, [name]) => format!("{} {waited}", visible_name(name.as_str())),
        (None, _) => format!("one of {} {waited}", request.shown()),
    };
    Problem::new(request.conflict, text)
}

/// Finds the first of the locks that another holds.
async fn blocker(request: &Request, locks: &Client, names: &[Resource]) -> Option<Snapshot> {
    for name in names {
        let snapshot = locks.inspect(name.as_str()).await.ok()?;
        // Of several locks, those that this process did get may not be released yet.
        let is_other = |note: &Note| names.len() == 1 || *note != request.note;
        if snapshot.holders.iter().any(|holder| is_other(&holder.note)) {
            return Some(snapshot);
        }
    }
    None
}

const INSPECT_LIMIT: Duration = Duration::from_secs(2);
/// The time after which a wait under other claims is announced.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);
