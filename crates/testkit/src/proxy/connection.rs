//! One connection through the proxy: two pumps that look at the faults before each delivery.
//!
//! A pump reads on while earlier bytes wait for their time, so that a delay does not lower the throughput,
//! up to a bounded number of chunks.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Faults, Flow, Replies, Shared};

/// Carries `client` until either side ends it or a fault does.
pub(super) async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let _open = Open::count(Arc::clone(&shared));
    let connecting = tokio::time::timeout(CONNECT_LIMIT, connect(&client, &shared));
    let Ok(Ok(server)) = connecting.await else { return };
    // Small messages must not wait for one another in the proxy when they do not without it. A socket that
    // refuses the option is closed already, which the pumps see.
    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let talk = Talk { shared: &shared, asked: AtomicBool::new(false), damaged: AtomicBool::new(false) };
    let pumps = async {
        tokio::try_join!(
            talk.pump::<ToServer>(from_client, to_server),
            talk.pump::<ToClient>(from_server, to_client)
        )
    };
    tokio::select! {
        _ = pumps => {}
        () = talk.healed_after_damage() => {}
    }
}

async fn connect(client: &TcpStream, shared: &Shared) -> io::Result<TcpStream> {
    if !shared.keeps_ports.load(Ordering::SeqCst) {
        return TcpStream::connect(shared.upstream()).await;
    }
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 2], client.peer_addr()?.port())))?;
    socket.connect(shared.upstream()).await
}

/// The time that the server may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The number of chunks of one direction that wait for delivery at most.
const MAX_WAITING: usize = 256;
/// The largest chunk, in bytes.
const CHUNK: usize = 16 * 1024;

/// Counts an open connection for as long as it lives, however it ends.
struct Open(Arc<Shared>);

impl Open {
    fn count(shared: Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The state that the two pumps of a connection share.
struct Talk<'a> {
    shared: &'a Shared,
    /// The client has sent something since the server last did.
    asked: AtomicBool,
    /// Bytes were discarded, so that neither stream makes sense to its receiver once the fault ends.
    damaged: AtomicBool,
}

/// Bytes that were read, or none at the end of the stream, and when they are due.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

/// The difference between the directions.
trait Direction {
    fn flow(faults: &Faults) -> Flow;
    /// Notes a delivery that is about to happen, and translates it; an error ends the connection instead.
    fn deliver(talk: &Talk<'_>, bytes: &mut [u8]) -> io::Result<()>;
}

struct ToServer;
struct ToClient;

impl Direction for ToServer {
    fn flow(faults: &Faults) -> Flow {
        faults.to_server
    }

    fn deliver(talk: &Talk<'_>, bytes: &mut [u8]) -> io::Result<()> {
        // Before the delivery, or a fast answer would count as unasked.
        talk.asked.store(true, Ordering::SeqCst);
        talk.shared.to_server.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Ok(())
    }
}

impl Direction for ToClient {
    fn flow(faults: &Faults) -> Flow {
        faults.to_client
    }

    fn deliver(talk: &Talk<'_>, bytes: &mut [u8]) -> io::Result<()> {
        talk.shared.translate(bytes);
        if talk.asked.swap(false, Ordering::SeqCst) {
            talk.shared.round_trips.fetch_add(1, Ordering::SeqCst);
            if talk.loses_this_reply() {
                talk.shared.lost_replies.fetch_add(1, Ordering::SeqCst);
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        talk.shared.to_client.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Ok(())
    }
}

impl Talk<'_> {
    /// Reads and delivers until the end of the stream was delivered, or an error, which ends the connection.
    async fn pump<D: Direction>(&self, from: OwnedReadHalf, to: OwnedWriteHalf) -> io::Result<()> {
        let (queue, waiting) = mpsc::channel(MAX_WAITING);
        tokio::select! {
            delivered = self.write::<D>(to, waiting) => delivered,
            never = self.read::<D>(from, queue) => match never {},
        }
    }

    async fn read<D: Direction>(&self, mut from: OwnedReadHalf, queue: mpsc::Sender<Chunk>) -> Infallible {
        let mut length = 1;
        while length > 0 {
            let mut bytes = vec![0; CHUNK];
            // A broken connection is passed to the other side as its end, so that it passes the faults too.
            length = from.read(&mut bytes).await.unwrap_or(0);
            bytes.truncate(length);
            let delay = D::flow(&self.shared.faults.borrow()).delay;
            if !delay.is_zero() {
                self.touch(length);
            }
            let due = Instant::now() + delay;
            if queue.send(Chunk { due, bytes }).await.is_err() {
                break;
            }
        }
        // The writer decides when a pump ends, after it has delivered what waits.
        std::future::pending().await
    }

    async fn write<D: Direction>(
        &self,
        mut to: OwnedWriteHalf,
        mut waiting: mpsc::Receiver<Chunk>,
    ) -> io::Result<()> {
        let mut faults = self.shared.faults.subscribe();
        let mut damaged = false;
        while let Some(Chunk { due, mut bytes }) = waiting.recv().await {
            tokio::time::sleep_until(due).await;
            if D::flow(&faults.borrow()).holds {
                self.touch(bytes.len());
            }
            let flow = match faults.wait_for(|faults| !D::flow(faults).holds).await {
                Ok(faults) => D::flow(&faults),
                Err(closed) => return Err(io::Error::other(closed)),
            };
            if !flow.is_whole() {
                damaged = true;
                self.damaged.store(true, Ordering::SeqCst);
            }
            if flow.garbles {
                garble(&mut bytes);
                self.touch(bytes.len());
            }
            if flow.discards {
                // After the damage was noted: who sees the count may heal.
                self.shared.dropped.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                continue;
            } else if damaged && flow.is_whole() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            } else if bytes.is_empty() {
                return to.shutdown().await;
            } else {
                D::deliver(self, &mut bytes)?;
                to.write_all(&bytes).await?;
            }
        }
        // The end of the stream was discarded: the receiver must not learn of it.
        std::future::pending().await
    }

    /// Counts bytes that a fault keeps, delays or replaces.
    fn touch(&self, bytes: usize) {
        self.shared.touched.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    /// Returns `true` if the reply that is about to be delivered is one to lose. Counts it.
    fn loses_this_reply(&self) -> bool {
        let mut loses = false;
        self.shared.faults.send_if_modified(|faults| {
            loses = match &mut faults.replies {
                Replies::Lost => true,
                Replies::Pass { then_lose: None } => false,
                Replies::Pass { then_lose: Some(1) } => {
                    faults.replies = Replies::default();
                    true
                }
                Replies::Pass { then_lose: Some(left) } => {
                    *left -= 1;
                    false
                }
            };
            // Nobody waits for a change of this count.
            false
        });
        loses
    }

    /// Returns when bytes of this connection were discarded and no fault discards any more.
    async fn healed_after_damage(&self) {
        let mut faults = self.shared.faults.subscribe();
        let whole = |faults: &Faults| faults.to_server.is_whole() && faults.to_client.is_whole();
        while faults.changed().await.is_ok() {
            if self.damaged.load(Ordering::SeqCst) && whole(&faults.borrow_and_update()) {
                return;
            }
        }
        std::future::pending().await
    }
}

/// Replaces bytes by others, which are new ones each time (SplitMix64).
fn garble(bytes: &mut [u8]) {
    static STATE: AtomicU64 = AtomicU64::new(0);
    for chunk in bytes.chunks_mut(8) {
        let z = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let nonsense = (z ^ (z >> 31)).to_ne_bytes();
        chunk.iter_mut().zip(nonsense).for_each(|(byte, other)| *byte = other);
    }
}
