//! Processes that are killed with `kill -9` at each step: before each request that they send, and after
//! each answer.
//!
//! Each role is played by a process that dies at its n-th request, for all n until one process lives to
//! the end. The survivors must find everything in order. All processes run side by side on one server,
//! each under a name of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::backend::{
    Claim, Failure, Patience, Put, RegisterPromise, Registered, Registers, Release, Stamp, Step,
};
use leasehold::{Backend, Client, Resource};
use leasehold_conformance::{Around, Wrapped};
use leasehold_testkit::RedisServer;

use crate::fixture::within;
use crate::player;

/// A part of a primitive, whose process dies at one of its requests.
pub(crate) struct Role {
    pub(crate) name: &'static str,
    /// Plays the part, under a name.
    pub(crate) play: for<'a> fn(&'a Client, &'a str) -> BoxFuture<'a, ()>,
}

/// Plays one of the roles, and dies at a step. The orders are a store, a role, a name and the step.
pub(crate) async fn play(orders: &[&str], roles: &[&Role]) {
    let [url, role, name, dies_at] = orders else { panic!("{orders:?}") };
    let role = roles.iter().find(|known| known.name == *role).unwrap();
    let store = Client::open(url).await.unwrap().backend().clone();
    let mortal = Mortal { store, left: AtomicU32::new(dies_at.parse().unwrap()) };
    let locks = Client::builder().over(Arc::new(Wrapped(mortal))).unwrap();
    (role.play)(&locks, name).await;
    locks.close(Duration::from_secs(10)).await;
    says("ended");
}

/// Reports to the test that started this process.
pub(crate) fn says(message: &str) {
    println!("{MARK}{message}");
}

/// A store whose client dies at a certain step: two steps a request, one before it and one after.
#[derive(Debug)]
struct Mortal {
    store: Arc<dyn Backend>,
    left: AtomicU32,
}

impl Mortal {
    fn step(&self) {
        let dies = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if dies == Ok(1) {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        }
    }

    async fn around<T>(&self, request: impl Future<Output = T>) -> T {
        self.step();
        let answer = request.await;
        self.step();
        answer
    }

    fn registers_of(&self) -> &dyn Registers {
        self.store.registers().unwrap()
    }
}

#[async_trait]
impl Around for Mortal {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.around(self.store.contend(claim, patience)).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.around(self.store.release(batch)).await
    }
}

#[async_trait]
impl Registers for Mortal {
    fn promise(&self) -> &RegisterPromise {
        self.registers_of().promise()
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        self.around(self.registers_of().read(at)).await
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.around(self.registers_of().swap(at, seen, put)).await
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        self.around(self.registers_of().changed(at, seen, patience)).await
    }
}

/// A process that plays a role. Killed when it is dropped.
pub(crate) struct Player {
    child: Child,
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
    messages: Vec<String>,
}

impl Player {
    fn start(url: &str, role: &str, name: &str, at: u32) -> Player {
        let mut child = player::started_with(&format!("{} {url} {role} {name} {at}", player::BY_REQUESTS))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test program writes lines of its own, and not always a whole one.
                if let Some((_, message)) = line.split_once(MARK) {
                    drop(sender.send(message.to_owned()));
                }
            }
        });
        Player { child, lines, messages: Vec::new() }
    }

    /// Returns the next line of the player; `None` if it is dead.
    pub(crate) async fn next_message(&mut self) -> Option<String> {
        tokio::time::timeout(Duration::from_secs(60), self.lines.recv()).await.unwrap()
    }

    /// Waits until the lock is held, by the player if no other client has come, or until the player is
    /// dead.
    pub(crate) async fn holds(&mut self, locks: &Client, name: &str) {
        for _ in 0..6_000 {
            let is_held = !locks.inspect(name).await.unwrap().holders.is_empty();
            if is_held || self.child.try_wait().unwrap().is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the player neither comes nor dies");
    }

    /// Waits for the end of the player. Returns `true` if it was killed, and did not end by itself.
    pub(crate) async fn is_killed(&mut self) -> bool {
        while let Some(message) = self.next_message().await {
            if message == "ended" {
                return false;
            }
            self.messages.push(message);
        }
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(self.child.wait().unwrap().signal(), Some(9), "it failed by itself");
        true
    }
}

impl Player {
    /// Returns `true` if it said so before its end.
    pub(crate) fn said(&self, message: &str) -> bool {
        self.messages.iter().any(|said| said == message)
    }

    /// Kills it now.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays a role `steps` times side by side, dying a step later each time: at least `least` have to die,
/// and not all.
pub(crate) async fn at_each_request<F>(
    role: &Role,
    steps: u32,
    least: u32,
    scene: impl Fn(Client, String, Player) -> F,
) where
    F: Future<Output = bool> + Send + 'static,
{
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let mut scenes = tokio::task::JoinSet::new();
    let mut killed = 0;
    // A few at a time: the machine has few cores, and each process needs a moment of one.
    for step in 1..=steps {
        let name = format!("{}-{step}", role.name);
        let locks = Client::open(&server.url()).await.unwrap();
        let player = Player::start(&server.url(), role.name, &name, step);
        scenes.spawn(scene(locks, name, player));
        if scenes.len() == 8 {
            killed += u32::from(scenes.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(ended) = scenes.join_next().await {
        killed += u32::from(ended.unwrap());
    }
    assert!(
        killed >= least && killed < steps,
        "{killed} of {steps} were killed: choose other numbers of steps"
    );
}

/// Fails with `what` if it does not end soon, on however busy a machine.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    within(Duration::from_secs(30), what, work).await
}

const MARK: &str = "player says: ";
/// The ttl of a process that dies.
pub(crate) const TTL: Duration = Duration::from_secs(1);
