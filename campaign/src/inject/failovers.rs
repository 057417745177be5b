//! Failovers: F6, F7.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_testkit::{Data, Way};
use leasehold_torture::Plan;

use super::{Injection, Round, Scene};
use crate::world::{Effect, Needs, Network, Servers};
use crate::{Outcome, Store};

/// F6: the primary dies with what its replicas have missed.
#[derive(Default)]
pub(super) struct UnreplicatedWrites {
    killed: Option<usize>,
}

#[async_trait]
impl Injection for UnreplicatedWrites {
    fn needs(&self, store: Store) -> Needs {
        Needs { standby: store.is_postgres() || store.is_mariadb(), ..Needs::default() }
    }

    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    fn most_rounds(&self, store: Store) -> usize {
        // Its replica is not replaced by another one.
        if store.is_mariadb() { 1 } else { usize::MAX }
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let missed = Duration::from_millis(100 + round.pick % 300);
        let world = &mut *scene.world;
        let what = format!("the primary dies with the last {missed:?}");
        if let Some((lost, unit)) = world.kill_ahead_of_standby(missed).await? {
            world.promote(&[Network::Even, Network::Odd]).await?;
            return Ok(Effect::new(format!("{what}, counted in {unit}"), lost));
        }
        self.killed = Some(world.kill_ahead_of_replicas(missed).await?);
        Ok(Effect::new(what, 1_u64))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        match self.killed.take() {
            Some(old) => {
                scene.world.promoted(old).await?;
                scene.world.restart(old, Data::Lose).await?;
                scene.world.settle().await
            }
            None => scene.world.replace_primary().await,
        }
    }
}

/// F7: a standby is promoted for half of the clients, and the old primary continues for the others.
#[derive(Default)]
pub(super) struct OldPrimary {
    cut: Option<usize>,
}

#[async_trait]
impl Injection for OldPrimary {
    fn needs(&self, store: Store) -> Needs {
        Needs { standby: store.is_postgres(), ..Needs::default() }
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl * 2, ttl * 3)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome<Effect> {
        if let Servers::Sentinel(servers) = &scene.world.servers {
            let primary = servers.primary().await?;
            servers.proxy(primary)?.blackhole(Way::Both);
            self.cut = Some(primary);
            return Ok(Effect::new(format!("primary {primary} runs, and nobody reaches it"), 1_u64));
        }
        scene.world.promote(&[Network::Odd]).await?;
        Ok(Effect::new("half of the clients are led to the promoted standby", 1_u64))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        match (self.cut.take(), &scene.world.servers) {
            (Some(primary), Servers::Sentinel(servers)) => {
                servers.promoted(primary).await?;
                servers.proxy(primary)?.heal()?;
                servers.settle().await?;
                Ok(())
            }
            _ => scene.world.replace_primary().await,
        }
    }
}
