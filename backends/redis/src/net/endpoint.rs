//! The server to connect to now, and its epoch.
//!
//! Ground rules: address and epoch come from **one** answer and stay together for as long as a
//! connection lives. A connection never learns another epoch; where the view changes, it is replaced by
//! one to the new target. So no request can go to the server of one view with the epoch of another.

use std::fmt::Debug;

use async_trait::async_trait;
use leasehold_core::Failure;
use tokio::sync::watch;

use crate::config::Endpoint;
use crate::net::pipe::Pipe;

/// One server, and the epoch in which it decides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    /// The address of the server.
    pub(crate) endpoint: Endpoint,
    /// The epoch of the fences that it grants over this connection; 0 without an election. Electors
    /// whose own epochs begin at 0 are counted from 1, so that none of their fences is taken for one of
    /// a server without an election.
    pub(crate) epoch: u64,
    /// The view of its source that this is. Sources count them as they like.
    pub(crate) view: u64,
}

/// A source that knows the target.
#[async_trait]
pub(crate) trait Source: Debug + Send + Sync {
    /// Describes for a person where connections lead.
    fn describe(&self) -> String;

    /// Returns the target now. Called before each new connection.
    async fn target(&self) -> Result<Target, Failure>;

    /// Refuses a new connection that does not lead to what the target says.
    async fn admit(&self, _connection: Pipe, _target: &Target) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns `true` if nothing newer is known. Nothing is sent any more to a target that is not
    /// current.
    fn is_current(&self, _target: &Target) -> bool {
        true
    }

    /// Returns a receiver of the number of the current view, which targets carry.
    fn changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// Reports that the server of `target` answered that it is not, or no longer, the primary.
    fn report_stale(&self, _target: &Target) {}
}

impl dyn Source + '_ {
    /// Waits until `target` is not current any more; for ever where views do not change.
    pub(crate) async fn superseded(&self, target: &Target) {
        if let Some(mut changes) = self.changes()
            && changes.wait_for(|view| *view != target.view).await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

/// The number of the current view of a source. Each report of a stale target ends a view, and connections
/// under it are abandoned.
#[derive(Debug, Default)]
pub(crate) struct Views(watch::Sender<u64>);

impl Views {
    /// Returns the number of the current view.
    pub(crate) fn now(&self) -> u64 {
        *self.0.borrow()
    }

    /// Ends the current view.
    pub(crate) fn end(&self) {
        self.0.send_modify(|view| *view += 1);
    }

    /// Ends the current view because of an answer that was asked for in `view`. Returns the view of that answer:
    /// the one that begins, unless `view` had ended before, so that the answer is not current.
    pub(crate) fn replace(&self, view: u64) -> u64 {
        let mut next = view;
        self.0.send_modify(|now| {
            next += u64::from(*now == view);
            *now += 1;
        });
        next
    }

    /// Ends the view of `target`, unless it has ended.
    pub(crate) fn report_stale(&self, target: &Target) {
        self.0.send_if_modified(|view| {
            let is_current = *view == target.view;
            *view += u64::from(is_current);
            is_current
        });
    }

    /// Returns a receiver for the next change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// A source with one address. A name, a virtual address or a proxy leads to another server after a
/// failover, while older connections still lead to the deposed one.
#[derive(Debug)]
pub(crate) struct Fixed {
    endpoint: Endpoint,
    views: Views,
}

impl Fixed {
    /// Leads to `endpoint`.
    pub(crate) fn new(endpoint: Endpoint) -> Fixed {
        Fixed { endpoint, views: Views::default() }
    }
}

#[async_trait]
impl Source for Fixed {
    fn describe(&self) -> String {
        self.endpoint.to_string()
    }

    async fn target(&self) -> Result<Target, Failure> {
        Ok(Target { endpoint: self.endpoint.clone(), epoch: 0, view: self.views.now() })
    }

    fn is_current(&self, target: &Target) -> bool {
        target.view == self.views.now()
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.views.changes())
    }

    fn report_stale(&self, target: &Target) {
        self.views.report_stale(target);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use leasehold_core::{
        Backend, Claim, ClaimId, Clock, Effect, FailureKind, Fence, Moment, Patience, Resource, Share, Step,
    };
    use leasehold_testkit::{Appendonly, Data, RedisServer};

    use super::*;
    use crate::RedisBackend;
    use crate::RedisConfig;

    /// One server, in the epoch that the test sets.
    #[derive(Debug)]
    struct Elected(Endpoint, AtomicU64);

    #[async_trait]
    impl Source for Elected {
        fn describe(&self) -> String {
            self.0.to_string()
        }

        async fn target(&self) -> Result<Target, Failure> {
            let epoch = self.1.load(Ordering::Relaxed);
            Ok(Target { endpoint: self.0.clone(), epoch, view: epoch })
        }

        fn is_current(&self, target: &Target) -> bool {
            target.view == self.1.load(Ordering::Relaxed)
        }
    }

    #[derive(Debug)]
    struct FrozenClock;

    impl Clock for FrozenClock {
        fn now(&self) -> Moment {
            Moment::from_nanos(1)
        }
    }

    struct Fixture {
        backend: RedisBackend,
        source: Arc<Elected>,
        next_id: u8,
    }

    impl Fixture {
        async fn at(server: &RedisServer) -> Fixture {
            let config = RedisConfig::parse(&server.url()).unwrap();
            let source = Arc::new(Elected(config.endpoint.clone(), AtomicU64::new(3)));
            let backend = RedisBackend::connect_via(source.clone(), config).await.unwrap();
            Fixture { backend, source, next_id: 0 }
        }

        /// Takes and releases, in this epoch.
        async fn fence(&mut self, epoch: u64) -> Result<Fence, Failure> {
            self.source.1.store(epoch, Ordering::Relaxed);
            self.next_id += 1;
            let claim = Claim::new(
                ClaimId::from_bytes([self.next_id; 16]),
                Resource::new("job").unwrap(),
                Share::MUTEX,
                Duration::from_secs(60),
            );
            let none = Patience::none(Arc::new(FrozenClock));
            // The end of a connection may be seen only when it is used.
            let first = match self.backend.contend(&claim, &none).await {
                Err(failure) if failure.effect == Effect::Unknown => {
                    self.backend.contend(&claim, &none).await?
                }
                answered => answered?,
            };
            let Step::Granted(grant) = first else { panic!("busy") };
            let Step::Granted(again) = self.backend.contend(&claim, &none).await? else { panic!("busy") };
            assert_eq!(again.fence, grant.fence, "the same claim gets the same fence");
            let seen = self.backend.inspect(&claim.resource, None, &none).await?;
            assert_eq!((seen.fence, seen.holders[0].fence), (grant.fence, grant.fence));
            self.backend.release(&[&claim]).await;
            Ok(grant.fence.unwrap())
        }
    }

    #[tokio::test]
    async fn fence_carries_the_connection_epoch_and_older_view_is_refused() {
        let Some(server) = RedisServer::start_or_skip().await else { return };
        let mut fixture = Fixture::at(&server).await;
        let first = fixture.fence(3).await.unwrap();
        assert_eq!((first.epoch, first.sub), (3, 0));
        assert_eq!(fixture.fence(3).await.unwrap(), Fence::new(3, first.seq + 1, 0), "it is counted");
        let later = fixture.fence(5).await.unwrap();
        assert!(later.epoch == 5 && later.seq > first.seq + 1, "a new epoch begins at the clock");
        let refusal = fixture.fence(4).await.unwrap_err();
        assert_eq!(refusal.kind, FailureKind::Unavailable);
        assert!(refusal.detail().contains("STALE_EPOCH"), "{refusal}");
        let refusal = fixture.fence(0).await.unwrap_err();
        assert_eq!(refusal.kind, FailureKind::Unsupported);
        assert!(refusal.detail().contains("redis+sentinel://"), "{refusal}");
        assert_eq!(fixture.fence(5).await.unwrap(), Fence::new(5, later.seq + 1, 0));
    }

    #[tokio::test]
    async fn what_is_not_known_to_be_continued_begins_at_the_clock() {
        let builder = RedisServer::builder().persistence(Appendonly::Always);
        let Some(server) = builder.start_or_skip().await else { return };
        let mut fixture = Fixture::at(&server).await;
        let mut last = fixture.fence(3).await.unwrap();
        // A restart with its data, one without, the loss of the data alone, and a promotion: each
        // within the same epoch.
        for fault in ["keep", "lose", "flush", "promoted"] {
            match fault {
                "keep" => server.restart(Data::Keep).await.unwrap(),
                "lose" => server.restart(Data::Lose).await.unwrap(),
                "flush" => server.flushall().await.unwrap(),
                _ => {
                    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
                    server.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
                }
            }
            let next = fixture.fence(3).await.unwrap();
            assert!(next.epoch == 3 && next.seq > last.seq + 1, "{fault}: {last:?}, then {next:?}");
            last = next;
        }
    }

    #[tokio::test]
    async fn a_server_without_elections_goes_over_to_one_with() {
        let Some(server) = RedisServer::start_or_skip().await else { return };
        let mut fixture = Fixture::at(&server).await;
        let before = fixture.fence(0).await.unwrap();
        assert_eq!(before.epoch, 0);
        assert!(fixture.fence(1).await.unwrap() > before);
    }
}
