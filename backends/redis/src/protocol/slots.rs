//! The assignment of a cluster's slots to servers, as one of its servers sees it.
//!
//! Read from `CLUSTER NODES`, the one answer that has addresses, slots and epochs together. Answers of
//! different servers differ until they have exchanged their views, and nothing here depends on which
//! of them is right: a server that does not serve a slot says so.

use std::collections::{HashMap, HashSet};

use leasehold_core::{Effect, Failure, FailureKind};

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the slot of a key: of the part between its first `{` and the next `}`, if that is not empty.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % SLOTS
}

/// One server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) id: String,
    /// Empty where the server that was asked does not know its own address.
    pub(crate) host: String,
    /// The name that it gives itself, where it has one that certificates may be made for.
    pub(crate) name: Option<String>,
    pub(crate) port: u16,
    /// The epoch since which it serves its slots; a replica's is that of its primary.
    pub(crate) epoch: u64,
    pub(crate) is_primary: bool,
    /// Set for the server that gave the answer (`myself`): it knows its own slots.
    is_myself: bool,
    /// The id of the primary that a replica follows.
    follows: Option<String>,
    /// `true` if it may be asked: not marked as failed, and not joining or leaving.
    pub(crate) is_reachable: bool,
}

/// All servers and the slots that they serve.
#[derive(Debug, Default)]
pub(crate) struct View {
    nodes: Vec<Node>,
    by_id: HashMap<String, usize>,
    /// The position of each slot's owner in `nodes`; `None` where no server serves it.
    owners: Vec<Option<u16>>,
}

impl View {
    /// Reads the answer to `CLUSTER NODES`.
    pub(crate) fn read(text: &str) -> Result<View, Failure> {
        let mut view = View { owners: vec![None; usize::from(SLOTS)], ..View::default() };
        for line in text.lines().filter(|line| !line.is_empty()) {
            view.read_line(line).ok_or_else(|| not_understood(line))?;
        }
        Ok(view)
    }

    /// Returns the owner of a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Node> {
        let position = (*self.owners.get(usize::from(slot))?)?;
        self.nodes.get(usize::from(position))
    }

    /// Returns one server.
    pub(crate) fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.get(*self.by_id.get(id)?)
    }

    /// Returns all servers, in the order of the answer.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the servers that serve at least one slot.
    pub(crate) fn primaries(&self) -> impl Iterator<Item = &Node> {
        let mut serves = vec![false; self.nodes.len()];
        for position in self.owners.iter().flatten() {
            if let Some(serves) = serves.get_mut(usize::from(*position)) {
                *serves = true;
            }
        }
        self.nodes.iter().zip(serves).filter_map(|(node, serves)| serves.then_some(node))
    }

    /// Fills in where the server is that was asked, where it does not know its own address.
    pub(crate) fn fill_own_host(&mut self, host: &str) {
        for node in self.nodes.iter_mut().filter(|node| node.host.is_empty()) {
            host.clone_into(&mut node.host);
        }
    }

    /// Keeps the state of each server from `earlier`, where that is of a later epoch. A server's epoch
    /// only rises, so the answering server does not know it yet, and does not know the owner of its
    /// slots either. A server's answer about its own slots is always accepted.
    pub(crate) fn no_older_than(mut self, earlier: &View) -> View {
        let mut behind = vec![false; self.nodes.len()];
        for (node, behind) in self.nodes.iter_mut().zip(&mut behind) {
            if let Some(known) = earlier.node(&node.id)
                && known.epoch > node.epoch
            {
                *behind = !node.is_myself;
                *node = Node { is_myself: node.is_myself, ..known.clone() };
            }
        }
        for (slot, owner) in (0..).zip(&mut self.owners) {
            if owner.is_some_and(|owner| behind.get(usize::from(owner)) == Some(&true)) {
                let known = earlier.owner(slot).and_then(|known| self.by_id.get(&known.id));
                *owner = known.and_then(|position| u16::try_from(*position).ok());
            }
        }
        self
    }

    /// Returns the slots that another server than in `earlier` serves, or no server any more.
    pub(crate) fn moved_since(&self, earlier: &View) -> HashSet<u16> {
        let moved = |slot: &u16| {
            let (before, now) = (earlier.owner(*slot), self.owner(*slot));
            before.is_some_and(|before| now.is_none_or(|now| now.id != before.id))
        };
        (0..SLOTS).filter(moved).collect()
    }

    /// Compares owners, epochs and reachability.
    pub(crate) fn agrees_with(&self, other: &View) -> bool {
        let state = |node: &Node| (node.epoch, node.is_primary, node.is_reachable);
        self.nodes.len() == other.nodes.len()
            && self
                .nodes
                .iter()
                .all(|node| other.node(&node.id).is_some_and(|same| state(same) == state(node)))
            && (0..SLOTS)
                .all(|slot| self.owner(slot).map(|node| &node.id) == other.owner(slot).map(|node| &node.id))
    }

    /// Returns the server at an address, which may be a name.
    pub(crate) fn node_at(&self, host: &str, port: u16) -> Option<&Node> {
        self.nodes
            .iter()
            .find(|node| node.port == port && (node.host == host || node.name.as_deref() == Some(host)))
    }

    /// Returns the replicas of a server that can be reached.
    pub(crate) fn replicas_of(&self, id: &str) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.is_reachable && node.follows.as_deref() == Some(id))
    }

    fn read_line(&mut self, line: &str) -> Option<()> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [id, address, flags, primary, _ping, _pong, epoch, _link, slots @ ..] = &fields[..] else {
            return None;
        };
        let (address, rest) = address.split_once('@').unwrap_or((address, ""));
        let (host, port) = address.rsplit_once(':')?;
        // `bus port,name,shard=…`; older servers have no name, and one without a name may have an empty one.
        let name = rest.split(',').nth(1).filter(|name| !name.is_empty() && !name.contains('='));
        let flags: Vec<&str> = flags.split(',').collect();
        let has = |flag: &str| flags.contains(&flag);
        let position = u16::try_from(self.nodes.len()).ok()?;
        self.by_id.insert((*id).to_owned(), self.nodes.len());
        self.nodes.push(Node {
            id: (*id).to_owned(),
            host: host.to_owned(),
            name: name.map(str::to_owned),
            port: port.parse().ok()?,
            epoch: epoch.parse().ok()?,
            is_primary: has("master"),
            is_myself: has("myself"),
            follows: (*primary != "-").then(|| (*primary).to_owned()),
            is_reachable: !["fail", "handshake", "noaddr"].into_iter().any(has),
        });
        // A slot in brackets is being moved, and belongs to the server that has it in its list until the
        // move is complete.
        for range in slots.iter().filter(|range| !range.starts_with('[')) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            self.owners.get_mut(first..=last)?.fill(Some(position));
        }
        Some(())
    }
}

fn not_understood(line: &str) -> Failure {
    let shown: String = line.chars().take(60).collect();
    Failure::new(
        FailureKind::Unsupported,
        Effect::None,
        format!(
            "a line of CLUSTER NODES is not understood ({shown:?}): check that it is a Redis or Valkey cluster"
        ),
    )
}

/// Computes CRC-16 as in XMODEM: the polynomial 0x1021, from zero.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "07c3 127.0.0.1:30004@31004 slave e7d1 0 1426238317239 4 connected\n\
        67ed :30002@31002,db2.example,shard-id=6 myself,master - 0 1426238316232 2 connected 5461-5463 9 [9->-e7d1]\n\
        e7d1 ::1:30001@31001 master,fail - 0 0 4 disconnected 0-8\n";

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of("{user1000}.following"), slot_of("user1000"));
        assert_eq!(
            (slot_of("foo{}{bar}"), slot_of("foo{bar}{zap}")),
            (crc16(b"foo{}{bar}") % SLOTS, slot_of("bar"))
        );
        assert_eq!(slot_of("lh:a"), slot_of("{lh:a}:held"));
    }

    #[test]
    fn a_view_knows_owners_epochs_and_names() {
        let view = View::read(NODES).unwrap();
        let owner = |slot| view.owner(slot).map(|node| (node.id.as_str(), node.epoch));
        assert_eq!(
            (owner(5462), owner(9), owner(0)),
            (Some(("67ed", 2)), Some(("67ed", 2)), Some(("e7d1", 4)))
        );
        assert_eq!((owner(5464), owner(16_383)), (None, None));
        let names: Vec<_> = view.primaries().map(|node| node.id.as_str()).collect();
        assert_eq!(names, ["67ed", "e7d1"]);
        let (one, dead) = (view.node("67ed").unwrap(), view.node("e7d1").unwrap());
        assert_eq!((one.host.as_str(), one.port, one.name.as_deref()), ("", 30002, Some("db2.example")));
        assert_eq!((dead.host.as_str(), dead.is_reachable), ("::1", false));
    }

    #[test]
    fn what_was_known_of_a_later_epoch_stays() {
        let later = NODES.replace(" 2 connected", " 9 connected").replace(":30002", "10.0.0.2:30002");
        let view = View::read(NODES).unwrap().no_older_than(&View::read(&later).unwrap());
        assert_eq!((view.owner(9).unwrap().epoch, view.owner(9).unwrap().host.as_str()), (9, "10.0.0.2"));
        let view = View::read(&later).unwrap().no_older_than(&View::read(NODES).unwrap());
        assert_eq!(view.owner(9).unwrap().epoch, 9);
    }

    #[test]
    fn stale_view_does_not_override_a_newer_slot_owner() {
        // b took over from a in epoch 9; c does not know it yet, and a is still a primary there.
        let newer = "a h:1@2 slave b 0 0 9 connected\nb h:2@2 master - 0 0 9 connected 0-99\n\
                     c h:3@2 master - 0 0 3 connected 100-199\n";
        let stale = "a h:1@2 master - 0 0 1 connected 0-99\nb h:2@2 slave a 0 0 1 connected\n\
                     c h:3@2 myself,master - 0 0 3 connected 100-199\n";
        let (newer, stale) = (View::read(newer).unwrap(), View::read(stale).unwrap());
        let view = stale.no_older_than(&newer);
        let owner = |slot| view.owner(slot).map(|node| (node.id.as_str(), node.epoch));
        assert_eq!((owner(5), owner(150)), (Some(("b", 9)), Some(("c", 3))));
        assert!(view.agrees_with(&newer) && view.moved_since(&newer).is_empty());
        // A server's report of itself counts: it may have been set up anew.
        let own = "a h:1@2 myself,master - 0 0 1 connected 0-99\nb h:2@2 slave a 0 0 1 connected\n";
        let view = View::read(own).unwrap().no_older_than(&newer);
        assert_eq!(view.owner(5).map(|node| (node.id.as_str(), node.epoch)), Some(("a", 9)));
    }

    #[test]
    fn what_changed_between_two_views_is_known() {
        let (before, moved) = (View::read(NODES).unwrap(), NODES.replace("5461-5463 9", "5461-5463"));
        assert!(before.agrees_with(&View::read(NODES).unwrap()));
        let after = View::read(&moved.replace(" 0-8", " 0-9")).unwrap();
        assert_eq!(after.moved_since(&before), HashSet::from([9]));
        assert!(!after.agrees_with(&before));
        assert_eq!(View::read(&moved).unwrap().moved_since(&before), HashSet::from([9]), "nobody serves it");
        assert!(!View::read(&NODES.replace("master,fail", "master")).unwrap().agrees_with(&before));
        assert_eq!(before.node_at("db2.example", 30002).map(|node| node.id.as_str()), Some("67ed"));
        assert_eq!(before.node_at("::1", 30001).map(|node| node.id.as_str()), Some("e7d1"));
        assert!(before.node_at("::1", 30002).is_none());
        let replicas: Vec<_> = before.replicas_of("e7d1").map(|node| node.id.as_str()).collect();
        assert_eq!(replicas, ["07c3"]);
    }

    #[test]
    fn reply_that_is_not_a_list_of_servers_is_refused() {
        for bad in ["what", "a b c d e f g h", "67ed h:1@2 master - 0 0 2 connected 5-99999"] {
            assert_eq!(View::read(bad).unwrap_err().kind, FailureKind::Unsupported, "{bad}");
        }
    }
}
