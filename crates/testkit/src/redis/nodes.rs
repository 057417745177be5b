//! One line of `CLUSTER NODES`: a member of a Redis Cluster as another member, or it itself, sees it.

use std::ops::RangeInclusive;

use crate::error::Error;

/// A member as it is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) id: String,
    flags: Vec<String>,
    /// The member that it follows, where it is a replica.
    pub(super) primary: Option<String>,
    pub(super) epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
}

/// The slots that a primary serves, and the epoch since which it does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ownership {
    id: String,
    epoch: u64,
    slots: Vec<(u16, u16)>,
}

impl Node {
    /// Reads the whole answer.
    pub(super) fn read_all(text: &str) -> Result<Vec<Self>, Error> {
        let unreadable = |line: &str| Error::failed(format!("cannot read as a member of a cluster: {line}"));
        text.lines().map(|line| Self::read(line).ok_or_else(|| unreadable(line))).collect()
    }

    fn read(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [id, _address, flags, primary, _ping, _pong, epoch, _link, slots @ ..] = &fields[..] else {
            return None;
        };
        // What is in brackets is on its way from or to this member, and not a slot that it serves besides.
        let slots = slots.iter().filter(|slot_range| !slot_range.starts_with('[')).map(|slot_range| {
            let (first, last) = slot_range.split_once('-').unwrap_or((slot_range, slot_range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        });
        Some(Self {
            id: (*id).to_owned(),
            flags: flags.split(',').map(str::to_owned).collect(),
            primary: (*primary != "-").then(|| (*primary).to_owned()),
            epoch: epoch.parse().ok()?,
            slots: slots.collect::<Option<_>>()?,
        })
    }

    pub(super) fn is_myself(&self) -> bool {
        self.has_flag("myself")
    }

    pub(super) fn is_primary(&self) -> bool {
        self.has_flag("master")
    }

    pub(super) fn is_in_handshake(&self) -> bool {
        self.has_flag("handshake")
    }

    pub(super) fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    /// Returns what it serves, where it serves anything.
    pub(super) fn into_ownership(self) -> Option<Ownership> {
        let slots: Vec<_> = self.slots.iter().map(|range| (*range.start(), *range.end())).collect();
        (!slots.is_empty()).then_some(Ownership { id: self.id, epoch: self.epoch, slots })
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|one| one == flag)
    }
}

impl Ownership {
    /// Returns how many slots it has.
    pub(super) fn slots(&self) -> usize {
        self.slots.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_with_their_slots() {
        let text = "07c3 127.0.0.1:30004@31004,host myself,slave e7d1 0 1426238317239 4 connected\n\
            67ed 127.0.0.1:30002@31002 master - 0 1426238316232 2 connected 5461-5463 9 [9->-e7d1]\n";
        let nodes = Node::read_all(text).unwrap();
        assert!(nodes[0].is_myself() && !nodes[0].is_primary());
        assert_eq!(nodes[0].primary.as_deref(), Some("e7d1"));
        assert!(nodes[1].serves(9) && nodes[1].serves(5462) && !nodes[1].serves(5464));
        assert_eq!(nodes[1].clone().into_ownership().unwrap().slots(), 4);
        assert!(Node::read_all("what\n").is_err());
    }
}
