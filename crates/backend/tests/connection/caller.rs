//! The only request is written and read by its caller, who may leave.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_backend::connection::Connection;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::lines::{Counting, Gate, Gated, Lines, answer, ask, ask_for, line, opened, poll, received, tried};

/// The task of the connection does not run between two awaits of the only thread.
#[tokio::test]
async fn only_request_is_written_and_read_by_its_caller() {
    let (connection, mut far) = opened(64);
    for round in 1..=3 {
        let mut sent = ask_for(2, &connection, "ask ");
        assert_eq!(received(&mut far, 4).now_or_never().unwrap(), "ask ");
        assert!(poll(&mut sent).is_pending());
        for part in ["first\n", "sec", "ond"] {
            far.write_all(part.as_bytes()).now_or_never().unwrap().unwrap();
            assert!(poll(&mut sent).is_pending(), "it is not whole");
        }
        far.write_all(format!("{round}\n").as_bytes()).now_or_never().unwrap().unwrap();
        let whole = vec!["first".to_owned(), format!("second{round}")];
        assert_eq!(poll(&mut sent), Poll::Ready(Ok(whole)));
    }
    assert!(connection.is_usable());
}

#[derive(Default)]
struct Counted(AtomicU32);

impl std::task::Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn caller_that_reads_its_answer_does_not_wake_itself() {
    let (connection, mut far) = opened(64);
    let mut sent = ask(&connection, "ask ");
    let counted = Arc::new(Counted::default());
    let waker = Waker::from(counted.clone());
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut sent).poll(&mut context).is_pending());
    far.write_all(b"1\n").now_or_never().unwrap().unwrap();
    let arrived = counted.0.load(Ordering::SeqCst);
    assert!(Pin::new(&mut sent).poll(&mut context).is_ready());
    assert_eq!((arrived, counted.0.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn caller_that_leaves_takes_no_answer_from_another() {
    // Nothing, or a part of the answer, was read when it leaves.
    for part in ["", "le", "left\nal"] {
        let (connection, mut far) = opened(64);
        let mut left = ask_for(2, &connection, "left");
        far.write_all(part.as_bytes()).await.unwrap();
        assert!(poll(&mut left).is_pending());
        drop(left);
        let kept = ask(&connection, "kept");
        assert_eq!(received(&mut far, 8).await, "leftkept");
        far.write_all(&b"left\nalso\n"[part.len()..]).await.unwrap();
        far.write_all(b"kept\n").await.unwrap();
        assert_eq!(answer(kept).await, line("kept"), "{part:?}");
        assert!(connection.is_usable());
    }
}

#[tokio::test]
async fn answer_to_a_request_whose_caller_left_belongs_to_nobody_else() {
    let (connection, mut far) = opened(64);
    drop(ask(&connection, "left"));
    let kept = ask(&connection, "kept");
    assert_eq!(received(&mut far, 8).await, "leftkept");
    far.write_all(b"1\n2\n").await.unwrap();
    assert_eq!(answer(kept).await, line(2));
}

#[tokio::test]
async fn request_needs_no_caller_that_is_polled_or_stays() {
    for (is_polled, leaves) in [(false, false), (true, false), (false, true), (true, true)] {
        let (connection, mut far) = opened(64);
        let mut idle = ask(&connection, "idle");
        far.write_all(b"h").await.unwrap();
        if is_polled {
            assert!(poll(&mut idle).is_pending());
        }
        let idle = (!leaves).then_some(idle);
        let busy = ask(&connection, "busy");
        assert_eq!(received(&mut far, 8).await, "idlebusy");
        far.write_all(b"i\n2\n").await.unwrap();
        assert_eq!(answer(busy).await, line(2));
        if let Some(mut idle) = idle {
            assert_eq!(poll(&mut idle), Poll::Ready(line("hi")));
        }
        assert!(connection.is_usable());
    }
}

#[tokio::test]
async fn answer_is_read_by_its_caller_with_as_few_reads_as_it_takes() {
    let (near, mut far, _) = Counting::endless();
    let reads = near.reads.clone();
    let connection = Connection::<Lines>::new(Box::new(near));
    tokio::task::yield_now().await;
    let mut expected = reads.load(Ordering::SeqCst);
    for parts in [&["1\n"] as &[&str], &["o", "ne", "\n"]] {
        let mut sent = ask(&connection, "ask ");
        for part in parts {
            assert!(poll(&mut sent).is_pending());
            far.write_all(part.as_bytes()).now_or_never().unwrap().unwrap();
        }
        assert!(poll(&mut sent).is_ready());
        // Each part, and that nothing is there yet: at first, and behind each part but the last.
        expected += 2 * parts.len();
        assert_eq!(reads.load(Ordering::SeqCst), expected, "{parts:?}");
    }
}

/// Each time it is looked at from its beginning.
#[tokio::test]
async fn end_of_a_long_answer_is_not_looked_for_in_each_part() {
    let (connection, mut far) = opened(1 << 20);
    let mut sent = ask(&connection, "ask ");
    let text = "x".repeat(100 * 8 * 1024);
    let mut looks = async |part: &str| {
        let before = tried();
        far.write_all(part.as_bytes()).await.unwrap();
        for _ in 0..2 {
            assert!(poll(&mut sent).is_pending());
        }
        tried() - before
    };
    assert_eq!(looks("x").await, 1);
    let looked = looks(&text).await;
    assert!((4..=12).contains(&looked), "{looked}");
    far.write_all(b"\n").await.unwrap();
    assert_eq!(poll(&mut sent), Poll::Ready(line(format!("x{text}"))));
}

/// The task of the connection reads the answer, so that nothing is owed any more.
#[tokio::test]
async fn request_behind_one_that_was_left_is_written_by_its_caller() {
    for is_polled in [false, true] {
        let (connection, mut far) = opened(64);
        let mut left = ask(&connection, "left");
        assert_eq!(received(&mut far, 4).await, "left");
        if is_polled {
            assert!(poll(&mut left).is_pending());
        }
        drop(left);
        far.write_all(b"left\n").await.unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let mut sent = ask(&connection, "next");
        assert_eq!(received(&mut far, 4).now_or_never().unwrap(), "next");
        far.write_all(b"next\n").now_or_never().unwrap().unwrap();
        assert_eq!(poll(&mut sent), Poll::Ready(line("next")), "{is_polled}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_do_not_matter_are_no_answer_to_the_next_request() {
    for (parts, is_looked_at) in
        [(&["+6\nabc"] as &[&str], false), (&["+6", "\nabc"], false), (&["+6\nabc"], true)]
    {
        let (connection, mut far) = opened(64);
        let mut sent = ask(&connection, "ask ");
        let mut polled = Poll::Pending;
        for part in parts {
            far.write_all(part.as_bytes()).await.unwrap();
            polled = poll(&mut sent);
        }
        assert_eq!(polled, Poll::Ready(line("+6")));
        let began = Instant::now();
        far.write_all(b"de").await.unwrap();
        assert!(!is_looked_at || connection.is_usable());
        let next = ask(&connection, "next");
        far.write_all(b"f").await.unwrap();
        let next = tokio::spawn(answer(next));
        tokio::task::yield_now().await;
        far.write_all(b"2\n").await.unwrap();
        assert_eq!((next.await.unwrap(), began.elapsed()), (line(2), Duration::ZERO));
    }
}

#[tokio::test]
async fn connection_on_which_an_answer_has_arrived_is_usable() {
    let (connection, mut far) = opened(64);
    let sent = ask(&connection, "ask ");
    far.write_all(b"1\n").now_or_never().unwrap().unwrap();
    assert!(connection.is_usable());
    assert_eq!(answer(sent).await, line(1));
}

/// The task of the connection finds the stream in use when it is woken for the request.
#[tokio::test]
async fn request_that_is_made_while_another_is_read_is_written() {
    let (near, mut far, _) = Counting::endless();
    let gate = Arc::new(Gate::default());
    let connection = Connection::<Lines>::new(Box::new(Gated { stream: near, gate: gate.clone() }));
    tokio::task::yield_now().await;
    let mut first = ask(&connection, "one ");
    gate.close();
    let reading = std::thread::spawn(move || {
        assert!(poll(&mut first).is_pending());
        first
    });
    gate.reached().await;
    let second = ask(&connection, "two ");
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    gate.open();
    let first = reading.join().unwrap();
    let requests = tokio::time::timeout(Duration::from_secs(60), received(&mut far, 8));
    assert_eq!(requests.await.unwrap(), "one two ");
    far.write_all(b"1\n2\n").await.unwrap();
    assert_eq!((answer(first).await, answer(second).await), (line(1), line(2)));
}
