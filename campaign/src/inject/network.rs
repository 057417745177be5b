//! Faults of the network between clients and servers: F2, F8, F10, F11, F12, F21, F29.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_testkit::Way;
use leasehold_torture::Plan;

use super::{Injection, Round, Scene};
use crate::world::{Effect, Network};
use crate::{Outcome, Store};

/// Describes what is done to a network. Where the servers have the proxies, it is done to them. What it has done is
/// counted when it is over: one without traffic has done nothing.
fn to_network(scene: &Scene<'_>, network: Network, what: impl Into<String>) -> Effect {
    let effect = Effect::of_traffic(what);
    match scene.world.has_own_networks() {
        true => effect.on_network(network, scene.rig.workers()),
        false => effect,
    }
}

/// F2: what the servers send to half of the clients arrives after the lease.
pub(super) struct LateAnswers;

#[async_trait]
impl Injection for LateAnswers {
    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 3 / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let network = Network::pick(round.pick);
        scene.world.hold_answers(network);
        Ok(to_network(
            scene,
            network,
            format!("answers on the {network:?} network are kept, counted in bytes"),
        ))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F8: half of the clients are cut off, in both directions or in one, over the end of a lease or not.
pub(super) struct Partition;

#[async_trait]
impl Injection for Partition {
    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl * 2 / 5, ttl * 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let (network, way) =
            (Network::pick(round.pick >> 8), round.one_of(&[Way::Both, Way::ToServer, Way::ToClient]));
        scene.world.blackhole(network, way);
        Ok(to_network(scene, network, format!("the {network:?} network drops {way:?}, counted in bytes")))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F10: the answer to one of the next requests is lost, with its connection.
pub(super) struct LostAnswer;

#[async_trait]
impl Injection for LostAnswer {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 50, ttl / 5)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 50, ttl / 5)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let after = 1 + (round.pick >> 8) % 6;
        let what = format!("the answer to request {after} from now is lost, counted in answers");
        let effect = Effect::of_traffic(what);
        for network in [Network::Even, Network::Odd] {
            scene.world.lose_an_answer(network, after);
        }
        let workers = scene.rig.workers();
        Ok(if scene.world.has_own_networks() { effect.on(0..workers) } else { effect })
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// The ways in which connections are troubled.
enum Trouble {
    Reset,
    Delay,
    HalfOpen,
}

/// F11: connections are reset, slow, or dead in one direction.
pub(super) struct Reset;

#[async_trait]
impl Injection for Reset {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 20, ttl / 3)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let network = Network::pick(round.pick >> 8);
        if scene.world.store == Store::Cluster {
            let ended = scene.world.end_clients("normal").await;
            return Ok(Effect::new("all connections are reset", ended).on(0..scene.rig.workers()));
        }
        let (way, what) = match round.pick % 3 {
            0 => (Trouble::Reset, "are reset, and refused, counted in connections"),
            1 => (Trouble::Delay, "take 100 ms each way, counted in bytes"),
            _ => (Trouble::HalfOpen, "are half open, counted in bytes"),
        };
        let effect = to_network(scene, network, format!("connections of the {network:?} network {what}"));
        match way {
            Trouble::Reset => scene.world.reset(network)?,
            Trouble::Delay => scene.world.delay(network, Duration::from_millis(100)),
            Trouble::HalfOpen => scene.world.blackhole(network, Way::ToClient),
        }
        Ok(effect)
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F12: renewals are not answered until a little before the end of the lease.
pub(super) struct LateRenewals;

#[async_trait]
impl Injection for LateRenewals {
    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl * 2 / 5, ttl / 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 3 / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let network = Network::pick(round.pick);
        scene.world.blackhole(network, Way::Both);
        Ok(to_network(
            scene,
            network,
            format!("the {network:?} network drops everything for a part of a lease, counted in bytes"),
        ))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F21: releases arrive, and their answers do not, until after another grant.
pub(super) struct HalfRelease;

#[async_trait]
impl Injection for HalfRelease {
    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 13 / 10)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let network = Network::pick(round.pick);
        scene.world.blackhole(network, Way::ToClient);
        Ok(to_network(
            scene,
            network,
            format!("releases by the {network:?} network are not answered, counted in bytes"),
        ))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F29: what the servers send to half of the clients is replaced by nonsense.
pub(super) struct Nonsense;

#[async_trait]
impl Injection for Nonsense {
    fn shape(&self, plan: &mut Plan) {
        super::long_holds(plan);
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 10, ttl / 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let network = Network::pick(round.pick);
        scene.world.garble_answers(network);
        Ok(to_network(
            scene,
            network,
            format!("answers on the {network:?} network are random bytes, counted in bytes"),
        ))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}
