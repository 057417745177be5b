//! Checks of how a client of a database opens connections while the server does not answer.
//!
//! Ground rules: for tests only, so what must not fail panics.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{Backend, Effect, Failure};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::calls::{LONG, claim, in_the_end, look_once};

/// A way to the server that a test can interrupt.
#[derive(Debug)]
pub struct Way<S, H, C> {
    /// Lets nothing be answered.
    pub silence: S,
    /// Leads to the server again.
    pub heal: H,
    /// Returns how many connections are open now, and how many were accepted since the start.
    pub count: C,
}

/// Checks that a client of so many tasks opens one connection at a time while the server does not answer
/// within `timeout`, and that all of its tasks proceed when it answers.
///
/// The way is [interrupted](Way::silence) by a cut, and leads new connections to a [silent server](start_silent). The
/// client may have two sets of connections: those that hold locks, and those for everything else.
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
    // The client finds out, and closes what it had.
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

/// Checks that a set of connections records a statement without an answer, dials within its limit from then on, and
/// without one from the next answer on.
///
/// `ask` sends a statement, and `forget` drops the idle connections. The way is [interrupted](Way::silence) so that
/// nothing is answered, also over the connections that are open.
///
/// # Panics
/// If that is not so.
pub async fn lost_statement_limits_dials_until_an_answer(
    ask: impl AsyncFn() -> Result<(), Failure>,
    forget: impl Fn(),
    way: Way<impl Fn(), impl Fn(), impl Fn() -> (usize, u64)>,
) {
    let Way { silence, heal, count } = way;
    let ask_four = async || {
        let before = count().1;
        let answers = tokio::join!(ask(), ask(), ask(), ask());
        assert!(answers.0.is_err() && answers.1.is_err() && answers.2.is_err() && answers.3.is_err());
        count().1 - before
    };
    // The second time, one was answered meanwhile.
    for _ in 0..2 {
        in_the_end(|| ask()).await;
        forget();
        silence();
        assert_eq!(ask_four().await, 4, "nothing was unanswered before");
        heal();
        in_the_end(|| ask()).await;
        silence();
        let lost = ask().await.map_err(|failure| failure.effect);
        assert_eq!(lost, Err(Effect::Unknown), "a statement");
        assert!(ask_four().await < 4);
        heal();
    }
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
