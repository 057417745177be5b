//! How leasehold writes itself down in ZooKeeper, and what ZooKeeper's errors mean.
//!
//! The root holds one container for each resource, the container one ephemeral child for each claim; the child's
//! data is the claim's note. Nothing is ever changed after its creation, so each node keeps version 0.

use leasehold_core::{Effect, Failure, FailureKind, Note, Resource};
use zookeeper_client::{Acls, CreateMode, CreateOptions, Error};

/// Where things are.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    root: String,
    owned: bool,
}

impl Names {
    /// Everything under `root`; `owned` where its nodes belong to the user who logged in.
    pub(crate) fn new(root: String, owned: bool) -> Names {
        Names { root, owned }
    }

    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// The root and all nodes above it, from the top.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &str> {
        let ends = self.root.match_indices('/').skip(1).map(|(at, _)| at);
        ends.chain([self.root.len()]).map(|end| &self.root[..end])
    }

    /// The container of a resource.
    pub(crate) fn container(&self, resource: &Resource) -> String {
        format!("{}/{}", self.root, resource.escaped(plain, MAX_NAME))
    }

    /// The resource of a child of the root; `None` where it is none of ours.
    pub(crate) fn resource(&self, child: &str) -> Option<Resource> {
        // Reading back alone would take other spellings of the same name, too.
        Resource::from_escaped(child).filter(|resource| resource.escaped(plain, MAX_NAME) == child)
    }

    /// How a claim's node is made: it ends with the session, and ZooKeeper numbers it.
    pub(crate) fn place_options(&self) -> CreateOptions<'static> {
        CreateMode::EphemeralSequential.with_acls(self.acls())
    }

    /// How a container is made: ZooKeeper removes it some time after its last child.
    pub(crate) fn container_options(&self) -> CreateOptions<'static> {
        CreateMode::Container.with_acls(self.acls())
    }

    /// How the nodes above are made.
    pub(crate) fn ancestor_options(&self) -> CreateOptions<'static> {
        CreateMode::Persistent.with_acls(self.acls())
    }

    fn acls(&self) -> Acls<'static> {
        if self.owned { Acls::creator_all() } else { Acls::anyone_all() }
    }
}

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

/// A child that is no claim of leasehold's stands in the container of a resource.
pub(crate) fn foreign(resource: &Resource, child: &str) -> Failure {
    let text = format!(
        "the line of {resource:?} has a child «{child}» that leasehold did not write: \
         remove it, or take another prefix"
    );
    Failure::new(FailureKind::Foreign, Effect::None, text)
}

/// Bytes of a name that stand for themselves. Dots do not, because «.» and «..» are no names in ZooKeeper.
fn plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'/' | b'.')
}

/// Long enough for every name with each of its bytes escaped: none is ever hashed.
const MAX_NAME: usize = 3 * Resource::MAX_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new("/team/x/leasehold".to_owned(), false)
    }

    #[test]
    fn every_name_is_one_node_and_reads_back() {
        let long = "ü".repeat(256);
        for name in ["orders/42", ".", "..", "a b", "%2F", "~", "zookeeper", "é", long.as_str()] {
            let resource = Resource::new(name).unwrap();
            let path = names().container(&resource);
            let child = path.strip_prefix("/team/x/leasehold/").unwrap();
            assert!(!child.contains('/') && child.is_ascii() && child != "." && child != "..", "{child}");
            assert_eq!(names().resource(child), Some(resource));
        }
        assert_eq!(names().resource("a.b"), None, "another spelling of a%2Eb");
        assert_eq!(names().resource("a%2eb"), None);
    }

    #[test]
    fn ancestors_come_from_the_top() {
        let all: Vec<_> = names().ancestors().map(str::to_owned).collect();
        assert_eq!(all, ["/team", "/team/x", "/team/x/leasehold"]);
        let all: Vec<_> = Names::new("/a".to_owned(), false).ancestors().map(str::to_owned).collect();
        assert_eq!(all, ["/a"]);
    }

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
