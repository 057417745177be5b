//! The only request is written and read by its caller, who may leave.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use tokio::io::AsyncWriteExt;

use crate::lines::{answer, ask, ask_for, line, opened, poll, received};

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
