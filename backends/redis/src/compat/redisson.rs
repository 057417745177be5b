//! Redisson's `RLock`, `RFencedLock` and `RReadWriteLock`, as its own scripts write them.
//!
//! A claim is an owner of its own, `<claim id as a UUID>:1`, that holds once. Its fence is the counter
//! of `RFencedLock`, taken with every grant. Redisson has no field for the fence and the note of a
//! claim; they are kept in keys of their own.

use std::time::Duration;

use leasehold_core::{
    Claim, ClaimId, Effect, Failure, FailureKind, FenceGrade, LockSupport, Profile, QueueOrder, Resource,
    Share,
};

use super::ScriptDialect;
use super::scripts::{HASH_CONTEND, HASH_INSPECT, HASH_RELEASE, HASH_RENEW};
use crate::net::request::Request;
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::reply;

/// The dialect of Redisson.
#[derive(Debug)]
pub(crate) struct Redisson {
    key_prefix: String,
    watchdog: Duration,
    scope: ChannelScope,
}

impl Redisson {
    /// Locks whose names begin with `key_prefix` on the server.
    ///
    /// With the scope of a slot, releases are published there and to all servers: before 3.22, and by its setting
    /// `shardedSubscriptionMode=OFF`, Redisson listens to the second only, otherwise to the first.
    ///
    /// `watchdog` is the time to which the watchdog of a Java reader sets the lease of every reader of its lock.
    pub(crate) fn new(key_prefix: String, watchdog: Duration, scope: ChannelScope) -> Redisson {
        Redisson { key_prefix, watchdog, scope }
    }

    fn names(&self, resource: &Resource) -> Names {
        let lock = self.key(resource.as_str());
        let tag = if lock.contains('{') { lock.clone() } else { format!("{{{lock}}}") };
        Names { lock, tag }
    }
}

impl ScriptDialect for Redisson {
    fn profile(&self, native: Profile) -> Profile {
        let is_strict = native.fencing == FenceGrade::Strict;
        native
            .name("redis?dialect=redisson")
            .admission(LockSupport::SharedExclusive)
            .order(QueueOrder::Unordered)
            // A counter that starts anew after a loss of data. Only where nothing is lost does it rise
            // for certain.
            .fencing(if is_strict { FenceGrade::Strict } else { FenceGrade::BestEffort })
            .place_ttl(Duration::ZERO)
    }

    fn check(&self, claim: &Claim) -> Result<(), Failure> {
        let names = self.names(&claim.resource);
        if RESERVED.iter().any(|reserved| names.lock.starts_with(reserved)) {
            let text = format!(
                "the key {} is where something about another lock is kept: choose another name",
                names.lock
            );
            return Err(Failure::new(FailureKind::Invalid, Effect::None, text));
        }
        // A longer lease could end by the watchdog of another reader long before this claim is renewed.
        if !claim.share.is_exclusive() && claim.ttl > self.watchdog {
            let shown = humantime::format_duration;
            let text = format!(
                "a reader's ttl of {} cannot be kept: Redisson sets the leases of all readers to its \
                 lockWatchdogTimeout, {} here: choose a shorter ttl, or write the timeout of the Java processes as \
                 ?watchdog=",
                shown(claim.ttl),
                shown(self.watchdog)
            );
            return Err(Failure::new(FailureKind::Invalid, Effect::None, text));
        }
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.key_prefix)
    }

    fn resource(&self, key: &str) -> Option<Resource> {
        if RESERVED.iter().any(|reserved| key.starts_with(reserved)) {
            return None;
        }
        Resource::new(key.strip_prefix(&self.key_prefix)?).ok()
    }

    fn kind(&self) -> &'static str {
        "hash"
    }

    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(self.names(&claim.resource).channel(claim))
    }

    fn contend(&self, claim: &Claim) -> Request {
        let names = self.names(&claim.resource);
        let channel = names.channel(claim);
        let kind = match claim.share {
            Share::MUTEX => "m",
            share if share.is_exclusive() => "w",
            _ => "r",
        };
        Request {
            script: &HASH_CONTEND,
            keys: vec![names.lock.clone(), names.token(), names.claims()],
            args: vec![
                owner(claim.id),
                reply::millis(claim.ttl),
                kind.to_owned(),
                claim.note.as_str().to_owned(),
                names.tag,
                self.scope.publish().to_owned(),
                channel,
            ],
            confirm: None,
        }
    }

    fn renew(&self, claim: &Claim) -> Request {
        let names = self.names(&claim.resource);
        Request {
            script: &HASH_RENEW,
            keys: vec![names.lock.clone(), names.claims()],
            args: vec![owner(claim.id), reply::millis(claim.ttl), names.tag],
            confirm: None,
        }
    }

    fn release(&self, claim: &Claim) -> Request {
        let names = self.names(&claim.resource);
        // On its own channel as Redisson does it; on the other for users of both kinds of lock under
        // one name.
        let rwlock_message = if claim.share == Share::READER { UNLOCK } else { UNLOCK_READERS };
        Request {
            script: &HASH_RELEASE,
            keys: vec![names.lock.clone(), names.claims()],
            args: vec![
                owner(claim.id),
                claim.id.to_hex(),
                names.tag.clone(),
                self.scope.publish().to_owned(),
                names.lock_channel(),
                UNLOCK.to_owned(),
                names.rwlock_channel(),
                rwlock_message.to_owned(),
            ],
            confirm: None,
        }
    }

    fn inspect(&self, resource: &Resource) -> Request {
        let names = self.names(resource);
        Request {
            script: &HASH_INSPECT,
            keys: vec![names.lock.clone(), names.token(), names.claims()],
            args: vec![names.tag],
            confirm: None,
        }
    }

    fn foreign(&self) -> &'static str {
        "the key is not a hash, so it is not a lock of Redisson: a string is one of the simple libraries', see \
         dialect=plain, or a semaphore of Redisson's, which has no holders; another key-prefix keeps out of its way"
    }
}

/// The names that belong to one lock.
struct Names {
    lock: String,
    tag: String,
}

impl Names {
    fn lock_channel(&self) -> String {
        format!("redisson_lock__channel:{}", self.tag)
    }

    fn rwlock_channel(&self) -> String {
        format!("redisson_rwlock:{}", self.tag)
    }

    /// Returns the channel on which a release of what this claim asks for is published.
    fn channel(&self, claim: &Claim) -> String {
        if claim.share == Share::MUTEX { self.lock_channel() } else { self.rwlock_channel() }
    }

    fn token(&self) -> String {
        format!("redisson_lock_token:{}", self.tag)
    }

    /// Returns the key of the notes and fences of leasehold's claims. Redisson does not know it.
    fn claims(&self) -> String {
        format!("leasehold_claims:{}", self.tag)
    }
}

/// Beginnings of keys that store data about locks.
const RESERVED: &[&str] = &["leasehold_claims:", "redisson_lock_token:", "redisson_unlock_latch:"];

/// Wakes one waiter in a Java process.
const UNLOCK: &str = "0";

/// Wakes all of them.
const UNLOCK_READERS: &str = "1";

/// Returns the owner that represents a claim.
fn owner(id: ClaimId) -> String {
    let hex = id.to_hex();
    let part = |from, to| hex.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}:1", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Names {
        Redisson::new(String::new(), Duration::ZERO, ChannelScope::Everywhere)
            .names(&Resource::new(name).unwrap())
    }

    #[test]
    fn names_are_those_of_redisson() {
        let orders = names("orders");
        assert_eq!(orders.lock_channel(), "redisson_lock__channel:{orders}");
        assert_eq!(orders.token(), "redisson_lock_token:{orders}");
        assert_eq!(orders.rwlock_channel(), "redisson_rwlock:{orders}");
        assert_eq!(orders.tag, "{orders}");
        let braced = names("a{b}c");
        assert_eq!(braced.lock_channel(), "redisson_lock__channel:a{b}c");
        assert_eq!(braced.tag, "a{b}c");
    }

    #[test]
    fn an_owner_is_a_uuid_and_a_thread() {
        let id = ClaimId::from_hex("000102030405060708090a0b0c0d0eff").unwrap();
        assert_eq!(owner(id), "00010203-0405-0607-0809-0a0b0c0d0eff:1");
    }
}
