//! Making each fault happen, and ending it: one type for each kind, behind one trait.
//!
//! Ground rules: what a round does follows from its numbers alone, so that a seed repeats a schedule. Each fault
//! ends in `heal`, no matter where it stands; nothing is left for the next round.

mod clients;
mod failovers;
mod network;
mod operators;
mod servers;
mod surroundings;

use std::time::Duration;

use async_trait::async_trait;
use leasehold_torture::{Plan, Rig};

use crate::world::{Effect, Needs, World};
use crate::{Chance, Fault, Outcome, Store};

/// One round of a fault: a rest, the fault, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Its number, from 0 on.
    pub number: usize,
    /// The time before it.
    pub rest: Duration,
    /// The time from its beginning to its end.
    pub lasts: Duration,
    /// A number that picks the victim and the variant.
    pub pick: u64,
}

impl Round {
    /// Returns one of several things.
    fn one_of<T: Copy>(&self, things: &[T]) -> T {
        things[(self.pick % things.len() as u64) as usize]
    }

    /// Returns a number below `count`, which another `salt` makes another one.
    fn below(&self, count: usize, salt: u32) -> usize {
        (self.pick.rotate_right(8 * (salt + 1)) % count.max(1) as u64) as usize
    }
}

/// Everything that a fault can reach.
pub struct Scene<'a> {
    /// The store.
    pub world: &'a mut World,
    /// The workers.
    pub rig: &'a mut Rig,
}

/// A fault as the campaign makes it happen.
#[async_trait]
pub trait Injection: Send + Sync {
    /// Returns what has to be prepared before the servers start.
    fn needs(&self, _store: Store) -> Needs {
        Needs::default()
    }

    /// Shapes the load.
    fn shape(&self, _plan: &mut Plan) {}

    /// Returns the shortest and the longest time for which it lasts.
    fn lasts(&self, ttl: Duration) -> (Duration, Duration);

    /// Returns the shortest and the longest time before it happens.
    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 4, ttl)
    }

    /// Returns the most rounds of one history, if it cannot be repeated for ever.
    fn most_rounds(&self, _store: Store) -> usize {
        usize::MAX
    }

    /// Begins the fault, and returns what it did.
    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect>;

    /// Ends the fault.
    async fn heal(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome;
}

/// Lets every lock be held for up to twice its lease, so that a fault finds holders whose renewals are under way.
///
/// There are more locks and tasks than usual, so that others are still granted meanwhile.
fn long_holds(plan: &mut Plan) {
    plan.locks = Plan::mutexes(5);
    plan.tasks = 3;
    plan.hold = plan.ttl * 2;
}

/// Returns the way in which a fault is made to happen; none where another test program does it.
pub fn injection(fault: Fault) -> Option<Box<dyn Injection>> {
    Some(match fault.get() {
        1 => Box::new(clients::Pause::default()),
        2 => Box::new(network::LateAnswers),
        3 => Box::new(servers::Hang::default()),
        4 => Box::new(clients::Kill::default()),
        5 => Box::new(servers::Crash::default()),
        6 => Box::new(failovers::UnreplicatedWrites::default()),
        7 => Box::new(failovers::OldPrimary::default()),
        8 => Box::new(network::Partition),
        9 => Box::new(servers::Parted::default()),
        10 => Box::new(network::LostAnswer),
        11 => Box::new(network::Reset),
        12 => Box::new(network::LateRenewals),
        13 => Box::new(operators::LostNotification),
        14 => Box::new(surroundings::WallClock),
        15 => Box::new(surroundings::ClientClocks::default()),
        16 => Box::new(surroundings::Full),
        17 => Box::new(operators::DeletedByHand),
        18 => Box::new(operators::EndedSession),
        19 => Box::new(surroundings::Pooler),
        20 => Box::new(clients::Dropped::default()),
        21 => Box::new(network::HalfRelease),
        23 => Box::new(clients::Crowd),
        24 => Box::new(servers::RollingRestart),
        25 => Box::new(operators::OlderState),
        26 => Box::new(servers::Minority::default()),
        28 => Box::new(surroundings::InMemory),
        29 => Box::new(network::Nonsense),
        30 => Box::new(operators::RevokedLogin),
        _ => return None,
    })
}

/// Returns the rounds of a cell, without an end: they follow from the seed alone.
pub fn schedule(
    store: Store,
    fault: Fault,
    seed: u64,
    injection: &dyn Injection,
) -> impl Iterator<Item = Round> + use<> {
    let mut chance = Chance::seeded(seed, &format!("{store}-{fault}"));
    let (rests, lasts) = (injection.rests(store.ttl()), injection.lasts(store.ttl()));
    (0..injection.most_rounds(store)).map(move |number| Round {
        number,
        rest: chance.between(rests.0, rests.1),
        lasts: chance.between(lasts.0, lasts.1),
        pick: chance.draw(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{existing, expected};

    fn rounds(store: Store, fault: Fault, seed: u64) -> Vec<Round> {
        let injection = injection(fault).unwrap();
        schedule(store, fault, seed, &*injection).take(20).collect()
    }

    #[test]
    fn a_seed_repeats_its_schedule_and_another_does_not() {
        for fault in [1, 5, 8].map(Fault::number) {
            assert_eq!(rounds(Store::Redis, fault, 7), rounds(Store::Redis, fault, 7));
            assert_ne!(rounds(Store::Redis, fault, 7), rounds(Store::Redis, fault, 8));
            assert_ne!(rounds(Store::Redis, fault, 7), rounds(Store::Etcd, fault, 7));
        }
    }

    #[test]
    fn faults_on_leases_find_locks_that_are_held_for_longer() {
        for fault in Fault::all().filter(|fault| existing(Store::Redis, *fault).is_none()) {
            let mut plan = Plan::new("redis://localhost");
            plan.hold = Duration::from_millis(10);
            let injection = injection(fault).unwrap();
            injection.shape(&mut plan);
            let is_long = [1, 2, 3, 5, 6, 8, 12, 15, 21, 29].contains(&fault.get());
            assert_eq!(plan.hold > plan.ttl, is_long, "{fault}");
        }
    }

    #[test]
    fn every_cell_that_is_run_has_a_way_to_run_it() {
        for store in Store::ALL {
            for fault in Fault::all() {
                let can = injection(fault).is_some() || existing(store, fault).is_some();
                assert!(can || !expected(store, fault).is_run(), "{store} {fault}");
            }
        }
    }
}
