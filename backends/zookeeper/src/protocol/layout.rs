//! The meaning of ZooKeeper's data and errors.
//!
//! A claim is an ephemeral child of its resource's container; the child's data is the claim's note.
//! Nothing is ever changed after its creation, so each node keeps version 0.

use leasehold_core::{Claim, Effect, Failure, FailureKind, Note, Resource, Share};
use zookeeper_client::Error;

use crate::protocol::dialect::Dialect;
use crate::protocol::names::NodeRole;
use crate::protocol::queue::Unreadable;

/// Reads the note of a claim, from its node's data.
pub(crate) fn read_note(data: &[u8]) -> Note {
    Note::clipped(&String::from_utf8_lossy(data))
}

/// Writes the data of a claim's node: its note. No node of Curator's semaphores says how many permits
/// there are, so where one of ours is first in the queue for a lease, or has one, a line before the note
/// says that.
pub(crate) fn data(dialect: Dialect, role: NodeRole, claim: &Claim) -> String {
    let note = claim.note.as_str();
    match (dialect, role) {
        (Dialect::Curator, NodeRole::Locks | NodeRole::Leases) => {
            format!("1/{}\n{note}", claim.share.capacity())
        }
        _ => note.to_owned(),
    }
}

/// Reads such data: the share if it is present, and the note.
pub(crate) fn read_permit(data: &[u8]) -> (Option<Share>, Note) {
    let read = || {
        let (share, note) = std::str::from_utf8(data).ok()?.split_once('\n')?;
        let capacity = share.strip_prefix("1/")?.parse().ok()?;
        Some((Share::permits(1, capacity).ok()?, Note::clipped(note)))
    };
    read().map_or_else(|| (None, read_note(data)), |(share, note)| (Some(share), note))
}

/// Reads how many leases kazoo's semaphore has, from the data of its node; `None` where it does not
/// say.
pub(crate) fn read_capacity(data: &[u8]) -> Option<u32> {
    std::str::from_utf8(data).ok()?.trim().parse().ok()
}

/// Marks a failure as unsettled: the claim has a place, or even a lease, although this went wrong.
pub(crate) fn unsettled(failure: Failure) -> Failure {
    failure.with_effect(Effect::Unknown)
}

/// Explains an error of the client for a caller that was `doing` this.
pub(crate) fn failure(error: Error, doing: &str) -> Failure {
    use Effect::{None, Unknown};
    use FailureKind::{Denied, Foreign, Invalid, Unavailable, Unsupported};
    let (kind, effect, advice) = match &error {
        Error::NoAuth => {
            (Denied, None, "a node belongs to another user: log in as that one, or take another prefix")
        }
        Error::AuthFailed | Error::InvalidAcl => {
            (Denied, None, "the servers refuse this user or its password")
        }
        Error::QuotaExceeded => (Denied, None, "raise the quota, or take another chroot"),
        Error::Unimplemented => (Unsupported, None, "ZooKeeper 3.6 or later is needed"),
        Error::BadArguments(_) => (Invalid, None, "the servers refuse a path"),
        Error::Throttled | Error::NotReadOnly | Error::NoHosts => (Unavailable, None, "it may pass"),
        Error::NoChildrenForEphemerals => (Foreign, None, "a node of this name belongs to something else"),
        // Everything else left this process, or may have.
        _ => (Unavailable, Unknown, "it may pass"),
    };
    Failure::new(kind, effect, format!("{doing}: {error}; {advice}")).because(error)
}

/// Explains that the children of a resource's container do not form a queue.
pub(crate) fn unreadable(resource: &Resource, why: &Unreadable) -> Failure {
    let text = format!("the line of {resource:?} {why}");
    Failure::new(FailureKind::Foreign, Effect::None, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_says_of_how_many_and_other_data_is_a_note() {
        let note = |text: &str| Note::new(text).unwrap();
        let permits = |capacity| Share::permits(1, capacity).ok();
        for (data, share, text) in [
            ("1/3\nhost a\nline 2", permits(3), "host a\nline 2"),
            ("1/3\n", permits(3), ""),
            ("1/3", None, "1/3"),
            ("2/3\nx", None, "2/3\nx"),
            ("1/1\nx", Some(Share::MUTEX), "x"),
            ("1/0\nx", None, "1/0\nx"),
            ("127.0.0.1", None, "127.0.0.1"),
            ("", None, ""),
        ] {
            assert_eq!(read_permit(data.as_bytes()), (share, note(text)), "{data:?}");
        }
        assert_eq!(read_capacity(b"3"), Some(3));
        assert_eq!([&b""[..], b"x", b"-1", b"\xff"].map(read_capacity), [None; 4]);
    }

    #[test]
    fn what_may_have_happened_is_said_to_be_unknown() {
        for error in [Error::ConnectionLoss, Error::SessionExpired, Error::Timeout] {
            assert_eq!(failure(error, "x").effect, Effect::Unknown);
        }
        let denied = failure(Error::NoAuth, "cannot join the queue");
        assert_eq!((denied.kind, denied.effect), (FailureKind::Denied, Effect::None));
        assert!(denied.detail().starts_with("cannot join the queue: "));
    }
}
