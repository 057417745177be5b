//! The members, each asked in a task of its own.
//!
//! Ground rules: no task waits for a slow member after the others have decided; the task of that member
//! continues alone. A member that does not answer has a limited number of open requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::quorum::{Member, common_kind, majority};
use leasehold_core::{Effect, Failure};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::LATE;
use super::timer::after;

/// The members.
#[derive(Clone, Debug)]
pub(super) struct MemberSet {
    slots: Arc<[MemberSlot]>,
    names: Arc<[String]>,
}

/// One member, with its limit of open requests.
#[derive(Debug)]
struct MemberSlot {
    member: Arc<dyn Member>,
    permits: Arc<Semaphore>,
    /// `true` if the last request to it had no answer: requests are still sent to it, but not waited
    /// for.
    silent: AtomicBool,
}

/// The answer of each member; `None` if it did not come in time.
pub(super) type Outcomes<T> = Vec<Option<Result<T, Failure>>>;

/// The answers that were not waited for, each with the number of its member.
pub(super) type Rest<T> = mpsc::Receiver<(usize, Result<T, Failure>)>;

impl MemberSet {
    pub(super) fn new(members: Vec<Arc<dyn Member>>) -> MemberSet {
        let names = members.iter().map(|member| member.address()).collect();
        let permits = || Arc::new(Semaphore::new(UNANSWERED_MAX));
        let slot = |member| MemberSlot { member, permits: permits(), silent: AtomicBool::new(false) };
        MemberSet { slots: members.into_iter().map(slot).collect(), names }
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.count())
    }

    /// Returns one member, to be called alone.
    pub(super) fn member(&self, number: usize) -> Option<Arc<dyn Member>> {
        self.slots.get(number).map(|slot| slot.member.clone())
    }

    /// Returns the addresses of the members, for people.
    pub(super) fn names(&self) -> Arc<[String]> {
        self.names.clone()
    }

    /// Notes whether a member answered.
    pub(super) fn record_answer<T>(&self, number: usize, outcome: &Result<T, Failure>) {
        if let Some(slot) = self.slots.get(number) {
            slot.silent.store(outcome.is_err(), Ordering::Relaxed);
        }
    }

    /// Returns `true` if a member that has not answered yet is worth a wait.
    pub(super) fn is_expected(&self, number: usize) -> bool {
        self.slots.get(number).is_some_and(|slot| !slot.silent.load(Ordering::Relaxed))
    }

    /// Returns `true` if a member that is missing among the outcomes is worth a wait.
    pub(super) fn are_some_expected<T>(&self, outcomes: &Outcomes<T>) -> bool {
        (0..self.count()).any(|number| outcomes[number].is_none() && self.is_expected(number))
    }

    /// Runs one call to a member in a task of its own.
    pub(super) fn spawn<F>(&self, number: usize, call: impl FnOnce(Arc<dyn Member>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(member) = self.member(number) {
            leasehold_machine::spawn(call(member));
        }
    }

    /// Returns a permit to send a request to a member; a failure if too many are unanswered.
    pub(super) fn permit(&self, number: usize) -> Result<tokio::sync::OwnedSemaphorePermit, Failure> {
        let slot =
            self.slots.get(number).ok_or_else(|| Failure::unavailable("the quorum has no such member"))?;
        slot.permits.clone().try_acquire_owned().map_err(|_| {
            let name = slot.member.address();
            Failure::unavailable(format!(
                "{name} has {UNANSWERED_MAX} unanswered requests: no more are sent to it for now"
            ))
        })
    }

    /// Calls all members at once, until the answers are `enough`, or a majority has answered
    /// and the rest is late.
    pub(super) async fn gather<T, F>(
        &self,
        call: impl Fn(Arc<dyn Member>) -> F,
        enough: impl Fn(&Outcomes<T>) -> bool,
    ) -> Outcomes<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.gather_with_rest(|_, member| call(member), enough).await.0
    }

    /// Calls all members at once, as [`MemberSet::gather`], each with its number. Also returns the receiver of the
    /// answers that are still to come.
    pub(super) async fn gather_with_rest<T, F>(
        &self,
        call: impl Fn(usize, Arc<dyn Member>) -> F,
        enough: impl Fn(&Outcomes<T>) -> bool,
    ) -> (Outcomes<T>, Rest<T>)
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let (sender, mut inbox) = mpsc::channel(self.count().max(1));
        for number in 0..self.count() {
            let (sender, permit, members) = (sender.clone(), self.permit(number), self.clone());
            // What is not sent is not prepared either.
            let slot = self.slots.get(number).filter(|_| permit.is_ok());
            let request = slot.map(|slot| call(number, slot.member.clone()));
            leasehold_machine::spawn(async move {
                let outcome = match (permit, request) {
                    (Ok(_permit), Some(request)) => request.await,
                    (Err(failure), _) => Err(failure),
                    (Ok(_), None) => return,
                };
                members.record_answer(number, &outcome);
                // The receiver may have enough answers.
                let _ = sender.send((number, outcome)).await;
            });
        }
        drop(sender);
        let mut outcomes: Outcomes<T> = (0..self.count()).map(|_| None).collect();
        let mut late = None;
        while !enough(&outcomes) {
            let answered = outcomes.iter().filter(|outcome| matches!(outcome, Some(Ok(_)))).count();
            if answered >= self.majority() {
                late.get_or_insert_with(|| after(LATE));
                if !self.are_some_expected(&outcomes) {
                    break;
                }
            }
            tokio::select! {
                message = inbox.recv() => match message {
                    Some((number, outcome)) => outcomes[number] = Some(outcome),
                    None => break,
                },
                () = at(late) => break,
            }
        }
        (outcomes, inbox)
    }

    /// Returns the failure for too few answers: it names the answer of each member.
    pub(super) fn failure<T>(&self, outcomes: &Outcomes<T>) -> Failure {
        let failures = || outcomes.iter().filter_map(|outcome| outcome.as_ref()?.as_ref().err());
        let answered = outcomes.iter().filter(|outcome| matches!(outcome, Some(Ok(_)))).count();
        let unsure = outcomes.iter().any(Option::is_none) || failures().any(|f| f.effect == Effect::Unknown);
        let report: Vec<String> = self
            .names
            .iter()
            .zip(outcomes)
            .filter_map(|(name, outcome)| match outcome {
                None => Some(format!("{name} is silent")),
                Some(Err(failure)) => Some(failure.detail().to_owned()),
                Some(Ok(_)) => None,
            })
            .collect();
        let text = format!(
            "{answered} of {} servers answered, {} are needed: {}",
            self.count(),
            self.majority(),
            report.join("; ")
        );
        let effect = if unsure { Effect::Unknown } else { Effect::None };
        Failure::new(common_kind(failures()), effect, text)
    }
}

/// Sleeps until `then`; for ever if it is `None`.
pub(super) async fn at(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// Returns a random part of `ceiling`.
pub(super) fn some_of(ceiling: Duration) -> Duration {
    leasehold_core::part_of(ceiling, crate::random::chance())
}

/// The most requests to one member that wait for an answer.
const UNANSWERED_MAX: usize = 4096;
