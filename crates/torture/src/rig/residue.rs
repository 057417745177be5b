//! The remains in the store after all workers have ended, and their removal.
//!
//! Locks of killed workers end with their lease, so the store has that long. What stays after that is a residue. Then
//! the remains of the names, such as the rows that keep their fences, are removed where the store can do that.

use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind, Result};
use leasehold_history::{Event, Operation, Stage, Values};

use crate::plan::Plan;
use crate::recorder::Recorder;

/// Looks for claims under the names of a run, records them, and removes the remains.
pub(super) async fn look(plan: &Plan, prefix: &str, stays: Duration, recorder: &Recorder) {
    if let Err(error) = claims(plan, prefix, stays, recorder).await {
        recorder.served(found(Stage::Info, CLAIMS).because(error.to_string()));
    }
    match leasehold::sweep_under(&plan.url, prefix, Duration::ZERO, |_| ()).await {
        Ok(swept) => recorder.served(counted(Stage::Ok, SWEPT, swept.removed)),
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        Err(error) => recorder.served(found(Stage::Info, SWEPT).because(error.to_string())),
    }
}

async fn claims(plan: &Plan, prefix: &str, stays: Duration, recorder: &Recorder) -> Result<()> {
    let client = Client::open(&plan.url).await?;
    let deadline = Instant::now() + stays + SLACK;
    for lock in plan.all_locks() {
        let key = format!("{prefix}{}", lock.name);
        let left = loop {
            let seen = client.inspect(&key).await?;
            let left = seen.holders.len() + seen.waiting.len();
            if left == 0 || Instant::now() >= deadline {
                break left as u64;
            }
            tokio::time::sleep(LOOK).await;
        };
        let stage = if left == 0 { Stage::Ok } else { Stage::Fail };
        recorder.served(counted(stage, CLAIMS, left).on(key));
    }
    client.close(SLACK).await;
    Ok(())
}

fn found(stage: Stage, label: &str) -> Event {
    let mut values = Values::default();
    values.label = Some(label.to_owned());
    Event::new(stage, Operation::Residue).with(values)
}

fn counted(stage: Stage, label: &str, count: u64) -> Event {
    let mut event = found(stage, label);
    event.values.count = Some(count);
    event
}

/// The claims that should have ended.
pub(crate) const CLAIMS: &str = "claims";
/// Not a residue: names that were removed because nothing else needs them.
const SWEPT: &str = "names removed by a sweep";
const SLACK: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);
