//! Faults of servers: F3, F5, F9, F24, F26.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_testkit::{Data, Way};
use leasehold_torture::Plan;

use super::{Injection, Round, Scene};
use crate::world::{Effect, Needs, Network, Servers, World};
use crate::{Outcome, Store};

/// F3: the server that decides is stopped past a lease, and in turn only its disk hangs, or is slow.
#[derive(Default)]
pub(super) struct Hang {
    stopped: Option<usize>,
}

impl Hang {
    /// Returns `true` if what the store confirms has reached a disk, which can become slow.
    fn has_disk(store: Store) -> bool {
        matches!(store, Store::Redis | Store::Etcd | Store::ZooKeeper | Store::Postgres | Store::MariaDb)
    }

    fn is_of_disk(store: Store, round: &Round) -> bool {
        Hang::has_disk(store) && round.number % 2 == 1
    }
}

#[async_trait]
impl Injection for Hang {
    fn needs(&self, store: Store) -> Needs {
        Needs { slow_disk: Hang::has_disk(store), ..Needs::default() }
    }

    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 3 / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let ttl = scene.world.store.ttl();
        if Hang::is_of_disk(scene.world.store, round) {
            return slow_down(scene.world, round.one_of(&[ttl / 4, ttl * 2])).await;
        }
        let server = scene.world.leader(round.pick).await?;
        scene.world.stop(server)?;
        self.stopped = Some(server);
        Ok(Effect::new(format!("server {server} is stopped"), 1_u64))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome {
        if Hang::is_of_disk(scene.world.store, round) {
            scene.world.slow_disk.as_ref().ok_or(NO_SLOW_DISK)?.set(Duration::ZERO)?;
            scene.world.settle().await?;
            revocations_are_over(scene.world).await;
        }
        if let Some(server) = self.stopped.take() {
            scene.world.resume(server)?;
            scene.world.settle().await?;
            revocations_are_over(scene.world).await;
        }
        Ok(())
    }
}

const NO_SLOW_DISK: &str = "the store was started with a disk that cannot become slow";

/// Slows the disk down, and waits until a call that waits for it was held up.
async fn slow_down(world: &World, delay: Duration) -> Outcome<Effect> {
    let disk = world.slow_disk.as_ref().ok_or(NO_SLOW_DISK)?;
    let before = disk.held_up()?;
    disk.set(delay)?;
    let end = Instant::now() + world.store.ttl();
    while disk.held_up()? == before && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let held_up = disk.held_up()? - before;
    Ok(Effect::new(format!("each call that waits for the disk takes {delay:?}"), held_up))
}

/// F5: a server is killed, and comes back with its data or without.
#[derive(Default)]
pub(super) struct Crash {
    killed: Option<(usize, Data)>,
}

impl Crash {
    /// Returns whether the data survive: a store that promises to confirm with a majority loses none, and of
    /// Redlock's servers one at a time may.
    fn data(store: Store, round: &Round) -> Data {
        match store {
            Store::Etcd | Store::ZooKeeper => Data::Keep,
            // A primary that comes back empty before it is replaced would empty its replicas.
            Store::Redlock | Store::Sentinel | Store::Cluster => Data::Lose,
            // It has nothing that could be kept.
            Store::Memcached => Data::Lose,
            _ => round.one_of(&[Data::Keep, Data::Lose]),
        }
    }
}

#[async_trait]
impl Injection for Crash {
    fn needs(&self, _: Store) -> Needs {
        // A server without a file of changes would forget everything at each kill.
        Needs { durable: true, ..Needs::default() }
    }

    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 10, ttl)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let server = match scene.world.store {
            // The one that leads, or another.
            Store::Etcd | Store::ZooKeeper if round.pick.is_multiple_of(3) => {
                round.below(scene.world.nodes(), 0)
            }
            _ => scene.world.leader(round.pick).await?,
        };
        let data = Crash::data(scene.world.store, round);
        scene.world.kill(server)?;
        self.killed = Some((server, data));
        Ok(Effect::new(format!("server {server} is killed, and comes back: {data:?} data"), 1_u64))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        if let Some((server, data)) = self.killed.take() {
            if matches!(scene.world.store, Store::Sentinel | Store::Cluster) {
                scene.world.promoted(server).await?;
            }
            scene.world.restart(server, data).await?;
            scene.world.settle().await?;
        }
        Ok(())
    }
}

/// F9: servers do not reach each other.
#[derive(Default)]
pub(super) struct Parted {
    stopped: Vec<usize>,
}

#[async_trait]
impl Injection for Parted {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let world = &mut *scene.world;
        let nodes = world.nodes();
        let first = round.below(nodes, 0);
        if let Servers::Sentinel(servers) = &world.servers {
            let number = round.below(3, 0);
            servers.sentinel_proxy(number)?.blackhole(Way::Both);
            return Ok(Effect::new(format!("Sentinel {number} is cut off"), 1_u64));
        }
        if world.store == Store::Redlock {
            // Each half of the clients misses two other servers.
            for (network, begin) in [(Network::Even, first), (Network::Odd, first + 2)] {
                for server in [begin, begin + 1] {
                    world.cut_off(network, server % nodes);
                }
            }
            let what = format!("each half of the clients misses two servers, from {first} on");
            return Ok(Effect::new(what, 4_u64));
        }
        self.stopped = vec![first];
        // A majority of the servers sometimes, so that nothing is decided.
        if round.pick.is_multiple_of(3) && world.store != Store::Cluster {
            self.stopped.push((first + 1) % nodes);
        }
        for server in &self.stopped {
            world.stop(*server)?;
        }
        // Behind a network that is parted they would still run, and decide.
        Ok(Effect::new(format!("servers {:?} are stopped", self.stopped), self.stopped.len()))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome {
        if let Servers::Sentinel(servers) = &scene.world.servers {
            servers.sentinel_proxy(round.below(3, 0))?.heal()?;
        }
        scene.world.heal_networks()?;
        let stopped = std::mem::take(&mut self.stopped);
        for server in &stopped {
            scene.world.resume(*server)?;
        }
        scene.world.settle().await?;
        if !stopped.is_empty() {
            revocations_are_over(scene.world).await;
        }
        Ok(())
    }
}

/// Waits until a leader of etcd that was stopped, and that others have deposed, has given up its revocations. It proposes
/// them for up to 5 s and two timeouts of an election, and the fault lasts until then.
async fn revocations_are_over(world: &World) {
    if world.store == Store::Etcd {
        tokio::time::sleep(Duration::from_secs(8)).await;
    }
}

/// F24: each server restarts in its turn, after an elected primary has handed over in order, and a slot of a cluster has
/// moved. Of etcd, every second time, a member is removed and another one takes its place.
pub(super) struct RollingRestart;

#[async_trait]
impl Injection for RollingRestart {
    fn lasts(&self, _: Duration) -> (Duration, Duration) {
        (Duration::ZERO, Duration::ZERO)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        if let Servers::Etcd(cluster) = &mut scene.world.servers
            && round.number.is_multiple_of(2)
        {
            let member = round.below(cluster.members(), 0);
            cluster.replace(member).await?;
            return Ok(Effect::new(
                format!("member {member} is removed, and another one takes its place"),
                1_u64,
            ));
        }
        scene.world.roll().await
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.settle().await
    }
}

/// F26: any two of five servers fail, each in its own way.
#[derive(Default)]
pub(super) struct Minority {
    failed: Vec<(usize, Failure)>,
}

/// The ways in which one of five servers fails.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Kill,
    Stop,
    Cut,
    Forget,
}

impl Failure {
    const ALL: [Failure; 4] = [Failure::Kill, Failure::Stop, Failure::Cut, Failure::Forget];

    async fn inject(self, world: &mut World, server: usize) -> Outcome {
        match self {
            Failure::Kill => world.kill(server),
            Failure::Stop => world.stop(server),
            Failure::Cut => {
                world.cut_off(Network::Even, server);
                world.cut_off(Network::Odd, server);
                Ok(())
            }
            Failure::Forget => world.restart(server, Data::Lose).await,
        }
    }

    async fn heal(self, world: &mut World, server: usize) -> Outcome {
        match self {
            Failure::Kill => world.restart(server, Data::Lose).await,
            Failure::Stop => world.resume(server),
            Failure::Cut => world.heal_networks(),
            Failure::Forget => Ok(()),
        }
    }
}

#[async_trait]
impl Injection for Minority {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl * 3 / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let nodes = scene.world.nodes();
        let first = round.below(nodes, 0);
        let second = (first + 1 + round.below(nodes - 1, 1)) % nodes;
        let ways = [Failure::ALL[round.below(4, 2)], Failure::ALL[round.below(4, 3)]];
        for (server, way) in [first, second].into_iter().zip(ways) {
            self.failed.push((server, way));
            way.inject(scene.world, server).await?;
        }
        Ok(Effect::new(format!("two of {nodes} servers fail: {:?}", self.failed), self.failed.len()))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        for (server, way) in std::mem::take(&mut self.failed) {
            way.heal(scene.world, server).await?;
        }
        scene.world.settle().await
    }
}
