//! A lock as one string under the name itself: `SET NX PX`, and compare before anything else.
//!
//! redis-py's `Lock`, redsync, npm's redlock, the crate rslock, .NET's and Spring's locks write it so,
//! each with a value of its own; none of them can know whose value it is, and any value there excludes
//! them. python-redis-lock adds a list on which its waiters block.

use std::time::Duration;

use leasehold_core::{Claim, FenceGrade, LockSupport, Profile, QueueOrder, Resource, WaitMode};

use super::ScriptDialect;
use super::scripts::{TEXT_CONTEND, TEXT_INSPECT, TEXT_RELEASE, TEXT_RENEW};
use crate::net::request::Request;
use crate::protocol::reply;

/// The dialects of one string.
#[derive(Debug)]
pub(crate) struct Text {
    name: &'static str,
    /// The beginning of every lock's key.
    lock: String,
    /// The beginning of the key of the list on which waiters block.
    signal: Option<String>,
}

impl Text {
    /// Creates the dialect in which the name itself is the key.
    pub(crate) fn plain(key_prefix: String) -> Text {
        Text { name: "redis?dialect=plain", lock: key_prefix, signal: None }
    }

    /// As python-redis-lock has it.
    pub(crate) fn python_redis_lock(key_prefix: String) -> Text {
        Text {
            name: "redis?dialect=python-redis-lock",
            lock: format!("lock:{key_prefix}"),
            signal: Some(format!("lock-signal:{key_prefix}")),
        }
    }
}

impl ScriptDialect for Text {
    fn profile(&self, native: Profile) -> Profile {
        native
            .name(self.name)
            .admission(LockSupport::Exclusive)
            .order(QueueOrder::Unordered)
            .waiting(WaitMode::Polls)
            .fencing(FenceGrade::None)
            .place_ttl(Duration::ZERO)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.lock)
    }

    fn resource(&self, key: &str) -> Option<Resource> {
        Resource::new(key.strip_prefix(&self.lock)?).ok()
    }

    fn kind(&self) -> &'static str {
        "string"
    }

    fn channel(&self, _: &Claim) -> Option<String> {
        None
    }

    fn contend(&self, claim: &Claim) -> Request {
        let id = claim.id.to_hex();
        let value = format!("{id}:{}", claim.note.as_str());
        Request {
            script: &TEXT_CONTEND,
            keys: vec![self.key(claim.resource.as_str())],
            args: vec![id, reply::millis(claim.ttl), value],
            confirm: None,
        }
    }

    fn renew(&self, claim: &Claim) -> Request {
        Request {
            script: &TEXT_RENEW,
            keys: vec![self.key(claim.resource.as_str())],
            args: vec![claim.id.to_hex(), reply::millis(claim.ttl)],
            confirm: None,
        }
    }

    fn release(&self, claim: &Claim) -> Request {
        let signal = self.signal.iter().map(|signal| format!("{signal}{}", claim.resource));
        Request {
            script: &TEXT_RELEASE,
            keys: std::iter::once(self.key(claim.resource.as_str())).chain(signal).collect(),
            args: vec![claim.id.to_hex()],
            confirm: None,
        }
    }

    fn inspect(&self, resource: &Resource) -> Request {
        Request {
            script: &TEXT_INSPECT,
            keys: vec![self.key(resource.as_str())],
            args: Vec::new(),
            confirm: None,
        }
    }

    fn foreign(&self) -> &'static str {
        "the key is not a string, so it is not a lock of this dialect: a hash is one of Redisson's, see dialect=redisson; \
         anything else belongs to another program, and another key-prefix keeps out of its way"
    }
}
