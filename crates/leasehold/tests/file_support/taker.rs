//! A second process for the tests of the file store: this test program, started again as a taker of locks.
//!
//! A test program that uses it has a test named `taker` that calls [`serve`]; that test does nothing in
//! an ordinary run.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use leasehold_core::{Backend, Fence, Release, Share};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// A process that takes a lock, and reports its results. Killed when it is dropped.
pub struct Taker {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Taker {
    /// Starts a process that contends, and holds until it gets another order.
    pub fn hold(store: &Path, name: &str, share: Share) -> Taker {
        Taker::start(&format!("hold {} {name} {} {}", store.display(), share.weight(), share.capacity()))
    }

    /// Starts a process that takes and releases `rounds` times, and checks in `arena` which processes
    /// are inside.
    pub fn rounds(store: &Path, name: &str, share: Share, rounds: u32, arena: &Path) -> Taker {
        Taker::start(&format!(
            "rounds {} {name} {} {} {rounds} {}",
            store.display(),
            share.weight(),
            share.capacity(),
            arena.display()
        ))
    }

    /// Starts a process that counts under the lock until the file `stop` appears in `arena`, or until it
    /// is killed.
    pub fn storm(store: &Path, name: &str, arena: &Path) -> Taker {
        Taker::start(&format!("storm {} {name} 1 1 0 {}", store.display(), arena.display()))
    }

    fn start(order: &str) -> Taker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "taker", "--nocapture", "--test-threads=1"])
            .env(ORDER, order)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test program writes lines of its own, and not always a whole one.
                if let Some((_, message)) = line.split_once(MARK)
                    && sender.send(message.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Taker { child, stdin, lines }
    }

    /// Returns the next line of the process.
    pub fn next_message(&self) -> String {
        match self.lines.recv_timeout(Duration::from_secs(60)) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the taker says nothing for a minute"),
            Err(RecvTimeoutError::Disconnected) => panic!("the taker ended without a word"),
        }
    }

    pub fn has_no_message(&self) -> bool {
        self.lines.try_recv().is_err()
    }

    /// Waits until it holds.
    pub fn granted(&self) -> Fence {
        let line = self.next_message();
        line.strip_prefix("granted ").unwrap_or_else(|| panic!("not a grant: {line}")).parse().unwrap()
    }

    pub fn release(&mut self) {
        writeln!(self.stdin, "release").unwrap();
        assert_eq!(self.next_message(), "freed");
    }

    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Stops it: none of its threads runs any more when this returns.
    pub fn stop(&self) {
        leasehold_testkit::stop(&self.child).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the part of the started process.
pub fn serve() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let args: Vec<&str> = order.split(' ').collect();
    let share = Share::permits(args[3].parse().unwrap(), args[4].parse().unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = open(Path::new(args[1]));
        match args[0] {
            "hold" => hold(&backend, &claim(args[2], share)).await,
            "rounds" => {
                for round in 0..args[5].parse::<u32>().unwrap() {
                    inside(&backend, args[2], share, Path::new(args[6]), round).await;
                }
                report("done");
            }
            "storm" => {
                let arena = Path::new(args[6]);
                while !arena.join("stop").exists() {
                    count(&backend, args[2], arena).await;
                }
                report("done");
            }
            other => panic!("unknown order {other}"),
        }
    });
}

async fn hold(backend: &FileBackend, claim: &Claim) {
    let mut grant = grant(backend, claim).await;
    report(&format!("granted {}", grant.fence.unwrap()));
    let release_order = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
    });
    tokio::select! {
        cause = grant.lost.as_mut().unwrap().fired() => {
            report(&format!("lost {cause:?}"));
            // The blocking thread waits for a line that does not arrive.
            std::process::exit(0);
        }
        _ = release_order => {}
    }
    match backend.release(&[claim]).await[..] {
        [Release::Freed] => report("freed"),
        [Release::Gone] => report("gone"),
        _ => report("unknown"),
    }
}

/// Stays inside once: with a counter that loses updates unless an exclusive holder is alone, and a file
/// for each holder.
async fn inside(backend: &FileBackend, name: &str, share: Share, arena: &Path, round: u32) {
    let claim = claim(name, share);
    let fence = granted(backend, &claim).await;
    let kind = if share.is_exclusive() { "whole" } else { "part" };
    let mark = arena.join(format!("{kind}-{}-{}", share.weight().min(share.capacity()), std::process::id()));
    std::fs::write(&mark, "").unwrap();
    check_arena(arena, share);
    if share.is_exclusive() {
        let counter = arena.with_extension("counter");
        let count: u64 = std::fs::read_to_string(&counter).map_or(0, |text| text.trim().parse().unwrap());
        if round.is_multiple_of(4) {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        std::fs::write(&counter, (count + 1).to_string()).unwrap();
        let mut log =
            std::fs::File::options().create(true).append(true).open(arena.with_extension("log")).unwrap();
        writeln!(log, "{fence}").unwrap();
    } else {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    check_arena(arena, share);
    std::fs::remove_file(&mark).unwrap();
    assert!(matches!(backend.release(&[&claim]).await[..], [Release::Freed]));
}

/// Adds one to a number in a file, in two steps that lose an update unless no other process is inside,
/// and logs it. Each step is one write, so a killed process has done it or has not.
async fn count(backend: &FileBackend, name: &str, arena: &Path) {
    let claim = claim(name, Share::MUTEX);
    let fence = granted(backend, &claim).await;
    let mut options = std::fs::File::options();
    let counter =
        options.create(true).truncate(false).read(true).write(true).open(arena.join("counter")).unwrap();
    let mut number = [0; 8];
    let read = counter.read_at(&mut number, 0).unwrap();
    let number = if read == 8 { u64::from_be_bytes(number) } else { 0 };
    tokio::task::yield_now().await;
    counter.write_all_at(&(number + 1).to_be_bytes(), 0).unwrap();
    let mut log = std::fs::File::options().create(true).append(true).open(arena.join("log")).unwrap();
    log.write_all(format!("{fence}\n").as_bytes()).unwrap();
    assert!(matches!(backend.release(&[&claim]).await[..], [Release::Freed]));
}

fn check_arena(arena: &Path, share: Share) {
    let mut load = 0u64;
    let mut wholes = 0;
    for entry in std::fs::read_dir(arena).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let mut parts = name.split('-');
        wholes += usize::from(parts.next() == Some("whole"));
        load += parts.next().unwrap().parse::<u64>().unwrap();
    }
    let others = load - u64::from(share.weight());
    if load > u64::from(share.capacity())
        || (share.is_exclusive() && others > 0)
        || (!share.is_exclusive() && wholes > 0)
    {
        report(&format!("too many inside: {load} with {share}"));
        std::process::exit(1);
    }
}

fn report(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{what}").unwrap();
    out.flush().unwrap();
}

const ORDER: &str = "LEASEHOLD_TEST_TAKER";
const MARK: &str = "taker: ";
