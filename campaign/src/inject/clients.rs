//! Faults of client processes: F1, F4, F20, F23.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_torture::{LockKind, LockPlan, Plan};

use super::{Injection, Round, Scene};
use crate::world::Effect;
use crate::{Outcome, Store};

/// F1: a worker is stopped past its lease.
#[derive(Default)]
pub(super) struct Pause {
    paused: Option<usize>,
}

#[async_trait]
impl Injection for Pause {
    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 5 / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let worker = round.below(scene.rig.workers(), 0);
        scene.rig.pause(worker)?;
        self.paused = Some(worker);
        Ok(Effect::new(format!("worker {worker} is stopped"), 1_u64).on([worker]))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        if let Some(worker) = self.paused.take() {
            scene.rig.resume(worker)?;
        }
        Ok(())
    }
}

/// F4: a worker is killed, holding or waiting.
#[derive(Default)]
pub(super) struct Kill {
    killed: Option<usize>,
}

#[async_trait]
impl Injection for Kill {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 10, ttl)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let worker = round.below(scene.rig.workers(), 0);
        scene.rig.kill(worker)?;
        self.killed = Some(worker);
        Ok(Effect::new(format!("worker {worker} is killed"), 1_u64).on([worker]))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        if let Some(worker) = self.killed.take() {
            scene.rig.respawn(worker)?;
        }
        Ok(())
    }
}

/// F20: every second acquisition is dropped on its way.
#[derive(Default)]
pub(super) struct Dropped {
    /// The acquisitions that were dropped before this round.
    before: u64,
}

/// Longer than a lock is held. Most are dropped earlier, see [`Plan::cancelled_within`].
const DROPPED_WITHIN: Duration = Duration::from_millis(200);
/// The longest hold: with shorter ones hardly anybody waits for as long as a drop takes.
const HELD: Duration = Duration::from_millis(100);

#[async_trait]
impl Injection for Dropped {
    fn shape(&self, plan: &mut Plan) {
        (plan.cancels, plan.cancelled_within) = (2, Some(DROPPED_WITHIN));
        plan.hold = HELD;
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 4, ttl / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome<Effect> {
        let so_far = scene.rig.progress().cancelled;
        let dropped = so_far - self.before;
        self.before = so_far;
        let what = format!("every second acquisition is dropped within {DROPPED_WITHIN:?}");
        Ok(Effect::new(what, dropped).on(0..scene.rig.workers()))
    }

    async fn heal(&mut self, _: &mut Scene<'_>, _: &Round) -> Outcome {
        Ok(())
    }
}

/// F23: a thousand tasks want one lock. Nothing else happens.
pub(super) struct Crowd;

/// The tasks of each of ten workers.
const TASKS: usize = 100;
/// The same, where each waiter has a connection of the server.
const TASKS_WITH_CONNECTIONS: usize = 25;

#[async_trait]
impl Injection for Crowd {
    fn shape(&self, plan: &mut Plan) {
        plan.locks = vec![LockPlan::new("crowd", LockKind::Mutex)];
        // The crowd is at one lock.
        plan.dense = None;
        plan.if_supported.clear();
        plan.processes = 10;
        plan.tasks = if plan.url.contains("method=for-update") { TASKS_WITH_CONNECTIONS } else { TASKS };
        plan.hold = Duration::from_millis(1);
        plan.limit = Duration::from_secs(60);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl)
    }

    fn most_rounds(&self, _: Store) -> usize {
        1
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome<Effect> {
        let crowd = scene.rig.workers() * scene.rig.plan().tasks;
        Ok(Effect::new(format!("{crowd} tasks want one lock"), crowd).on(0..scene.rig.workers()))
    }

    async fn heal(&mut self, _: &mut Scene<'_>, _: &Round) -> Outcome {
        Ok(())
    }
}
