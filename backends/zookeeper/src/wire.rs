//! What ZooKeeper's data and errors mean.
//!
//! A claim is an ephemeral child of its resource's container; the child's data is the claim's note. Nothing is ever
//! changed after its creation, so each node keeps version 0.

use leasehold_core::{Effect, Failure, FailureKind, Note, Resource};
use zookeeper_client::Error;

use crate::line::Unreadable;

/// The note of a claim, from its node's data.
pub(crate) fn read_note(data: &[u8]) -> Note {
    Note::clipped(&String::from_utf8_lossy(data))
}

/// What an error of the client means, for someone who was `doing` this.
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

/// The children of a resource's container are no line.
pub(crate) fn unreadable(resource: &Resource, why: &Unreadable) -> Failure {
    let text = match why {
        Unreadable::Foreign(child) => format!(
            "the line of {resource:?} has a child «{child}» that is not written in this dialect: \
             remove it, or take another prefix or the dialect that it is of"
        ),
        Unreadable::Alike(one, other) => format!(
            "ZooKeeper's counter for {resource:?} has come to its end and numbers all new nodes alike, «{one}» and «{other}», \
             so nobody can tell who was first: remove the node above them once it is empty, and it begins anew"
        ),
    };
    Failure::new(FailureKind::Foreign, Effect::None, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_happened_is_said_to_be_unknown() {
        for error in [Error::ConnectionLoss, Error::SessionExpired, Error::Timeout] {
            assert_eq!(failure(error, "x").effect, Effect::Unknown);
        }
        let denied = failure(Error::NoAuth, "cannot stand in line");
        assert_eq!((denied.kind, denied.effect), (FailureKind::Denied, Effect::None));
        assert!(denied.detail().starts_with("cannot stand in line: "));
    }
}
