//! Tasks that repeat something for a while, and what came of it.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::effort::own_cpu;

/// The work of a number of tasks in one round.
#[derive(Debug)]
pub(crate) struct Load {
    /// Cycles by task.
    pub(crate) by_task: Vec<u64>,
    pub(crate) took: Duration,
    /// Processor time of this process.
    pub(crate) cpu: Duration,
}

impl Load {
    /// Lets `tasks` tasks repeat `cycle`, which gets the number of its task, for `length`.
    ///
    /// They are spawned even where it is only one: what blocks on a runtime from outside pays for a
    /// change of thread with every wake-up.
    pub(crate) async fn run<C, F>(tasks: usize, length: Duration, cycle: C) -> Outcome<Load>
    where
        C: Fn(usize) -> F + Clone + Send + 'static,
        F: Future<Output = Outcome<()>> + Send,
    {
        let (began, cpu) = (Instant::now(), own_cpu());
        let end = began + length;
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let cycle = cycle.clone();
                tokio::spawn(async move {
                    let mut cycles = 0u64;
                    while Instant::now() < end {
                        cycle(task).await?;
                        cycles += 1;
                    }
                    Outcome::Ok(cycles)
                })
            })
            .collect();
        let mut by_task = Vec::with_capacity(tasks);
        for task in running {
            by_task.push(task.await??);
        }
        Ok(Load { by_task, took: began.elapsed(), cpu: own_cpu().saturating_sub(cpu) })
    }

    pub(crate) fn cycles(&self) -> u64 {
        self.by_task.iter().sum()
    }

    /// Cycles per second.
    pub(crate) fn rate(&self) -> f64 {
        self.cycles() as f64 / self.took.as_secs_f64()
    }

    /// Microseconds that a task needs for a cycle.
    pub(crate) fn latency(&self) -> f64 {
        self.took.as_secs_f64() * 1e6 * self.by_task.len() as f64 / self.cycles().max(1) as f64
    }

    /// Microseconds of processor time of this process for a cycle.
    pub(crate) fn cpu_per_cycle(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.cycles().max(1) as f64
    }

    /// Divides the cycles of the luckiest task by those of the unluckiest.
    pub(crate) fn unfairness(&self) -> f64 {
        let most = self.by_task.iter().max().copied().unwrap_or(0);
        let least = self.by_task.iter().min().copied().unwrap_or(0);
        most as f64 / least.max(1) as f64
    }
}
