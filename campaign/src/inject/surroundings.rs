//! The surroundings of a store: F14, F15, F16, F19, F28.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_torture::Plan;

use super::{Injection, Round, Scene};
use crate::world::{Effect, Needs, Network};
use crate::{Outcome, Store};

/// F14: the server's wall clock is two minutes ahead, or behind, for a while.
pub(super) struct WallClock;

const STEP: i64 = 120;

#[async_trait]
impl Injection for WallClock {
    fn needs(&self, _: Store) -> Needs {
        Needs { clock: true, ..Needs::default() }
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 10, ttl)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl * 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let step = round.one_of(&[STEP, -STEP]);
        scene.world.clock.as_ref().ok_or("the server has no clock that can be moved")?.set(step)?;
        Ok(Effect::new(format!("the server's wall clock is stepped by {step} s"), 1_u64))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.clock.as_ref().ok_or("the server has no clock that can be moved")?.set(0)
    }
}

/// F15: the wall clock of half of the clients is two minutes or a day ahead, or behind, for a while.
pub(super) struct ClientWallClock;

const DAY: i64 = 86_400;

#[async_trait]
impl Injection for ClientWallClock {
    fn needs(&self, _: Store) -> Needs {
        Needs { client_clock: true, ..Needs::default() }
    }

    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 10, ttl)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 10, ttl / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let step = round.one_of(&[STEP, -STEP, DAY, -DAY]);
        let clock = scene.world.clock.as_ref().ok_or("the clients have no clock that can be moved")?;
        clock.set(step)?;
        let workers = scene.rig.workers();
        let processes = (0..workers).filter_map(|worker| scene.rig.process_id(worker));
        let moved = processes.filter(|process| clock.is_in(*process)).count();
        let what = format!("the wall clock of half of the clients is stepped by {step} s");
        Ok(Effect::new(what, moved).on_network(Network::Odd, workers))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.clock.as_ref().ok_or("the clients have no clock that can be moved")?.set(0)
    }
}

/// F16: the server has no room.
pub(super) struct Full;

#[async_trait]
impl Injection for Full {
    fn needs(&self, _: Store) -> Needs {
        Needs { small: true, ..Needs::default() }
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl * 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome<Effect> {
        scene.world.fill().await
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.empty().await
    }
}

/// F19: a pooler is between clients and server all the time.
pub(super) struct Pooler;

#[async_trait]
impl Injection for Pooler {
    fn needs(&self, _: Store) -> Needs {
        Needs { pooler: true, ..Needs::default() }
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl)
    }

    fn most_rounds(&self, _: Store) -> usize {
        1
    }

    async fn inject(&mut self, _: &mut Scene<'_>, _: &Round) -> Outcome<Effect> {
        Ok(Effect::new("a pooler shares the sessions", 1_u64))
    }

    async fn heal(&mut self, _: &mut Scene<'_>, _: &Round) -> Outcome {
        Ok(())
    }
}

/// F28: the store is in memory.
pub(super) struct InMemory;

#[async_trait]
impl Injection for InMemory {
    fn needs(&self, _: Store) -> Needs {
        Needs { in_memory: true, ..Needs::default() }
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl)
    }

    fn most_rounds(&self, _: Store) -> usize {
        1
    }

    async fn inject(&mut self, _: &mut Scene<'_>, _: &Round) -> Outcome<Effect> {
        Ok(Effect::new("the store is in memory", 1_u64))
    }

    async fn heal(&mut self, _: &mut Scene<'_>, _: &Round) -> Outcome {
        Ok(())
    }
}
