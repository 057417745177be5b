//! A server, a client of ours, and a program of another library that contends for the same locks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::backend::{Backend, Claim, Grant, Share};
use leasehold_testkit::peers::{self, Peer};
use leasehold_testkit::{Error, ZooKeeperEnsemble, require};
use leasehold_zookeeper::ZooKeeperBackend;

use crate::common::{backend, claim, eventually, no_patience, take};

/// A library, and how its program in `tests/peers` is started.
pub(crate) struct Library {
    pub(crate) dialect: &'static str,
    pub(crate) start: fn() -> Result<Command, Error>,
}

pub(crate) const CURATOR: Library = Library {
    dialect: "curator",
    start: || {
        let recipes = "libcurator-recipes-java";
        let jars = [
            ("curator-recipes.jar", recipes),
            ("curator-framework.jar", recipes),
            ("curator-client.jar", recipes),
            ("guava.jar", recipes),
            ("zookeeper.jar", "libzookeeper-java"),
            ("zookeeper-jute.jar", "libzookeeper-java"),
            ("slf4j-api.jar", "libslf4j-java"),
            ("slf4j-nop.jar", "libslf4j-java"),
        ];
        peers::java_program(&jars, &source("Peer.java"))
    },
};

pub(crate) const KAZOO: Library = Library {
    dialect: "kazoo",
    start: || {
        let mut python = peers::python(&["kazoo>=2.10,<3"])?;
        python.arg(source("peer.py"));
        Ok(python)
    },
};

fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(file)
}

/// The session of a peer, which a machine that stands still for a moment does not end.
pub(crate) const PEER_SESSION: Duration = Duration::from_secs(8);

/// A server, a client of ours in the library's dialect, and a way to start the library's program.
pub(crate) struct Fixture {
    pub(crate) servers: ZooKeeperEnsemble,
    pub(crate) ours: Arc<ZooKeeperBackend>,
    pub(crate) library: &'static Library,
}

impl Fixture {
    pub(crate) async fn open(library: &'static Library) -> Option<Fixture> {
        // Asked for first, so that nothing is started for a test that is skipped.
        require::or_skip(library.dialect, (library.start)())?;
        let servers = ZooKeeperEnsemble::start_or_skip(1).await?;
        let ours = client(&servers, library).await;
        Some(Fixture { servers, ours, library })
    }

    pub(crate) async fn peer(&self) -> Shared {
        let mut command = (self.library.start)().unwrap();
        command.arg(self.servers.addr(0).to_string()).arg(PEER_SESSION.as_millis().to_string());
        let peer = Shared::over(Peer::start(command).unwrap());
        assert_eq!(peer.answer().await, "ready");
        peer
    }

    /// Returns the shares of the holders, and those of the waiters.
    pub(crate) async fn seen(&self, name: &str) -> (Vec<Share>, Vec<Share>) {
        let seen =
            self.ours.inspect(&claim(name, Share::MUTEX).resource, None, &no_patience()).await.unwrap();
        let shares =
            |all: &[leasehold::backend::ClaimInfo]| all.iter().map(|standing| standing.share).collect();
        (shares(&seen.holders), shares(&seen.waiting))
    }

    pub(crate) async fn wait_for_claims(&self, name: &str, holders: usize, waiting: usize) {
        eventually(async || {
            let (holds, waits) = self.seen(name).await;
            (holds.len(), waits.len()) == (holders, waiting)
        })
        .await;
    }
}

pub(crate) async fn client(servers: &ZooKeeperEnsemble, library: &Library) -> Arc<ZooKeeperBackend> {
    backend(&format!("{}?session=20s&dialect={}", servers.url(), library.dialect)).await
}

/// A peer whose blocking calls run in threads of their own.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<Option<Peer>>>);

impl Shared {
    pub(crate) fn over(peer: Peer) -> Shared {
        Shared(Arc::new(Mutex::new(Some(peer))))
    }

    async fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut Peer) -> T + Send + 'static) -> T {
        let peer = self.0.clone();
        tokio::task::spawn_blocking(move || work(peer.lock().unwrap().as_mut().unwrap())).await.unwrap()
    }

    pub(crate) async fn ask(&self, line: &str) -> String {
        let line = line.to_owned();
        self.with(move |peer| peer.ask(&line).unwrap()).await
    }

    pub(crate) async fn send_line(&self, line: &str) {
        let line = line.to_owned();
        self.with(move |peer| peer.send_line(&line).unwrap()).await;
    }

    pub(crate) async fn answer(&self) -> String {
        self.with(|peer| peer.answer().unwrap()).await
    }

    pub(crate) async fn is_silent(&self) -> bool {
        self.with(|peer| peer.answer_within(Duration::from_millis(300)).unwrap().is_none()).await
    }

    pub(crate) async fn kill(self) {
        let peer = self.0.lock().unwrap().take().unwrap();
        tokio::task::spawn_blocking(move || peer.kill().unwrap()).await.unwrap();
    }
}

pub(crate) fn waits(ours: &Arc<ZooKeeperBackend>, claim: &Claim) -> tokio::task::JoinHandle<Grant> {
    let (ours, claim) = (ours.clone(), claim.clone());
    tokio::spawn(async move { take(&ours, &claim).await })
}

pub(crate) async fn within<T>(limit: Duration, task: tokio::task::JoinHandle<T>) -> T {
    tokio::time::timeout(limit, task).await.unwrap().unwrap()
}

pub(crate) const SOON: Duration = Duration::from_secs(30);
