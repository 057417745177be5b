//! Servers and clients for the tests.

pub(crate) mod backend;
pub(crate) mod child;
pub(crate) mod http;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::backend::ManualClock;
use leasehold::local::MemoryBackend;
use leasehold_serve::{Config, Listen, Server};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use http::{Reply, Request, Stream};

/// The longest that anything here is waited for.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A server of this process.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
    /// Another client of the same store.
    pub(crate) store: Client,
    /// The folder of the token, which goes with this.
    pub(crate) folder: TempDir,
    pub(crate) stop: watch::Sender<u32>,
    pub(crate) ended: tokio::task::JoinHandle<usize>,
}

/// Returns a store, and the clock of its clients, for which no time passes.
pub(crate) fn memory_without_expiry() -> (Arc<MemoryBackend>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    (Arc::new(MemoryBackend::with_clock(clock.clone())), clock)
}

impl Served {
    /// Serves the locks of a memory that this test alone uses.
    pub(crate) async fn start() -> Served {
        Served::with(|_| {}).await
    }

    /// The same with other settings.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Served {
        Served::over(&format!("mem:{}", unique()), change).await
    }

    /// Serves the locks of this store.
    pub(crate) async fn over(url: &str, change: impl FnOnce(&mut Config)) -> Served {
        let client = Client::builder().subscriber(leasehold_serve::subscriber()).open(url).await.unwrap();
        Served::between(client, Client::open(url).await.unwrap(), change).await
    }

    /// Serves the locks of a memory whose leases never end: what ends them is the server alone, however busy the
    /// machine is.
    pub(crate) async fn without_expiry() -> Served {
        let (memory, clock) = memory_without_expiry();
        let open = || Client::builder().clock(clock.clone());
        let client = open().subscriber(leasehold_serve::subscriber()).over(memory.clone()).unwrap();
        Served::between(client, open().over(memory.clone()).unwrap(), |_| {}).await
    }

    /// Serves the locks of this client, whose store another client opens as well.
    pub(crate) async fn between(client: Client, store: Client, change: impl FnOnce(&mut Config)) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.token_file = Some(dir.path().join("token"));
        change(&mut config);
        let server = Server::bind(client, config).await.unwrap();
        let tcp = server.addresses().into_iter().find_map(|listen| match listen {
            Listen::Tcp(address) => Some(address),
            _ => None,
        });
        let token = std::fs::read_to_string(server.token_path()).unwrap().trim().to_owned();
        let (stop, stopped) = watch::channel(0);
        let ended = tokio::spawn(server.run(move || {
            let mut stopped = stopped.clone();
            let seen = *stopped.borrow();
            Box::pin(async move {
                while *stopped.borrow_and_update() == seen {
                    if stopped.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            })
        }));
        Served { address: tcp.unwrap_or(([127, 0, 0, 1], 1).into()), token, store, folder: dir, stop, ended }
    }

    /// Returns a request with the token.
    pub(crate) fn request(&self, method: &str, path: &str) -> Request {
        self.plain(method, path).header("authorization", &format!("Bearer {}", self.token))
    }

    /// Returns a request without the token.
    pub(crate) fn plain(&self, method: &str, path: &str) -> Request {
        Request::new(self.address, method, path)
    }

    pub(crate) async fn put(&self, id: &str, wait: &str, body: Value) -> Reply {
        self.request("PUT", &format!("/v1/holds/{id}?wait={wait}")).body(&body).send().await
    }

    /// Acquires a free mutex.
    pub(crate) async fn lock(&self, id: &str, name: &str) -> Value {
        self.put(id, "0", json!({ "name": name, "ttl": "30s" })).await.ok()
    }

    pub(crate) async fn renew(&self, id: &str) -> Reply {
        self.request("POST", &format!("/v1/holds/{id}/renew")).send().await
    }

    pub(crate) async fn release(&self, id: &str) -> Reply {
        self.request("DELETE", &format!("/v1/holds/{id}")).send().await
    }

    /// Acquires through a stream.
    pub(crate) async fn stream(&self, id: &str, wait: &str, body: Value) -> Stream {
        let request = self.request("PUT", &format!("/v1/holds/{id}?wait={wait}"));
        request.header("accept", "application/x-ndjson").body(&body).open().await
    }

    pub(crate) async fn holders(&self, name: &str) -> usize {
        self.store.inspect(name).await.unwrap().holders.len()
    }

    /// Waits until the store shows so many holders.
    pub(crate) async fn until_holders(&self, name: &str, count: usize) {
        until("the holders", async || self.holders(name).await == count).await;
    }

    /// Waits until the store shows so many waiters.
    pub(crate) async fn until_waiters(&self, name: &str, count: usize) {
        until("the waiters", async || self.store.inspect(name).await.unwrap().waiting.len() == count).await;
    }
}

/// Waits until a condition is true.
pub(crate) async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_true().await {
        assert!(began.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns an id that no other request has.
pub(crate) fn id() -> String {
    format!("test-{:08}-{:08}", std::process::id(), unique())
}

pub(crate) fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
