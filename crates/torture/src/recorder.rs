//! The recorder: receives events from workers and from the register, stamps them and keeps them in order.
//!
//! Ground rules: the order of the events is that of their receipt. The register records while it holds its own lock,
//! so the order of its events is that in which it served. A worker numbers its logical processes by itself; here
//! they get numbers that no other worker has.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_history::{BUSY, CANCELLED, Event, History, Operation, Stage, Values};

use crate::clock::now;

/// The numbers of what has been seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Grants.
    pub grants: u64,
    /// Losses that holders saw.
    pub losses: u64,
    /// Reads that the register answered.
    pub reads: u64,
    /// Writes that the register accepted.
    pub writes: u64,
    /// Reads and writes that the register refused.
    pub refusals: u64,
    /// Acquisitions that were dropped on their way.
    pub cancelled: u64,
    /// Acquisitions that failed otherwise than because the lock was busy.
    pub failures: u64,
    /// Events.
    pub events: u64,
}

/// One start of a worker process, by a number that no other start has.
pub(crate) type Spawn = u64;

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    tape: Mutex<Tape>,
}

#[derive(Debug, Default)]
struct Tape {
    events: Vec<Event>,
    progress: Progress,
    /// The number of a logical process of a worker.
    numbers: HashMap<(Spawn, u64), u64>,
    /// The faults on workers, by their place among the events.
    on_workers: Vec<(usize, Spawn)>,
    /// The last error that was reported.
    last_error: Option<String>,
}

impl Recorder {
    fn tape(&self) -> MutexGuard<'_, Tape> {
        self.tape.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers the logical processes with which a worker begins.
    pub(crate) fn expect(&self, spawn: Spawn, processes: u64) {
        let mut tape = self.tape();
        for process in 0..processes {
            tape.number(spawn, process);
        }
    }

    /// Returns the logical processes that a worker has had since this start.
    pub(crate) fn processes(&self, spawn: Spawn) -> Vec<u64> {
        let tape = self.tape();
        let own = tape.numbers.iter().filter(|((of, _), _)| *of == spawn);
        let mut processes: Vec<u64> = own.map(|(_, number)| *number).collect();
        processes.sort_unstable();
        processes
    }

    /// Records an event of a worker.
    pub(crate) fn reported(&self, spawn: Spawn, mut event: Event) {
        let mut tape = self.tape();
        event.process = event.process.map(|process| tape.number(spawn, process));
        tape.add(event);
    }

    /// Records what the register did.
    pub(crate) fn served(&self, event: Event) {
        self.tape().add(event);
    }

    /// Records a fault, on a worker or on something else.
    pub(crate) fn fault(&self, label: &str, stage: Stage, on: Option<Spawn>) {
        self.fault_at(label, stage, on, None);
    }

    /// Records a fault that happened at a time, by this machine's monotonic clock. It comes after everything that was
    /// recorded until now.
    pub(crate) fn fault_at(&self, label: &str, stage: Stage, on: Option<Spawn>, at: Option<u64>) {
        let mut values = Values::default();
        values.label = Some(label.to_owned());
        let mut tape = self.tape();
        let place = tape.events.len();
        tape.on_workers.extend(on.map(|spawn| (place, spawn)));
        let mut event = Event::new(stage, Operation::Fault).with(values);
        event.stamped = at;
        tape.add(event);
    }

    /// Returns what has been seen so far.
    pub(crate) fn progress(&self) -> Progress {
        self.tape().progress
    }

    /// Returns the last error of an acquisition.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.tape().last_error.clone()
    }

    /// Returns the history, and begins a new one.
    pub(crate) fn history(&self) -> History {
        let mut tape = std::mem::take(&mut *self.tape());
        let mut of_spawn: HashMap<Spawn, Vec<u64>> = HashMap::new();
        for ((spawn, _), number) in &tape.numbers {
            of_spawn.entry(*spawn).or_default().push(*number);
        }
        // A worker may have begun a logical process that was not known yet when the fault hit it.
        for (place, spawn) in &tape.on_workers {
            let mut hit = of_spawn.get(spawn).cloned().unwrap_or_default();
            hit.sort_unstable();
            tape.events[*place].values.target = hit;
        }
        History::new(tape.events)
    }
}

impl Tape {
    fn number(&mut self, spawn: Spawn, process: u64) -> u64 {
        let next = self.numbers.len() as u64;
        *self.numbers.entry((spawn, process)).or_insert(next)
    }

    fn add(&mut self, mut event: Event) {
        event.received = now();
        event.index = self.events.len() as u64;
        let progress = &mut self.progress;
        progress.events += 1;
        match (event.operation, event.stage) {
            (Operation::Acquire, Stage::Ok) => progress.grants += 1,
            (Operation::Acquire, Stage::Fail | Stage::Info) => {
                progress.cancelled += u64::from(event.error.as_deref() == Some(CANCELLED));
                if let Some(error) = event.error.as_ref().filter(|error| !is_expected(error)) {
                    progress.failures += 1;
                    self.last_error = Some(error.clone());
                }
            }
            (Operation::Lost, _) => progress.losses += 1,
            (Operation::ServedRead, Stage::Ok) => progress.reads += 1,
            (Operation::ServedWrite, Stage::Ok) => progress.writes += 1,
            (Operation::ServedRead | Operation::ServedWrite, Stage::Fail) => progress.refusals += 1,
            _ => {}
        }
        self.events.push(event);
    }
}

/// Returns `true` for a wait that ended as its caller wanted.
fn is_expected(error: &str) -> bool {
    matches!(error, BUSY | CANCELLED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_the_processes_that_a_worker_had_later() {
        let recorder = Recorder::default();
        recorder.expect(1, 2);
        recorder.expect(2, 1);
        recorder.fault("pause worker 1", Stage::Invoke, Some(1));
        recorder.fault("store down", Stage::Info, None);
        assert_eq!((recorder.processes(1), recorder.processes(2)), (vec![0, 1], vec![2]));
        recorder.reported(1, Event::new(Stage::Invoke, Operation::Acquire).by(2).on("job"));
        assert_eq!(recorder.processes(1), [0, 1, 3]);
        let history = recorder.history();
        let targets: Vec<&[u64]> = history.faults().map(|event| event.values.target.as_slice()).collect();
        assert_eq!(targets, [&[0, 1, 3][..], &[]]);
        assert_eq!(history.events()[2].process, Some(3));
        assert!(history.validate().is_ok());
    }
}
