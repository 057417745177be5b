//! Rows that open transactions have locked: what ends them, who waits for them, and the user's own
//! transactions.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use leasehold_conformance::connection_limit;
use leasehold_core::{Backend, LossCause, LossSignal, Patience, Release, Renewal, Step};
use leasehold_mysql::{MySqlConfig, in_transaction_sql};
use leasehold_testkit::{Lateness, MariaDbServer, Proxy, Way};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};
use tokio::time::Instant;

const OPTIONS: &str = "method=for-update&silence=10s&transactions=60";
/// Five signs of life are asked for in the time of silence. This is some more than that time, and less than the server
/// waits for a silent client.
const REPORT_LIMIT: Duration = Duration::from_secs(15);
/// Transactions that are open, and those of them that wait.
const OPEN: &str = "SELECT COUNT(*) FROM information_schema.INNODB_TRX";
const WAITING: &str = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'";

async fn here(server: &MariaDbServer) -> Arc<dyn Backend> {
    open(&format!("{}?{OPTIONS}", server.url())).await
}

async fn lost_within(signal: &mut LossSignal, limit: Duration) {
    let cause = tokio::time::timeout(limit, signal.fired()).await;
    assert_eq!(cause.unwrap(), LossCause::SessionEnded);
}

#[tokio::test]
async fn killed_connection_ends_its_own_lock_and_no_other() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    // The server's own idea of a dead connection is none for ours.
    server.sql("SET GLOBAL idle_transaction_timeout = 1").await.unwrap();
    let (one, two) = (here(&server).await, here(&server).await);
    let (a, b) = (claim("a", LONG), claim("b", LONG));
    let (held_a, held_b) = (hold(&*one, &a).await, hold(&*one, &b).await);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(matches!(renew(&*one, &a).await, Renewal::Alive), "signs of life keep it");
    let seen = one.inspect(&a.resource, None, &Patience::none(clock())).await.unwrap();
    assert_eq!((seen.holders[0].id, seen.fence), (a.id, held_a.fence));
    let session = server.sql("SELECT session FROM leasehold_rows_held WHERE name = 'a'").await.unwrap();
    server.sql(&format!("KILL {}", session.trim())).await.unwrap();
    let next = claim("a", LONG);
    let second = tokio::time::timeout(REPORT_LIMIT, take(&*two, &next)).await.unwrap();
    assert!(second.fence > held_a.fence, "{second:?} after {held_a:?}");
    lost_within(&mut held_a.lost.unwrap(), REPORT_LIMIT).await;
    assert!(matches!(renew(&*one, &a).await, Renewal::Lost));
    assert!(matches!(release(&*one, &a).await, Release::Gone), "it must spare the next holder");
    for (backend, claim) in [(&two, &next), (&one, &b)] {
        assert!(matches!(renew(&**backend, claim).await, Renewal::Alive));
    }
    assert!(held_b.lost.unwrap().cause().is_none());
    let seen = two.inspect(&a.resource, None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [next.id]);
}

/// The server notices nothing of the network, and ends the session by its own limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_partition_loss_is_reported_before_the_next_grant() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let (silence, options) = (Duration::from_secs(6), OPTIONS.replace("silence=10s", "silence=6s"));
    let through = open(&format!("{}?{options}", server.url_at(proxy.addr()))).await;
    let there = here(&server).await;
    let mut signal = hold(&*through, &claim("job", LONG)).await.lost.unwrap();
    // Signs of life keep it for longer than the server keeps a silent one.
    tokio::time::sleep(silence * 7 / 3).await;
    assert!(signal.cause().is_none());
    proxy.blackhole(Way::Both);
    let (parted, lateness) = (Instant::now(), Lateness::watch());
    let waiting = tokio::spawn(async move {
        take(&*there, &claim("job", LONG)).await;
        Instant::now()
    });
    lost_within(&mut signal, silence * 2).await;
    let (reported, late) = (Instant::now(), lateness.end().await);
    let granted = tokio::time::timeout(silence * 10, waiting).await.unwrap().unwrap();
    println!("loss reported after {:?}, granted after {:?}", reported - parted, granted - parted);
    // The server waits for twice the silence. A process that does not run meanwhile reports nothing.
    match late < silence / 2 {
        true => assert!(reported < granted, "granted before the loss was reported"),
        false => println!("nothing is known of the order, on a machine that was {late:?} late"),
    }
}

#[tokio::test]
async fn claim_beyond_the_transaction_limit_is_refused() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?method=for-update&transactions=2", server.url())).await;
    connection_limit::third_of_two_transactions_is_refused(&*backend).await;
}

/// The server would let them wait on, and give a lock to nobody.
#[tokio::test]
async fn cancelled_waiter_is_ended_in_the_server() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = here(&server).await;
    hold(&*backend, &claim("job", LONG)).await;
    for is_dropped in [false, true] {
        let (waits, patience) = (claim("job", LONG), Patience::unlimited(clock()));
        let waiting = {
            let (backend, patience) = (backend.clone(), patience.clone());
            tokio::spawn(async move { backend.contend(&waits, &patience).await })
        };
        wait_for_count(&server, WAITING, "1").await;
        if is_dropped {
            waiting.abort();
        } else {
            patience.end();
            let step = waiting.await.unwrap();
            assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
        }
        // A wait of the server's own lasts five seconds, and this one at most two.
        wait_for_count(&server, WAITING, "0").await;
    }
    wait_for_count(&server, OPEN, "1").await;
}

/// As many as `LEASEHOLD_CANCELLED` says, else a few hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_acquires_leave_no_open_transaction() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let acquires: usize = std::env::var("LEASEHOLD_CANCELLED").map_or(200, |number| number.parse().unwrap());
    // An acquire that is dropped in the middle of a request ends its session, so the holder uses another one.
    let (backend, holder) = (here(&server).await, here(&server).await);
    let mut left = acquires;
    while left > 0 {
        let some = left.min(40);
        left -= some;
        // Some are held by nobody, so that what is cancelled is also a grant.
        let held = claim("job 0", LONG);
        let holds = !left.is_multiple_of(3);
        if holds {
            take(&*holder, &held).await;
        }
        let tasks: Vec<_> = (0..some).map(|n| tokio::spawn(cancel_one(backend.clone(), n))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        if holds {
            assert!(matches!(release(&*holder, &held).await, Release::Freed));
        }
    }
    wait_for_count(&server, OPEN, "0").await;
    assert!(backend.list("", None, 10).await.unwrap().is_empty());
    for name in ["job 0", "job 1"] {
        hold(&*holder, &claim(name, LONG)).await;
    }
}

/// One acquire that ends somewhere: by its patience, or because its future is dropped.
async fn cancel_one(backend: Arc<dyn Backend>, n: usize) {
    let claim = claim(&format!("job {}", n % 2), LONG);
    let patience = Patience::unlimited(clock());
    if n % 8 == 7 {
        let brief = Duration::from_micros(n as u64 * 91 % 5_000);
        if let Ok(Ok(Step::Granted(_))) =
            tokio::time::timeout(brief, backend.contend(&claim, &patience)).await
        {
            release(&*backend, &claim).await;
        }
        return;
    }
    let end = async {
        tokio::time::sleep(Duration::from_micros(n as u64 * 397 % 15_000)).await;
        patience.end();
    };
    let (step, ()) = tokio::join!(backend.contend(&claim, &patience), end);
    match step {
        // As the engine does with what nobody wants any more.
        Ok(Step::Granted(_)) => _ = release(&*backend, &claim).await,
        Ok(Step::Busy(_)) => {}
        Err(failure) => {
            assert!(failure.is_transient(), "{failure}");
            assert!(!matches!(release(&*backend, &claim).await, Release::Unknown(_)));
        }
    }
}

#[tokio::test]
async fn lock_in_user_transaction_commits_with_the_protected_data() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let url = format!("{}?method=for-update", server.url());
    let (sql, backend) = (in_transaction_sql(&MySqlConfig::parse(&url).unwrap()), open(&url).await);
    let mut user = Conn::new(Opts::from_url(&server.url()).unwrap()).await.unwrap();
    user.query_drop("CREATE TABLE account (balance INT) ENGINE = InnoDB").await.unwrap();
    user.query_drop("INSERT INTO account VALUES (100)").await.unwrap();
    user.query_drop("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
    let mut last = None;
    // The first time its row is not there yet, and once the transaction that made it is rolled back.
    for (end, expected) in [("ROLLBACK", "100"), ("COMMIT", "99"), ("COMMIT", "98")] {
        user.query_drop("START TRANSACTION").await.unwrap();
        user.exec_drop(&sql, ("job",)).await.unwrap();
        user.query_drop("UPDATE account SET balance = balance - 1").await.unwrap();
        let wanted = claim("job", LONG);
        assert!(look_once(&*backend, &wanted).await.unwrap().is_none(), "taken beside a transaction");
        let waiting = {
            let (backend, wanted) = (backend.clone(), wanted.clone());
            tokio::spawn(async move { take(&*backend, &wanted).await })
        };
        wait_for_count(&server, WAITING, "1").await;
        assert!(!waiting.is_finished());
        user.query_drop(end).await.unwrap();
        let grant = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
        // The present holder sees what was written under the lock before.
        assert_eq!(server.sql("SELECT balance FROM account").await.unwrap().trim(), expected);
        assert!(grant.fence > last, "{grant:?} after {last:?}");
        last = grant.fence;
        // And the other way round.
        user.query_drop("START TRANSACTION").await.unwrap();
        let error = user.exec_drop(&sql, ("job",)).await.unwrap_err();
        assert!(matches!(&error, Error::Server(cause) if cause.code == 1205), "{error}");
        user.query_drop("ROLLBACK").await.unwrap();
        assert!(matches!(release(&*backend, &wanted).await, Release::Freed));
    }
}

/// The connection ends after it was seen alive and before the fence is drawn: another client may have
/// the row by then, under a lower fence.
#[tokio::test]
async fn connection_lost_while_drawing_its_fence_gets_no_grant() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    // No sign of life is requested meanwhile: it would reveal the end of the connection as well.
    let url = format!("{}?method=for-update&silence=5m", server.url());
    let (backend, other) = (open(&url).await, here(&server).await);
    let first = claim("job", LONG);
    hold(&*backend, &first).await;
    assert!(matches!(release(&*backend, &first).await, Release::Freed));
    // Keeps the table of holders from being written.
    let mut keeper = Conn::new(Opts::from_url(&server.url()).unwrap()).await.unwrap();
    keeper.query_drop("START TRANSACTION; SELECT * FROM leasehold_rows_held FOR UPDATE").await.unwrap();
    let dying = {
        let backend = backend.clone();
        tokio::spawn(async move { look_once(&*backend, &claim("job", LONG)).await })
    };
    wait_for_count(&server, WAITING, "1").await;
    let holder = format!(
        "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX WHERE trx_state = 'RUNNING' \
         AND trx_mysql_thread_id <> {}",
        keeper.id()
    );
    let holder = server.sql(&holder).await.unwrap();
    server.sql(&format!("KILL {}", holder.trim())).await.unwrap();
    wait_for_count(&server, OPEN, "2").await;
    keeper.query_drop("COMMIT").await.unwrap();
    let granted = dying.await.unwrap();
    assert!(!matches!(granted, Ok(Some(_))), "{granted:?}");
    take(&*other, &claim("job", LONG)).await;
}
