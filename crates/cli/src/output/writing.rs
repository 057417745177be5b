//! The wait until a thread has written all that it was given.
//!
//! Ground rules: a terminal or a pipe that takes no output must not block this process. A thread that is late, because
//! the machine is busy, loses nothing of what it has still to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

/// The number of beginnings and ends of a thread's writes: odd while it writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writing(Arc<AtomicU64>);

impl Writing {
    /// Calls a function that writes.
    pub(crate) fn during<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Ordering::Relaxed);
        let written = write();
        self.0.fetch_add(1, Ordering::Relaxed);
        written
    }

    /// Waits for the answer of the thread that all is written. A thread that was in one write for a whole second is not
    /// waited for: its place takes no output.
    pub(crate) async fn flushed(&self, mut answer: oneshot::Receiver<()>) {
        let mut before = self.0.load(Ordering::Relaxed);
        for _ in 0..MOST_TURNS {
            let answered = tokio::time::timeout(TURN, &mut answer).await;
            let now = self.0.load(Ordering::Relaxed);
            if answered.is_ok() || (now == before && now % 2 == 1) {
                return;
            }
            before = now;
        }
    }
}

const TURN: Duration = Duration::from_secs(1);
/// The turns for which a thread that does not write is waited for.
const MOST_TURNS: u32 = 10;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn thread_that_is_late_is_waited_for() {
        let (done, answer) = oneshot::channel();
        let writing = Writing::default();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(TURN + TURN / 2);
            done.send(())
        });
        writing.flushed(answer).await;
        // Nobody would take an answer that comes later.
        assert_eq!(thread.join().unwrap(), Ok(()));
    }

    /// In virtual time, in which no turn ends together with the write.
    #[tokio::test(start_paused = true)]
    async fn thread_that_is_late_and_then_writes_is_waited_for() {
        let (done, answer) = oneshot::channel();
        let writing = Writing::default();
        let flushed = tokio::spawn({
            let writing = writing.clone();
            async move { writing.flushed(answer).await }
        });
        for wait in [TURN / 2, TURN] {
            tokio::time::sleep(wait).await;
            // The write begins, and a whole turn later it ends.
            writing.0.fetch_add(1, Ordering::Relaxed);
        }
        assert!(!flushed.is_finished());
        done.send(()).unwrap();
        flushed.await.unwrap();
    }

    #[tokio::test]
    async fn place_that_takes_no_output_is_not_waited_for() {
        let (_done, answer) = oneshot::channel();
        let (writing, began) = (Writing::default(), Instant::now());
        let (is_over, over) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn({
            let writing = writing.clone();
            move || writing.during(|| over.recv())
        });
        writing.flushed(answer).await;
        assert!(began.elapsed() < TURN * MOST_TURNS, "{:?}", began.elapsed());
        drop(is_over);
        assert!(thread.join().unwrap().is_err());
    }
}
