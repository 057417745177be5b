//! The paths of nodes: from a resource to a path and back, and the options that make each kind of node.
//!
//! In the native dialect the root holds one container for each resource. In other libraries' dialects a
//! name is a path, as their users write it: `jobs/nightly` is the node `nightly` below `jobs`, and both
//! may be locks. A name that cannot be written so is refused: in another form it would be another lock than
//! that of the other library.

use leasehold_core::{Effect, Failure, FailureKind, LockSupport, Resource, Share};
use zookeeper_client::{Acls, CreateMode, CreateOptions};

use crate::protocol::dialect::{Dialect, Mutexes, looks_like_a_claim};
use crate::protocol::queue::{NodeQueue, Unreadable};

/// The node of a resource that a claim is a child of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRole {
    /// The queue of the resource.
    Queue,
    /// The queue of claims that want a lease of its semaphore, in other libraries' dialects.
    Locks,
    /// The leases of its semaphore.
    Leases,
}

/// The paths of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// Empty for ZooKeeper's own root; else a path without a slash at its end.
    base: String,
    dialect: Dialect,
    mutexes: Mutexes,
    owned: bool,
}

impl Names {
    /// Returns the names under `base`; `owned` where its nodes belong to the user that logged in.
    pub(crate) fn new(base: String, dialect: Dialect, owned: bool) -> Names {
        Names { base, dialect, mutexes: Mutexes::Locks, owned }
    }

    /// Returns the same names, with mutexes written in this way.
    pub(crate) fn with_mutexes(self, mutexes: Mutexes) -> Names {
        Names { mutexes, ..self }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns the node that all others are below.
    pub(crate) fn root(&self) -> &str {
        if self.base.is_empty() { "/" } else { &self.base }
    }

    /// Returns the nodes from below ZooKeeper's own root down to the one above `path`, from the top,
    /// with the options of each.
    pub(crate) fn ancestors<'a>(
        &self,
        path: &'a str,
    ) -> impl Iterator<Item = (&'a str, CreateOptions<'static>)> + use<'a> {
        let (base, below, above) = (self.base.len(), self.container_options(), self.ancestor_options());
        path.match_indices('/')
            .skip(1)
            .map(move |(at, _)| (&path[..at], if at > base { below.clone() } else { above.clone() }))
    }

    /// Returns the container of a resource.
    pub(crate) fn container(&self, resource: &Resource) -> String {
        match self.dialect {
            Dialect::Native => format!("{}/{}", self.base, resource.escaped(plain, MAX_NAME)),
            Dialect::Curator | Dialect::Kazoo => format!("{}/{resource}", self.base),
        }
    }

    /// Returns the node of a resource that such claims are the children of.
    pub(crate) fn node(&self, resource: &Resource, role: NodeRole) -> String {
        let container = self.container(resource);
        match (self.dialect, role) {
            (Dialect::Curator, NodeRole::Locks) => format!("{container}/{CURATORS_LOCKS}"),
            (Dialect::Curator, NodeRole::Leases) => format!("{container}/{CURATORS_LEASES}"),
            (Dialect::Kazoo, NodeRole::Locks) => format!("{container}{KAZOOS_LOCKS}"),
            // kazoo keeps leases where its locks have their queue.
            (Dialect::Native, _) | (_, NodeRole::Queue) | (Dialect::Kazoo, NodeRole::Leases) => container,
        }
    }

    /// Returns the nodes of a resource that have children. A claim that wants a lease moves from the
    /// first to the last, so a reader in this order sees every claim.
    pub(crate) fn roles(&self) -> &'static [NodeRole] {
        match self.dialect {
            Dialect::Native => &[NodeRole::Queue],
            Dialect::Curator => &[NodeRole::Queue, NodeRole::Locks, NodeRole::Leases],
            Dialect::Kazoo => &[NodeRole::Locks, NodeRole::Leases],
        }
    }

    /// Returns the node whose children are the claims of a share that wait.
    pub(crate) fn queue_role(&self, share: Share) -> NodeRole {
        if self.dialect.leases(self.mutexes, share) { NodeRole::Locks } else { NodeRole::Queue }
    }

    /// Returns what can be written down.
    pub(crate) fn admission(&self) -> LockSupport {
        self.dialect.admission(self.mutexes)
    }

    /// As [`Dialect::unsupported_reason`].
    pub(crate) fn unsupported_reason(&self, share: Share) -> Option<&'static str> {
        self.dialect.unsupported_reason(self.mutexes, share)
    }

    /// As [`Dialect::check`].
    pub(crate) fn check(&self, share: Share) -> Result<(), Failure> {
        self.dialect.check(self.mutexes, share)
    }

    /// Refuses a name that other libraries could not have, or not for a lock.
    ///
    /// # Errors
    /// `Invalid`; nothing was sent.
    pub(crate) fn check_name(&self, resource: &Resource) -> Result<(), Failure> {
        let Some(why) = self.unwritable_reason(resource) else { return Ok(()) };
        let text =
            format!("{resource:?} cannot be a path as other libraries write it: {why}; choose another name");
        Err(Failure::new(FailureKind::Invalid, Effect::None, text))
    }

    /// Returns `true` if a child of this name, among such others, is a part of the semaphore of the
    /// node above it.
    pub(crate) fn is_part(&self, child: &str, others: &[String]) -> bool {
        // A node called `locks` alone may have any owner.
        let leases = || others.iter().any(|other| other == CURATORS_LEASES);
        self.dialect == Dialect::Curator
            && (child == CURATORS_LEASES || (child == CURATORS_LOCKS && leases()))
    }

    /// Returns the node of a register. No resource has a container of that name: a name has its dots
    /// written out.
    pub(crate) fn register(&self, resource: &Resource) -> String {
        format!("{}/{REGISTERS}/{}", self.base, resource.escaped(plain, MAX_NAME))
    }

    /// Returns the options that make a register, and what is above it: it stays.
    pub(crate) fn register_options(&self) -> CreateOptions<'static> {
        self.ancestor_options()
    }

    /// Returns the resource of a path; `None` for the path of another node.
    pub(crate) fn resource(&self, path: &str) -> Option<Resource> {
        let below = path.strip_prefix(&self.base)?.strip_prefix('/')?;
        let resource = match self.dialect {
            Dialect::Native => Resource::from_escaped(below)?,
            Dialect::Curator | Dialect::Kazoo => Resource::new(below).ok()?,
        };
        // Reading back alone would take other spellings of the same name, too.
        let is_ours = self.container(&resource) == path && self.check_name(&resource).is_ok();
        is_ours.then_some(resource)
    }

    /// Reads the queue that these children of a container form.
    ///
    /// # Errors
    /// As [`NodeQueue::of`].
    pub(crate) fn queue(&self, children: Vec<String>) -> Result<NodeQueue, Unreadable> {
        NodeQueue::of(self.dialect, children)
    }

    /// Returns the number that ZooKeeper gave a claim's node.
    pub(crate) fn number(&self, child: &str) -> Option<i32> {
        self.dialect.read(child).map(|named| named.sequence)
    }

    /// Returns the options that make a claim's node: it ends with the session, and ZooKeeper numbers
    /// it.
    pub(crate) fn entry_options(&self) -> CreateOptions<'static> {
        CreateMode::EphemeralSequential.with_acls(self.acls())
    }

    /// Returns the options that make a lease: as any claim, except that kazoo's have the name that they
    /// are asked for.
    pub(crate) fn lease_options(&self) -> CreateOptions<'static> {
        match self.dialect {
            Dialect::Kazoo => CreateMode::Ephemeral.with_acls(self.acls()),
            _ => self.entry_options(),
        }
    }

    /// Returns the options that make a container: ZooKeeper removes it some time after its last child.
    /// Not so for kazoo, whose locks make it once, and fail when it is gone.
    pub(crate) fn container_options(&self) -> CreateOptions<'static> {
        match self.dialect {
            Dialect::Native | Dialect::Curator => CreateMode::Container.with_acls(self.acls()),
            Dialect::Kazoo => CreateMode::Persistent.with_acls(self.acls()),
        }
    }

    /// Returns the options that make the nodes above.
    fn ancestor_options(&self) -> CreateOptions<'static> {
        CreateMode::Persistent.with_acls(self.acls())
    }

    pub(crate) fn acls(&self) -> Acls<'static> {
        if self.owned { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// Returns why a name cannot be a path of the other libraries. In the native dialect every name is
    /// written down.
    fn unwritable_reason(&self, resource: &Resource) -> Option<&'static str> {
        if self.dialect == Dialect::Native {
            return None;
        }
        let name = resource.as_str();
        if !name.chars().all(is_allowed) {
            return Some("ZooKeeper does not allow one of its characters in a path");
        }
        name.split('/').enumerate().find_map(|(at, part)| match part {
            "" => Some("it has a slash at an end or beside another: the path /jobs/a is the name jobs/a"),
            "." | ".." => Some("ZooKeeper does not allow . and .. in a path"),
            "zookeeper" if at == 0 && self.base.is_empty() => {
                Some("the node /zookeeper belongs to ZooKeeper itself")
            }
            _ if looks_like_a_claim(part) => Some("a part of it looks like the node of a claim"),
            _ if self.dialect == Dialect::Kazoo && part.ends_with(KAZOOS_LOCKS) => {
                Some("a part of it ends as the node for the queue of a semaphore of kazoo's")
            }
            _ => None,
        })
    }
}

/// Returns `true` if ZooKeeper takes this in a path: it counts in UTF-16, and refuses surrogates and
/// private characters.
fn is_allowed(c: char) -> bool {
    !c.is_control() && (c <= '\u{d7ff}' || ('\u{f900}'..'\u{fff0}').contains(&c))
}

/// Returns `true` for bytes of a name that are written unchanged. Dots are not, because "." and ".."
/// are not names in ZooKeeper.
fn plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'/' | b'.')
}

/// Curator's name for the nodes of a semaphore, below its own.
const CURATORS_LOCKS: &str = "locks";
const CURATORS_LEASES: &str = "leases";
/// The text that kazoo adds to the name of a semaphore for the node of its lock.
const KAZOOS_LOCKS: &str = "-__lock__";
/// The node that all registers are below.
const REGISTERS: &str = ".registers";
/// Long enough for every name with each of its bytes escaped: none is ever hashed.
const MAX_NAME: usize = 3 * Resource::MAX_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(dialect: Dialect) -> Names {
        Names::new("/team/x/leasehold".to_owned(), dialect, false)
    }

    #[test]
    fn every_name_is_one_node_and_reads_back() {
        let names = names(Dialect::Native);
        let long = "ü".repeat(256);
        for name in ["orders/42", ".", "..", "a b", "%2F", "~", "zookeeper", "é", long.as_str()] {
            let resource = Resource::new(name).unwrap();
            let path = names.container(&resource);
            let child = path.strip_prefix("/team/x/leasehold/").unwrap();
            assert!(!child.contains('/') && child.is_ascii() && child != "." && child != "..", "{child}");
            assert_eq!(names.resource(&path), Some(resource));
        }
        assert_eq!(names.resource("/team/x/leasehold/a.b"), None, "another spelling of a%2Eb");
        assert_eq!(names.resource("/team/x/leasehold/a%2eb"), None);
    }

    #[test]
    fn others_write_the_name_as_a_path() {
        let names = Names::new(String::new(), Dialect::Curator, false);
        for (name, path) in [
            ("jobs/nightly", "/jobs/nightly"),
            ("a b~ü", "/a b~ü"),
            ("100%", "/100%"),
            ("a%2Fb", "/a%2Fb"),
            ("%zz", "/%zz"),
            ("a/zookeeper", "/a/zookeeper"),
        ] {
            let resource = Resource::new(name).unwrap();
            names.check_name(&resource).unwrap();
            assert_eq!(names.container(&resource), path);
            assert_eq!(names.resource(path), Some(resource), "{path}");
        }
        for (name, why) in [
            ("/a", "the path /jobs/a is the name jobs/a"),
            ("a/", "slash"),
            ("a//b", "slash"),
            ("/", "slash"),
            ("a/.", ". and .."),
            ("../b", ". and .."),
            ("zookeeper/a", "belongs to ZooKeeper"),
            ("a/lock-0000000001", "looks like the node of a claim"),
            ("🔒", "one of its characters"),
        ] {
            let resource = Resource::new(name).unwrap();
            let failure = names.check_name(&resource).unwrap_err();
            assert_eq!((failure.kind, failure.effect), (FailureKind::Invalid, Effect::None), "{failure}");
            assert!(failure.detail().contains(why), "{failure}");
            assert_eq!(names.resource(&format!("/{name}")), None);
        }
        assert_eq!(names.root(), "/");
        assert_eq!(names.resource("/zookeeper"), None);
    }

    #[test]
    fn semaphores_are_where_the_other_libraries_have_them() {
        let (jobs, all) =
            (Resource::new("jobs/a").unwrap(), [NodeRole::Queue, NodeRole::Locks, NodeRole::Leases]);
        let nodes = |dialect| all.map(|role| Names::new(String::new(), dialect, false).node(&jobs, role));
        assert_eq!(nodes(Dialect::Curator), ["/jobs/a", "/jobs/a/locks", "/jobs/a/leases"]);
        assert_eq!(nodes(Dialect::Kazoo), ["/jobs/a", "/jobs/a-__lock__", "/jobs/a"]);
        // No name of ours is the lock of another's semaphore.
        let names = Names::new(String::new(), Dialect::Kazoo, false);
        let lock = Resource::new("jobs/a-__lock__").unwrap();
        assert!(names.check_name(&lock).is_err());
        assert_eq!(names.resource("/jobs/a-__lock__"), None);
        let names = Names::new(String::new(), Dialect::Curator, false);
        let children = ["locks", "leases", "x"].map(str::to_owned);
        let parts = children.each_ref().map(|child| names.is_part(child, &children));
        assert_eq!(parts, [true, true, false]);
        assert!(!names.is_part("locks", &children[..1]), "a node of this name may be anybody's");
    }

    #[test]
    fn parents_are_created_root_first_and_only_ours_are_containers() {
        let names = names(Dialect::Curator);
        let above = |path| -> Vec<(String, bool)> {
            let is_container = |options: &CreateOptions<'_>| format!("{options:?}").contains("Container");
            names.ancestors(path).map(|(path, options)| (path.to_owned(), is_container(&options))).collect()
        };
        let found = above("/team/x/leasehold/jobs/nightly");
        let right = ["/team", "/team/x", "/team/x/leasehold", "/team/x/leasehold/jobs"];
        assert_eq!(found.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), right);
        assert_eq!(
            found.iter().map(|(_, container)| *container).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        assert!(above("/team").is_empty());
    }

    proptest! {
        #[test]
        fn no_two_names_are_one_path(name in "[a./%_ü🔒-]{1,12}|.{1,20}", base in "(/b)?") {
            let Ok(resource) = Resource::new(&name) else { return Ok(()) };
            for dialect in [Dialect::Native, Dialect::Curator, Dialect::Kazoo] {
                let names = Names::new(base.clone(), dialect, false);
                if names.check_name(&resource).is_err() {
                    prop_assert!(dialect != Dialect::Native);
                    continue;
                }
                let path = names.container(&resource);
                prop_assert_eq!(names.resource(&path), Some(resource.clone()), "{}", path);
                let whole = path.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..");
                prop_assert!(whole && path.chars().all(is_allowed), "{}", path);
            }
        }
    }
}
