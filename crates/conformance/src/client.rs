//! One connection, with the steps that laws are made of.
//!
//! A step that the seam's contract forbids to fail ends the law as broken; a law that wants to examine an
//! answer itself calls the backend directly.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Backend, Claim, Clock, Failure, Grant, Hint, Moment, Patience, Proof, Release, Renew, Renewal, Resource,
    Snapshot, Step,
};
use tokio::task::JoinHandle;

use crate::clock::{STALLED, patience_for};
use crate::not_kept::{Checked, NotKept, ensure};

/// One connection.
#[derive(Clone)]
pub(crate) struct TestClient {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A claim that was granted after a wait.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) grant: Grant,
    /// The moment at which the grant was known here.
    pub(crate) at: Moment,
    /// The longest pause that the backend asked for.
    pub(crate) longest_hint: Duration,
}

/// A claim that waits in a task of its own.
pub(crate) struct Waiting {
    pub(crate) client: TestClient,
    pub(crate) claim: Claim,
    pub(crate) patience: Patience,
    task: JoinHandle<Checked<Option<Taken>>>,
}

impl TestClient {
    /// Contends once, without waiting.
    pub(crate) async fn try_take(&self, claim: &Claim) -> Checked<Option<Grant>> {
        match self.contend(claim, &Patience::none(self.clock.clone())).await? {
            Step::Granted(grant) => Ok(Some(grant)),
            Step::Busy(_) => Ok(None),
        }
    }

    /// Contends once, without waiting, and must be granted.
    pub(crate) async fn hold(&self, claim: &Claim) -> Checked<Grant> {
        match self.contend(claim, &Patience::none(self.clock.clone())).await? {
            Step::Granted(grant) => Ok(grant),
            Step::Busy(hint) => Err(NotKept::broken(format!(
                "{} of {:?} was refused although it fits: {hint:?}, {}",
                claim.share,
                claim.resource,
                self.describe(&claim.resource).await
            ))),
        }
    }

    /// Contends once, without waiting, and must not be granted.
    pub(crate) async fn refused(&self, claim: &Claim) -> Checked<Hint> {
        match self.contend(claim, &Patience::none(self.clock.clone())).await? {
            Step::Busy(hint) => Ok(hint),
            Step::Granted(grant) => Err(NotKept::broken(format!(
                "{} of {:?} was granted ({:?}) although it does not fit: {}",
                claim.share,
                claim.resource,
                grant.fence,
                self.describe(&claim.resource).await
            ))),
        }
    }

    /// Calls `contend` once; a call without patience must not hang.
    pub(crate) async fn contend(&self, claim: &Claim, patience: &Patience) -> Checked<Step> {
        let step = self.backend.contend(claim, patience);
        match patience.is_ended() {
            true => {
                let asked_at = self.clock.now();
                within(AT_ONCE, "contend", step).await?.map_err(|failure| self.failed(failure, asked_at))
            }
            false => step.await.map_err(NotKept::from),
        }
    }

    /// Follows the steps of one claim until it is granted or patience has ended, as the engine does: with
    /// one more call at the end, which also gives up a place that was left behind.
    pub(crate) async fn take(&self, claim: &Claim, patience: &Patience) -> Checked<Option<Taken>> {
        self.follow(claim, patience, LastCall::Always).await
    }

    async fn follow(
        &self,
        claim: &Claim,
        patience: &Patience,
        last_call: LastCall,
    ) -> Checked<Option<Taken>> {
        let mut longest_hint = Duration::ZERO;
        for _ in 0..MAX_CALLS {
            let ended = patience.is_ended();
            match self.contend(claim, patience).await? {
                Step::Granted(grant) => {
                    return Ok(Some(Taken { grant, at: self.clock.now(), longest_hint }));
                }
                Step::Busy(_) if ended => return Ok(None),
                Step::Busy(_) if last_call == LastCall::Never && patience.is_ended() => return Ok(None),
                Step::Busy(hint) => {
                    let pause = hint.ask_again_in.unwrap_or_default();
                    longest_hint = longest_hint.max(pause);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = patience.ended() => {}
                    }
                }
            }
        }
        Err(NotKept::broken(format!(
            "{MAX_CALLS} calls for one claim: the answers of contend make its caller spin"
        )))
    }

    /// Takes the claim within `wait`.
    pub(crate) async fn take_within(&self, claim: &Claim, wait: Duration, why: &str) -> Checked<Taken> {
        let taken = self.take(claim, &patience_for(&self.clock, wait)).await?;
        let Some(taken) = taken else {
            let seen = self.describe(&claim.resource).await;
            return Err(NotKept::late(format!("{why}: not granted within {wait:?}; {seen}")));
        };
        Ok(taken)
    }

    /// Waits for the claim in a task of its own.
    pub(crate) fn wait(&self, claim: Claim) -> Waiting {
        self.wait_with(claim, Patience::unlimited(self.clock.clone()))
    }

    /// Waits for the claim in a task of its own, for as long as `patience` lasts.
    pub(crate) fn wait_with(&self, claim: Claim, patience: Patience) -> Waiting {
        self.wait_ending_with(claim, patience, LastCall::Always)
    }

    /// Waits as [`TestClient::wait`] does, but relies on a call whose patience ended meanwhile: the place is
    /// given up. Only a polling backend is called once more, since it cannot know of the end.
    pub(crate) fn wait_only(&self, claim: Claim) -> Waiting {
        let polls = self.backend.profile().waiting == leasehold_core::WaitMode::Polls;
        let last_call = if polls { LastCall::Always } else { LastCall::Never };
        self.wait_ending_with(claim, Patience::unlimited(self.clock.clone()), last_call)
    }

    fn wait_ending_with(&self, claim: Claim, patience: Patience, last_call: LastCall) -> Waiting {
        let (client, moved, lasting) = (self.clone(), claim.clone(), patience.clone());
        let task = tokio::spawn(async move { client.follow(&moved, &lasting, last_call).await });
        Waiting { client: self.clone(), claim, patience, task }
    }

    /// Queues and is released there, as by a client that breaks a claim that waits.
    pub(crate) async fn leave_by_release(&self, claim: &Claim, place: usize) -> Checked {
        let waiting = match self.backend.profile().waiting {
            leasehold_core::WaitMode::Polls => {
                let step = self.contend(claim, &Patience::unlimited(self.clock.clone())).await?;
                ensure!(matches!(step, Step::Busy(_)), "granted although it is held: {step:?}");
                None
            }
            _ => Some(self.wait_only(claim.clone())),
        };
        self.wait_until_queued(&claim.resource, place).await?;
        self.end(claim).await?;
        if let Some(waiting) = waiting {
            waiting.give_up(AT_ONCE, "a wait that was released meanwhile").await?;
        }
        Ok(())
    }

    /// Ends a claim that exists.
    pub(crate) async fn free(&self, claim: &Claim) -> Checked {
        match self.end(claim).await? {
            Release::Freed => Ok(()),
            other => Err(NotKept::broken(format!(
                "the release of a claim that is there answered {other:?}: {}",
                self.describe(&claim.resource).await
            ))),
        }
    }

    /// Ends a claim that does not exist, and checks that the answer says so.
    pub(crate) async fn gone(&self, claim: &Claim, why: &str) -> Checked {
        match self.end(claim).await? {
            Release::Gone => Ok(()),
            other => Err(NotKept::broken(format!("{why}: its release must answer Gone, not {other:?}"))),
        }
    }

    /// Ends a claim.
    pub(crate) async fn end(&self, claim: &Claim) -> Checked<Release> {
        let asked_at = self.clock.now();
        let mut answers = within(HANG, "release", self.backend.release(&[claim])).await?;
        match (answers.pop(), answers.is_empty()) {
            (Some(Release::Unknown(failure)), true) => Err(self.failed(failure, asked_at)),
            (Some(answer), true) => Ok(answer),
            _ => Err(NotKept::broken("release did not answer once for one claim")),
        }
    }

    /// Renews one claim.
    pub(crate) async fn renew(&self, claim: &Claim, proof: &Proof) -> Checked<Renewal> {
        let asked_at = self.clock.now();
        let mut answers = within(HANG, "renew", self.backend.renew(&[Renew { claim, proof }])).await?;
        match (answers.pop(), answers.is_empty()) {
            (Some(Renewal::Unknown(failure)), true) => Err(self.failed(failure, asked_at)),
            (Some(answer), true) => Ok(answer),
            _ => Err(NotKept::broken("renew did not answer once for one claim")),
        }
    }

    /// Renews a claim that is no longer held, and checks that the answer says so.
    pub(crate) async fn lost(&self, claim: &Claim, proof: &Proof, why: &str) -> Checked {
        match self.renew(claim, proof).await? {
            Renewal::Lost => Ok(()),
            other => Err(NotKept::broken(format!("{why}: its renewal must answer Lost, not {other:?}"))),
        }
    }

    /// Looks at a resource.
    pub(crate) async fn look(&self, resource: &Resource) -> Checked<Snapshot> {
        let patience = Patience::none(self.clock.clone());
        let asked_at = self.clock.now();
        let answer = within(HANG, "inspect", self.backend.inspect(resource, None, &patience)).await?;
        let snapshot = answer.map_err(|failure| self.failed(failure, asked_at))?;
        ensure!(
            snapshot.resource == *resource,
            "inspect of {resource:?} answered for {:?}",
            snapshot.resource
        );
        Ok(snapshot)
    }

    /// Checks that no claim holds or waits, and that no listing names the resource.
    pub(crate) async fn expect_no_claims(&self, resource: &Resource, why: &str) -> Checked {
        let seen = self.look(resource).await?;
        ensure!(seen.holders.is_empty(), "{why}: still held by {:?}", seen.holders);
        ensure!(seen.waiting.is_empty(), "{why}: still waiting are {:?}", seen.waiting);
        let listed = within(HANG, "list", self.backend.list(resource.as_str(), None, LIST_MAX)).await??;
        let named = listed.iter().find(|summary| summary.resource == *resource);
        ensure!(named.is_none(), "{why}: still listed as {named:?}");
        Ok(())
    }

    /// Waits until so many claims are queued. If the queue is not visible, gives them time to arrive.
    pub(crate) async fn wait_until_queued(&self, resource: &Resource, waiting: usize) -> Checked {
        let fifo = self.backend.profile().order >= leasehold_core::QueueOrder::Fifo;
        let limit = if fifo { HANG } else { HIDDEN_QUEUE_WAIT };
        let until = self.clock.now().after(limit);
        while self.look(resource).await?.waiting.len() < waiting {
            if self.clock.now() >= until {
                if !fifo {
                    return Ok(());
                }
                let seen = self.describe(resource).await;
                // A waiter whose request has failed does not wait any more, and nobody has seen that failure yet.
                let why = format!("{waiting} claims wait and are not shown in line after {limit:?}: {seen}");
                return Err(NotKept::late(why));
            }
            tokio::time::sleep(POLL_PAUSE).await;
        }
        Ok(())
    }

    /// Judges a failed call that was sent at `asked_at`.
    ///
    /// A server that was silent for this long was late, even if the task that watches this machine lost no time. A
    /// failure that comes at once has no such excuse.
    fn failed(&self, failure: Failure, asked_at: Moment) -> NotKept {
        let silence = self.clock.now().since(asked_at);
        match NotKept::from(failure) {
            NotKept::Late(what) if silence >= STALLED => {
                NotKept::Delayed(format!("{what}; it failed after {silence:?}"))
            }
            other => other,
        }
    }

    /// Returns the state of a resource, for messages.
    pub(crate) async fn describe(&self, resource: &Resource) -> String {
        match self.look(resource).await {
            Ok(seen) => format!("holders {:?}, waiting {:?}", seen.holders, seen.waiting),
            Err(stop) => format!("and it cannot be looked at: {stop:?}"),
        }
    }
}

/// Returns `true` if a wait whose patience has ended during a call makes one more call.
#[derive(Clone, Copy, PartialEq)]
enum LastCall {
    Always,
    Never,
}

impl Waiting {
    /// Returns the grant, which must come within `limit`.
    pub(crate) async fn granted(self, limit: Duration, why: &str) -> Checked<Taken> {
        match tokio::time::timeout(limit, self.task).await {
            Ok(taken) => {
                taken??.ok_or_else(|| NotKept::broken(format!("{why}: the wait ended without a grant")))
            }
            Err(_) => Err(NotKept::late(format!("{why}: not granted within {limit:?}"))),
        }
    }

    /// Returns its outcome, within `limit`.
    pub(crate) async fn outcome(self, limit: Duration, why: &str) -> Checked<Option<Taken>> {
        match tokio::time::timeout(limit, self.task).await {
            Ok(taken) => taken?,
            Err(_) => Err(NotKept::late(format!("{why}: no answer within {limit:?}"))),
        }
    }

    /// Ends its patience; it must come back without a grant within `limit`.
    pub(crate) async fn give_up(self, limit: Duration, why: &str) -> Checked<Claim> {
        self.patience.end();
        let claim = self.claim.clone();
        let taken = self.outcome(limit, why).await?;
        ensure!(taken.is_none(), "{why}: granted {taken:?} although it does not fit");
        Ok(claim)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns the grant if there is one already. A wait that failed ends the law with that failure.
    pub(crate) async fn granted_already(&mut self) -> Checked<Option<Taken>> {
        if !self.is_over() {
            return Ok(None);
        }
        let taken = (&mut self.task).await??;
        taken.map(Some).ok_or_else(|| NotKept::broken("a wait ended without a grant"))
    }

    /// Checks that it still waits.
    pub(crate) async fn still_waits(&mut self, why: &str) -> Checked {
        match self.granted_already().await? {
            None => Ok(()),
            Some(taken) => Err(NotKept::broken(format!("{why}: {taken:?}"))),
        }
    }
}

/// Runs `future`, which must end within `limit`.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> Checked<T> {
    match tokio::time::timeout(limit, future).await {
        Ok(answer) => Ok(answer),
        Err(_) => Err(NotKept::late(format!("{what} did not answer within {limit:?}"))),
    }
}

/// A call that has nothing to wait for.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(5);
/// Far beyond everything that a law waits for on purpose.
pub(crate) const HANG: Duration = Duration::from_secs(10);
const MAX_CALLS: u32 = 20_000;
const LIST_MAX: usize = 10_000;
const POLL_PAUSE: Duration = Duration::from_millis(2);
const HIDDEN_QUEUE_WAIT: Duration = Duration::from_millis(120);
