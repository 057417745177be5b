//! The connections to a keeper: each is read by itself, and only so many at a time.
//!
//! Ground rules: a connection of another user is closed before anything is read, and does not count. One that sends
//! nothing is closed after a few seconds, and delays others only while as many are read as can be at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::process::keeper_lines::Request;
use crate::system::keeper_socket;

/// The task that accepts connections to a keeper, and the requests that it has read.
#[derive(Debug)]
pub(crate) struct KeeperListener {
    requests: mpsc::Receiver<(Request, UnixStream)>,
    accepting: JoinHandle<()>,
}

impl KeeperListener {
    /// Begins to accept connections.
    pub(crate) fn open(listener: UnixListener) -> KeeperListener {
        let (sender, requests) = mpsc::channel(1);
        let accepting = tokio::spawn(accept(listener, sender));
        KeeperListener { requests, accepting }
    }

    /// Ends it: when this returns, connections are refused.
    pub(crate) async fn close(mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
    }

    /// Waits for the next request.
    pub(crate) async fn next(&mut self) -> (Request, UnixStream) {
        match self.requests.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

impl Drop for KeeperListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: UnixListener, sender: mpsc::Sender<(Request, UnixStream)>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is left.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(stream) = keeper_socket::trusted(stream) else { continue };
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let sender = sender.clone();
        tokio::spawn(async move {
            let _slot = slot;
            // A connection that says nothing only looks whether this keeper is alive.
            if let Ok(Some(request)) = tokio::time::timeout(REQUEST_LIMIT, read(stream)).await {
                let _ = sender.send(request).await;
            }
        });
    }
}

async fn read(mut stream: UnixStream) -> Option<(Request, UnixStream)> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let count = stream.read_buf(&mut line).await.ok()?;
        if count == 0 || line.len() > MAX_REQUEST {
            return None;
        }
    }
    let request = Request::read(std::str::from_utf8(&line).ok()?.trim_end())?;
    Some((request, stream))
}

/// The number of connections that are read at a time.
const CONNECTIONS: usize = 64;
/// The time in which a connection has to say what it is for.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const MAX_REQUEST: usize = 2048;
