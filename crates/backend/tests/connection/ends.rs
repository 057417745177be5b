//! The end of a connection: when it is noticed, and what each request learns.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_backend::connection::{Connection, NoAnswer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::lines::{Counting, Gate, Gated, Hooked, Lines, answer, ask, line, opened, poll, received};

#[tokio::test]
async fn end_of_an_idle_connection_is_noticed_with_the_next_request() {
    for last in ["", "2\n", "2"] {
        let (connection, mut far) = opened(64);
        let mut sent = ask(&connection, "ask ");
        far.write_all(b"1\n").now_or_never().unwrap().unwrap();
        assert_eq!(poll(&mut sent), Poll::Ready(line(1)));
        assert!(connection.is_usable());
        if last.is_empty() {
            drop(far);
        } else {
            far.write_all(last.as_bytes()).now_or_never().unwrap().unwrap();
        }
        assert!(!connection.is_usable(), "{last:?}");
        assert!(connection.send(Lines::default(), |_| ()).is_none());
    }
}

#[tokio::test]
async fn server_that_dies_within_an_answer_ends_the_connection() {
    for joined in [false, true] {
        let (connection, mut far) = opened(64);
        let mut first = ask(&connection, "one ");
        far.write_all(b"h").await.unwrap();
        assert!(poll(&mut first).is_pending());
        let second = joined.then(|| ask(&connection, "two "));
        tokio::task::yield_now().await;
        drop(far);
        assert_eq!(answer(first).await, Err(NoAnswer::Broken));
        if let Some(second) = second {
            assert_eq!(answer(second).await, Err(NoAnswer::Broken));
        }
        assert!(!connection.is_usable());
    }
}

/// The first portion has requests, which cannot be written any more.
#[tokio::test]
async fn received_answers_are_handed_out_at_the_end() {
    const TASKS: usize = 64;
    let (connection, mut far) = opened(1 << 16);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let connection = connection.clone();
            tokio::spawn(async move {
                let first = answer(ask(&connection, "ask ")).await;
                let second = connection.send(Lines::default(), |bytes| bytes.extend_from_slice(b"more"));
                (first, second.is_some_and(|sent| sent.now_or_never().is_some_and(|answer| answer.is_ok())))
            })
        })
        .collect();
    received(&mut far, 4 * TASKS).await;
    far.write_all("1\n".repeat(TASKS).as_bytes()).await.unwrap();
    drop(far);
    for task in tasks {
        assert_eq!(task.await.unwrap(), (line(1), false));
    }
}

/// Wherever it stands, also in the middle of a portion.
#[tokio::test]
async fn answers_before_a_garbled_one_belong_to_their_requests() {
    const REQUESTS: usize = 64;
    for count in 0..40 {
        let (connection, mut far) = opened(1 << 16);
        let sent: Vec<_> = (0..REQUESTS).map(|_| ask(&connection, "ask ")).collect();
        received(&mut far, 4 * REQUESTS).await;
        let mut text: String = (0..count).map(|number| format!("{number}\n")).collect();
        text.push_str("?what\n7\n");
        far.write_all(text.as_bytes()).await.unwrap();
        for (number, sent) in sent.into_iter().enumerate() {
            match answer(sent).await {
                Ok(lines) => assert_eq!(lines, [number.to_string()]),
                Err(_) => assert!(number >= count, "{number} of {count}"),
            }
        }
    }
}

/// The task of the connection has it when the request is made, but not yet written.
#[tokio::test]
async fn answer_that_comes_before_its_request_ends_the_connection() {
    let (connection, mut far) = opened(4);
    let first = ask(&connection, "one");
    let second = ask(&connection, "second");
    far.write_all(b"1\n2\n").await.unwrap();
    assert_eq!(answer(first).await, line(1));
    assert_eq!(answer(second).await, Err(NoAnswer::Unsent));
    assert!(!connection.is_usable());
}

#[tokio::test]
async fn late_answer_to_a_reading_caller_ends_the_connection() {
    let (connection, mut far) = opened(64);
    let sent = ask(&connection, "ask ");
    far.write_all(b"h").await.unwrap();
    assert_eq!(sent.within(Duration::from_millis(50)).await, Err(NoAnswer::Late));
    assert!(!connection.is_usable());
    assert_eq!(received(&mut far, 4).await, "ask ");
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0, "it is closed");
}

/// If another task has asked first, the task of the connection is to read, which has not run yet.
#[tokio::test(start_paused = true)]
async fn answer_that_arrived_while_its_caller_slept_is_not_late() {
    let limit = Duration::from_millis(50);
    for joined in [false, true] {
        let (connection, mut far) = opened(64);
        let mut slept = Box::pin(ask(&connection, "one ").within(limit));
        assert_eq!(slept.as_mut().now_or_never(), None);
        let joining = joined.then(|| ask(&connection, "two "));
        received(&mut far, if joined { 8 } else { 4 }).await;
        tokio::time::advance(2 * limit).await;
        far.write_all(b"1\n").now_or_never().unwrap().unwrap();
        assert_eq!(slept.now_or_never(), Some(line(1)), "{joined}");
        if let Some(joining) = joining {
            far.write_all(b"2\n").await.unwrap();
            assert_eq!(answer(joining).await, line(2));
        }
        assert!(connection.is_usable());
    }
}

/// Another thread reads from before the time of the second request begins until it is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_that_another_task_is_reading_is_not_late() {
    let (near, mut far, _) = Counting::endless();
    let gate = Arc::new(Gate::default());
    let connection = Arc::new(Connection::<Lines>::new(Box::new(Gated { stream: near, gate: gate.clone() })));
    let sent = ["one ", "two "].map(|text| ask(&connection, text));
    received(&mut far, 8).await;
    gate.close();
    far.write_all(b"1\n2\n").await.unwrap();
    gate.reached().await;
    let [first, second] = sent;
    let second = tokio::spawn(second.within(Duration::from_millis(50)));
    tokio::time::sleep(Duration::from_millis(200)).await;
    gate.open();
    assert_eq!(second.await.unwrap(), line(2));
    assert_eq!(answer(first).await, line(1));
    assert!(connection.is_usable());
}

/// A caller that looks for its own answer once more takes the stream from no other.
#[tokio::test]
async fn caller_waits_on_when_another_has_read_what_has_arrived() {
    let (connection, mut far) = opened(64);
    let waiting = tokio::spawn(answer(ask(&connection, "ask ")));
    tokio::task::yield_now().await;
    connection.read_arrived().await;
    far.write_all(b"1\n").await.unwrap();
    assert_eq!(waiting.await.unwrap(), line(1));
}

#[tokio::test]
async fn all_answers_that_have_arrived_are_handed_out_at_once() {
    const REQUESTS: usize = 64;
    let (connection, mut far) = opened(4 * REQUESTS);
    let mut sent: Vec<_> = (0..REQUESTS).map(|_| ask(&connection, "ask ")).collect();
    received(&mut far, 4 * REQUESTS).await;
    far.write_all("1\n".repeat(REQUESTS).as_bytes()).now_or_never().unwrap().unwrap();
    connection.read_arrived().now_or_never().unwrap();
    assert!(sent.iter_mut().all(|sent| poll(sent) == Poll::Ready(line(1))));
    assert!(connection.is_usable());
}

#[tokio::test]
async fn garbled_answer_that_has_arrived_ends_the_connection() {
    let (connection, mut far) = opened(64);
    let sent = ["one ", "two "].map(|text| ask(&connection, text));
    received(&mut far, 8).await;
    far.write_all(b"?what\n7\n").now_or_never().unwrap().unwrap();
    connection.read_arrived().now_or_never().unwrap();
    assert!(!connection.is_usable());
    for sent in sent {
        assert_eq!(sent.now_or_never(), Some(Err(NoAnswer::Broken)));
    }
    assert!(connection.read_arrived().now_or_never().is_some(), "there is nothing to wait for");
}

#[tokio::test]
async fn connection_whose_stream_panics_ends() {
    let (connection, _far, reads, _) = Hooked::opened();
    tokio::task::yield_now().await;
    let mut sent = ask(&connection, "ask ");
    reads.set(|| panic!("as the test wants it"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(&mut sent))).is_err());
    assert!(!connection.is_usable());
    assert_eq!(sent.now_or_never(), Some(Err(NoAnswer::Broken)));
}

#[tokio::test]
async fn stream_that_is_in_use_at_the_end_is_closed_after_its_use() {
    let (near, mut far, _) = Counting::endless();
    let gate = Arc::new(Gate::default());
    let connection = Connection::<Lines>::new(Box::new(Gated { stream: near, gate: gate.clone() }));
    tokio::task::yield_now().await;
    let mut sent = ask(&connection, "ask ");
    gate.close();
    let reading = std::thread::spawn(move || (poll(&mut sent), sent));
    gate.reached().await;
    drop(connection);
    // The task of the connection ends before.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    gate.open();
    let (polled, _sent) = reading.join().unwrap();
    assert_eq!(polled, Poll::Ready(Err(NoAnswer::Broken)));
    assert_eq!(received(&mut far, 4).await, "ask ");
    let closed = tokio::time::timeout(Duration::from_secs(60), far.read(&mut [0])).await;
    assert_eq!(closed.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn task_of_a_connection_ends_with_it() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (connection, _far) = opened(64);
    tokio::task::yield_now().await;
    assert_eq!(tasks(), 1);
    drop(connection);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(tasks(), 0);
}

#[test]
fn connection_ends_with_the_runtime_of_its_task() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (connection, _far, sent) = runtime.block_on(async {
        let (connection, far) = opened(64);
        let sent = ask(&connection, "ask ");
        (connection, far, sent)
    });
    drop(runtime);
    assert!(!connection.is_usable());
    assert_eq!(sent.now_or_never(), Some(Err(NoAnswer::Broken)));
}

#[tokio::test]
async fn request_abandoned_in_the_queue_is_never_sent() {
    let (connection, mut far) = opened(4);
    // The first fills the way to the server, so that the second stays here.
    let first = ask(&connection, "the first");
    tokio::task::yield_now().await;
    let (second, third) = (ask(&connection, "second"), ask(&connection, "third"));
    assert_eq!(second.within(Duration::from_millis(20)).await, Err(NoAnswer::Unsent));
    assert!(connection.is_usable());
    // The first is not written as a whole, and its answer is there already.
    far.write_all(b"1\n").await.unwrap();
    assert_eq!(answer(first).await, line(1));
    assert_eq!(received(&mut far, 14).await, "the firstthird");
    far.write_all(b"3\n").await.unwrap();
    assert_eq!(answer(third).await, line(3));
}

#[tokio::test]
async fn request_behind_very_many_others_is_taken_back() {
    let (connection, mut far) = opened(4);
    let first = ask(&connection, "the first");
    tokio::task::yield_now().await;
    let long = "x".repeat(40 * 1024);
    let others = [0; 4].map(|_| ask(&connection, &long));
    // The first leaves, and as many of the others as are written in one go.
    assert_eq!(received(&mut far, 9).await, "the first");
    tokio::task::yield_now().await;
    let [second, third, fourth, last] = others;
    assert_eq!(last.within(Duration::from_millis(20)).await, Err(NoAnswer::Unsent));
    assert!(connection.is_usable());
    // The last of them is not gathered yet.
    received(&mut far, long.len()).await;
    far.write_all(b"1\n2\n").await.unwrap();
    assert_eq!((answer(first).await, answer(second).await), (line(1), line(2)));
    received(&mut far, 2 * long.len()).await;
    far.write_all(b"3\n4\n").await.unwrap();
    assert_eq!((answer(third).await, answer(fourth).await), (line(3), line(4)));
}

#[tokio::test]
async fn request_that_cannot_be_written_leaves_nothing_behind() {
    let (connection, mut far) = opened(4);
    let first = ask(&connection, "the first");
    let failing = std::panic::AssertUnwindSafe(|| {
        connection.send(Lines::default(), |bytes| {
            bytes.extend_from_slice(b"half of");
            panic!("on purpose");
        })
    });
    assert!(std::panic::catch_unwind(failing).is_err());
    let second = ask(&connection, "second");
    assert_eq!(received(&mut far, 15).await, "the firstsecond");
    far.write_all(b"1\n2\n").await.unwrap();
    assert_eq!((answer(first).await, answer(second).await), (line(1), line(2)));
}

#[tokio::test]
async fn queued_requests_of_a_connection_that_breaks_were_never_sent() {
    let (connection, far) = opened(4);
    // The first fills the way to the server, so that the others stay here.
    let sent = ["the first", "second", "third"].map(|text| ask(&connection, text));
    tokio::task::yield_now().await;
    drop(far);
    let answers = futures_util::future::join_all(sent).await;
    assert_eq!(answers, [Err(NoAnswer::Broken), Err(NoAnswer::Unsent), Err(NoAnswer::Unsent)]);
    assert!(!connection.is_usable());
}

#[tokio::test]
async fn request_of_which_the_stream_takes_nothing_was_never_sent() {
    let (connection, far) = opened(64);
    drop(far);
    assert_eq!(ask(&connection, "ask ").now_or_never(), Some(Err(NoAnswer::Unsent)));
    assert!(!connection.is_usable());
}

/// TLS may have sent the first record of what it then fails to take.
#[tokio::test]
async fn request_of_several_records_counts_as_sent() {
    for (size, no_answer) in [(16 * 1024, NoAnswer::Unsent), (16 * 1024 + 1, NoAnswer::Broken)] {
        let (mut near, _far, _) = Counting::endless();
        near.left = 0;
        let connection = Connection::<Lines>::new(Box::new(near));
        assert_eq!(answer(ask(&connection, &"x".repeat(size))).await, Err(no_answer), "{size}");
    }
}

/// A stream may have passed on a part of what it then fails to take, TLS for one.
#[tokio::test]
async fn request_behind_bytes_that_left_counts_as_sent() {
    for (left, last) in [(4, NoAnswer::Unsent), (6, NoAnswer::Broken)] {
        let (mut near, _far, _) = Counting::endless();
        near.left = left;
        let connection = Arc::new(Connection::<Lines>::new(Box::new(near)));
        // The first alone, and then the others in one go.
        let sent = ["one ", "two ", "three"].map(|text| ask(&connection, text));
        let answers = futures_util::future::join_all(sent).await;
        assert_eq!(answers, [Err(NoAnswer::Broken), Err(last), Err(last)], "{left}");
    }
}
