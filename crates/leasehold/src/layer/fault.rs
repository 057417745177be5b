//! Faults on the way to a backend, for tests: ours, and yours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use leasehold_core::{
    Backend, Claim, Failure, Patience, Profile, Release, Renew, Renewal, Resource, Snapshot, Step, Summary,
    Version,
};
use tokio::sync::watch;

/// A backend whose requests and answers can be lost, delayed and refused at will.
///
/// It shows what your critical section does when the lock service misbehaves, without a server:
///
/// ```
/// use leasehold::layer::{Fault, Mode, Verb};
/// use leasehold::{Leasehold, local::MemoryBackend};
/// use std::{sync::Arc, time::Duration};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let fault = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
/// let locks = Leasehold::builder().over(fault.clone())?;
/// let guard = locks.mutex("job").ttl(Duration::from_millis(200)).lock().await?;
/// fault.set(Verb::Renew, Mode::Hang);
/// guard.lost().await; // told in time, although nobody answers
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Fault {
    inner: Arc<dyn Backend>,
    verbs: [Wire; Verb::ALL.len()],
}

/// What is asked of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// One step towards holding.
    Contend,
    /// Extending leases.
    Renew,
    /// Ending claims.
    Release,
    /// Looking, and listing.
    Inspect,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 4] = [Verb::Contend, Verb::Renew, Verb::Release, Verb::Inspect];
}

/// What happens to the requests of one verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// They pass.
    Pass,
    /// They do not leave: nothing happens, and that is known.
    Refuse,
    /// They are lost on the way: nothing happens, and that is not known.
    LoseRequest,
    /// They arrive and take effect, and the answer is lost.
    LoseReply,
    /// They wait until the mode is another one, and then go the way of that mode.
    Hang,
}

#[derive(Debug)]
struct Wire {
    mode: watch::Sender<Mode>,
    calls: AtomicU64,
}

impl Fault {
    /// Around `inner`, with no fault yet.
    pub fn over(inner: Arc<dyn Backend>) -> Self {
        let wire = || Wire { mode: watch::Sender::new(Mode::Pass), calls: AtomicU64::new(0) };
        Fault { inner, verbs: [wire(), wire(), wire(), wire()] }
    }

    /// What happens to requests of this verb from now on, also to those that hang.
    pub fn set(&self, verb: Verb, mode: Mode) {
        self.wire(verb).mode.send_replace(mode);
    }

    /// The same for all verbs.
    pub fn set_all(&self, mode: Mode) {
        for verb in Verb::ALL {
            self.set(verb, mode);
        }
    }

    /// How many requests of this verb there were so far; a batch counts as one.
    pub fn calls(&self, verb: Verb) -> u64 {
        self.wire(verb).calls.load(Ordering::SeqCst)
    }

    fn wire(&self, verb: Verb) -> &Wire {
        &self.verbs[verb as usize]
    }

    /// Whether the answer is to be delivered; or the failure of a request that does not arrive.
    async fn pass(&self, verb: Verb, patience: Option<&Patience>) -> Result<bool, Failure> {
        let wire = self.wire(verb);
        wire.calls.fetch_add(1, Ordering::SeqCst);
        let mut mode = wire.mode.subscribe();
        let moved = mode.wait_for(|mode| *mode != Mode::Hang);
        let now = match patience {
            None => moved.await.map_or(Mode::Pass, |mode| *mode),
            Some(patience) => tokio::select! {
                biased;
                moved = moved => moved.map_or(Mode::Pass, |mode| *mode),
                () = patience.ended() => return Err(Failure::unanswered("the request hangs (injected)")),
            },
        };
        match now {
            Mode::Refuse => Err(Failure::unavailable("the server cannot be reached (injected)")),
            Mode::LoseRequest => Err(lost()),
            mode => Ok(mode != Mode::LoseReply),
        }
    }
}

fn lost() -> Failure {
    Failure::unanswered("no answer (injected)")
}

#[async_trait]
impl Backend for Fault {
    fn profile(&self) -> &Profile {
        self.inner.profile()
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let answered = self.pass(Verb::Contend, Some(patience)).await?;
        let step = self.inner.contend(claim, patience).await?;
        if answered { Ok(step) } else { Err(lost()) }
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        match self.pass(Verb::Renew, None).await {
            Err(failure) => batch.iter().map(|_| Renewal::Unknown(failure.clone())).collect(),
            Ok(answered) => {
                let renewals = self.inner.renew(batch).await;
                if answered { renewals } else { batch.iter().map(|_| Renewal::Unknown(lost())).collect() }
            }
        }
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        match self.pass(Verb::Release, None).await {
            Err(failure) => batch.iter().map(|_| Release::Unknown(failure.clone())).collect(),
            Ok(answered) => {
                let releases = self.inner.release(batch).await;
                if answered { releases } else { batch.iter().map(|_| Release::Unknown(lost())).collect() }
            }
        }
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&Version>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        let answered = self.pass(Verb::Inspect, Some(patience)).await?;
        let snapshot = self.inner.inspect(resource, seen, patience).await?;
        if answered { Ok(snapshot) } else { Err(lost()) }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<Summary>, Failure> {
        let answered = self.pass(Verb::Inspect, None).await?;
        let summaries = self.inner.list(prefix, after, limit).await?;
        if answered { Ok(summaries) } else { Err(lost()) }
    }
}
