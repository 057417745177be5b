//! One law, and its application to one subject.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::STALLED;
use crate::not_kept::{Checked, NotKept};
use crate::subject::Subject;
use crate::trial::Trial;

/// One sentence about backends that can be checked.
#[derive(Clone, Copy)]
pub struct Law {
    /// The law and the case, for instance `safety::one_holder_among_many_takers`.
    pub name: &'static str,
    /// The behaviour of a backend that keeps it.
    pub says: &'static str,
    pub(crate) check: Check,
}

/// The body of a law.
pub(crate) type Check = for<'a> fn(&'a Trial) -> Pin<Box<dyn Future<Output = Checked> + Send + 'a>>;

/// The outcome of a law.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The backend keeps it.
    Kept,
    /// The backend's profile does not promise it; the reason says what is not promised.
    OptedOut(String),
    /// [`Subject::open`] had no server.
    Absent,
    /// The backend breaks it; the reason says what was seen.
    Broken(String),
}

impl Law {
    /// Checks whether the subject keeps this law. Needs a tokio runtime with time and I/O, several threads
    /// at best.
    ///
    /// A result that came too late is tried again, twice at most, where the machine itself lost time
    /// meanwhile; a breach that no delay explains is final at once.
    pub async fn check(&self, subject: &dyn Subject) -> Outcome {
        let mut tries = 1;
        loop {
            let stall = Stall::watch();
            let checked = tokio::time::timeout(LIMIT, self.once(subject)).await;
            let lost = stall.end().await;
            let (why, is_excused) = match checked {
                Ok(Ok(())) => return Outcome::Kept,
                Ok(Err(NotKept::OptedOut(reason))) => return Outcome::OptedOut(reason),
                Ok(Err(NotKept::Absent)) => return Outcome::Absent,
                Ok(Err(NotKept::Broken(why))) => return Outcome::Broken(why),
                Ok(Err(NotKept::Late(why))) => (why, lost >= STALLED),
                Ok(Err(NotKept::Delayed(why))) => (why, true),
                Err(_) => return Outcome::Broken(format!("it did not come to an end within {LIMIT:?}")),
            };
            if tries == MAX_TRIES || !is_excused {
                return Outcome::Broken(why);
            }
            tries += 1;
        }
    }

    async fn once(&self, subject: &dyn Subject) -> Checked {
        let trial = Trial::open(subject).await?;
        (self.check)(&trial).await
    }
}

impl fmt::Debug for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Law").field("name", &self.name).field("says", &self.says).finish_non_exhaustive()
    }
}

/// Measures by how much this machine is late itself within a second: a task that wants to run every few milliseconds.
///
/// Many short delays make a server as late as a long one does.
struct Stall {
    worst: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Stall {
    fn watch() -> Stall {
        let worst = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&worst);
        let task = tokio::spawn(async move {
            let (mut began, mut late) = (Instant::now(), Duration::ZERO);
            loop {
                let before = Instant::now();
                if before.duration_since(began) >= SECOND {
                    (began, late) = (before, Duration::ZERO);
                }
                tokio::time::sleep(BEAT).await;
                late += before.elapsed().saturating_sub(BEAT + GRAIN);
                seen.fetch_max(u64::try_from(late.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Stall { worst, task }
    }

    async fn end(self) -> Duration {
        // One more beat, so that a stall that is not over yet is seen.
        tokio::time::sleep(BEAT * 2).await;
        self.task.abort();
        Duration::from_millis(self.worst.load(Ordering::Relaxed))
    }
}

const BEAT: Duration = Duration::from_millis(5);
/// The timer's own grain, on a machine that has nothing else to do.
const GRAIN: Duration = Duration::from_millis(2);
const SECOND: Duration = Duration::from_secs(1);
const MAX_TRIES: u32 = 3;
/// Far more than the longest law takes on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(300);
