//! Faults of the network between clients and servers: F2, F8, F10, F11, F12, F21.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_testkit::Way;

use super::{Injection, Round, Scene};
use crate::world::Network;
use crate::{Outcome, Store};

/// F2: what the servers send to half of the clients arrives after the lease.
pub(super) struct LateAnswers;

#[async_trait]
impl Injection for LateAnswers {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 3 / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<String> {
        let network = Network::pick(round.pick);
        scene.world.hold_answers(network);
        Ok(format!("answers on the {network:?} network are kept"))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F8: half of the clients are cut off, in both directions or in one, over the end of a lease or not.
pub(super) struct Partition;

#[async_trait]
impl Injection for Partition {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl * 2 / 5, ttl * 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<String> {
        let (network, way) =
            (Network::pick(round.pick >> 8), round.one_of(&[Way::Both, Way::ToServer, Way::ToClient]));
        scene.world.blackhole(network, way);
        Ok(format!("the {network:?} network drops {way:?}"))
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

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<String> {
        let after = 1 + (round.pick >> 8) % 6;
        for network in [Network::Even, Network::Odd] {
            scene.world.lose_an_answer(network, after);
        }
        Ok(format!("the answer to request {after} from now is lost"))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F11: connections are reset, slow, or dead in one direction.
pub(super) struct Reset;

#[async_trait]
impl Injection for Reset {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 20, ttl / 3)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<String> {
        let network = Network::pick(round.pick >> 8);
        if scene.world.store == Store::Cluster {
            scene.world.tell_redis(&["CLIENT", "KILL", "TYPE", "normal"]).await;
            return Ok("all connections are reset".to_owned());
        }
        match round.pick % 3 {
            0 => {
                scene.world.reset(network)?;
                Ok(format!("connections of the {network:?} network are reset, and refused"))
            }
            1 => {
                scene.world.delay(network, Duration::from_millis(100));
                Ok(format!("the {network:?} network takes 100 ms each way"))
            }
            _ => {
                scene.world.blackhole(network, Way::ToClient);
                Ok(format!("connections of the {network:?} network are half open"))
            }
        }
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F12: renewals are not answered until a little before the end of the lease.
pub(super) struct LateRenewals;

#[async_trait]
impl Injection for LateRenewals {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl * 2 / 5, ttl / 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 3 / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<String> {
        let network = Network::pick(round.pick);
        scene.world.blackhole(network, Way::Both);
        Ok(format!("the {network:?} network drops everything for a part of a lease"))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F21: releases arrive, and their answers do not, until after another grant.
pub(super) struct HalfRelease;

#[async_trait]
impl Injection for HalfRelease {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 13 / 10)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<String> {
        let network = Network::pick(round.pick);
        scene.world.blackhole(network, Way::ToClient);
        Ok(format!("releases by the {network:?} network are not answered"))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}
