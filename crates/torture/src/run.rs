//! A whole run: workers, faults for a while, the history, and what came of it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_history::{Checker, History, Verdict};

use crate::error::RigError;
use crate::nemesis::{FaultKind, Nemesis, Strike};
use crate::plan::Plan;
use crate::recorder::Progress;
use crate::report::{Recording, Report};
use crate::rig::{Rig, prefix};
use crate::torture::Torture;

/// Tortures a store: starts workers, pauses and kills them for a while, and judges what they saw.
///
/// `seen` is called about once a second, with what has been seen and the time since the start. When `stop` is ready,
/// the run ends as if its time were over.
///
/// # Promises
/// See [`Rig`]: no process but its own is touched, and nothing is left in the store.
///
/// # Errors
/// As [`Rig::start`]. What happens later is part of the report.
pub async fn torture(
    torture: Torture,
    seen: impl FnMut(&Progress, Duration),
    stop: impl Future<Output = ()>,
) -> Result<Report, RigError> {
    torture_until(torture, seen, stop, std::future::pending()).await
}

/// Does as [`torture`], until `given_up` is ready: then all workers are killed, also while the run starts or
/// ends, and one attempt is made to remove what they left.
///
/// # Errors
/// As [`torture`], and [`RigError::GivenUp`].
pub async fn torture_until(
    torture: Torture,
    seen: impl FnMut(&Progress, Duration),
    stop: impl Future<Output = ()>,
    given_up: impl Future<Output = ()>,
) -> Result<Report, RigError> {
    let (prefix, url) = (prefix(), torture.plan.url.clone());
    {
        // Dropping the run kills its workers.
        let run = pin!(run(torture, prefix.clone(), seen, stop));
        tokio::select! {
            biased;
            () = given_up => {}
            ended = run => return ended,
        }
    }
    let sweep = leasehold::sweep_under(&url, &prefix, Duration::ZERO, |_| ());
    Err(RigError::GivenUp(match tokio::time::timeout(TO_SWEEP, sweep).await {
        Ok(Ok(swept)) => format!("{} names of it were removed", swept.removed),
        // Nothing of a name stays in such a store.
        Ok(Err(error)) if error.kind() == leasehold::ErrorKind::Unsupported => {
            format!("nothing else of its names, {prefix}, stays")
        }
        Ok(Err(error)) => format!("its names, {prefix}, were not removed: {error}"),
        Err(_) => format!("its names, {prefix}, were not removed within {TO_SWEEP:?}"),
    }))
}

async fn run(
    mut torture: Torture,
    prefix: String,
    mut seen: impl FnMut(&Progress, Duration),
    stop: impl Future<Output = ()>,
) -> Result<Report, RigError> {
    let mut rig = Rig::start_under(torture.plan.clone(), prefix.clone()).await?;
    // Without the locks that the store does not have.
    torture.plan.locks.clone_from(&rig.plan().locks);
    let mut checker = checker(&rig);
    let begun = Instant::now();
    let mut nemesis =
        Nemesis::new(torture.plan.seed, torture.faults.clone(), torture.plan.processes, torture.plan.ttl);
    let mut next = nemesis.next().map(|strike| Step::Strike(begun + strike.after, strike));
    let mut stop = pin!(stop);
    let (mut was_stopped, mut was_full) = (false, false);
    let mut last_shown = begun;
    loop {
        let now = Instant::now();
        let left = torture.duration.saturating_sub(now - begun);
        was_full = was_full || rig.progress().events >= torture.most_events;
        if left.is_zero() || was_stopped || was_full {
            break;
        }
        if let Some(step) = next.filter(|step| step.at() <= now) {
            next = step.take(&mut rig, &mut nemesis, now)?;
            continue;
        }
        if now - last_shown >= SHOWN_EACH {
            last_shown = now;
            seen(&rig.progress(), now - begun);
        }
        let rest = next.map_or(left, |step| step.at() - now).min(left).min(SHOWN_EACH);
        tokio::select! {
            biased;
            () = &mut stop => was_stopped = true,
            () = tokio::time::sleep(rest) => {}
        }
    }
    let ran = begun.elapsed();
    if let Some(Step::Undo(_, strike)) = next {
        Step::undo(&mut rig, strike)?;
    }
    let (progress, last_error) = (rig.progress(), rig.last_error());
    checker.clients = (0..rig.workers()).map(|worker| rig.logical_processes(worker)).collect();
    let (history, verdict) = checked(&checker, rig.finish().await?).await;
    let failures = progress.failures;
    let recording = Recording { prefix, ran, was_stopped, was_full, failures, last_error, history, verdict };
    Ok(Report::of(torture, recording))
}

/// Judges on another thread, so that the caller's timers and signals are served meanwhile. A history that is not well
/// formed is not judged, and neither is one over which the checker fails.
async fn checked(checker: &Checker, history: History) -> (History, Result<Verdict, String>) {
    if let Err(error) = history.validate() {
        return (history, Err(format!("the recording is not well formed: {error}")));
    }
    let history = Arc::new(history);
    let judging = {
        let (checker, history) = (checker.clone(), history.clone());
        tokio::task::spawn_blocking(move || checker.check(&history))
    };
    let verdict = judging.await.map_err(|error| format!("the checker failed: {error}"));
    // The other thread has dropped its own by now.
    (Arc::try_unwrap(history).unwrap_or_else(|shared| shared.as_ref().clone()), verdict)
}

/// Returns the checker with bounds for a machine that may be busy.
fn checker(rig: &Rig) -> Checker {
    let mut checker = Checker::new();
    checker.handover = handover(rig.plan());
    checker.recovery = rig.stays() + RECOVERY;
    checker.overstay = OVERSTAY;
    checker.lateness = LATENESS;
    checker.is_ordered = rig.is_ordered();
    checker
}

/// Returns the time within which a lock that is released, or that nobody holds, goes to one who waits for it: less than
/// the lease that remains if the release was not sent, and so little of the longest wait that many waits show it.
fn handover(plan: &Plan) -> Duration {
    (plan.ttl * 2 / 3).min(plan.limit / 3).max(HANDOVER_MIN)
}

/// The next act of the nemesis.
#[derive(Clone, Copy, Debug)]
enum Step {
    Strike(Instant, Strike),
    Undo(Instant, Strike),
}

impl Step {
    fn at(&self) -> Instant {
        match self {
            Step::Strike(at, _) | Step::Undo(at, _) => *at,
        }
    }

    /// Takes the step, and returns the next one.
    fn take(self, rig: &mut Rig, nemesis: &mut Nemesis, now: Instant) -> Result<Option<Step>, RigError> {
        match self {
            Step::Strike(_, strike) => {
                let struck = match strike.kind {
                    FaultKind::Pause => rig.pause(strike.worker),
                    FaultKind::Kill => rig.kill(strike.worker),
                };
                // A worker that has ended by itself is in the history, and is started again.
                let undo = match struck {
                    Ok(()) => strike,
                    Err(_) => Strike { kind: FaultKind::Kill, ..strike },
                };
                Ok(Some(Step::Undo(now + strike.lasts, undo)))
            }
            Step::Undo(_, strike) => {
                Step::undo(rig, strike)?;
                Ok(nemesis.next().map(|next| Step::Strike(now + next.after, next)))
            }
        }
    }

    fn undo(rig: &mut Rig, strike: Strike) -> Result<(), RigError> {
        match strike.kind {
            FaultKind::Pause => rig.resume(strike.worker),
            FaultKind::Kill => rig.respawn(strike.worker),
        }
    }
}

/// The store is asked once for the removal of a run that was given up.
const TO_SWEEP: Duration = Duration::from_secs(10);
const SHOWN_EACH: Duration = Duration::from_secs(1);
/// The store is asked a last time at the limit of a wait, and has two seconds to answer.
const OVERSTAY: Duration = Duration::from_secs(4);
/// A busy machine runs the worker late. The promise itself is 50 ms of running time.
const LATENESS: Duration = Duration::from_millis(500);
const RECOVERY: Duration = Duration::from_secs(15);
/// A busy machine, or a distant store, delays a grant for as long.
const HANDOVER_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use leasehold_history::{Event, Operation, Stage, Values};

    use super::*;

    /// A process acquires, and then it is killed; another event of it comes before or after that.
    fn history(is_after: bool) -> History {
        let mut killed = Values::default();
        (killed.label, killed.target) = (Some("kill worker 0".to_owned()), vec![1]);
        let mut events = vec![
            Event::new(Stage::Invoke, Operation::Acquire).by(1).on("job").at(1),
            Event::new(Stage::Ok, Operation::Acquire).by(1).on("job").at(2),
            Event::new(Stage::Info, Operation::Fault).with(killed).at(3),
        ];
        if is_after {
            events.swap(1, 2);
        }
        History::new(events)
    }

    #[test]
    fn bound_of_handovers_is_below_most_waits_and_the_lease() {
        let plan = Plan::new("file:///nowhere");
        assert!(handover(&plan) < plan.ttl && handover(&plan) * 3 <= plan.limit);
        let (mut long, mut short) = (plan.clone(), plan);
        (long.ttl, short.limit) = (Duration::from_secs(60), Duration::from_millis(10));
        assert!(handover(&long) * 3 <= long.limit);
        assert_eq!(handover(&short), HANDOVER_MIN);
    }

    #[tokio::test]
    async fn a_recording_that_is_not_well_formed_is_not_judged() {
        let (kept, verdict) = checked(&Checker::new(), history(false)).await;
        assert_eq!((verdict.unwrap().counts.grants, kept), (1, history(false)));
        let (kept, verdict) = checked(&Checker::new(), history(true)).await;
        let error = verdict.unwrap_err();
        assert!(error.contains("after it was killed"), "{error}");
        assert_eq!(kept.events().len(), 3);
    }
}
