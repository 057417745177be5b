//! A way to a server on which no answer to a request for progress arrives.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Carries connections, and leaves out the frames of HTTP/2 that answer requests for progress.
pub struct MuteProgress {
    addr: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl MuteProgress {
    pub async fn start(upstream: SocketAddr) -> MuteProgress {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut ways = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(upstream).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                ways.spawn(carry(from_client, to_server));
                ways.spawn(carry_frames(from_server, to_client));
            }
        });
        MuteProgress { addr, task }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for MuteProgress {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    drop(tokio::io::copy(&mut from, &mut to).await);
}

/// A frame is nine bytes of head, which begin with its length and its type, and the rest.
async fn carry_frames(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut head = [0; 9];
    while from.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut rest = vec![0; length];
        if from.read_exact(&mut rest).await.is_err() {
            return;
        }
        let is_data = head[3] == 0;
        if is_data && rest.windows(PROGRESS.len()).any(|bytes| bytes == PROGRESS) {
            continue;
        }
        let frame = [head.as_slice(), &rest].concat();
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// The watch number -1 in an answer of the watch service. Only answers to progress requests have it.
const PROGRESS: &[u8] = &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
