//! The two that clients talk to: the server that grants leases, and the resource that checks fences.

use super::Rules;

/// The state of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub(super) holder: Option<Claim>,
    pub(super) left: u8,
    pub(super) token: u8,
}

/// A claim: its client, and its number among that client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    pub(super) client: u8,
    pub(super) number: u8,
}

impl Server {
    /// Grants a free resource. Asked again by the holder, it gives the same answer and a full lease.
    pub fn grant(&mut self, claim: Claim, ttl: u8) -> Option<u8> {
        if self.holder.is_some_and(|holder| holder != claim) {
            return None;
        }
        if self.holder.is_none() {
            self.token += 1;
        }
        *self = Server { holder: Some(claim), left: ttl, token: self.token };
        Some(self.token)
    }

    /// Extends what is held, and says whether it is.
    pub fn renew(&mut self, claim: Claim, ttl: u8) -> bool {
        let held = self.holder == Some(claim);
        if held {
            self.left = ttl;
        }
        held
    }

    /// Ends a claim.
    pub fn release(&mut self, claim: Claim, rules: &Rules) {
        if self.holder == Some(claim) || !rules.releases_own_only {
            self.expire();
        }
    }

    pub(super) fn expire(&mut self) {
        self.holder = None;
        self.left = 0;
    }

    pub(super) fn tick(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.expire();
        }
    }
}

/// A counter that clients increase by reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register {
    pub(super) seen: u8,
    pub(super) value: u8,
    /// The number of writes that were accepted.
    pub(super) accepted: u8,
}

impl Register {
    /// Shows a token; `false` where a greater one was shown.
    pub fn open(&mut self, token: u8) -> bool {
        let current = token >= self.seen;
        self.seen = self.seen.max(token);
        current
    }
}
