//! A process of its own that takes a lock again and again.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::Fence;
use leasehold::fenced::{FencedFile, FencedFileError};
use rustix::process::{Pid, Signal, kill_process};

use crate::opening::opened;

/// A running `actor` program. Dropping it kills it.
pub struct Actor {
    child: Child,
}

impl Actor {
    /// Starts an actor that adds `rounds` to the counter, under a lock with this ttl.
    pub fn start(program: &str, url: &str, counter: &Path, rounds: u32, ttl: Duration) -> Actor {
        let child = Command::new(program)
            .arg(url)
            .arg(counter)
            .arg(rounds.to_string())
            .arg(ttl.as_millis().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Actor { child }
    }

    pub fn stop(&self) {
        leasehold_testkit::stop(&self.child).unwrap();
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; what it acknowledged, a line each.
    pub fn finish(mut self) -> Vec<Outcome> {
        let mut text = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut stdout, &mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "the actor failed: {text}");
        text.lines().map(Outcome::parse).collect()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        // It is not reaped before `finish` or `drop`, so the id is still its own.
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The outcome of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The counter was raised under this fence.
    Done(Fence),
    /// The fenced resource refused a fence that was not the newest any longer.
    Refused,
    /// The release reported that the lock had been lost.
    DoneButLost(Fence),
}

impl Outcome {
    fn parse(line: &str) -> Outcome {
        match line.split_once(' ') {
            Some(("done", fence)) => Outcome::Done(fence.parse().unwrap()),
            Some(("lost", fence)) => Outcome::DoneButLost(fence.parse().unwrap()),
            _ => Outcome::Refused,
        }
    }

    pub fn fence(self) -> Option<Fence> {
        match self {
            Outcome::Done(fence) | Outcome::DoneButLost(fence) => Some(fence),
            Outcome::Refused => None,
        }
    }
}

/// The actor's work: read, wait, write, behind the fence alone. It never looks whether the lock is still
/// held: that is the point.
pub async fn increment(url: &str, counter: &Path, rounds: u32, ttl: Duration) {
    let locks = opened(url).await;
    let mutex = locks.mutex("counter").ttl(ttl);
    let mut done = 0;
    while done < rounds {
        let guard = mutex.lock().await.unwrap();
        let fence = guard.fence().unwrap();
        let added = add_one(counter, fence).await;
        let released = guard.release().await;
        match added {
            Ok(()) => {
                done += 1;
                println!("{} {fence}", if released.is_ok() { "done" } else { "lost" });
            }
            Err(FencedFileError::Stale(_)) => println!("refused"),
            // Another actor was paused inside its call.
            Err(FencedFileError::Busy { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    locks.close(Duration::from_secs(5)).await;
}

async fn add_one(counter: &Path, fence: Fence) -> Result<(), FencedFileError> {
    let file = FencedFile::open(counter, fence)?;
    let before: u64 = String::from_utf8(file.read()?).unwrap().trim().parse().unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(3)).await;
    file.write((before + 1).to_string().as_bytes())
}
