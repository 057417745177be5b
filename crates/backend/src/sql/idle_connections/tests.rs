//! The logic of dialling, in virtual time.

use std::cell::Cell;

use leasehold_core::FailureKind;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(5);
const SILENT: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// A server that answers an attempt after so long, and counts them; and a client of it.
struct Server {
    takes: Cell<Duration>,
    now: Cell<u32>,
    most: Cell<u32>,
    all: Cell<u32>,
    connections: IdleConnections<u32>,
}

impl Server {
    fn new(endpoints: usize) -> Server {
        let limits = ConnectionLimits { timeout: TIMEOUT, endpoints, idle: 8 };
        let (now, most, all) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Server {
            takes: Cell::new(SECOND),
            now,
            most,
            all,
            connections: IdleConnections::new(limits, |_| true),
        }
    }

    /// Does not answer, as far as the client has found out.
    fn silent() -> Server {
        let server = Server::new(1);
        server.takes.set(SILENT);
        server.lose_an_answer();
        server
    }

    fn lose_an_answer(&self) {
        assert!(self.connections.record(&Failure::unanswered("no answer")));
    }

    async fn dial(&self) -> Result<u32, Failure> {
        self.now.set(self.now.get() + 1);
        self.most.set(self.most.get().max(self.now.get()));
        self.all.set(self.all.get() + 1);
        let _dialling = Dialling(self);
        let answered = tokio::time::timeout(TIMEOUT, tokio::time::sleep(self.takes.get())).await;
        answered.map(|()| self.all.get()).map_err(|elapsed| Failure::unavailable("silent").because(elapsed))
    }

    async fn connect(&self) -> Result<u32, Failure> {
        self.connections.connect(self.dial()).await
    }

    /// Connects four times side by side, and returns how many attempts there were at one time.
    async fn connect_four(&self) -> u32 {
        self.most.set(0);
        let _ = tokio::join!(self.connect(), self.connect(), self.connect(), self.connect());
        self.most.get()
    }

    /// Connects once, and returns how long that took.
    async fn time(&self) -> Duration {
        let began = Instant::now();
        let _ = self.connect().await;
        began.elapsed()
    }
}

struct Dialling<'a>(&'a Server);

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.0.now.set(self.0.now.get() - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_at_a_time_dials_while_the_server_does_not_answer() {
    let server = Server::new(1);
    assert_eq!(server.connect_four().await, 4);
    server.takes.set(SILENT);
    assert_eq!(server.connect_four().await, 4, "nothing was unanswered before");
    assert_eq!(server.connect_four().await, 1);
    server.takes.set(SECOND);
    assert_eq!(server.connect_four().await, 1, "a connection alone shows little");
    server.connections.record_answer();
    assert_eq!(server.connect_four().await, 4);
    server.lose_an_answer();
    assert_eq!(server.connect_four().await, 1, "of a statement");
    assert!(!server.connections.record(&Failure::unavailable("read-only")));
    assert_eq!(server.connect_four().await, 4, "a statement that is refused was answered");
}

#[tokio::test(start_paused = true)]
async fn waiter_gets_a_connection_when_it_is_returned() {
    for later in [Duration::ZERO, FIRST_PAUSE / 4, SECOND, TIMEOUT - FIRST_PAUSE] {
        let server = Server::silent();
        let began = Instant::now();
        let waiters = async {
            tokio::select! {
                taken = server.connect() => taken,
                taken = server.connect() => taken,
            }
        };
        let (taken, ()) = tokio::join!(waiters, async {
            tokio::time::sleep(later).await;
            server.connections.give_back(7);
        });
        assert_eq!((taken.unwrap(), began.elapsed()), (7, later));
        assert_eq!(server.all.get(), u32::from(later >= FIRST_PAUSE));
        assert_eq!(server.connections.take(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_fails_after_the_time_of_a_dial() {
    let server = Server::silent();
    let began = Instant::now();
    let (first, second) = tokio::join!(server.connect(), server.connect());
    assert_eq!(first.unwrap_err().detail(), "silent");
    let second = second.unwrap_err();
    assert_eq!((second.kind, second.effect), (FailureKind::Unavailable, Effect::None));
    assert!(second.detail().contains("does not answer"), "{second}");
    assert!(began.elapsed() <= TIMEOUT + FIRST_PAUSE, "{:?}", began.elapsed());

    let dialling = server.connect();
    let (dialled, ()) = tokio::join!(dialling, async {
        tokio::time::sleep(SECOND * 2).await;
        server.connections.give_back(7);
    });
    assert_eq!(dialled.unwrap(), 7, "its own dial failed");
}

/// A renewal waits behind others for no longer than they do.
#[tokio::test(start_paused = true)]
async fn waiters_dial_side_by_side_as_soon_as_a_statement_is_answered() {
    let server = Server::silent();
    let began = Instant::now();
    let (four, others, ()) = tokio::join!(server.connect_four(), server.connect_four(), async {
        tokio::time::sleep(SECOND).await;
        assert_eq!(server.all.get(), 1);
        server.takes.set(SECOND);
        server.connections.record_answer();
        tokio::task::yield_now().await;
        assert_eq!((server.all.get(), began.elapsed()), (8, SECOND));
    });
    assert_eq!((four, others), (8, 8));
}

#[tokio::test(start_paused = true)]
async fn statements_that_one_outage_ends_cause_no_long_pause() {
    let server = Server::silent();
    for _ in 0..20 {
        server.lose_an_answer();
    }
    server.takes.set(Duration::ZERO);
    assert!(server.time().await <= FIRST_PAUSE);
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_with_each_dial_in_vain() {
    let server = Server::new(1);
    let refuse = async || {
        let began = Instant::now();
        let refused = async { Err(Failure::unavailable("nothing listens there")) };
        server.connections.connect(refused).await.unwrap_err();
        began.elapsed()
    };
    for _ in 0..3 {
        assert_eq!(refuse().await, Duration::ZERO);
    }
    server.lose_an_answer();
    for _ in 0..20 {
        assert!(refuse().await <= FIRST_PAUSE);
    }
    for _ in 0..20 {
        // Its first statement is not answered.
        server.connect().await.unwrap();
        server.lose_an_answer();
    }
    let longest = refuse().await;
    assert!(longest >= LONGEST_PAUSE / 2 && longest <= LONGEST_PAUSE, "{longest:?}");
    // The pause is over.
    assert_eq!(refuse().await, Duration::ZERO);
    server.connections.record_answer();
    assert_eq!(refuse().await, Duration::ZERO);
}

/// The first one never answers.
#[tokio::test(start_paused = true)]
async fn waiters_wait_for_a_dial_of_several_endpoints() {
    let server = Server::new(2);
    server.lose_an_answer();
    let first = async {
        tokio::time::sleep(TIMEOUT).await;
        server.dial().await
    };
    let (dialled, returned) = tokio::join!(server.connections.connect(first), async {
        tokio::time::sleep(FIRST_PAUSE).await;
        server.connect().await
    });
    assert!(dialled.is_ok() && returned.is_ok(), "{dialled:?}, {returned:?}");
}

/// Each waits for nearly as long as it may.
#[tokio::test(start_paused = true)]
async fn dial_that_opens_a_connection_causes_no_pause() {
    let server = Server::silent();
    server.takes.set(TIMEOUT - FIRST_PAUSE * 2);
    let (first, second) = tokio::join!(server.connect(), server.connect());
    assert_eq!((first.unwrap(), second.unwrap()), (1, 2));
}

/// The server continues with connections that were given up, so a hundred dials side by side are all too late. It needs
/// two seconds for them, and a client waits for 0.7 s.
#[tokio::test(start_paused = true)]
async fn hundred_clients_of_a_slow_server_are_connected_in_the_end() {
    const A_DIAL: Duration = Duration::from_millis(20);
    let limits = ConnectionLimits { timeout: Duration::from_millis(700), endpoints: 1, idle: 8 };
    let free_at = Cell::new(Instant::now());
    let dial = async || {
        let connected_at = free_at.get().max(Instant::now()) + A_DIAL;
        free_at.set(connected_at);
        let connected = tokio::time::timeout(limits.timeout, tokio::time::sleep_until(connected_at)).await;
        connected.map_err(|elapsed| Failure::unavailable("late").because(elapsed))
    };
    let client = async || {
        let connections = IdleConnections::new(limits, |()| true);
        connections.record_silence();
        while connections.connect(dial()).await.is_err() {}
    };
    let all = futures_util::future::join_all((0..100).map(|_| client()));
    tokio::time::timeout(Duration::from_secs(600), all).await.expect("all are connected");
}

#[tokio::test(start_paused = true)]
async fn caller_that_leaves_passes_the_turn_on() {
    let server = Server::silent();
    for left_after in [FIRST_PAUSE / 4, SECOND] {
        let leaves = tokio::time::timeout(left_after, server.connect());
        let (left, stays) = tokio::join!(leaves, async {
            tokio::time::sleep(FIRST_PAUSE / 8).await;
            tokio::time::timeout(left_after + SECOND, server.connect()).await
        });
        assert!(left.is_err() && stays.is_err());
        assert_eq!(server.now.get(), 0);
    }
    assert_eq!((server.all.get(), server.most.get()), (3, 1), "the first left in its pause");
    server.takes.set(Duration::ZERO);
    server.connect().await.unwrap();
}

#[test]
fn only_so_many_open_connections_are_kept() {
    let limits = ConnectionLimits { timeout: TIMEOUT, endpoints: 1, idle: 2 };
    let connections = IdleConnections::new(limits, |number| number % 2 == 0);
    for number in 1..=6 {
        connections.give_back(number);
    }
    assert_eq!([connections.take(), connections.take(), connections.take()], [Some(4), Some(2), None]);
    connections.give_back(8);
    connections.clear();
    assert_eq!(connections.take(), None);
}
