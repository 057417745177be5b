//! The choice of the server of a resource: the one whose name, hashed with the resource's, ranks first.
//!
//! Rendezvous hashing: every client that names the same servers chooses alike, in any order of them, and
//! another server takes only its own part of the resources away from the rest. A server that is away keeps
//! its resources: to give them to another would let two clients that disagree about it hold the same lock.

use leasehold_core::Resource;

/// The choice among servers, by their names as the URL has them.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    names: Vec<String>,
}

impl Ring {
    pub(crate) fn new(names: Vec<String>) -> Ring {
        debug_assert!(!names.is_empty(), "a ring of no servers");
        Ring { names }
    }

    /// Returns the index of the server that has this resource.
    pub(crate) fn place(&self, resource: &Resource) -> usize {
        // One server has everything, and nothing needs to be hashed.
        if self.names.len() == 1 {
            return 0;
        }
        let weight = |name: &str| {
            let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
            // A length before each part, so that no two pairs of parts are one text.
            for part in [name, resource.as_str()] {
                hasher.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
            }
            *hasher.finalize().as_bytes()
        };
        (0..self.names.len()).max_by_key(|index| weight(&self.names[*index])).unwrap_or_default()
    }

    /// Returns a short name of the set of servers, which all clients of the same locks must see alike.
    pub(crate) fn fingerprint(&self) -> String {
        let mut names = self.names.clone();
        names.sort();
        blake3::hash(names.join("\n").as_bytes()).to_hex()[..8].to_owned()
    }
}

/// Changing it would move every resource to another server.
const CONTEXT: &str = "leasehold memcached server of a resource v1";

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(names: &[&str]) -> Ring {
        Ring::new(names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn resources() -> impl Iterator<Item = Resource> {
        (0..3_000).map(|n| Resource::new(&format!("job/{n}")).unwrap())
    }

    #[test]
    fn the_order_of_the_names_does_not_matter() {
        let (names, turned) = (["a:1", "b:1", "c:1"], ["c:1", "a:1", "b:1"]);
        for resource in resources() {
            let place = ring(&names).place(&resource);
            assert_eq!(names[place], turned[ring(&turned).place(&resource)]);
        }
        assert_eq!(ring(&names).fingerprint(), ring(&turned).fingerprint());
        assert_ne!(ring(&names).fingerprint(), ring(&["a:1", "b:1"]).fingerprint());
    }

    #[test]
    fn each_server_has_its_part_and_another_takes_only_its_own() {
        let (small, large) = (ring(&["a", "b", "c"]), ring(&["a", "b", "c", "d"]));
        let mut parts = [0; 4];
        for resource in resources() {
            let (before, after) = (small.place(&resource), large.place(&resource));
            assert!(after == before || after == 3, "{resource:?} went from {before} to {after}");
            parts[after] += 1;
        }
        assert!(parts.iter().all(|part| (600..900).contains(part)), "{parts:?}");
    }

    /// Clients of different versions must agree.
    #[test]
    fn the_choice_never_changes() {
        let ring = ring(&["c1:11211", "c2:11211", "c3:11211"]);
        let places = ["a", "b", "c", "orders/42", "é"].map(|name| ring.place(&Resource::new(name).unwrap()));
        assert_eq!(places, [0, 0, 1, 2, 0]);
    }
}
