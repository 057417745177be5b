//! A process that plays a part and is killed at one of its steps.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Client, Tuning};
use leasehold_testkit::peers::Peer;
use leasehold_tests::opened_with;
use tokio::sync::SemaphorePermit;

use crate::fixture::{LIVING, Part, Primitive, TTL};
use crate::mortal::{self, Role};

/// The part that the test program is to play: one of the two words below, store, primitive and part or
/// role, name, and the step at which it dies.
const PLAYER: &str = "LEASEHOLD_TEST_PLAYER";
/// Its test kills it at a step of its part.
const BY_STEPS: &str = "steps";
/// It kills itself at a request.
pub(crate) const BY_REQUESTS: &str = "requests";
/// The time after which the work of a step is under way.
const WITHIN: Duration = Duration::from_millis(50);

/// Plays the part that this program was started for, if any.
pub(crate) async fn play_if_asked(primitives: &[Primitive], roles: &[&Role]) {
    let Ok(orders) = std::env::var(PLAYER) else { return };
    let orders: Vec<&str> = orders.split(' ').collect();
    match orders[0] {
        BY_STEPS => play(&orders[1..], primitives).await,
        BY_REQUESTS => mortal::play(&orders[1..], roles).await,
        _ => panic!("{orders:?}"),
    }
}

/// Returns the command that starts this program with orders.
pub(crate) fn started_with(orders: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["player", "--exact", "--nocapture", "--test-threads=1"]).env(PLAYER, orders);
    command
}

async fn play(orders: &[&str], primitives: &[Primitive]) {
    let [url, primitive, part, name, dies_at] = *orders else { panic!("{orders:?}") };
    let primitive = primitives.iter().find(|known| known.name == primitive).unwrap();
    let part = primitive.parts.iter().find(|known| known.name == part).unwrap();
    let dies_at = dies_at.parse().unwrap();
    let ttl = if dies_at == part.steps { LIVING } else { TTL };
    let stage = Stage { dies_at, ttl, reached: Arc::default() };
    // It renews long before its short leases end, which a busy machine is not late for.
    let tuning = Tuning::default().renew_at(0.05);
    let locks = opened_with(|| Client::builder().tuning(tuning.clone()), url).await;
    (part.play)(&stage, &locks, name).await.unwrap();
    locks.close(Duration::from_secs(10)).await;
    println!("\nplayer: came through {} steps", stage.reached.load(Ordering::SeqCst));
}

/// Counts the steps of a player.
#[derive(Clone)]
pub(crate) struct Stage {
    dies_at: u32,
    ttl: Duration,
    reached: Arc<AtomicU32>,
}

impl Stage {
    /// A step between two actions. It never returns if the player is to be killed at it.
    pub(crate) async fn at(&self, what: &str) {
        if self.is_last(what) {
            std::future::pending::<()>().await;
        }
    }

    /// A step that takes a while. The player is within it when it is killed.
    pub(crate) async fn during<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let is_last = self.is_last(what);
        let done = work.await;
        if is_last {
            std::future::pending::<()>().await;
        }
        done
    }

    /// Returns the ttl for the player: that of a process that lives, unless it is to be killed.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// A step in code that cannot wait.
    pub(crate) fn blocking(&self, what: &str) {
        if self.is_last(what) {
            std::thread::sleep(Duration::from_secs(600));
        }
    }

    fn is_last(&self, what: &str) -> bool {
        let is_last = self.reached.fetch_add(1, Ordering::SeqCst) == self.dies_at;
        if is_last {
            // The harness leaves an unfinished line behind.
            println!("\nplayer: is at `{what}`");
        }
        is_last
    }
}

/// A player that will be killed at one step of a part, or come through if that step is the one after the
/// last.
pub(crate) struct Victim {
    command: Command,
    name: String,
    steps: u32,
    dies_at: u32,
    /// Among the few processes that run at a time; free again when this one is dead.
    place: SemaphorePermit<'static>,
}

impl Victim {
    pub(crate) fn new(
        url: &str,
        primitive: &str,
        part: &Part,
        dies_at: u32,
        place: SemaphorePermit<'static>,
    ) -> Victim {
        let name = format!("{primitive}/{}/{dies_at}", part.name);
        let command = started_with(&format!("{BY_STEPS} {url} {primitive} {} {name} {dies_at}", part.name));
        Victim { command, name, steps: part.steps, dies_at, place }
    }

    /// Returns the name under which it plays.
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    /// Returns the step at which it is killed, counted from 0.
    pub(crate) fn step(&self) -> u32 {
        self.dies_at
    }

    /// Returns `true` if it is not to be killed.
    pub(crate) fn survives(&self) -> bool {
        self.dies_at == self.steps
    }

    /// Starts the player, and waits until it is at its last step, or has come through.
    pub(crate) async fn reaches_its_end(self) -> Dying {
        let through = self.survives().then(|| format!("came through {} steps", self.steps));
        let playing = tokio::task::spawn_blocking(move || {
            let peer = Peer::start(self.command).unwrap();
            loop {
                if let Some(line) = peer.answer().unwrap().strip_prefix("player: ") {
                    let is_right =
                        through.as_ref().map_or(line.starts_with("is at"), |through| line == *through);
                    assert!(is_right, "{}: {line}", self.name);
                    return peer;
                }
            }
        });
        Dying(playing.await.unwrap(), self.place)
    }

    /// Starts the player, and kills it at its step.
    pub(crate) async fn dies(self) {
        self.reaches_its_end().await.killed().await;
    }
}

/// A player at its last step.
pub(crate) struct Dying(Peer, SemaphorePermit<'static>);

impl Dying {
    /// Kills the player with signal 9. A player that came through has ended, or is about to.
    pub(crate) async fn killed(self) {
        tokio::time::sleep(WITHIN).await;
        tokio::task::spawn_blocking(move || self.0.kill().unwrap()).await.unwrap();
        drop(self.1);
    }
}
