//! Many requests at the same time are written and read by the task of the connection.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_backend::connection::{Connection, Sent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::lines::{Counting, Hooked, Lines, answer, ask, ask_for, line, opened, poll, received};

#[tokio::test]
async fn answers_are_handed_out_in_the_order_of_the_requests() {
    // So small that each request and each answer comes in several parts.
    let (connection, mut far) = opened(3);
    let sent = [ask(&connection, "one "), ask_for(2, &connection, "two twice "), ask(&connection, "three")];
    let serving = async {
        assert_eq!(received(&mut far, 19).await, "one two twice three");
        far.write_all(b"1\nsecond\nagain\n3\n").await.unwrap();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(sent), serving);
    assert_eq!(answers, [line(1), Ok(vec!["second".to_owned(), "again".to_owned()]), line(3)]);
}

/// Of the lengths around what is read at once, which is 8 KiB.
#[tokio::test]
async fn long_answer_arrives_whole_and_the_next_one_behind_it() {
    const READ: usize = 8 * 1024;
    for length in [READ - 2, READ - 1, READ, 2 * READ - 1, 10 * READ + 3] {
        for is_alone in [false, true] {
            let (connection, mut far) = opened(3 * READ);
            let long = ask(&connection, "long");
            let next = (!is_alone).then(|| ask(&connection, "next"));
            let text = format!("{}\n{}", "x".repeat(length), if is_alone { "" } else { "7\n" });
            received(&mut far, if is_alone { 4 } else { 8 }).await;
            let serving = async { far.write_all(text.as_bytes()).await.unwrap() };
            let (long, ()) = tokio::join!(answer(long), serving);
            assert_eq!(long, line("x".repeat(length)));
            if let Some(next) = next {
                assert_eq!(answer(next).await, line(7));
            }
        }
    }
}

/// With one thread, which runs the task that was woken last before those that wait for their turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn requests_of_tasks_that_are_ready_are_one_write() {
    let (near, mut far, writes) = Counting::endless();
    let connection = Arc::new(Connection::<Lines>::new(Box::new(near)));
    let tasks = tokio::spawn(async move {
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let connection = connection.clone();
                tokio::spawn(async move { answer(ask(&connection, "ask ")).await })
            })
            .collect();
        futures_util::future::join_all(tasks).await
    });
    received(&mut far, 200).await;
    far.write_all("1\n".repeat(50).as_bytes()).await.unwrap();
    assert_eq!(tasks.await.unwrap().len(), 50);
    // The first alone, and then all others.
    let writes = writes.load(Ordering::SeqCst);
    assert!(writes <= 5, "{writes} writes");
}

/// With one thread, so that the number of writes does not depend on which task another thread takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn requests_that_follow_many_answers_are_written_in_portions() {
    const TASKS: usize = 64;
    let (near, mut far, writes) = Counting::endless();
    let connection = Arc::new(Connection::<Lines>::new(Box::new(near)));
    let tasks = tokio::spawn(async move {
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let connection = connection.clone();
                tokio::spawn(async move {
                    answer(ask(&connection, "ask ")).await.unwrap();
                    answer(ask(&connection, "more")).await.unwrap();
                })
            })
            .collect();
        futures_util::future::join_all(tasks).await
    });
    received(&mut far, 4 * TASKS).await;
    let before = writes.load(Ordering::SeqCst);
    far.write_all("1\n".repeat(TASKS).as_bytes()).await.unwrap();
    received(&mut far, 4 * TASKS).await;
    let portions = writes.load(Ordering::SeqCst) - before;
    assert!((4..=16).contains(&portions), "{portions} writes");
    far.write_all("1\n".repeat(TASKS).as_bytes()).await.unwrap();
    assert!(tasks.await.unwrap().iter().all(Result::is_ok));
}

/// The server repeats each request, in pieces. Callers on two threads wait, leave at any point, or are not polled
/// for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_caller_gets_its_own_answer_whatever_the_others_do() {
    const ROUNDS: u32 = 2_000;
    // So narrow that requests and answers come in parts.
    let (connection, mut far) = opened(40);
    let serving = tokio::spawn(async move {
        let mut buffer = [0; 7];
        while let Ok(count @ 1..) = far.read(&mut buffer).await {
            far.write_all(&buffer[..count]).await.unwrap();
        }
    });
    let asking: Vec<_> = (0..4_u32)
        .map(|task| {
            let connection = connection.clone();
            tokio::spawn(async move {
                let mut left_alone: VecDeque<(Sent<Lines>, u32)> = VecDeque::new();
                for round in 0..ROUNDS {
                    let number = task * ROUNDS + round;
                    let mut sent = ask(&connection, &format!("{number}\n"));
                    match round.wrapping_mul(2_654_435_761).wrapping_add(task << 13) >> 13 & 7 {
                        0 => drop(sent),
                        1 => _ = poll(&mut sent),
                        2 => left_alone.push_back((sent, number)),
                        3 => {
                            connection.read_arrived().await;
                            assert_eq!(answer(sent).await, line(number));
                        }
                        _ => assert_eq!(answer(sent).await, line(number)),
                    }
                    if left_alone.len() > 3
                        && let Some((sent, number)) = left_alone.pop_front()
                    {
                        assert_eq!(answer(sent).await, line(number));
                    }
                }
                for (sent, number) in left_alone {
                    assert_eq!(answer(sent).await, line(number));
                }
            })
        })
        .collect();
    for task in asking {
        task.await.unwrap();
    }
    // The last requests of the tasks may have been dropped. The answer to this one comes behind all theirs, so the
    // server owes nothing when the connection ends.
    assert_eq!(answer(ask(&connection, "last\n")).await, line("last"));
    assert!(connection.is_usable());
    drop(connection);
    serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn request_that_is_made_while_another_is_flushed_is_written() {
    let (connection, mut far, _, flushes) = Hooked::opened();
    let sent = ["one ", "two "].map(|text| ask(&connection, text));
    let third = Arc::new(Mutex::new(None));
    flushes.set({
        let (connection, third) = (connection.clone(), third.clone());
        move || *third.lock().unwrap() = Some(ask(&connection, "three"))
    });
    let requests = tokio::time::timeout(Duration::from_secs(1), received(&mut far, 13));
    assert_eq!(requests.await.unwrap(), "one two three");
    far.write_all(b"1\n2\n3\n").await.unwrap();
    let third = third.lock().unwrap().take().unwrap();
    let [first, second] = sent;
    assert_eq!((answer(first).await, answer(second).await, answer(third).await), (line(1), line(2), line(3)));
}

/// TLS keeps what is not flushed.
#[tokio::test]
async fn stream_is_flushed_after_it_was_written() {
    let (near, mut far, _) = Counting::endless();
    let flushes = near.flushes.clone();
    let connection = Connection::<Lines>::new(Box::new(near));
    tokio::task::yield_now().await;
    let sent = ["one ", "two "].map(|text| ask(&connection, text));
    received(&mut far, 8).await;
    assert_eq!(flushes.load(Ordering::SeqCst), 2);
    far.write_all(b"1\n2\n").await.unwrap();
    for sent in sent {
        answer(sent).await.unwrap();
    }
    assert_eq!(flushes.load(Ordering::SeqCst), 2, "nothing was written since");
}

#[tokio::test(start_paused = true)]
async fn short_answer_behind_a_long_one_is_found_when_it_is_whole() {
    let (connection, mut far) = opened(256);
    let sent = ["one ", "two "].map(|text| ask(&connection, text));
    received(&mut far, 8).await;
    let long = "x".repeat(100);
    for part in [long.as_str(), "\nsec", "ond\n"] {
        far.write_all(part.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
    let [first, second] = sent;
    assert_eq!((answer(first).await, answer(second).await), (line(long), line("second")));
}
