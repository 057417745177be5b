//! Asking whoever holds a lock to let go, and hearing of it.
//!
//! Ground rules: nothing is taken from anybody. A request is about the claims that hold when it is made, and stays until they
//! have heard of it or have ended, whatever becomes of whoever made it. Who does not listen asks the store for nothing.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::{Resource, Standing};

use super::notices::Notices;
use super::{Guard, Lock};
use crate::engine::{Engine, Held};
use crate::error::{Error, ErrorKind, Result};

/// That somebody asks for a lock back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revocation {
    /// Why, in the words of whoever asks.
    pub reason: String,
}

impl Guard {
    /// Waits until somebody [asks for the lock back](crate::Leasehold::revoke); for ever where nobody does.
    ///
    /// It stays held: whether and when to let go is for the holder to decide.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::Leasehold::open("mem:").await?;
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
    /// It hears of every request that was made while the lock was held by this process, also of one from before it
    /// began to listen, and of none that was meant for an earlier holder. Once it was heard, the lock is not handed to the next
    /// task of this process when it is given back: others get their turn. Listening costs one read, and then what the store
    /// needs to tell of changes; not listening costs nothing.
    ///
    /// # Does not promise
    /// How soon: as soon as the store tells of a change of a value, or, where it does not, at the next look, up to half a second
    /// later. On a store that can lose values a request can be lost. Of several requests one reason is told.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Lost` where the lock is lost meanwhile. `Unsupported` where the store keeps no values beside its locks, `Invalid` where
    /// the name is longer than 504 bytes, both before anything is sent. `Denied`, `Closed`. It goes on through an outage.
    pub async fn revoked(&self) -> Result<Revocation> {
        match self.revoking().await? {
            Some(revocation) => Ok(revocation),
            // It is given back only by whoever has the guard, which is borrowed here.
            None => std::future::pending().await,
        }
    }

    /// The same, without keeping the lock held: `None` where it was given back before.
    pub(crate) fn revoking(&self) -> impl Future<Output = Result<Option<Revocation>>> + Send + 'static {
        let (engine, held) = (self.hold().engine().clone(), Arc::downgrade(self.hold().held()));
        let (resource, tag, ending) = (self.resource().clone(), self.tag(), self.ending());
        let over = self.hold().over();
        async move {
            let notices = Notices::of(&engine, &resource, HEAR)?;
            tokio::select! {
                biased;
                ended = ending => match ended {
                    Some(cause) => Err(Error::lost(HEAR, cause, &resource)),
                    None => Ok(None),
                },
                heard = listen(&engine, &notices, &tag, &held, over) => heard,
            }
        }
    }
}

impl<K> Lock<K> {
    /// Demands that whoever holds it can be [asked](crate::Leasehold::revoke) to let go.
    ///
    /// # Errors
    /// `Unsupported` where this connection cannot do it, `Invalid` where the name is too long for it. Nothing is sent.
    pub fn revocable(self) -> Result<Self> {
        Notices::of(&self.engine, &self.name.clone()?, HEAR)?;
        Ok(self)
    }
}

/// Asks all who hold `resource` to let go, and tells who that is.
pub(crate) async fn ask_back(
    engine: &Arc<Engine>,
    resource: &Resource,
    reason: &str,
) -> Result<Vec<Standing>> {
    if reason.len() > REASON_MAX {
        let text = format!("a reason of {} bytes is too long: {REASON_MAX} at most", reason.len());
        return Err(Error::new(ErrorKind::Invalid, ASK, text).on(resource));
    }
    Ok(Notices::of(engine, resource, ASK)?.revoke(reason).await?.holders)
}

/// Comes back with the request for this claim.
async fn listen(
    engine: &Arc<Engine>,
    notices: &Notices,
    tag: &str,
    held: &Weak<Held>,
    over: impl Fn() -> bool,
) -> Result<Option<Revocation>> {
    let mut last = None;
    loop {
        let looked = match &last {
            None => notices.look().await,
            Some(seen) => notices.changed(seen, LOOK).await,
        };
        let Some(held) = held.upgrade() else { return Ok(None) };
        // Another listener of this process may have been first, and has answered for all.
        if let Some(reason) = held.revoked().filter(|_| !over()) {
            return Ok(Some(Revocation { reason: reason.to_string() }));
        }
        match looked.and_then(|seen| Ok((notices.request(&seen, tag)?, seen))) {
            Ok((None, seen)) => last = Some(seen),
            Ok((Some(request), _)) => {
                if over() {
                    // Released meanwhile: the request may be meant for the next holder.
                    return Ok(None);
                }
                engine.revoke(&held, &request.reason);
                let (notices, tag, reason) = (notices.clone(), tag.to_owned(), request.reason.clone());
                // What stays where this fails goes with the next change: the claim is never used again.
                engine.spawn(async move { drop(notices.heard(&tag, &request).await) });
                return Ok(Some(Revocation { reason }));
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown) => {
                drop(held);
                if !engine.sleep(AGAIN).await {
                    return Err(Error::closed(HEAR));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

const ASK: &str = "revoke";
const HEAR: &str = "revoked";
/// The longest reason, in bytes.
const REASON_MAX: usize = 256;
/// For how long one question to the store may wait for a change.
const LOOK: Duration = Duration::from_secs(60);
/// The pause while the store is away, beside those of the questions themselves.
const AGAIN: Duration = Duration::from_secs(1);
