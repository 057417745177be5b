//! A whole run: workers, faults for a while, the history, and what came of it.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use leasehold_history::{Checker, History};

use crate::error::RigError;
use crate::nemesis::{FaultKind, Nemesis, Strike};
use crate::recorder::Progress;
use crate::report::Report;
use crate::rig::Rig;
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
    mut seen: impl FnMut(&Progress, Duration),
    stop: impl Future<Output = ()>,
) -> Result<Report, RigError> {
    let mut rig = Rig::start(torture.plan.clone()).await?;
    let checker = checker(&rig);
    let begun = Instant::now();
    let mut nemesis =
        Nemesis::new(torture.plan.seed, torture.faults.clone(), torture.plan.processes, torture.plan.ttl);
    let mut next = nemesis.next().map(|strike| Step::Strike(begun + strike.after, strike));
    let mut stop = pin!(stop);
    let mut was_stopped = false;
    let mut last_shown = begun;
    loop {
        let now = Instant::now();
        let left = torture.duration.saturating_sub(now - begun);
        if left.is_zero() || was_stopped {
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
    let prefix = rig.prefix().to_owned();
    let (progress, last_error) = (rig.progress(), rig.last_error());
    let history = rig.finish().await?;
    let verdict = checked(&checker, &history).await;
    Ok(Report::of(torture, ran, was_stopped, prefix, progress.failures, last_error, history, verdict))
}

/// Judges on another thread, so that the caller's timers and signals are served meanwhile.
async fn checked(checker: &Checker, history: &History) -> leasehold_history::Verdict {
    let (checker, history) = (checker.clone(), history.clone());
    let judged = tokio::task::spawn_blocking(move || checker.check(&history)).await;
    judged.unwrap_or_default()
}

/// Returns the checker with bounds for a machine that may be busy.
fn checker(rig: &Rig) -> Checker {
    let mut checker = Checker::new();
    checker.recovery = rig.stays() + RECOVERY;
    checker.overstay = OVERSTAY;
    checker.lateness = LATENESS;
    checker
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

const SHOWN_EACH: Duration = Duration::from_secs(1);
/// The store is asked a last time at the limit of a wait, and has two seconds to answer.
const OVERSTAY: Duration = Duration::from_secs(4);
/// A busy machine runs the worker late. The promise itself is 50 ms of running time.
const LATENESS: Duration = Duration::from_millis(500);
const RECOVERY: Duration = Duration::from_secs(15);
