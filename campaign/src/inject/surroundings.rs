//! The surroundings of a store: F14, F15, F16, F19, F28.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
        let shown = scene.world.server_time().await?;
        let moved = is_ahead(shown, SystemTime::now().duration_since(UNIX_EPOCH)?, step);
        Ok(Effect::new(format!("the server's wall clock is stepped by {step} s"), u64::from(moved)))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.clock.as_ref().ok_or("the server has no clock that can be moved")?.set(0)
    }
}

/// F15: the clocks of half of the clients are apart from the machine's for a while, or jump forward.
///
/// The kinds take turns, and the seed says with which they begin.
#[derive(Default)]
pub(super) struct ClientClocks {
    /// The turn of the first round.
    first: Option<usize>,
}

/// The way in which a clock is apart.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Apart {
    /// The wall clock, by so many seconds.
    Wall(i64),
    /// The clock of leases, at so much of the machine's rate.
    Rate(f64),
    /// The clock of leases jumps forward by so much of a ttl, as after a suspend of the machine.
    Jump(f64),
}

const DAY: i64 = 86_400;

impl ClientClocks {
    /// Returns what happens in a round.
    fn kind(&mut self, round: &Round) -> Apart {
        let first = *self.first.get_or_insert(round.below(3, 0));
        match (first + round.number) % 3 {
            0 => Apart::Wall([STEP, -STEP, DAY, -DAY][round.below(4, 1)]),
            // A renewal is due after a third of the lease: at half of the rate it still comes in time.
            1 => Apart::Rate([0.25, 0.5, 2.0, 4.0][round.below(4, 1)]),
            _ => Apart::Jump([0.5, 2.0][round.below(2, 1)]),
        }
    }
}

/// Changes the clocks of leases of half of the clients, and returns how many there are.
fn change_clocks(scene: &mut Scene<'_>, jump: Duration, rate: f64) -> Outcome<usize> {
    let workers = (0..scene.rig.workers()).filter(|worker| Network::of(*worker) == Network::Odd);
    let workers: Vec<usize> = workers.collect();
    for worker in &workers {
        scene.rig.change_clock(*worker, jump, rate)?;
    }
    Ok(workers.len())
}

/// Sets how far the wall clocks of half of the clients are ahead, and returns how many of them have moved so.
fn step_clocks(scene: &mut Scene<'_>, seconds: i64) -> Outcome<usize> {
    let clock = scene.world.clock.as_ref().ok_or("the clients have no clock that can be moved")?;
    clock.set(seconds)?;
    let mut moved = 0;
    for worker in 0..scene.rig.workers() {
        let shown = scene.rig.wall_clock(worker)?;
        moved += usize::from(is_ahead(shown, SystemTime::now().duration_since(UNIX_EPOCH)?, seconds));
    }
    Ok(moved)
}

/// Returns `true` if the time that a clock shows is so many seconds ahead of another one. A question and its answer take
/// less than half of the smallest step.
fn is_ahead(shown: Duration, here: Duration, seconds: i64) -> bool {
    let ahead = shown.as_secs_f64() - here.as_secs_f64();
    (ahead - seconds as f64).abs() < STEP as f64 / 2.0
}

#[async_trait]
impl Injection for ClientClocks {
    fn needs(&self, _: Store) -> Needs {
        Needs { client_clock: true, ..Needs::default() }
    }

    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
        plan.own_clocks = true;
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl * 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 10, ttl / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let (what, moved) = match self.kind(round) {
            Apart::Wall(seconds) => {
                (format!("the wall clock is stepped by {seconds} s"), step_clocks(scene, seconds)?)
            }
            Apart::Rate(rate) => {
                let what =
                    format!("the clock that measures leases runs at {rate} times the speed of the machine's");
                (what, change_clocks(scene, Duration::ZERO, rate)?)
            }
            Apart::Jump(leases) => {
                let jump = scene.world.store.ttl().mul_f64(leases);
                (
                    format!("the clock that measures leases jumps by {jump:?}"),
                    change_clocks(scene, jump, 1.0)?,
                )
            }
        };
        let effect = Effect::new(format!("for half of the clients {what}"), moved);
        Ok(match self.kind(round) {
            // No lease is measured by it, so it is a reason for nothing.
            Apart::Wall(_) => effect.on_nobody(),
            _ => effect.on_network(Network::Odd, scene.rig.workers()),
        })
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome {
        match self.kind(round) {
            Apart::Wall(_) => step_clocks(scene, 0).map(drop),
            Apart::Rate(_) => change_clocks(scene, Duration::ZERO, 1.0).map(drop),
            // No clock goes back.
            Apart::Jump(_) => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;
    use crate::inject::schedule;

    fn kinds(seed: u64) -> Vec<Apart> {
        let mut clocks = ClientClocks::default();
        let rounds = schedule(Store::Redis, Fault::number(15), seed, &clocks);
        let rounds: Vec<Round> = rounds.take(30).collect();
        rounds.iter().map(|round| clocks.kind(round)).collect()
    }

    #[test]
    fn clock_that_did_not_move_is_not_ahead() {
        let now = Duration::from_secs(1_800_000_000);
        assert!(is_ahead(now + Duration::from_secs(125), now, STEP));
        assert!(is_ahead(now - Duration::from_secs(86_399), now, -DAY));
        for (shown, seconds) in
            [(now, STEP), (now, -STEP), (now, DAY), (now + Duration::from_secs(120), -STEP)]
        {
            assert!(!is_ahead(shown, now, seconds), "{shown:?} {seconds}");
        }
    }

    /// A history is short, so that each of three rounds has another kind.
    #[test]
    fn clocks_of_clients_step_run_apart_and_jump_in_turn() {
        let turn = |kind: &Apart| match kind {
            Apart::Wall(_) => 0,
            Apart::Rate(_) => 1,
            Apart::Jump(_) => 2,
        };
        let mut begins = [0; 3];
        for seed in 0..30 {
            let kinds = kinds(seed);
            assert_eq!(kinds, self::kinds(seed));
            let turns: Vec<usize> = kinds.iter().map(turn).collect();
            assert!(turns.windows(2).all(|two| (two[0] + 1) % 3 == two[1]), "{turns:?}");
            begins[turns[0]] += 1;
        }
        assert!(begins.iter().all(|begun| *begun > 0), "{begins:?}");
        let all: Vec<Apart> = (0..30).flat_map(kinds).collect();
        for kind in
            [Apart::Rate(0.25), Apart::Rate(0.5), Apart::Rate(2.0), Apart::Rate(4.0), Apart::Wall(-DAY)]
        {
            assert!(all.contains(&kind), "{kind:?}");
        }
    }
}
