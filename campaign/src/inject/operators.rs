//! Operators and servers that act on locks and sessions: F13, F17, F18, F25, F30.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_testkit::{Data, EtcdCluster};

use super::{Injection, Round, Scene};
use crate::world::{Effect, Needs, Network, Servers, World};
use crate::{Outcome, Store};

/// F13: waiters lose what would have woken them.
pub(super) struct LostNotification;

#[async_trait]
impl Injection for LostNotification {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 20, ttl / 5)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let world = &mut *scene.world;
        match &world.servers {
            Servers::Etcd(_) => {
                let network = Network::pick(round.pick);
                world.reset(network)?;
                world.compact()?;
                Ok(Effect::of_traffic("connections with watches are ended, and their revisions compacted"))
            }
            Servers::ZooKeeper(_) => {
                let server = round.below(world.nodes(), 0);
                world.restart(server, Data::Keep).await?;
                Ok(Effect::new(format!("server {server} forgets its watches"), 1_u64))
            }
            Servers::Postgres { .. } => {
                // A listener asks for a number again and again, to see that its connection is alive.
                let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                           WHERE (query LIKE 'LISTEN%' OR query = 'SELECT 1') AND pid <> pg_backend_pid()";
                let ended: u64 = world.sql(end).await?.trim().parse()?;
                Ok(Effect::new("listening sessions are ended", ended))
            }
            _ => {
                let ended = world.end_clients("pubsub").await;
                Ok(Effect::new("subscriptions are ended", ended))
            }
        }
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.heal_networks()
    }
}

/// F17: an operator deletes what the store has.
pub(super) struct DeletedByHand;

#[async_trait]
impl Injection for DeletedByHand {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        scene.world.delete_locks(scene.rig.prefix(), round.pick).await
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        scene.world.settle().await
    }
}

/// F18: the server ends sessions, connections or leases.
pub(super) struct EndedSession;

#[async_trait]
impl Injection for EndedSession {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 10, ttl / 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome<Effect> {
        let world = &mut *scene.world;
        match &world.servers {
            Servers::Etcd(_) => Ok(Effect::new("leases are revoked", world.revoke_leases()?)),
            Servers::Postgres { .. } | Servers::MariaDb { .. } => {
                Ok(Effect::new("sessions are ended", world.end_sessions().await?))
            }
            _ => {
                let ended = world.end_clients("normal").await;
                Ok(Effect::new("all connections are ended", ended))
            }
        }
    }

    async fn heal(&mut self, _: &mut Scene<'_>, _: &Round) -> Outcome {
        Ok(())
    }
}

/// F25: the store comes back as it was a while ago.
pub(super) struct OlderState;

#[async_trait]
impl Injection for OlderState {
    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome<Effect> {
        match scene.world.store {
            Store::Redis => drop(scene.world.send_to_redis(&["SAVE"]).await),
            Store::Sqlite => scene.world.back_up_database()?,
            _ => {
                let copy = "DROP TABLE IF EXISTS older; CREATE TABLE older AS SELECT * FROM leasehold";
                scene.world.sql(copy).await?;
            }
        }
        let kept = scene.world.residents().await?;
        Ok(Effect::new("a backup of keys or rows is made, to which the store returns later", kept))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, _: &Round) -> Outcome {
        match scene.world.store {
            Store::Redis => {
                scene.world.kill(0)?;
                scene.world.restart(0, Data::Keep).await
            }
            Store::Sqlite => scene.world.restore_database(),
            _ => {
                let restore = "BEGIN; DELETE FROM leasehold; INSERT INTO leasehold SELECT * FROM older; COMMIT; \
                               DROP TABLE older";
                scene.world.sql(restore).await.map(drop)
            }
        }
    }
}

/// F30: the clients' user is locked, its sessions are ended, and it is unlocked later. Of etcd it loses its role. A Redis
/// server presents an expired certificate instead, every second time.
pub(super) struct RevokedLogin;

#[async_trait]
impl Injection for RevokedLogin {
    fn needs(&self, store: Store) -> Needs {
        Needs { user: true, tls: store == Store::Redis, ..Needs::default() }
    }

    fn lasts(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl / 2, ttl * 2)
    }

    fn rests(&self, ttl: Duration) -> (Duration, Duration) {
        (ttl, ttl * 2)
    }

    async fn inject(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome<Effect> {
        let world = &mut *scene.world;
        if let Some(expired) = has_expired(world, round) {
            present(world, &expired).await?;
            let ended = world.end_clients("normal").await;
            return Ok(Effect::new(
                "the server presents an expired certificate, and all connections are ended",
                ended,
            ));
        }
        let ended = match &world.servers {
            Servers::Postgres { .. } => {
                world.sql("ALTER ROLE jobs NOLOGIN").await?;
                world.end_sessions().await?
            }
            Servers::MariaDb { .. } => {
                world.sql("ALTER USER jobs@'127.0.0.1' ACCOUNT LOCK").await?;
                world.end_sessions().await?
            }
            Servers::Etcd(cluster) => {
                return revoke_role(cluster);
            }
            _ => {
                world.send_to_redis(&["ACL", "SETUSER", "default", "off"]).await;
                world.sum_of_redis(&["CLIENT", "KILL", "USER", "default"]).await
            }
        };
        Ok(Effect::new("the user of all clients is locked, and its sessions are ended", ended))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>, round: &Round) -> Outcome {
        let world = &mut *scene.world;
        if has_expired(world, round).is_some() {
            let Servers::Redis(server) = &world.servers else { return Ok(()) };
            let valid = server.certificates().ok_or("the server has no certificate")?.server();
            return present(world, &valid.certificate).await;
        }
        match &world.servers {
            Servers::Postgres { .. } => drop(world.sql("ALTER ROLE jobs LOGIN").await?),
            Servers::MariaDb { .. } => {
                drop(world.sql("ALTER USER jobs@'127.0.0.1' ACCOUNT UNLOCK").await?);
            }
            Servers::Etcd(cluster) => {
                drop(cluster.etcdctl(&["--user=root:root", "user", "grant-role", "jobs", "locks"])?);
            }
            _ => drop(world.send_to_redis(&["ACL", "SETUSER", "default", "on"]).await),
        }
        Ok(())
    }
}

/// Takes the role from the user of all clients, and looks whether the user is refused what the role allows.
fn revoke_role(cluster: &EtcdCluster) -> Outcome<Effect> {
    cluster.etcdctl(&["--user=root:root", "user", "revoke-role", "jobs", "locks"])?;
    let refused = cluster.etcdctl(&["--user=jobs:secret", "get", "leasehold/"]).is_err();
    Ok(Effect::new("the user of all clients loses its role", u64::from(refused)))
}

/// Returns the expired certificate of a server with TLS, in the rounds that present it.
fn has_expired(world: &World, round: &Round) -> Option<PathBuf> {
    let Servers::Redis(server) = &world.servers else { return None };
    let certificates = server.certificates().filter(|_| round.number.is_multiple_of(2))?;
    Some(certificates.expired().to_owned())
}

/// Lets a Redis server present another certificate, from the next connection on.
async fn present(world: &World, certificate: &Path) -> Outcome {
    let path = certificate.display().to_string();
    match world.send_to_redis(&["CONFIG", "SET", "tls-cert-file", &path]).await {
        0 => Err("the server does not take the certificate".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use leasehold::{Client, ErrorKind};
    use leasehold_testkit::require;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn clients_of_etcd_lose_their_role() {
        let world = match World::start(Store::Etcd, RevokedLogin.needs(Store::Etcd)).await {
            Ok(world) => world,
            Err(error) => match error.downcast_ref::<leasehold_testkit::Error>() {
                Some(missing) if missing.is_missing() => return require::skip("etcd", &missing.to_string()),
                _ => panic!("{error}"),
            },
        };
        let locks = Client::open(&world.patient_url()).await.unwrap();
        locks.mutex("job").lock().await.unwrap().release().await.unwrap();
        let Servers::Etcd(cluster) = &world.servers else { panic!("no etcd") };
        assert_eq!(revoke_role(cluster).unwrap().count, 1);
        let refused = locks.mutex("job").try_lock().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    }
}
