//! The protocol of the programs that `cargo xtask bench --rivals` measures, for those in Rust.
//!
//! Ground rules: each lock library is measured in a program of its own, which this starts as
//! `PROGRAM KIND AT TASKS LOCKS`. The tasks are connected, and each lock was taken once, when it prints
//! `ready VERSION`. It then answers each line of its stdin, and ends with it:
//!
//! - `cycle MILLIS HOLD`: each task takes and releases lock `task % LOCKS` until the time is over, and holds
//!   it for `HOLD` microseconds. The answer is `SECONDS CPU CYCLES HOLDS`: the time that passed, the processor
//!   time of the program, the cycles of each task with commas between, and for each hold
//!   `GRANTED:RELEASED`, in nanoseconds of the clock that all processes share; or `-` where `HOLD` is 0.
//! - `hold`: lock 0 is taken and kept. The answer is `held`.
//! - `wait`: all tasks wait for lock 0, which another process has. The answer is `waiting`.
#![forbid(unsafe_code)]

use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Every error ends the program, with a text for a person.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The locks of one library, or the least that its server can do instead.
pub trait Contestant: Send + Sync + Sized + 'static {
    /// The guard, or what is in its place.
    type Held: Send + 'static;
    /// The number of cycles between two looks at the clock. More than one only where a cycle takes less than
    /// a look.
    const AT_ONCE: u64 = 1;

    /// Takes the lock of this task, and waits for it.
    fn lock(&self, task: usize) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Releases it.
    fn unlock(&self, task: usize, held: Self::Held) -> impl Future<Output = Outcome<()>> + Send;
}

/// The arguments of such a program.
#[derive(Clone, Debug)]
pub struct Arguments {
    /// The contestant, of those that the program has.
    pub kind: String,
    /// The URL or the path of the store; several have commas between.
    pub at: String,
    /// The number of tasks.
    pub tasks: usize,
    /// The number of locks.
    pub locks: usize,
}

impl Arguments {
    /// Reads the arguments of this process.
    ///
    /// # Errors
    /// If there are not four.
    pub fn read() -> Outcome<Arguments> {
        let mut arguments = std::env::args().skip(1);
        let mut next = || arguments.next().ok_or("usage: PROGRAM KIND AT TASKS LOCKS");
        Ok(Arguments { kind: next()?, at: next()?, tasks: next()?.parse()?, locks: next()?.parse()? })
    }

    /// Returns the number of the lock that a task takes.
    pub fn lock_of(&self, task: usize) -> usize {
        task % self.locks.max(1)
    }

    /// Returns the name of the lock that a task takes, its own for each kind.
    pub fn name_of(&self, task: usize) -> String {
        format!("bench-{}-{}", self.kind, self.lock_of(task))
    }
}

/// Answers the lines of stdin until it ends. It blocks its thread, so other threads have to serve the tasks.
///
/// # Errors
/// If a lock cannot be taken or released, or a line is not one of the protocol.
pub async fn serve<C: Contestant>(contestant: C, arguments: &Arguments, version: &str) -> Outcome<()> {
    let contestant = Arc::new(contestant);
    for task in 0..arguments.locks.min(arguments.tasks) {
        let held = contestant.lock(task).await?;
        contestant.unlock(task, held).await?;
    }
    println!("ready {version}");
    let mut kept = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["cycle", millis, hold] => {
                let round = Round::new(millis.parse()?, hold.parse()?);
                println!("{}", round.run(&contestant, arguments.tasks).await?);
            }
            ["hold"] => {
                kept.push(contestant.lock(0).await?);
                println!("held");
            }
            ["wait"] => {
                for task in 0..arguments.tasks {
                    let contestant = contestant.clone();
                    tokio::spawn(async move {
                        if contestant.lock(task).await.is_ok() {
                            eprintln!("a waiter was granted a lock that another process holds");
                            std::process::exit(1);
                        }
                    });
                }
                println!("waiting");
            }
            _ => return Err(format!("not a line of the protocol: {line}").into()),
        }
    }
    Ok(())
}

/// One answer to `cycle`.
#[derive(Clone, Copy)]
struct Round {
    end: Instant,
    hold: Duration,
}

impl Round {
    fn new(millis: u64, hold: u64) -> Round {
        Round { end: Instant::now() + Duration::from_millis(millis), hold: Duration::from_micros(hold) }
    }

    async fn run<C: Contestant>(self, contestant: &Arc<C>, tasks: usize) -> Outcome<String> {
        let (began, cpu) = (Instant::now(), now(ClockId::ProcessCPUTime));
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let contestant = contestant.clone();
                // On a task of its own even if it is only one: what the runtime's outside blocks for pays for
                // a change of thread with every wake-up.
                tokio::spawn(async move { self.repeat(&*contestant, task).await })
            })
            .collect();
        let (mut cycles, mut holds) = (Vec::new(), Vec::new());
        for task in running {
            let (of_task, held) = task.await??;
            cycles.push(of_task.to_string());
            holds.extend(held);
        }
        let cpu = now(ClockId::ProcessCPUTime) - cpu;
        let holds = if self.hold.is_zero() { "-".to_owned() } else { holds.join(",") };
        let seconds = began.elapsed().as_secs_f64();
        Ok(format!("{seconds} {} {} {holds}", cpu as f64 / 1e9, cycles.join(",")))
    }

    async fn repeat<C: Contestant>(self, contestant: &C, task: usize) -> Outcome<(u64, Vec<String>)> {
        let (mut cycles, mut holds) = (0, Vec::new());
        while Instant::now() < self.end {
            for _ in 0..C::AT_ONCE {
                let held = contestant.lock(task).await?;
                if !self.hold.is_zero() {
                    let granted = now(ClockId::Monotonic);
                    tokio::time::sleep(self.hold).await;
                    holds.push(format!("{granted}:{}", now(ClockId::Monotonic)));
                }
                contestant.unlock(task, held).await?;
                cycles += 1;
            }
        }
        Ok((cycles, holds))
    }
}

/// Nanoseconds of a clock.
fn now(clock: ClockId) -> i128 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    i128::from(tv_sec) * 1_000_000_000 + i128::from(tv_nsec)
}

/// Returns the version of a package that a lock file of Cargo names.
pub fn locked_version<'a>(lock_file: &'a str, package: &str) -> &'a str {
    let line = format!("name = \"{package}\"\nversion = \"");
    let rest = lock_file.split_once(&line).map_or("", |(_, rest)| rest);
    rest.split('"').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Local(Arc<tokio::sync::Mutex<()>>);

    impl Contestant for Local {
        type Held = tokio::sync::OwnedMutexGuard<()>;

        async fn lock(&self, _: usize) -> Outcome<Self::Held> {
            Ok(self.0.clone().lock_owned().await)
        }

        async fn unlock(&self, _: usize, held: Self::Held) -> Outcome<()> {
            drop(held);
            Ok(())
        }
    }

    #[tokio::test]
    async fn answer_has_the_cycles_and_holds_of_all_tasks() {
        let local = Arc::new(Local(Arc::default()));
        let answer = Round::new(20, 0).run(&local, 2).await.unwrap();
        let words: Vec<&str> = answer.split(' ').collect();
        let [seconds, cpu, cycles, "-"] = words[..] else { panic!("{answer}") };
        assert!(seconds.parse::<f64>().unwrap() >= 0.02 && cpu.parse::<f64>().unwrap() >= 0.0, "{answer}");
        assert_eq!(cycles.split(',').count(), 2, "{answer}");
        let answer = Round::new(2_000, 1_000).run(&local, 2).await.unwrap();
        let mut holds: Vec<(u64, u64)> = answer.split(' ').nth(3).unwrap().split(',').map(pair).collect();
        holds.sort_unstable();
        assert!(holds.windows(2).all(|two| two[0].1 <= two[1].0), "two hold it at once: {answer}");
    }

    fn pair(text: &str) -> (u64, u64) {
        let (granted, released) = text.split_once(':').unwrap();
        (granted.parse().unwrap(), released.parse().unwrap())
    }

    #[test]
    fn tasks_share_locks_in_turn() {
        let arguments = Arguments { kind: "x".to_owned(), at: String::new(), tasks: 4, locks: 2 };
        let names: Vec<String> = (0..4).map(|task| arguments.name_of(task)).collect();
        assert_eq!(names, ["bench-x-0", "bench-x-1", "bench-x-0", "bench-x-1"]);
    }

    #[test]
    fn version_is_read_from_a_lock_file() {
        let file =
            "[[package]]\nname = \"a\"\nversion = \"1.2\"\n\n[[package]]\nname = \"ab\"\nversion = \"3\"\n";
        assert_eq!((locked_version(file, "a"), locked_version(file, "ab")), ("1.2", "3"));
        assert_eq!(locked_version(file, "b"), "");
    }
}
