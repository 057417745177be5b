//! Requests to release a lock, and how its holder sees them.
//!
//! Ground rules: a request takes nothing from a holder. It is about the claims that hold when it is
//! made, and stays until they have seen it or have ended, whether or not its author still runs. A
//! holder that does not listen sends nothing to the store.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::{ClaimInfo, Resource};

use super::control::ControlRegister;
use super::kind::Kind;
use super::{Guard, Lock};
use crate::engine::{Engine, Lease};
use crate::error::{Error, ErrorKind, Result};

/// A request to release a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revocation {
    /// The reason, in the words of the author of the request.
    pub reason: String,
}

impl Guard {
    /// Waits until another client [requests the release of the lock](crate::Client::revoke); for
    /// ever if none does.
    ///
    /// The lock stays held: the holder decides whether and when to release it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::Client::open("mem:").await?;
    /// let guard = locks.mutex("index").lock().await?;
    /// # let asking = locks.clone();
    /// # let asking = tokio::spawn(async move { asking.revoke("index", "the machine goes down").await });
    /// tokio::select! {
    ///     asked = guard.revoked() => println!("stopping: {}", asked?.reason),
    ///     cause = guard.lost() => println!("lost: {cause}"),
    /// }
    /// guard.release().await?;
    /// # asking.await.unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Promises
    /// The holder sees every request that was made while this process held the lock, even one that was made
    /// up to a day before it began to listen, and no request that was meant for an earlier holder. After the holder has
    /// seen a request, its release does not hand the lock to the next task of this process: other clients get
    /// their turn. Listening costs one read, and then what the store needs to report changes; not listening
    /// costs nothing.
    ///
    /// # Does not promise
    /// No time limit is promised: a request is seen as soon as the store reports a change of a value,
    /// or, if the store does not report changes, at the next read, up to half a second later. On a store
    /// that can lose values a request can be lost. On a store that removes values by itself a request is kept for
    /// a day: a holder that begins to listen later may not see it. If there are several requests, the reason
    /// of one of them is returned.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Lost` if the lock is lost meanwhile. `Unsupported` if the store keeps no values beside its
    /// locks, `Invalid` if the name is longer than 504 bytes, both before anything is sent. `Denied`,
    /// `Closed`. During an outage of the store it continues to wait.
    pub async fn revoked(&self) -> Result<Revocation> {
        match self.revoking().await? {
            Some(revocation) => Ok(revocation),
            // Only the owner of the guard can release it, and the guard is borrowed here.
            None => std::future::pending().await,
        }
    }

    /// Waits like [`Guard::revoked`], without keeping the lock held; `None` if the lock was released before.
    pub(crate) fn revoking(&self) -> impl Future<Output = Result<Option<Revocation>>> + Send + 'static {
        let (engine, lease) = (self.hold().engine().clone(), Arc::downgrade(self.hold().lease()));
        let (resource, tag, ending) = (self.resource().clone(), self.tag(), self.ending());
        let over = self.hold().over();
        async move {
            let notices = ControlRegister::of(&engine, &resource, OP_REVOKED)?;
            tokio::select! {
                biased;
                ended = ending => match ended {
                    Some(cause) => Err(Error::lost(OP_REVOKED, cause, &resource)),
                    None => Ok(None),
                },
                outcome = listen(&engine, &notices, &tag, &lease, over) => outcome,
            }
        }
    }
}

impl<K: Kind> Lock<K> {
    /// Requires that the holder of the lock can be [asked](crate::Client::revoke) to release it.
    ///
    /// # Errors
    /// `Unsupported` if this connection cannot do it, `Invalid` if the name is too long for it.
    /// Nothing is sent.
    pub fn revocable(self) -> Result<Self> {
        ControlRegister::of(&self.engine, &self.name.clone()?, OP_REVOKED)?;
        Ok(self)
    }
}

/// Asks the holders of `resource` that are meant to release it, and returns these holders.
pub(crate) async fn request_release(
    engine: &Arc<Engine>,
    resource: &Resource,
    is_meant: impl Fn(&ClaimInfo) -> bool,
    reason: &str,
) -> Result<Vec<ClaimInfo>> {
    if reason.len() > REASON_MAX {
        let text = format!("a reason of {} bytes is too long: {REASON_MAX} at most", reason.len());
        return Err(Error::new(ErrorKind::Invalid, OP_REVOKE, text).on(resource));
    }
    ControlRegister::of(engine, resource, OP_REVOKE)?.revoke(is_meant, reason).await
}

/// Waits for a request for this claim, and returns it.
async fn listen(
    engine: &Arc<Engine>,
    notices: &ControlRegister,
    tag: &str,
    lease: &Weak<Lease>,
    over: impl Fn() -> bool,
) -> Result<Option<Revocation>> {
    let mut last = None;
    loop {
        let outcome = match &last {
            None => notices.current().await,
            Some(seen) => notices.changed(seen, CHANGE_WAIT_MAX).await,
        };
        let Some(lease) = lease.upgrade() else { return Ok(None) };
        // Another listener of this process may have seen the request first, and has acknowledged it for all.
        if let Some(reason) = lease.revoked().filter(|_| !over()) {
            return Ok(Some(Revocation { reason: reason.to_string() }));
        }
        match outcome.and_then(|seen| Ok((notices.request(&seen, tag)?, seen))) {
            Ok((None, seen)) => last = Some(seen),
            Ok((Some(request), _)) => {
                if over() {
                    // Released meanwhile: the request may be meant for the next holder.
                    return Ok(None);
                }
                engine.revoke(&lease, &request.reason);
                let (notices, tag, reason) = (notices.clone(), tag.to_owned(), request.reason.clone());
                // If this fails, the record is removed with the next change: the claim is never used again.
                engine.spawn(async move { drop(notices.acknowledge(&tag, &request).await) });
                return Ok(Some(Revocation { reason }));
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown) => {
                drop(lease);
                if !engine.sleep(OUTAGE_PAUSE).await {
                    return Err(Error::closed(OP_REVOKED));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

const OP_REVOKE: &str = "revoke";
const OP_REVOKED: &str = "revoked";
/// The longest reason, in bytes.
const REASON_MAX: usize = 256;
/// The time for which one request to the store may wait for a change.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(60);
/// The pause while the store is down, in addition to the pauses of the requests themselves.
const OUTAGE_PAUSE: Duration = Duration::from_secs(1);
