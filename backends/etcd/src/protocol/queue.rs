//! The queue of claims on one resource, and what it means for one of them. Pure code.
//!
//! A claim is admitted iff the weights of all claims ahead of it plus its own fit the smallest capacity
//! among them. A claim is ahead if its key was created earlier. Claims ahead only leave, so the place
//! in the queue is the grant: no server has to write down which claims hold.

use std::collections::BTreeMap;

use leasehold_core::{ClaimId, Share};

/// One claim in the queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) id: ClaimId,
    pub(crate) share: Share,
    /// The revision that created its key: its place in the queue, and its fence.
    pub(crate) place: i64,
    /// The lease that its key is attached to.
    pub(crate) lease: i64,
    /// The revision that changed its key last: to move it from lease to lease is a change, too.
    pub(crate) changed: i64,
}

/// Returns `true` if a claim whose turn is behind `ahead` is admitted.
pub(crate) fn admits(ahead: &[Entry], share: Share) -> bool {
    let load: u64 = ahead.iter().map(|entry| u64::from(entry.share.weight())).sum();
    let capacity = ahead.iter().map(|entry| entry.share.capacity()).min().unwrap_or(u32::MAX);
    load + u64::from(share.weight()) <= u64::from(capacity.min(share.capacity()))
}

/// Returns how many of a queue, from its head, hold.
pub(crate) fn holders(queue: &[Entry]) -> usize {
    let (mut load, mut capacity) = (0, u32::MAX);
    let blocked = queue.iter().position(|entry| {
        load += u64::from(entry.share.weight());
        capacity = capacity.min(entry.share.capacity());
        load > u64::from(capacity)
    });
    blocked.unwrap_or(queue.len())
}

/// Returns, of those ahead, a smallest set that blocks this share by itself: while all of it remains,
/// the claim cannot be admitted.
///
/// It is as near to the claim as possible, so that few wait for the same one: in a queue of mutexes each
/// waits for its predecessor alone, readers wait for the last writer before them, and of n permits each
/// waits for n predecessors. Empty where the claim is admitted.
pub(crate) fn blockers(ahead: &[Entry], share: Share) -> Vec<&Entry> {
    if admits(ahead, share) {
        return Vec::new();
    }
    let mut load: u64 = ahead.iter().map(|entry| u64::from(entry.share.weight())).sum();
    let mut capacities: BTreeMap<u32, usize> = BTreeMap::new();
    for entry in ahead {
        *capacities.entry(entry.share.capacity()).or_default() += 1;
    }
    let mut kept = Vec::new();
    for entry in ahead {
        // Without this one, would the rest still block? Then its leaving alone changes nothing.
        let weight = u64::from(entry.share.weight());
        let last_of_its_capacity = capacities.get(&entry.share.capacity()) == Some(&1);
        let smallest = capacities
            .keys()
            .find(|capacity| **capacity != entry.share.capacity() || !last_of_its_capacity)
            .map_or(share.capacity(), |capacity| share.capacity().min(*capacity));
        if load - weight + u64::from(share.weight()) > u64::from(smallest) {
            load -= weight;
            if last_of_its_capacity {
                capacities.remove(&entry.share.capacity());
            } else if let Some(count) = capacities.get_mut(&entry.share.capacity()) {
                *count -= 1;
            }
        } else {
            kept.push(entry);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Ask, Ledger, Moment, Note, Verdict, Wait};
    use proptest::prelude::*;
    use std::time::Duration;

    fn id(n: usize) -> ClaimId {
        ClaimId::from_bytes((n as u128 + 1).to_be_bytes())
    }

    fn queue(shares: &[Share]) -> Vec<Entry> {
        let entry = |(n, share): (usize, &Share)| Entry {
            key: format!("k{n}").into_bytes(),
            id: id(n),
            share: *share,
            place: n as i64 + 1,
            lease: 1,
            changed: n as i64 + 1,
        };
        shares.iter().enumerate().map(entry).collect()
    }

    fn places(ahead: &[Entry], share: Share) -> Vec<i64> {
        blockers(ahead, share).iter().map(|entry| entry.place).collect()
    }

    #[test]
    fn each_waits_for_as_few_as_possible_and_for_the_nearest() {
        let mutexes = queue(&[Share::MUTEX; 200]);
        assert_eq!(places(&mutexes, Share::MUTEX), [200]);
        let readers = [Share::READER, Share::WRITER, Share::READER, Share::READER];
        assert_eq!(places(&queue(&readers), Share::READER), [2]);
        assert_eq!(places(&queue(&readers), Share::WRITER), [4]);
        let one = Share::permits(1, 3).unwrap();
        assert_eq!(places(&queue(&[one; 50]), one), [48, 49, 50]);
        assert_eq!(places(&queue(&[one; 2]), one), [0i64; 0]);
        // The claim with the smallest capacity is waited for, however far ahead it is.
        let five = Share::permits(1, 5).unwrap();
        let two = Share::permits(1, 2).unwrap();
        assert_eq!(places(&queue(&[two, five]), five), [1, 2]);
    }

    fn share() -> impl Strategy<Value = Share> {
        prop_oneof![
            Just(Share::MUTEX),
            Just(Share::READER),
            Just(Share::WRITER),
            (1u32..6).prop_flat_map(|capacity| {
                (1..=capacity).prop_map(move |weight| Share::permits(weight, capacity).unwrap())
            }),
        ]
    }

    proptest! {
        /// Compares with the ledger, the oracle: queued one after the other, the same claims hold.
        #[test]
        fn holders_match_the_ledger(shares in proptest::collection::vec(share(), 1..12)) {
            let mut ledger = Ledger::default();
            let mut granted = Vec::new();
            for (n, share) in shares.iter().enumerate() {
                let ask = Ask {
                    id: id(n),
                    share: *share,
                    lease: Duration::MAX,
                    wait: Wait::Queued(Duration::MAX),
                    note: Note::default(),
                };
                granted.push(matches!(ledger.contend(&ask, Moment::START), Verdict::Granted(_)));
            }
            let queue = queue(&shares);
            let admitted: Vec<bool> =
                (0..queue.len()).map(|n| admits(&queue[..n], queue[n].share)).collect();
            prop_assert_eq!(&admitted, &granted);
            prop_assert_eq!(holders(&queue), granted.iter().filter(|granted| **granted).count());
        }

        /// Checks that, in any order of leaving, no claim is admitted before one of those that it waits
        /// for has left.
        #[test]
        fn no_wake_up_is_missed(
            shares in proptest::collection::vec(share(), 1..10),
            own in share(),
            leaves in proptest::collection::vec(any::<bool>(), 10),
        ) {
            let queue = queue(&shares);
            let waits_for = places(&queue, own);
            prop_assert_eq!(waits_for.is_empty(), admits(&queue, own));
            let left: Vec<Entry> = queue
                .iter()
                .zip(&leaves)
                .filter(|(entry, leaves)| !**leaves || waits_for.contains(&entry.place))
                .map(|(entry, _)| entry.clone())
                .collect();
            if !waits_for.is_empty() {
                prop_assert!(!admits(&left, own));
            }
            // And the set is minimal: without any one of it, the rest of it does not block.
            for place in &waits_for {
                let rest: Vec<Entry> = queue
                    .iter()
                    .filter(|entry| waits_for.contains(&entry.place) && entry.place != *place)
                    .cloned()
                    .collect();
                prop_assert!(admits(&rest, own));
            }
        }
    }
}
