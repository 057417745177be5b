//! A TCP proxy that breaks the connection between a client and a server in chosen ways.
//!
//! It knows bytes, not protocols, so that one proxy serves every server. It runs on a thread of its own, so
//! that a test that blocks its thread does not stop the network. Connections are bounded in number, what is
//! on the way is bounded in bytes, and everything ends on Drop.

mod connection;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::error::{Error, cannot};
use crate::port::Port;

/// A way for connections to a server, with the faults of a network as methods.
///
/// Faults hold for present and future connections, add up, and end with [`Proxy::heal`].
///
/// ```
/// # use leasehold_testkit::{Proxy, RedisServer, Way};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Some(server) = RedisServer::start_or_skip().await else { return Ok(()) };
/// let proxy = Proxy::start(server.addr()).await?;
/// let url = server.url_at(proxy.addr());          // give this to what you test
/// proxy.delay(Way::ToServer, Duration::from_millis(50));
/// proxy.heal()?;
/// proxy.drop_replies();                           // requests are executed, but replies are lost
/// # Ok(()) }
/// ```
///
/// # Does not promise
/// At most 1,024 connections are carried at once; further ones are closed as soon as they are accepted.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    /// Unbounded in type only: each sender waits for its order, so it holds one order a thread.
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// A direction between a client and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The bytes that the client sends.
    ToServer,
    /// The bytes that the server sends.
    ToClient,
    /// Both.
    Both,
}

impl Proxy {
    /// Starts a proxy on a free loopback port that carries connections to `upstream`.
    ///
    /// The server need not be up: a connection is closed when the server refuses it.
    pub async fn start(upstream: SocketAddr) -> Result<Self, Error> {
        let port = Port::take()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(cannot("start", "the proxy's runtime"))?;
        let shared = Arc::new(Shared::new(upstream));
        let (orders, received) = mpsc::unbounded_channel();
        let (addr, serving) = (port.addr(), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("leasehold-proxy".to_owned())
            .spawn(move || runtime.block_on(serve(addr, serving, received)))
            .map_err(cannot("start", "the proxy's thread"))?;
        let proxy = Self { port, shared, orders: Some(orders), thread: Some(thread) };
        proxy.heal()?;
        Ok(proxy)
    }

    /// Returns the address where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Leads new connections to another server, as a name or a virtual address does that moves. Older
    /// connections stay where they are.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    /// Gives new connections to the server the port that their client has, at the address 127.0.0.2: a server that
    /// compares ports finds nothing in between.
    pub fn keep_ports(&self) {
        self.shared.keeps_ports.store(true, Ordering::SeqCst);
    }

    /// Writes `to` wherever a server sends `from`, from now on, as a router does that gives servers other addresses.
    /// [`Proxy::heal`] does not end it. A text that comes in two pieces is not found.
    ///
    /// # Panics
    /// When the texts are not of one length, which would break what surrounds them.
    #[track_caller]
    pub fn translate(&self, from: &str, to: &str) {
        assert!(!from.is_empty() && from.len() == to.len(), "{from:?} and {to:?} are not of one length");
        let pair = (from.as_bytes().to_vec(), to.as_bytes().to_vec());
        self.shared.translations.lock().unwrap_or_else(PoisonError::into_inner).push(pair);
    }

    /// Closes every connection and refuses new ones, as a server does that is down.
    ///
    /// All of it has happened when this returns.
    pub fn cut(&self) -> Result<(), Error> {
        self.order(Listening::Off)
    }

    /// Drops what is sent that way, without closing anything, as a network does that is down.
    ///
    /// New connections are accepted. [`Proxy::heal`] closes the connections that lost bytes, because their
    /// streams cannot be continued.
    pub fn blackhole(&self, way: Way) {
        self.shared.change(way, |flow| flow.discards = true);
    }

    /// Delivers nonsense instead of what is sent that way: as many bytes, and other ones.
    ///
    /// [`Proxy::heal`] closes the connections that were given some, because their streams cannot be continued.
    pub fn garble(&self, way: Way) {
        self.shared.change(way, |flow| flow.garbles = true);
    }

    /// Keeps what is sent that way, in order, and delivers it after [`Proxy::heal`]: late, but not lost, as a
    /// network does that was down for a while. Senders that send on are held up when the buffers are full.
    pub fn hold(&self, way: Way) {
        self.shared.change(way, |flow| flow.holds = true);
    }

    /// Delivers what is sent that way so much later. Order and throughput stay. What is on its way already
    /// keeps the delay that it began with.
    pub fn delay(&self, way: Way, delay: Duration) {
        self.shared.change(way, |flow| flow.delay = delay);
    }

    /// Loses every reply: a request reaches the server, and when the server answers, the answer is dropped
    /// and the connection closed. What was asked has happened then, and its client cannot know.
    ///
    /// A reply is what the server sends first after the client has sent something; the proxy cannot
    /// distinguish it from a pushed message that comes in between. Messages to a client that asked nothing
    /// since pass.
    pub fn drop_replies(&self) {
        self.shared.faults.send_modify(|faults| faults.replies = Replies::Lost);
    }

    /// Loses one reply, as [`Proxy::drop_replies`] does: that of the `n`-th request from now on, of any
    /// connection. `1` is the next one. Requests sent in one write count as one.
    ///
    /// # Panics
    /// When `n` is 0, since no request comes before the first.
    #[track_caller]
    pub fn cut_after_request(&self, n: u64) {
        assert!(n > 0, "requests count from 1");
        self.shared.faults.send_modify(|faults| faults.replies = Replies::Pass { then_lose: Some(n) });
    }

    /// Ends every fault, and listens again after [`Proxy::cut`].
    ///
    /// # Errors
    /// When another program took the port meanwhile.
    pub fn heal(&self) -> Result<(), Error> {
        self.shared.faults.send_replace(Faults::default());
        self.order(Listening::On)
    }

    /// Returns how many connections are open now.
    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Returns how many connections were accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Returns how many round trips there were since the start: a reply counts if the client has sent
    /// something since the one before. Opening a connection is one more, see [`Proxy::accepted`].
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Ordering::SeqCst)
    }

    /// Returns how many bytes were delivered that way since the start.
    pub fn bytes(&self, way: Way) -> u64 {
        let of = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        match way {
            Way::ToServer => of(&self.shared.to_server),
            Way::ToClient => of(&self.shared.to_client),
            Way::Both => of(&self.shared.to_server) + of(&self.shared.to_client),
        }
    }

    /// Returns how many bytes were dropped since the start, so that a test can see that [`Proxy::blackhole`] took
    /// place.
    pub fn dropped_bytes(&self) -> u64 {
        self.shared.dropped.load(Ordering::SeqCst)
    }

    /// Returns how many replies were lost since the start, so that a test can see that its fault took
    /// place.
    pub fn lost_replies(&self) -> u64 {
        self.shared.lost_replies.load(Ordering::SeqCst)
    }

    /// Returns how much its faults have done to what passed since the start: bytes that were dropped, kept, delayed
    /// or replaced, replies that were lost, and connections that [`Proxy::cut`] closed. A fault in which the number
    /// stays the same has touched nothing.
    pub fn touched(&self) -> u64 {
        let counters = [&self.shared.dropped, &self.shared.lost_replies, &self.shared.touched];
        counters.iter().map(|counter| counter.load(Ordering::SeqCst)).sum()
    }

    /// Sends an order to the proxy's thread and waits until it is carried out, so that faults have happened
    /// when their methods return. The thread never waits for this one, so this cannot deadlock.
    fn order(&self, listening: Listening) -> Result<(), Error> {
        let gone = || Error::failed("the proxy's thread is gone");
        let (done, carried_out) = std::sync::mpsc::sync_channel(1);
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        orders.send(Order { listening, done }).map_err(|_| gone())?;
        let outcome = carried_out.recv_timeout(ORDER_LIMIT).map_err(|error| match error {
            RecvTimeoutError::Disconnected => gone(),
            RecvTimeoutError::Timeout => {
                Error::failed(format!("the proxy's thread did not carry out an order within {ORDER_LIMIT:?}"))
            }
        })?;
        outcome.map_err(cannot("listen on", self.addr()))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The closed channel ends the thread's loop, and its runtime all connections.
        self.orders = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the proxy's thread panicked");
        }
    }
}

/// The number of connections that are carried at once.
const MAX_CONNECTIONS: usize = 1024;
/// The time that the proxy's thread may take to carry out an order: it waits for a processor only.
const ORDER_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
enum Listening {
    On,
    Off,
}

#[derive(Debug)]
struct Order {
    listening: Listening,
    done: std::sync::mpsc::SyncSender<std::io::Result<()>>,
}

/// The faults that are present now. The default is nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    to_server: Flow,
    to_client: Flow,
    replies: Replies,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    delay: Duration,
    holds: bool,
    discards: bool,
    garbles: bool,
}

impl Flow {
    /// Returns `true` if the receiver gets everything as it was sent, early or late.
    fn is_whole(&self) -> bool {
        !self.discards && !self.garbles
    }
}

#[derive(Debug, Clone, Copy)]
enum Replies {
    Pass { then_lose: Option<u64> },
    Lost,
}

impl Default for Replies {
    fn default() -> Self {
        Self::Pass { then_lose: None }
    }
}

/// The state that the handle and all connections share.
#[derive(Debug)]
struct Shared {
    upstream: Mutex<SocketAddr>,
    keeps_ports: AtomicBool,
    faults: watch::Sender<Faults>,
    /// The texts that servers send, and those that clients get instead.
    translations: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    open: AtomicUsize,
    accepted: AtomicU64,
    round_trips: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
    lost_replies: AtomicU64,
    dropped: AtomicU64,
    /// Bytes that were kept, delayed or replaced, and connections that were cut.
    touched: AtomicU64,
}

impl Shared {
    fn new(upstream: SocketAddr) -> Self {
        Self {
            upstream: Mutex::new(upstream),
            keeps_ports: AtomicBool::new(false),
            faults: watch::Sender::new(Faults::default()),
            translations: Mutex::default(),
            open: AtomicUsize::new(0),
            accepted: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            lost_replies: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            touched: AtomicU64::new(0),
        }
    }

    fn upstream(&self) -> SocketAddr {
        *self.upstream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Translates what a server has sent.
    fn translate(&self, bytes: &mut [u8]) {
        for (from, to) in self.translations.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let mut begin = 0;
            while let Some(place) = bytes[begin..].windows(from.len()).position(|text| text == from) {
                let end = begin + place + from.len();
                bytes[begin + place..end].copy_from_slice(to);
                begin = end;
            }
        }
    }

    fn change(&self, way: Way, change: impl Fn(&mut Flow)) {
        self.faults.send_modify(|faults| {
            if way != Way::ToClient {
                change(&mut faults.to_server);
            }
            if way != Way::ToServer {
                change(&mut faults.to_client);
            }
        });
    }
}

/// Accepts connections and carries out orders until the handle is dropped.
async fn serve(addr: SocketAddr, shared: Arc<Shared>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut listener: Option<TcpListener> = None;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some(Order { listening, done }) = order else { break };
                let outcome = match (listening, listener.is_some()) {
                    (Listening::On, true) => Ok(()),
                    (Listening::On, false) => TcpListener::bind(addr).await.map(|bound| listener = Some(bound)),
                    (Listening::Off, _) => {
                        let closed = listener.take().map_or(Ok(()), close);
                        let open = shared.open.load(Ordering::SeqCst);
                        connections.shutdown().await;
                        let cut = open.saturating_sub(shared.open.load(Ordering::SeqCst));
                        shared.touched.fetch_add(cut as u64, Ordering::SeqCst);
                        closed
                    }
                };
                // The caller may have given up waiting.
                let _ = done.send(outcome);
            }
            client = accept(listener.as_ref()) => {
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                if connections.len() < MAX_CONNECTIONS {
                    connections.spawn(connection::carry(client, Arc::clone(&shared)));
                }
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    // Nobody is left to report an error to, and the socket is closed right after.
    let _ = listener.map(close);
}

/// Ends the listening itself, not only this handle of it: another thread that starts a process just now has
/// copied the handle into it, and the copy would continue to accept until that process begins its program.
fn close(listener: TcpListener) -> std::io::Result<()> {
    Ok(rustix::net::shutdown(&listener, rustix::net::Shutdown::Both)?)
}

/// Returns the next connection; none ever while nothing listens.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            // Out of descriptors, or the client is gone already. A pause keeps this from spinning.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
