//! A relay between Unix sockets that counts round trips.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::PostgresServer;
use crate::error::{Error, cannot};

/// A way for connections to a PostgreSQL server over a Unix socket. Unlike a [`Proxy`](crate::Proxy) it changes no
/// port, so a client takes the connection for a direct one.
#[derive(Debug)]
pub struct PostgresRelay {
    folder: PathBuf,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    round_trips: AtomicU64,
    accepted: AtomicU64,
}

impl PostgresRelay {
    /// Listens in `folder`, as a server does, until the runtime of the caller ends.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn start(folder: &Path, server: &PostgresServer) -> Result<PostgresRelay, Error> {
        let upstream = server.socket_folder().join(format!(".s.PGSQL.{}", server.addr().port()));
        let socket = folder.join(format!(".s.PGSQL.{PORT}"));
        let listener = UnixListener::bind(&socket).map_err(cannot("listen on", socket.display()))?;
        let relay = PostgresRelay { folder: folder.to_owned(), counts: Arc::default() };
        let counts = relay.counts.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counts.accepted.fetch_add(1, Ordering::SeqCst);
                if let Ok(server) = UnixStream::connect(&upstream).await {
                    tokio::spawn(carry(counts.clone(), client, server));
                }
            }
        });
        Ok(relay)
    }

    /// Returns the URL of the server by way of this relay.
    pub fn url(&self) -> String {
        format!("postgres://postgres@/postgres?host={}", self.folder.display())
    }

    /// Returns how often the server has answered something.
    pub fn round_trips(&self) -> u64 {
        self.counts.round_trips.load(Ordering::SeqCst)
    }

    /// Returns how many connections there were.
    pub fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::SeqCst)
    }
}

async fn carry(counts: Arc<Counts>, client: UnixStream, server: UnixStream) {
    let asked = AtomicBool::new(false);
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asking = async {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
            asked.store(true, Ordering::SeqCst);
            if to_server.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    };
    let answering = async {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
            if asked.swap(false, Ordering::SeqCst) {
                counts.round_trips.fetch_add(1, Ordering::SeqCst);
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

/// The port in the name of the socket: the one that clients take by default.
const PORT: u16 = 5432;
