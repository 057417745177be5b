//! The fixture of every suite on stores: a store with its clients, time limits, and checks of what is left.

use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use leasehold::{Client, ErrorKind, FenceGrade, LockSupport, Snapshot};
use tokio::sync::SemaphorePermit;

use crate::player::{Stage, Victim};
use leasehold_tests::opened;
use leasehold_tests::stores::Store;

/// The ttl of a process that dies: its lock is free for others soon after this.
pub(crate) const TTL: Duration = Duration::from_secs(6);
/// The ttl of a process that lives: it renews within this, on however busy a machine.
pub(crate) const LIVING: Duration = Duration::from_secs(60);
/// Nothing takes longer, on however busy a machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// So often within the limit.
const LOOKS: u32 = 9_000;

/// A primitive: its rules, and the parts that processes play in it.
pub(crate) struct Primitive {
    pub(crate) name: &'static str,
    pub(crate) rules: for<'a> fn(&'a Fixture) -> BoxFuture<'a, ()>,
    pub(crate) parts: &'static [Part],
}

/// One part that a process plays.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// The number of its steps. A player that is to be killed at the step after the last one comes through.
    pub(crate) steps: u32,
    /// Plays the part, under a name.
    pub(crate) play: for<'a> fn(&'a Stage, &'a Client, &'a str) -> BoxFuture<'a, leasehold::Result<()>>,
    /// Kills a process in this part, and checks that the others come through.
    pub(crate) around: for<'a> fn(&'a Fixture, Victim) -> BoxFuture<'a, ()>,
}

/// A store, and two clients of it as two processes would have them.
pub(crate) struct Fixture {
    pub(crate) one: Client,
    pub(crate) two: Client,
    url: String,
    mortal: String,
    is_shared: bool,
}

impl Fixture {
    pub(crate) async fn over(store: &Store) -> Fixture {
        Fixture {
            one: opened(&store.patient()).await,
            two: opened(&store.patient()).await,
            url: store.patient(),
            mortal: store.mortal(TTL),
            is_shared: store.is_shared,
        }
    }

    /// Opens one more client, as a further process would have it.
    pub(crate) async fn another(&self) -> Client {
        opened(&self.url).await
    }

    /// `true` if other processes can reach the store.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(crate) fn admits(&self, admission: LockSupport) -> bool {
        self.one.profile().admission >= admission
    }

    pub(crate) fn has_fences(&self) -> bool {
        self.one.profile().fencing > FenceGrade::None
    }

    /// `true` if the store keeps values beside the locks.
    pub(crate) fn keeps_values(&self) -> bool {
        self.one.backend().registers().is_some()
    }

    pub(crate) fn victim(
        &self,
        primitive: &Primitive,
        part: &Part,
        step: u32,
        place: SemaphorePermit<'static>,
    ) -> Victim {
        let url = if step == part.steps { &self.url } else { &self.mortal };
        Victim::new(url, primitive.name, part, step, place)
    }

    /// Waits until no claim holds this name.
    pub(crate) async fn free(&self, name: &str) {
        until(&self.two, name, LOOKS, |seen| seen.holders.is_empty()).await;
    }

    /// Waits until a claim holds this name.
    pub(crate) async fn held(&self, name: &str) {
        until(&self.two, name, LOOKS, |seen| !seen.holders.is_empty()).await;
    }

    /// Waits until the store has no holders and no waiters.
    pub(crate) async fn settled(&self) {
        let looking = async {
            while answered(self.one.list("", None, 100).await).is_none_or(|left| !left.is_empty()) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(LIMIT, looking).await.is_err() {
            panic!("left behind: {:?}", self.one.list("", None, 100).await);
        }
    }
}

/// Returns the answer; `None` if the store did not answer in time, as on a busy machine.
fn answered<T>(outcome: leasehold::Result<T>) -> Option<T> {
    match outcome {
        Ok(answer) => Some(answer),
        Err(error) if error.kind() == ErrorKind::Unavailable => None,
        Err(error) => panic!("{error}"),
    }
}

/// Waits until this name is in a state, and looks at it so often.
pub(crate) async fn until(locks: &Client, name: &str, looks: u32, is_so: impl Fn(&Snapshot) -> bool) {
    let mut last = None;
    for _ in 0..looks {
        if let Some(seen) = answered(locks.inspect(name).await) {
            if is_so(&seen) {
                return;
            }
            last = Some(seen);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    panic!("it stays so: {last:?}");
}

/// Fails with `what` if it takes too long.
pub(crate) fn within_limit<T>(what: &str, work: impl Future<Output = T>) -> impl Future<Output = T> {
    within(LIMIT, what, work)
}

/// Fails with `what` if it takes longer than this.
pub(crate) fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = T>,
) -> impl Future<Output = T> {
    // Boxed: the futures of the tests are nested deeply, and each level would double what is inside.
    let work = Box::pin(work);
    async move { tokio::time::timeout(limit, work).await.unwrap_or_else(|_| panic!("it takes too long: {what}")) }
}

/// Asserts that so much time has passed since then, less the possible difference of two clocks of one
/// machine.
pub(crate) fn not_before(what: &str, begun: Instant, least: Duration) {
    let passed = begun.elapsed();
    assert!(passed >= least.mul_f64(0.99), "{what}: only {passed:?} have passed of {least:?}");
}

/// Asserts that a wait with this limit is granted nothing. Only a store that does not answer within the two seconds after
/// the limit leaves that unknown.
pub(crate) fn assert_not_granted<T>(
    limit: Duration,
    wait: impl Future<Output = leasehold::Result<Option<T>>>,
) -> impl Future<Output = ()> {
    // Boxed, as above.
    let wait = Box::pin(wait);
    async move {
        let begun = Instant::now();
        match wait.await {
            Ok(granted) => assert!(granted.is_none(), "it was granted"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
                let least = limit + Duration::from_secs(2);
                not_before("unknown only after the limit and two seconds", begun, least);
            }
        }
    }
}

/// Asserts that the operation was refused because this store does not support it.
pub(crate) fn assert_unsupported<T>(outcome: leasehold::Result<T>) {
    let kind = outcome.map(drop).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::Unsupported);
}
