//! The paths of nodes: from a resource to a path and back, and the options that make each kind of node.
//!
//! In leasehold's own dialect the root holds one container for each resource. In other libraries' a
//! name is a path, as their users write it: `jobs/nightly` is the node `nightly` below `jobs`, and both
//! may be locks.

use leasehold_core::{Failure, LockSupport, Resource, Share};
use percent_encoding::percent_decode_str;
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
            Dialect::Curator | Dialect::Kazoo => format!("{}/{}", self.base, self.path_of(resource)),
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
            Dialect::Curator | Dialect::Kazoo => {
                Resource::new(&percent_decode_str(below).decode_utf8().ok()?).ok()?
            }
        };
        // Reading back alone would take other spellings of the same name, too.
        (self.container(&resource) == path).then_some(resource)
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

    /// Writes the name as a path, unchanged wherever ZooKeeper allows that. A part that it does not
    /// allow, or that would mean something else, becomes `%XX`: reading that back gives the name, so no
    /// two names are one path.
    fn path_of(&self, resource: &Resource) -> String {
        let mut path = String::with_capacity(resource.as_str().len());
        for (at, part) in resource.as_str().split('/').enumerate() {
            // A slash that would begin, end or double a path is written out.
            if at > 0 {
                let whole = !(path.is_empty() || path.ends_with('/') || part.is_empty());
                path.push_str(if whole { "/" } else { "%2F" });
            }
            let first = path.is_empty();
            let reserved = part == "."
                || part == ".."
                || looks_like_a_claim(part)
                || (self.dialect == Dialect::Kazoo && part.ends_with(KAZOOS_LOCKS))
                || (first && self.base.is_empty() && part == "zookeeper");
            for (n, c) in part.chars().enumerate() {
                if c == '%' || !is_allowed(c) || (reserved && n == 0) {
                    let mut bytes = [0; 4];
                    for byte in c.encode_utf8(&mut bytes).bytes() {
                        path.push_str(&format!("%{byte:02X}"));
                    }
                } else {
                    path.push(c);
                }
            }
        }
        path
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
            ("a//b", "/a%2F/b"),
            ("/a/", "/%2Fa%2F"),
            ("/", "/%2F"),
            ("../.", "/%2E./%2E"),
            ("100%", "/100%25"),
            ("zookeeper/a", "/%7Aookeeper/a"),
            ("a/zookeeper", "/a/zookeeper"),
            ("a/lock-0000000001", "/a/%6Cock-0000000001"),
            ("🔒", "/%F0%9F%94%92"),
        ] {
            let resource = Resource::new(name).unwrap();
            assert_eq!(names.container(&resource), path);
            assert_eq!(names.resource(path), Some(resource), "{path}");
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
        assert_eq!(names.container(&lock), "/jobs/%61-__lock__");
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
                let path = names.container(&resource);
                prop_assert_eq!(names.resource(&path), Some(resource.clone()), "{}", path);
                let whole = path.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..");
                prop_assert!(whole && path.chars().all(is_allowed), "{}", path);
            }
        }
    }
}
