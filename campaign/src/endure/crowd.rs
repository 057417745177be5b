//! The processes of an endurance run.

use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use super::Endurance;
use super::sample::{Sample, Usage};
use super::verdict::{self, Ends};
use super::worker::{Done, Orders};
use crate::world::{Network, World};
use crate::{Outcome, Store};

/// The processes. Dropping it kills them.
pub(super) struct Crowd {
    processes: Vec<Process>,
    endurance: Endurance,
    /// The counts of processes that were killed.
    before: Done,
    replaced: u64,
    ends: Ends,
    /// The time without an acquisition after which a process counts as one that does nothing.
    silence: Duration,
}

struct Process {
    child: Child,
    /// Its end is the order to stop.
    input: Option<ChildStdin>,
    done: Arc<Mutex<Progress>>,
}

/// The counts of a process so far, and when they rose.
struct Progress {
    done: Done,
    /// The time of the last line with more acquisitions than the one before it, or of the start.
    rose: Instant,
}

/// The acquisitions of all processes in a second, about: a load that two cores carry, with their servers.
const RATE: u32 = 400;
/// Longer than a worker waits for a lock and closes its client, on a busy machine.
const ENDING: Duration = Duration::from_secs(60);

impl Crowd {
    pub(super) async fn start(endurance: &Endurance, world: &World) -> Outcome<Crowd> {
        let mut crowd = Crowd {
            processes: Vec::new(),
            endurance: endurance.clone(),
            before: Done::default(),
            replaced: 0,
            ends: Ends::default(),
            silence: verdict::silence(endurance.length),
        };
        for number in 0..endurance.processes as usize {
            let process = crowd.begin(number, world).await?;
            crowd.processes.push(process);
        }
        Ok(crowd)
    }

    async fn begin(&self, number: usize, world: &World) -> Outcome<Process> {
        let mut command = match &self.endurance.program {
            Some((path, arguments)) => {
                let mut command = Command::new(path);
                command.args(arguments);
                command
            }
            None => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("endure-worker");
                command
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let mut input = child.stdin.take().ok_or("the process has no input")?;
        let output = child.stdout.take().ok_or("the process has no output")?;
        let orders = Orders {
            url: world.url(Network::of(number)),
            names: self.endurance.names,
            ttl: self.ttl(),
            seed: self.endurance.seed ^ ((number as u64) << 20) ^ self.replaced,
            pause: Duration::from_secs(1) * self.endurance.processes * 4 / RATE,
        };
        input.write_all(format!("{}\n", serde_json::to_string(&orders)?).as_bytes()).await?;
        let done = Arc::new(Mutex::new(Progress { done: Done::default(), rose: Instant::now() }));
        tokio::spawn({
            let done = done.clone();
            async move {
                let mut lines = BufReader::new(output).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if let Ok(now) = serde_json::from_str(&line) {
                        done.lock().unwrap_or_else(PoisonError::into_inner).take(now, Instant::now());
                    }
                }
            }
        });
        Ok(Process { child, input: Some(input), done })
    }

    fn ttl(&self) -> Duration {
        match self.endurance.store {
            // Many processes on few cores: a lease has to outlast their turns.
            Store::Memcached => Duration::from_secs(6),
            store => store.ttl() * 2,
        }
    }

    /// Samples what the processes use.
    pub(super) fn sample(&self, now: Duration) -> Sample {
        let mut sample = Sample {
            seconds: now.as_secs_f64(),
            acquired: self.before.acquired,
            failed: self.before.failed,
            ..Sample::default()
        };
        for process in &self.processes {
            let done = process.progress().done;
            sample.acquired += done.acquired;
            sample.failed += done.failed;
            let Some(usage) = process.child.id().and_then(Usage::of) else { continue };
            sample.processes += 1;
            sample.memory_kib += usage.memory_kib as f64;
            sample.descriptors += usage.descriptors as f64;
            sample.threads += usage.threads as f64;
            sample.tasks += done.tasks as f64;
        }
        let count = f64::from(sample.processes.max(1));
        for value in [&mut sample.memory_kib, &mut sample.descriptors, &mut sample.threads, &mut sample.tasks]
        {
            *value /= count;
        }
        sample
    }

    /// Stops one process for a while.
    pub(super) async fn pause_one(&mut self, pick: u64, time: Duration) -> Outcome {
        let number = (pick % self.processes.len() as u64) as usize;
        if let Some(id) =
            self.processes[number].child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
        {
            // It is not waited for before the end of this, so the id is still its own.
            kill_process(id, Signal::STOP)?;
            tokio::time::sleep(time).await;
            kill_process(id, Signal::CONT)?;
        }
        Ok(())
    }

    /// Kills one process, and starts another in its place.
    pub(super) async fn replace_one(&mut self, pick: u64, world: &World) -> Outcome {
        let number = (pick % self.processes.len() as u64) as usize;
        let old = &mut self.processes[number];
        if old.has_ended() {
            self.ends.ended += 1;
        } else {
            self.ends.silent += u32::from(old.is_silent(self.silence));
            old.child.kill().await?;
        }
        let done = old.progress().done;
        self.before.acquired += done.acquired;
        self.before.failed += done.failed;
        self.replaced += 1;
        self.processes[number] = self.begin(number, world).await?;
        Ok(())
    }

    /// Asks all processes to end, and kills those that do not. Returns how many ended before that, were killed, or ended
    /// with an error, and how many did nothing.
    pub(super) async fn end(mut self) -> Ends {
        let mut ends = self.ends;
        for process in &mut self.processes {
            match process.has_ended() {
                true => ends.ended += 1,
                false => ends.silent += u32::from(process.is_silent(self.silence)),
            }
        }
        self.processes.retain_mut(|process| !process.has_ended());
        for process in &mut self.processes {
            process.input = None;
        }
        for process in &mut self.processes {
            let is_well = match tokio::time::timeout(ENDING, process.child.wait()).await {
                Ok(status) => status.is_ok_and(|status| status.success()),
                Err(_) => {
                    let _ = process.child.kill().await;
                    false
                }
            };
            ends.ended += u32::from(!is_well);
        }
        ends
    }
}

impl Progress {
    fn take(&mut self, now: Done, at: Instant) {
        if now.acquired > self.done.acquired {
            self.rose = at;
        }
        self.done = now;
    }

    /// Returns `true` if nothing was acquired for longer than this.
    fn is_silent(&self, silence: Duration, at: Instant) -> bool {
        at.duration_since(self.rose) > silence
    }
}

impl Process {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if it has acquired nothing for this time, in which it lived.
    fn is_silent(&self, silence: Duration) -> bool {
        self.progress().is_silent(silence, Instant::now())
    }

    /// Returns `true` if it ended by itself.
    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_acquires_nothing_is_silent() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let done = |acquired, failed| Done { acquired, failed, ..Done::default() };
        let mut progress = Progress { done: Done::default(), rose: start };
        let silence = verdict::silence(Duration::from_secs(3_600));
        assert_eq!(silence, Duration::from_secs(60));
        for second in 1..100 {
            progress.take(done(second, 0), at(second));
            assert!(!progress.is_silent(silence, at(second + 60)));
        }
        // Failures are no acquisitions, and a repeated count is not a new one.
        for second in 100..160 {
            progress.take(done(99, second), at(second));
        }
        assert!(!progress.is_silent(silence, at(159)) && progress.is_silent(silence, at(160)));
        progress.take(done(100, 160), at(160));
        assert!(!progress.is_silent(silence, at(161)));
    }
}
