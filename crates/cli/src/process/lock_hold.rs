//! The right to run the command: the locks of this process, and those of the outer runs around it.
//!
//! Ground rules: all locks are held, or none is. What an outer `run` holds is not requested again. Every
//! hold ends by [`LockHold::release_lock`], or with this process.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::time::Duration;

use leasehold::backend::{Clock, Moment};
use leasehold::local::LivenessHandle;
use leasehold::{Client, Fence, Guard, MultiGuard, Resource, SystemClock};
use rustix::process::Signal;

use crate::output::status::{Event, LockState, Status, grade};
use crate::output::stderr::Stderr;
use crate::output::text::visible_name;
use crate::process::environment::{Variables, variables};
use crate::process::section::Followed;
use crate::process::select::first_of;
use crate::request::Request;
use crate::request::reentry::{Outer, Tags};

mod acquire;

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
pub(crate) enum ReleaseOutcome {
    /// No lock was lost, as far as is known: the store may not have confirmed the release.
    Released,
    /// A lock was lost before its release.
    Lost,
}

impl LockHold {
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

    /// Returns the variables to set and to remove in the environment of the command.
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
        let of_sections =
            self.followed.iter().flat_map(|section| [section.liveness_fd(), section.connection()]);
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
        first_of(&mut losses).await;
    }

    /// Releases the locks and waits for the answer, up to a limit.
    pub(crate) async fn release_lock(
        mut self,
        request: &Request,
        was_lost: bool,
        stderr: &Stderr,
        status: &Status,
    ) -> ReleaseOutcome {
        let is_lost_around = self.report_loss_around(was_lost, stderr, status);
        let outcome = if is_lost_around { ReleaseOutcome::Lost } else { ReleaseOutcome::Released };
        self.followed.iter().for_each(Followed::leave);
        let released = match self.own.take() {
            Some(Held::One(guard)) => tokio::time::timeout(RELEASE_LIMIT, guard.release()).await,
            Some(Held::Several(all)) => tokio::time::timeout(RELEASE_LIMIT, all.release()).await,
            None => return outcome,
        };
        let name = request.shown();
        match released {
            Ok(Ok(())) => {
                tracing::info!(name, "released");
                status.report(&Event::Released);
                outcome
            }
            Ok(Err(error)) if error.is_lost() => {
                // A loss that was seen while the command ran was reported then.
                if !was_lost && !is_lost_around {
                    stderr.print_line(&format!("{error}: the command may not have been alone under {name}"));
                    status.report(&Event::Lost { cause: error.to_string() });
                }
                ReleaseOutcome::Lost
            }
            // The end of a release before the client is closed is not reported there.
            Ok(Err(error)) => {
                tracing::info!(name, %error, "not released");
                stderr.print_line(&format!(
                    "the store did not confirm the release of {name}: {error}; what is left in it ends with its ttl"
                ));
                outcome
            }
            // An answer that did not come yet is reported once, when the client is closed.
            Err(_) => outcome,
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

/// The time for which a release is waited for before the command's code is reported all the same.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

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
