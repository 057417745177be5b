//! The right to run the command: the locks of this process, and those of the outer runs around it.
//!
//! Ground rules: all locks are held, or none is. What an outer `run` holds is not requested again. Every
//! hold ends by [`LockHold::release_lock`], or with this process.

use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use leasehold::backend::{Clock, Moment};
use leasehold::local::LivenessHandle;
use leasehold::{
    Client, Fence, Guard, Lock, LockRequest, MultiGuard, MultiLock, Note, Owner, Resource, Result, Snapshot,
    SystemClock, kind,
};
use rustix::process::Signal;

use crate::exit::Problem;
use crate::output::describe::held_by;
use crate::output::progress::Progress;
use crate::output::status::{Event, LockState, Status, grade};
use crate::output::stderr::Stderr;
use crate::output::text::{duration, visible_name};
use crate::process::environment::{Variables, variables};
use crate::process::outer_run;
use crate::process::variable_lengths;
use crate::process::section::{self, Followed, Kept};
use crate::request::keepers::Keepers;
use crate::request::reentry::{Outer, Tags};
use crate::request::{Kind, Request, WaitLimit};
use crate::system::signals::Signals;

/// The locks that are held.
#[derive(Debug)]
pub(crate) struct LockHold {
    /// `None` if outer runs and sections hold all of them.
    own: Option<Held>,
    /// The locks that outer runs and sections hold.
    outer: Vec<(Resource, Outer)>,
    /// The same, as they are followed.
    followed: Vec<Followed>,
    tags: Tags,
}

/// The locks of a request, by those who hold them.
#[derive(Debug, Default)]
struct Division {
    outer: Vec<(Resource, Outer)>,
    followed: Vec<Followed>,
    /// Those that nobody around this process holds.
    free: Vec<Resource>,
}

/// The locks of this process.
#[derive(Debug)]
enum Held {
    One(Box<Guard>),
    Several(MultiGuard),
}

/// The end of a wait for the locks.
pub(crate) enum Taken {
    Held(LockHold),
    Interrupted(Signal),
}

/// The outcome of the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    Freed,
    Lost,
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
            found = divided(request, locks, &tags) => found?,
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

    fn report(&self, request: &Request, locks: &Client, status: &Status) {
        for guard in self.guards() {
            let fence = guard.fence().map(|fence| fence.to_string()).unwrap_or_default();
            tracing::info!(name = visible_name(guard.resource().as_str()), fence, "granted");
        }
        status.report(&Event::Granted {
            locks: self.states(request),
            grade: grade(locks.profile().fencing),
            nested: self.own.is_none(),
        });
    }

    /// Returns all its locks, the first one first, with their fences.
    pub(crate) fn states(&self, request: &Request) -> Vec<LockState> {
        let state = |name: &Resource| LockState { name: name.clone(), fence: self.fence(name) };
        request.names().map(state).collect()
    }

    /// Returns the locks of this process; none if outer runs and sections hold all.
    pub(crate) fn guards(&self) -> &[Guard] {
        match &self.own {
            Some(Held::One(guard)) => std::slice::from_ref(guard),
            Some(Held::Several(all)) => all.guards(),
            None => &[],
        }
    }

    fn fence(&self, name: &Resource) -> Option<Fence> {
        let own = self.guards().iter().find(|guard| guard.resource() == name);
        let outer = || self.outer.iter().find(|(held, _)| held == name).and_then(|(_, outer)| outer.fence);
        own.map_or_else(outer, Guard::fence)
    }

    /// Returns what the command's environment is to hold, or not to hold.
    pub(crate) fn variables(&self, request: &Request) -> Variables {
        let fences: Vec<_> = request.names().map(|name| (name, self.fence(name))).collect();
        variables(request, &fences, self.tags.with(self.guards().iter().map(Guard::tag)))
    }

    /// Returns the locks that sections and outer runs around this process hold.
    pub(crate) fn followed(&self) -> &[Followed] {
        &self.followed
    }

    /// Returns the tags of the claims of this process.
    pub(crate) fn own_tags(&self) -> Vec<String> {
        self.guards().iter().map(Guard::tag).collect()
    }

    /// Returns copies of the descriptors that keep locks alive, of this process and of sections: locks in files have
    /// some. The keeper of a section waits until the last process has closed those of its lock.
    pub(crate) fn liveness_fds(&self) -> Vec<OwnedFd> {
        let of_sections = self.followed.iter().flat_map(|section| [section.liveness_fd(), section.connection()]);
        self.guards().iter().filter_map(liveness_fd).chain(of_sections.flatten()).collect()
    }

    /// Returns `true` if each lock of this process has a descriptor that keeps it alive.
    pub(crate) fn is_kept_alive_by_fds(&self) -> bool {
        self.guards().iter().all(|guard| liveness_fd(guard).is_some())
    }

    /// Returns the descriptor that keeps the claim with this tag alive.
    pub(crate) fn liveness_fd_of(&self, tag: &str) -> Option<OwnedFd> {
        self.guards().iter().find(|guard| guard.tag() == tag).and_then(liveness_fd)
    }

    /// Returns the time for which all are held without another renewal.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let own = self.guards().iter().map(Guard::remaining);
        own.chain(self.followed.iter().map(Followed::remaining)).min()
    }

    /// Returns the moment until which all are held without another renewal, for processes that act on it later.
    pub(crate) fn end(&self) -> Option<Moment> {
        // Read first: a pause between the two reads makes the end too early, and never too late.
        let now = SystemClock.now();
        self.remaining().map(|remaining| now.after(remaining))
    }

    /// Waits until one of the locks is lost.
    pub(crate) async fn lost(&self) {
        let mut losses: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for guard in self.guards() {
            losses.push(Box::pin(async move {
                let _cause = guard.lost().await;
            }));
        }
        for followed in &self.followed {
            losses.push(Box::pin(followed.lost()));
        }
        first(&mut losses).await;
    }

    /// Releases the locks and waits for the answer, up to a limit.
    pub(crate) async fn release_lock(
        mut self,
        request: &Request,
        was_lost: bool,
        stderr: &Stderr,
        status: &Status,
    ) -> Returned {
        let is_lost_around = self.report_loss_around(was_lost, stderr, status);
        let returned = if is_lost_around { Returned::Lost } else { Returned::Freed };
        self.followed.iter().for_each(Followed::leave);
        let released = match self.own.take() {
            Some(Held::One(guard)) => tokio::time::timeout(RELEASE_LIMIT, guard.release()).await,
            Some(Held::Several(all)) => tokio::time::timeout(RELEASE_LIMIT, all.release()).await,
            None => return returned,
        };
        let name = request.shown();
        match released {
            Ok(Ok(())) => {
                tracing::info!(name, "released");
                status.report(&Event::Released);
                returned
            }
            Ok(Err(error)) if error.is_lost() => {
                // A loss that was seen while the command ran was reported then.
                if !was_lost && !is_lost_around {
                    stderr.print_line(&format!("{error}: the command may not have been alone under {name}"));
                    status.report(&Event::Lost { cause: error.to_string() });
                }
                Returned::Lost
            }
            // An answer that did not come is reported once, when the client is closed.
            Ok(Err(_)) | Err(_) => returned,
        }
    }

    /// Returns `true` if a lock of an outer run or section is lost, which is reported unless a loss was before.
    fn report_loss_around(&self, was_lost: bool, stderr: &Stderr, status: &Status) -> bool {
        let lost = self.followed.iter().find_map(|followed| Some((followed.lock(), followed.loss()?)));
        let Some((lock, cause)) = lost else { return false };
        if !was_lost {
            stderr.print_line(&format!("{} was lost: {cause}", visible_name(lock.as_str())));
            status.report(&Event::Lost { cause });
        }
        true
    }
}

impl Drop for LockHold {
    /// Releases nothing: after a panic the command may still run. The locks end with their leases, or with this
    /// process.
    fn drop(&mut self) {
        std::mem::forget(self.own.take());
    }
}

/// Returns a copy of the descriptor that keeps a lock alive. Only locks in files have one.
fn liveness_fd(guard: &Guard) -> Option<OwnedFd> {
    guard.proof().get::<LivenessHandle>().and_then(LivenessHandle::copy)
}

/// Waits for the first of several futures, which is removed; for ever without one.
pub(crate) async fn first<F: Future + ?Sized>(futures: &mut Vec<Pin<Box<F>>>) -> F::Output {
    poll_fn(|cx| {
        for at in 0..futures.len() {
            if let Poll::Ready(value) = futures[at].as_mut().poll(cx) {
                drop(futures.swap_remove(at));
                return Poll::Ready(value);
            }
        }
        Poll::Pending
    })
    .await
}

/// Divides the names into those that are held around this process, and those that have to be acquired.
async fn divided(request: &Request, locks: &Client, tags: &Tags) -> Result<Division, Problem> {
    let (mut division, keepers) = (Division::default(), Keepers::inherited());
    for name in request.names() {
        let asked = SystemClock.now();
        let Some(outer) = tags.find(locks, name, request.share()?).await? else {
            division.free.push(name.clone());
            continue;
        };
        match section::follow(&keepers, name, &outer.tag, &request.callers).await? {
            Kept::Run => division.followed.push(outer_run::follow(locks, name, &outer, asked)),
            Kept::Section(section) => division.followed.push(section),
            // It is acquired like any other, and is free when the claim that nobody keeps has ended.
            Kept::Nobody => {
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
        return Ok(one(request, locks, name, owner).await?.map(|guard| Held::One(Box::new(guard))));
    }
    let parts = names.iter().map(|name| part(request, locks, name, owner));
    let all = parts.collect::<Result<Vec<_>>>()?.into_iter().fold(MultiLock::new(), MultiLock::and);
    let taken = match request.patience {
        WaitLimit::None => all.try_lock().await?,
        WaitLimit::Limit(limit) => all.try_lock_for(limit).await?,
        WaitLimit::Forever => Some(all.lock().await?),
    };
    Ok(taken.map(Held::Several))
}

fn part(request: &Request, locks: &Client, name: &Resource, owner: Option<&Owner>) -> Result<LockRequest> {
    Ok(match request.kind {
        Kind::Exclusive => with_terms(request, locks.mutex(name), owner)?.into(),
        Kind::Shared => with_terms(request, locks.rwlock(name), owner)?.read_request(),
        Kind::Permits(permits) => {
            with_terms(request, locks.semaphore(name, permits), owner)?.permits_request(1)
        }
    })
}

async fn one(
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
        // The waiters are not shown: our own place may still be among them.
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
        // Of several locks, those that this process did get may still be on their way back.
        let is_other = |note: &Note| names.len() == 1 || *note != request.note;
        if snapshot.holders.iter().any(|holder| is_other(&holder.note)) {
            return Some(snapshot);
        }
    }
    None
}

/// The time for which a release is waited for before the command's code is reported all the same.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
const INSPECT_LIMIT: Duration = Duration::from_secs(2);
/// The time after which a wait under other claims is announced.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hold_that_is_dropped_releases_nothing() {
        let locks = Client::open("mem:").await.unwrap();
        let guard = Box::new(locks.mutex("job").lock().await.unwrap());
        let tags = Tags::inherited();
        drop(LockHold { own: Some(Held::One(guard)), outer: Vec::new(), followed: Vec::new(), tags });
        assert_eq!(locks.inspect("job").await.unwrap().holders.len(), 1);
    }
}
