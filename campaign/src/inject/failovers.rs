//! Failovers: F6, F7.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_testkit::{Data, RedisSentinel, Way};
use leasehold_torture::Plan;

use super::{Injection, Round, Scene};
use crate::world::{Effect, Needs, Network, Servers, World};
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
    old: Option<usize>,
}

impl OldPrimary {
    /// Cuts the primary off from the Sentinels, its replicas and half of the clients, until another server is promoted.
    /// The other half hears of no Sentinel meanwhile.
    async fn depose(&mut self, world: &World, group: &RedisSentinel) -> Outcome<Effect> {
        let way = world.own_way.as_ref().ok_or(NO_OWN_WAY)?;
        let old = group.primary().await?;
        self.old = Some(old);
        way.cut_off_sentinels();
        group.proxy(old)?.blackhole(Way::Both);
        let new = group.promoted(old).await?;
        let what = format!(
            "server {new} is promoted for half of the clients, and the others still reach server {old}"
        );
        Ok(Effect::new(what, way.connections(old)))
    }
}

const NO_OWN_WAY: &str = "half of the clients have no way of their own to the servers";

#[async_trait]
impl Injection for OldPrimary {
    fn needs(&self, store: Store) -> Needs {
        Needs { standby: store.is_postgres(), own_way: store == Store::Sentinel, ..Needs::default() }
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl * 2, ttl * 3)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome<Effect> {
        if let Servers::Sentinel(group) = &scene.world.servers {
            return self.depose(scene.world, group).await;
        }
        scene.world.promote(&[Network::Odd]).await?;
        Ok(Effect::new("half of the clients are led to the promoted standby", 1_u64))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        let Servers::Sentinel(group) = &scene.world.servers else {
            return scene.world.replace_primary().await;
        };
        if let Some(old) = self.old.take() {
            group.promoted(old).await?;
            group.proxy(old)?.heal()?;
        }
        scene.world.own_way.as_ref().ok_or(NO_OWN_WAY)?.heal()?;
        Ok(group.settle().await?)
    }
}

#[cfg(test)]
mod tests {
    use leasehold::Client;
    use leasehold_testkit::require;

    use super::*;

    /// Both halves of the clients are granted one lock: by the server that was promoted, and by the old primary.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn old_primary_of_sentinel_grants_to_half_of_the_clients() {
        let mut fault = OldPrimary::default();
        let world = match World::start(Store::Sentinel, fault.needs(Store::Sentinel)).await {
            Ok(world) => world,
            Err(error) => match error.downcast_ref::<leasehold_testkit::Error>() {
                Some(missing) if missing.is_missing() => return require::skip("redis", &missing.to_string()),
                _ => panic!("{error}"),
            },
        };
        let Servers::Sentinel(group) = &world.servers else { panic!("no Sentinels") };
        let [even, odd] = [Network::Even, Network::Odd].map(|network| world.url(network));
        let [even, odd] = [Client::open(&even).await.unwrap(), Client::open(&odd).await.unwrap()];
        // Each knows its way before.
        for client in [&even, &odd] {
            client.mutex("job").lock().await.unwrap().release().await.unwrap();
        }
        let effect = fault.depose(&world, group).await.unwrap();
        assert!(effect.count > 0, "{effect:?}");
        let old = odd.mutex("job").try_lock_for(LIMIT).await.unwrap().unwrap();
        let new = even.mutex("job").try_lock_for(LIMIT).await.unwrap().unwrap();
        old.check().unwrap();
        new.check().unwrap();
        let (older, newer) = (old.fence().unwrap(), new.fence().unwrap());
        assert!(older.epoch < newer.epoch, "{older:?} {newer:?}");
        // The old primary still grants when the promoted server has granted already.
        let late = odd.mutex("other").try_lock_for(LIMIT).await.unwrap().unwrap();
        assert_eq!(late.fence().unwrap().epoch, older.epoch);
    }

    const LIMIT: Duration = Duration::from_secs(30);
}
