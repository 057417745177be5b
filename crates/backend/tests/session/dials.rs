//! Sessions of one lock each that are opened while the server does not answer.

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::session::Capacity;
use leasehold_core::{Backend, Claim, Patience, Release, Step, WaitMode};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::calls::{claim, clock, hold, release};
use crate::store::{ANSWER_LIMIT, MemoryBackend, RuntimeClock, SILENCE, Server};

const TASKS: u64 = 20;

fn client(server: &Arc<Server>) -> Arc<MemoryBackend> {
    let capacity = Capacity::One { sessions: 20, option: "sessions=" };
    Arc::new(server.client_by(capacity, WaitMode::Polls, Arc::new(RuntimeClock::new())))
}

fn claims() -> Vec<Claim> {
    (0..TASKS).map(|number| claim(&format!("job/{number}"))).collect()
}

/// Acquires each claim in a task of its own, which tries for as long as it takes.
fn acquire_all(backend: &Arc<MemoryBackend>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for wanted in claims() {
        let backend = backend.clone();
        tasks.spawn(async move {
            while !matches!(backend.contend(&wanted, &Patience::none(clock())).await, Ok(Step::Granted(_))) {
                // As the engine does.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    tasks
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_silent_server_open_one_session_at_a_time() {
    let server = Server::new();
    let backend = client(&server);
    server.set_unreachable(true);
    let tasks = acquire_all(&backend);
    tokio::time::sleep(ANSWER_LIMIT * 10).await;
    // All of them once, because nothing was known before.
    let attempts = server.attempts();
    assert!((TASKS..=TASKS + 9).contains(&attempts), "{attempts} in {:?}", ANSWER_LIMIT * 10);
    server.set_unreachable(false);
    // One of them may have begun before.
    timeout(ANSWER_LIMIT * 2, tasks.join_all()).await.unwrap();
    assert_eq!(server.sessions(), 20);
}

#[tokio::test(start_paused = true)]
async fn holders_of_silent_sessions_open_one_at_a_time() {
    let server = Server::new();
    let backend = client(&server);
    let mut signals = Vec::new();
    for held in claims() {
        signals.push(hold(&*backend, &held).await.lost.unwrap());
    }
    server.set_unreachable(true);
    server.fall_silent();
    for signal in &mut signals {
        signal.fired().await;
    }
    let before = server.attempts();
    let tasks = acquire_all(&backend);
    tokio::time::sleep(ANSWER_LIMIT * 10).await;
    let attempts = server.attempts() - before;
    assert!((2..=10).contains(&attempts), "{attempts} in {:?}", ANSWER_LIMIT * 10);
    drop(tasks);
}

#[tokio::test(start_paused = true)]
async fn sessions_that_the_server_ended_are_opened_side_by_side() {
    let server = Server::new();
    let backend = client(&server);
    for held in claims() {
        hold(&*backend, &held).await;
    }
    server.end_all();
    // Time to notice it.
    tokio::time::sleep(SILENCE).await;
    server.open_in(SILENCE / 2);
    let began = Instant::now();
    acquire_all(&backend).join_all().await;
    assert_eq!(began.elapsed(), SILENCE / 2);
}

#[tokio::test(start_paused = true)]
async fn task_that_waits_to_open_a_session_gets_one_that_is_returned() {
    let server = Server::new();
    let backend = client(&server);
    let (held, other) = (claim("held"), claim("other"));
    hold(&*backend, &held).await;
    server.set_unreachable(true);
    backend.contend(&other, &Patience::none(clock())).await.unwrap_err();
    let began = Instant::now();
    let returns = async {
        tokio::time::sleep(ANSWER_LIMIT / 5).await;
        assert!(matches!(release(&*backend, &held).await, Release::Freed));
    };
    let opens = claim("opens");
    let patience = Patience::none(clock());
    let (opened, granted, ()) =
        tokio::join!(backend.contend(&opens, &patience), hold(&*backend, &other), async {
            returns.await;
            assert_eq!(began.elapsed(), ANSWER_LIMIT / 5);
        });
    assert!(opened.is_err() && granted.lost.is_some());
    assert_eq!(server.sessions(), 1);
}
