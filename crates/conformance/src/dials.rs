//! Checks of how a client of a database opens connections while the server does not answer.
//!
//! Ground rules: for tests only, so what must not fail panics.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::Backend;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::calls::{LONG, claim, look_once};

/// A way to the server that a test can interrupt.
#[derive(Debug)]
pub struct Way<S, H, C> {
    /// Cuts the connections, and leads new ones to a [silent server](start_silent).
    pub silence: S,
    /// Leads new connections to the server again.
    pub heal: H,
    /// Returns how many connections are open now, and how many were accepted since the start.
    pub count: C,
}

/// Checks that a client of so many tasks opens one connection at a time while the server does not answer
/// within `timeout`, and that all of its tasks proceed when it answers.
///
/// It may have two sets of connections: those that hold locks, and those for everything else.
///
/// # Panics
/// If that is not so.
pub async fn tasks_dial_one_at_a_time(
    backend: Arc<dyn Backend>,
    tasks: usize,
    timeout: Duration,
    way: Way<impl FnOnce(), impl FnOnce(), impl Fn() -> (usize, u64)>,
) {
    let Way { silence, heal, count } = way;
    silence();
    // It finds out, and closes what it had.
    while look_once(&*backend, &claim("first", LONG)).await.is_ok() {}
    until("the first attempts are over", || count().0 == 0).await;
    let (before, began) = (count().1, Instant::now());
    let mut asking = JoinSet::new();
    for number in 0..tasks {
        let (backend, wanted) = (backend.clone(), claim(&format!("dials/{number}"), LONG));
        asking.spawn(async move {
            while !matches!(look_once(&*backend, &wanted).await, Ok(Some(_))) {
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    let mut most = 0;
    until("it has tried a few times", || {
        let (open, accepted) = count();
        most = most.max(open);
        // All would have dialled by then.
        accepted >= before + ATTEMPTS && began.elapsed() >= timeout
    })
    .await;
    let (made, elapsed) = (count().1 - before, began.elapsed());
    // One that was given up may be open for a while yet.
    assert!(most < tasks / 2, "{most} connections were open at a time");
    // Each was waited for.
    let rounds = elapsed.as_millis().div_ceil(timeout.as_millis()) + 1;
    assert!(u128::from(made) <= 2 * rounds, "{made} connections in {elapsed:?}");
    heal();
    let healed = tokio::time::timeout(LIMIT, asking.join_all()).await;
    assert!(healed.is_ok(), "some tasks were not granted what nobody else wants");
}

/// Starts a server that accepts connections and says nothing, until the runtime ends.
///
/// # Errors
/// If it cannot listen.
pub async fn start_silent() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(
                async move { while client.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {} },
            );
        }
    });
    Ok(addr)
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let reached = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, reached).await.is_ok(), "not within {LIMIT:?}: {what}");
}

/// Attempts that are looked at.
const ATTEMPTS: u64 = 5;
/// The pause of a task between two requests.
const PAUSE: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(60);
