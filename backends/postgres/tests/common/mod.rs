//! Helpers of the tests of this backend.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "not each test uses all of it")]
#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use leasehold_conformance::calls::{
    LONG, claim, clock, hold, look_once, release, release_until_known, renew, renew_until_known, resource,
    take, wait_for_holder,
};
use leasehold_core::{Backend, Failure};
use leasehold_postgres::PostgresConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

pub async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_postgres::connect(PostgresConfig::parse(url)?, clock()).await
}

pub async fn open(url: &str) -> Arc<dyn Backend> {
    connect(url).await.unwrap()
}

/// A relay between unix sockets that counts round trips. Unlike a proxy over TCP it changes no port, so a
/// client takes the connection for a direct one.
#[derive(Debug, Default)]
pub struct Relay {
    round_trips: AtomicU64,
    accepted: AtomicU64,
}

impl Relay {
    /// Listens in `folder`, as a server with this port does, until the test's runtime ends.
    pub fn start(folder: &Path, port: u16, upstream: PathBuf) -> Arc<Relay> {
        let relay = Arc::new(Relay::default());
        let listener = UnixListener::bind(folder.join(format!(".s.PGSQL.{port}"))).unwrap();
        let serving = relay.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                serving.accepted.fetch_add(1, Ordering::SeqCst);
                let server = UnixStream::connect(&upstream).await.unwrap();
                tokio::spawn(serving.clone().carry(client, server));
            }
        });
        relay
    }

    async fn carry(self: Arc<Self>, client: UnixStream, server: UnixStream) {
        let asked = AtomicBool::new(false);
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let asking = async {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
                asked.store(true, Ordering::SeqCst);
                to_server.write_all(&bytes[..length]).await.unwrap();
            }
        };
        let answering = async {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                if asked.swap(false, Ordering::SeqCst) {
                    self.round_trips.fetch_add(1, Ordering::SeqCst);
                }
                if to_client.write_all(&bytes[..length]).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = asking => {}
            () = answering => {}
        }
    }

    /// Returns how often the server has answered something.
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::SeqCst)
    }

    /// Returns how many connections there were.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }
}
