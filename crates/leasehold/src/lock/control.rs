//! The control register of a resource: pending transfers and revocation requests.
//!
//! Ground rules: one register for each resource, beside its lock, which exists only after its first use.
//! Each notice is about one claim, by its public tag, so that a later holder is not affected. Notices about
//! claims that have ended are removed with the next change. The holder that continues a transferred claim does not
//! see requests from before the offer: they are removed in the step that takes the offer, and not before, because the
//! transfer may fail.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimInfo, Resource, Snapshot};

use crate::engine::registers::record::{Parts, Record, foreign};
use crate::engine::{Change, Engine, Register, Seen, random};
use crate::error::{ErrorKind, Result, resource_for};

/// The notices of one resource.
#[derive(Clone, Debug)]
pub(super) struct ControlRegister {
    engine: Arc<Engine>,
    resource: Resource,
    register: Register,
}

/// The notice about one claim. An offered claim may have two: the request from before the offer, and then the offer with
/// a request from after it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Notice {
    tag: String,
    /// The offer to another process.
    offer: Option<Offer>,
    /// The request to its holder.
    revoked: Option<Request>,
}

/// A request to release a lock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    /// A mark that distinguishes it from other requests with the same reason.
    mark: Mark,
    pub(super) reason: String,
}

type Mark = [u8; 8];

/// A number drawn at random for each transfer.
pub(super) type Number = [u8; 16];

/// The secret and the state that the next holder of a claim has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) number: Number,
    /// The last part of the fence of its last holder: the fence of the next one is counted from there.
    pub(super) sub: u32,
}

/// The result of an attempt to continue a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redemption {
    /// The offer was granted to this caller, once and for all.
    Redeemed,
    /// No offer with this number exists, or it no longer exists.
    Unknown,
}

impl ControlRegister {
    /// Returns the register of this resource.
    ///
    /// # Errors
    /// `Unsupported` if the store keeps no values, `Invalid` if the name is too long to put
    /// another one beside it.
    pub(super) fn of(engine: &Arc<Engine>, resource: &Resource, op: &'static str) -> Result<ControlRegister> {
        let at = resource_for(op, &format!("{resource}!notices")).map_err(|error| error.on(resource))?;
        let register = Register::open(engine, at, op).map_err(|error| error.on(resource))?.about(resource);
        Ok(ControlRegister { engine: engine.clone(), resource: resource.clone(), register })
    }

    /// Offers the claim to the process that knows the offer.
    pub(super) async fn offer(&self, tag: &str, offer: Offer, ttl: Duration) -> Result<()> {
        let (dead, _) = self.dead().await?;
        self.change(ttl, |notices| {
            notices.retain(|notice| !dead.contains(&notice.tag));
            if notices.iter().any(|notice| is_offered(notice, tag, offer)) {
                return;
            }
            let earlier = notices.iter_mut().filter(|notice| notice.tag == tag);
            earlier.for_each(|notice| notice.offer = None);
            notices.push(Notice { tag: tag.to_owned(), offer: Some(offer), revoked: None });
        })
        .await
    }

    /// Takes the offer. One of all callers that try succeeds.
    pub(super) async fn redeem(&self, tag: &str, offer: Offer) -> Result<Redemption> {
        // The record says which caller was first, even if the answer is lost. Removing it would not: an
        // absent record is the same for all. So the removal is left to a second step.
        let redeemed = self.register.update_seen(CONFLICTS, |seen| {
            let mut notices = self.read(seen)?;
            let Some(offered) = notices.iter().position(|notice| is_offered(notice, tag, offer)) else {
                return Ok(Change::Leave(Redemption::Unknown));
            };
            notices[offered].offer = None;
            let earlier = notices[..offered].iter_mut().filter(|notice| notice.tag == tag);
            earlier.for_each(|notice| notice.revoked = None);
            retain_open(&mut notices);
            self.write(&notices, seen, Duration::ZERO, Redemption::Redeemed)
        });
        let redeemed = redeemed.await?.result;
        if redeemed == Redemption::Redeemed {
            let notices = self.clone();
            // If this fails, the record is removed with the next change.
            self.engine.spawn(async move { drop(notices.change(Duration::ZERO, |_| {}).await) });
        }
        Ok(redeemed)
    }

    /// Returns `true` if this claim holds the lock.
    pub(super) async fn is_held(&self, tag: &str) -> Result<bool> {
        let snapshot = self.snapshot().await?;
        Ok(snapshot.holders.iter().any(|holder| holder.id.tag() == tag))
    }

    /// Asks the holders that are meant to release the lock, and returns them.
    pub(super) async fn revoke(
        &self,
        is_meant: impl Fn(&ClaimInfo) -> bool,
        reason: &str,
    ) -> Result<Vec<ClaimInfo>> {
        let (dead, snapshot) = self.dead().await?;
        let holders: Vec<_> = snapshot.holders.into_iter().filter(is_meant).collect();
        if holders.is_empty() {
            return Ok(holders);
        }
        let request = Request {
            mark: random(self.register.op()).map_err(|error| error.on(&self.resource))?,
            reason: reason.to_owned(),
        };
        self.change(Duration::ZERO, |notices| {
            notices.retain(|notice| !dead.contains(&notice.tag));
            for tag in holders.iter().map(|holder| holder.id.tag()) {
                // The last one: after an offer, the request is for the holder that takes it.
                match notices.iter_mut().rfind(|notice| notice.tag == tag) {
                    Some(notice) => notice.revoked = Some(request.clone()),
                    None => notices.push(Notice { tag, offer: None, revoked: Some(request.clone()) }),
                }
            }
        })
        .await?;
        Ok(holders)
    }

    /// Returns the present notices.
    pub(super) async fn current(&self) -> Result<Seen> {
        self.register.read().await
    }

    /// Returns the notices as soon as they differ from `seen`, or after `limit`.
    pub(super) async fn changed(&self, seen: &Seen, limit: Duration) -> Result<Seen> {
        self.register.changed(&seen.stamp, limit).await
    }

    /// Returns the request to the holder of this claim.
    pub(super) fn request(&self, seen: &Seen, tag: &str) -> Result<Option<Request>> {
        let notices = self.read(seen)?;
        Ok(notices.into_iter().filter(|notice| notice.tag == tag).find_map(|notice| notice.revoked))
    }

    /// Records that the holder of this claim has seen this request.
    pub(super) async fn acknowledge(&self, tag: &str, request: &Request) -> Result<()> {
        self.change(Duration::ZERO, |notices| {
            let meant = |notice: &&mut Notice| notice.tag == tag && notice.revoked.as_ref() == Some(request);
            let about = notices.iter_mut().filter(meant);
            about.for_each(|notice| notice.revoked = None);
        })
        .await
    }

    /// Returns the claims that are noted and have ended, and the state of the resource.
    ///
    /// The claims are read after the notices: a noted claim was granted before, so one that does not
    /// hold has ended.
    async fn dead(&self) -> Result<(Vec<String>, Snapshot)> {
        let noted = self.read(&self.register.read().await?)?;
        let snapshot = self.snapshot().await?;
        let live: Vec<String> = snapshot.holders.iter().map(|holder| holder.id.tag()).collect();
        let dead = noted.into_iter().map(|notice| notice.tag).filter(|tag| !live.contains(tag)).collect();
        Ok((dead, snapshot))
    }

    /// Returns the state of the resource.
    async fn snapshot(&self) -> Result<Snapshot> {
        let outcome = self.engine.inspect(&self.resource, None, Duration::ZERO).await;
        outcome.map_err(|error| error.with_op(self.register.op()))
    }

    /// Makes an idempotent change.
    async fn change(&self, keep: Duration, edit: impl Fn(&mut Vec<Notice>)) -> Result<()> {
        let changing = self.register.ensure_seen(|seen| {
            let before = self.read(seen)?;
            let mut notices = before.clone();
            edit(&mut notices);
            retain_open(&mut notices);
            if notices.is_empty() && seen.value.is_some() {
                return Ok(Change::Remove(()));
            }
            match notices == before {
                true => Ok(Change::Leave(())),
                false => self.write(&notices, seen, keep, ()),
            }
        });
        changing.await
    }

    fn write<T>(&self, notices: &[Notice], seen: &Seen, keep: Duration, result: T) -> Result<Change<T>> {
        let value = written(notices);
        if value.len() > self.register.capacity() {
            let text = format!(
                "this store has no space to note {} offers and requests to release at once",
                notices.len()
            );
            return Err(self.register.error(ErrorKind::Invalid, text));
        }
        // If the store removes values by itself, notices about a name that is never used again do not stay.
        let keep = keep.saturating_mul(2).max(KEEP).max(seen.left.unwrap_or_default());
        let keep = keep.min(self.register.max_keep());
        Ok(Change::Write(value, self.register.forgets().then_some(keep), result))
    }

    fn read(&self, seen: &Seen) -> Result<Vec<Notice>> {
        match &seen.value {
            None => Ok(Vec::new()),
            Some(value) => read(value).ok_or_else(|| foreign(&self.register, "list of notices")),
        }
    }
}

/// Removes notices that have become empty.
fn retain_open(notices: &mut Vec<Notice>) {
    notices.retain(|notice| notice.offer.is_some() || notice.revoked.is_some());
}

fn is_offered(notice: &Notice, tag: &str, offer: Offer) -> bool {
    notice.tag == tag && notice.offer == Some(offer)
}

pub(super) fn written(notices: &[Notice]) -> Vec<u8> {
    let record = Record::of(KIND).number(notices.len() as u64);
    let record = notices.iter().fold(record, |record, notice| {
        let number = notice.offer.as_ref().map_or(&[][..], |offer| &offer.number);
        let sub = notice.offer.map_or(0, |offer| offer.sub);
        let record = record.text(notice.tag.as_bytes()).text(number).number(u64::from(sub));
        match &notice.revoked {
            Some(Request { mark, reason }) => record.byte(1).text(mark).text(reason.as_bytes()),
            None => record.byte(0),
        }
    });
    record.done()
}

pub(super) fn read(value: &[u8]) -> Option<Vec<Notice>> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let mut parts = Parts::of(KIND, value)?;
    let count = usize::try_from(parts.number()?).ok().filter(|count| *count <= value.len())?;
    let mut notices = Vec::with_capacity(count);
    for _ in 0..count {
        let tag = text(parts.text()?)?;
        let number = match parts.text()? {
            [] => None,
            bytes => Some(Number::try_from(bytes).ok()?),
        };
        let sub = u32::try_from(parts.number()?).ok()?;
        let offer = match number {
            Some(number) => Some(Offer { number, sub }),
            // Without an offer nothing is counted.
            None if sub == 0 => None,
            None => return None,
        };
        let revoked = match parts.byte()? {
            0 => None,
            1 => {
                let mark = Mark::try_from(parts.text()?).ok()?;
                Some(Request { mark, reason: text(parts.text()?)? })
            }
            _ => return None,
        };
        notices.push(Notice { tag, offer, revoked });
    }
    parts.is_read().then_some(notices)
}

/// The kind of the record, and its version.
const KIND: u8 = 0x6f;
/// The number of conflicting writers after which an attempt to continue a claim is given up.
const CONFLICTS: u32 = 1_000;
/// The minimum time for which notices are kept; stores that remove nothing by themselves keep them
/// until the next change.
const KEEP: Duration = Duration::from_secs(86_400);

/// Returns notices of all forms.
#[cfg(test)]
pub(super) fn samples() -> Vec<Notice> {
    let request = |reason: &str| Some(Request { mark: [9; 8], reason: reason.to_owned() });
    let (full, none) = (Offer { number: [7; 16], sub: u32::MAX }, Offer { number: [0; 16], sub: 0 });
    vec![
        Notice { tag: "a".repeat(32), offer: Some(full), revoked: None },
        Notice { tag: "b".repeat(32), offer: None, revoked: request("") },
        Notice { tag: "c".repeat(32), offer: Some(none), revoked: request("drain “a”\n") },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_as_they_were_written_and_nothing_else_is() {
        let notices = samples();
        let value = written(&notices);
        assert_eq!(read(&value), Some(notices));
        (0..value.len()).for_each(|length| assert_eq!(read(&value[..length]), None));
        assert_eq!(read(&[&value[..], b"!"].concat()), None);
        assert_eq!(read(&Record::of(KIND).number(u64::MAX).done()), None);
    }
}
