//! Continues a held lock in another process.
//!
//! Ground rules: the right to continue the claim is stored beside the lock, under a number that only the
//! token has; of all processes that present the token, one succeeds. The old holder ends after the claim
//! is offered and before the token is returned. So if the transfer stops after any step, at most one
//! process holds the claim; if none does, the claim ends with its lease.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use leasehold_core::{ClaimId, Fence, LossCause, Resource, Share};

use super::control::{ControlRegister, Number, Offer, Redemption};
use super::kind::Kind;
use super::{Guard, Lock};
use crate::engine::{TransferClaim, random};
use crate::error::{Error, ErrorKind, Result};

/// The right to continue a lock that another process has held, from [`Guard::transfer`].
///
/// Its text, from [`ToString`] and parsed by [`FromStr`], goes to another process by any private
/// channel: a pipe, a file, an inherited variable.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let old = leasehold::Client::open("mem:transfer").await?;
/// let guard = old.mutex("cameras/7").lock().await?;
/// let last = guard.fence();
/// let text = guard.transfer().await?.to_string(); // from here on the old process holds nothing
///
/// let new = leasehold::Client::open("mem:transfer").await?; // another process, as a rule
/// let token: leasehold::TransferToken = text.parse()?;
/// let guard = new.mutex("cameras/7").accept_transfer(&token).await?; // no other client held it in between
/// assert!(guard.fence() > last);
/// assert!(new.mutex("cameras/7").accept_transfer(&token).await.unwrap_err().is_lost()); // once only
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// The token can be used once, and for [`TransferToken::lasts`]: for that time no other client is granted
/// the lock. If several processes take it over, one succeeds.
///
/// # Does not promise
/// A token is not protected from other readers: any process that knows the text can take the lock over,
/// or end it. It contains no password and no address, and `{:?}` does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct TransferToken {
    pub(super) resource: Resource,
    pub(super) id: ClaimId,
    pub(super) number: Number,
    pub(super) share: Share,
    pub(super) fence: Fence,
    pub(super) lasts: Duration,
}

impl Guard {
    /// Stops holding the lock here, and returns a token with which another process continues it,
    /// without a holder in between.
    ///
    /// # Promises
    /// When the call returns, this process no longer holds the lock: its watchers have been notified with
    /// [`LossCause::Transferred`]. No other client is granted the lock before a process has accepted the
    /// token and released the lock. If no process accepts the token within [`TransferToken::lasts`], the
    /// lease ends like any other, and the next waiter in the queue is granted the lock. The fence of the
    /// next holder is greater than this one, so a resource that checks fences refuses what this process
    /// sends after that. If the call is interrupted at any point, at most one process holds the lock.
    ///
    /// # Does not promise
    /// Another process need not accept the token. An [upgrade](crate::Upgradable) cannot be transferred,
    /// nor can any lock that one owner holds twice.
    ///
    /// # Cancel safety
    /// The lock is released if the future is dropped.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot do it, before anything is sent; to see this earlier, require it by
    /// [`Lock::transferable`](crate::Lock::transferable). `Invalid` if the name is longer than 504 bytes, if the
    /// owner holds the lock more than once, or if the [proof](Guard::proof) of the lock was taken: a transaction on
    /// that condition does not distinguish the two holders. `Lost` if the lock had been lost before. Otherwise the
    /// failure of the store. After an error the lock is released, and no token exists.
    pub async fn transfer(self) -> Result<TransferToken> {
        let (resource, share) = (self.resource().clone(), self.share());
        let hold = self.hold();
        let (engine, claim) = (hold.engine().clone(), &hold.lease().claim);
        engine.check_transfer_support(OP_TRANSFER).map_err(|error| error.on(&resource))?;
        if !hold.is_only() {
            return Err(held_twice(&resource));
        }
        if hold.lease().is_pinned() {
            return Err(proof_taken(&resource));
        }
        self.check().map_err(|error| error.with_op(OP_TRANSFER))?;
        let notices = ControlRegister::of(&engine, &resource, OP_TRANSFER)?;
        let number = random(OP_TRANSFER).map_err(|error| error.on(&resource))?;
        let sub = hold.fence().map_or(0, |fence| fence.sub);
        notices.offer(&claim.id.tag(), Offer { number, sub }, claim.ttl).await?;
        // Nothing waits from here on, so the transfer is not left half done.
        let Some(hold) = self.into_hold() else { return Err(held_twice(&resource)) };
        // Another guard of the owner may have come and gone meanwhile.
        if hold.lease().is_pinned() {
            return Err(proof_taken(&resource));
        }
        let transferred = hold.transfer_out().map_err(|cause| Error::lost(OP_TRANSFER, cause, &resource))?;
        Ok(TransferToken {
            resource,
            id: transferred.id,
            number,
            share,
            fence: transferred.fence,
            lasts: transferred.left,
        })
    }
}

impl<K: Kind> Lock<K> {
    /// Requires that the lock can be [transferred](Guard::transfer) to another process.
    ///
    /// # Errors
    /// `Unsupported` if this connection cannot do it, `Invalid` if the name is too long for it: 504 bytes at most.
    /// Nothing is sent.
    pub fn transferable(self) -> Result<Self> {
        let resource = self.name.clone()?;
        self.engine.check_transfer_support(OP_TRANSFER)?;
        ControlRegister::of(&self.engine, &resource, OP_TRANSFER)?;
        Ok(self)
    }

    /// Accepts a transfer, if the share of the token `fits` this kind of lock.
    pub(super) async fn accept_transfer_if(
        &self,
        token: &TransferToken,
        fits: impl Fn(Share) -> bool,
    ) -> Result<Guard> {
        let resource = self.name.clone()?;
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, OP_ACCEPT, text).on(&resource));
        if resource != token.resource {
            return invalid(format!("the token is for {:?}", token.resource.as_str()));
        }
        if !fits(token.share) {
            return invalid(format!(
                "it was held as {}, and this is a lock of another kind or size",
                token.share
            ));
        }
        if self.settings.guard.owner.is_some() {
            return invalid(
                "a lock with an owner cannot take it over: accept the token without an owner".to_owned(),
            );
        }
        self.engine.check_transfer_support(OP_ACCEPT).map_err(|error| error.on(&resource))?;
        let want = self.want(token.share).map_err(|error| error.with_op(OP_ACCEPT))?;
        let notices = ControlRegister::of(&self.engine, &resource, OP_ACCEPT)?;
        let allowed = Box::pin(redeem(notices, token.clone()));
        let transfer = TransferClaim { want, id: token.id, after: token.fence };
        let hold = self.engine.accept_transfer(transfer, allowed).await?;
        Ok(Guard::new(hold, self.settings.guard.clone()))
    }
}

impl TransferToken {
    /// Returns the resource that is transferred.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Returns the share that is transferred.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns the fence of the last holder; that of the next one is greater.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Returns the time for which the token is valid, counted from when the lock was transferred.
    pub fn lasts(&self) -> Duration {
        self.lasts
    }
}

impl fmt::Display for TransferToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, name) = (self.id.to_hex(), self.resource.as_str());
        // The number is drawn as the id of a claim is, and is written as one.
        let number = ClaimId::from_bytes(self.number).to_hex();
        let (weight, capacity, ms) = (self.share.weight(), self.share.capacity(), self.lasts.as_millis());
        // The name comes last, since it may contain anything, and after its length, so that a text that
        // was cut is noticed.
        let length = name.len();
        write!(f, "{HEAD}:{id}:{number}:{weight}/{capacity}:{}:{ms}:{length}:{name}", self.fence)
    }
}

impl FromStr for TransferToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<TransferToken> {
        read(text).ok_or_else(|| {
            let text = "this is not the token of a transferred lock, or not all of it: it begins with \
                        `leasehold-transfer-1:` and ends with the name of the lock";
            Error::new(ErrorKind::Invalid, OP_ACCEPT, text)
        })
    }
}

impl fmt::Debug for TransferToken {
    /// Omits the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferToken")
            .field("resource", &self.resource)
            .field("share", &self.share)
            .field("fence", &self.fence)
            .field("lasts", &self.lasts)
            .finish_non_exhaustive()
    }
}

fn read(text: &str) -> Option<TransferToken> {
    let mut parts = text.splitn(8, ':');
    let mut part = || parts.next();
    (part()? == HEAD).then_some(())?;
    let id = ClaimId::from_hex(part()?)?;
    let number = *ClaimId::from_hex(part()?)?.as_bytes();
    let (weight, capacity) = part()?.split_once('/')?;
    let share = Share::permits(weight.parse().ok()?, capacity.parse().ok()?).ok()?;
    let fence = part()?.parse().ok()?;
    let lasts = Duration::from_millis(part()?.parse().ok()?);
    let length: usize = part()?.parse().ok()?;
    let name = part()?;
    let resource = Resource::new(name).ok().filter(|_| name.len() == length)?;
    let token = TransferToken { resource, id, number, share, fence, lasts };
    // A token has one text: without signs, and without zeros before its numbers.
    (token.to_string() == text).then_some(token)
}

/// Uses the token, so that no other process can continue the claim.
async fn redeem(notices: ControlRegister, token: TransferToken) -> Result<()> {
    let (tag, resource) = (token.id.tag(), &token.resource);
    let offer = Offer { number: token.number, sub: token.fence.sub };
    let redeemed = notices.redeem(&tag, offer).await?;
    if redeemed == Redemption::Redeemed {
        return Ok(());
    }
    let (cause, text) = match notices.is_held(&tag).await? {
        true => (
            LossCause::Transferred,
            "the lock was taken over with this token before; a token can be used once",
        ),
        false => (
            LossCause::Expired,
            "nothing is offered under this token: the lock was taken over and released since, or its time \
             ended; acquire the lock without the token",
        ),
    };
    Err(Error::new(ErrorKind::Lost(cause), OP_ACCEPT, text).on(resource))
}

fn held_twice(resource: &Resource) -> Error {
    let text = "its owner holds it more than once; release the others first";
    Error::new(ErrorKind::Invalid, OP_TRANSFER, text).on(resource)
}

fn proof_taken(resource: &Resource) -> Error {
    let text = "its proof was taken, and a condition on that proof would hold for the next holder as well: \
                release the lock, or transfer a lock whose proof was not taken";
    Error::new(ErrorKind::Invalid, OP_TRANSFER, text).on(resource)
}

/// The kind of the text, and its version.
const HEAD: &str = "leasehold-transfer-1";
const OP_TRANSFER: &str = "transfer";
const OP_ACCEPT: &str = "accept_transfer";

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str) -> TransferToken {
        TransferToken {
            resource: Resource::new(name).unwrap(),
            id: ClaimId::from_bytes([1; 16]),
            number: [255; 16],
            share: Share::permits(2, 5).unwrap(),
            fence: Fence::new(3, 42, 1),
            lasts: Duration::from_millis(19_998),
        }
    }

    #[test]
    fn transfer_token_text_reads_back_whole_or_is_refused() {
        for name in ["a", "orders/42", "a:b:c", ":", "ä ö:/ü"] {
            let (given, text) = (token(name), token(name).to_string());
            assert_eq!(text.parse::<TransferToken>().unwrap(), given, "{text}");
            for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
                assert_eq!(text[..end].parse::<TransferToken>().unwrap_err().kind(), ErrorKind::Invalid);
            }
            assert!(format!("{text}!").parse::<TransferToken>().is_err());
            assert!(text.replacen("-1:", "-2:", 1).parse::<TransferToken>().is_err());
            for other in ["6/5", "+2/5", "02/5", "2/+5"] {
                assert!(text.replacen("2/5", other, 1).parse::<TransferToken>().is_err(), "{other}");
            }
            assert!(text.replacen(":19998:", ":019998:", 1).parse::<TransferToken>().is_err());
        }
    }

    #[test]
    fn debug_output_does_not_give_the_secret_away() {
        let (shown, given) = (format!("{:?}", token("orders")), token("orders"));
        assert!(shown.contains("orders") && !shown.contains(&given.id.to_hex()), "{shown}");
        assert!(!shown.contains("255") && !shown.contains("ffff"), "{shown}");
    }
}
