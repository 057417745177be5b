//! Processes that are killed with `kill -9` at each step: before each request that they send, and after
//! each answer.
//!
//! Each part is played by a process that dies at its n-th request, for all n until one process lives to
//! the end. The survivors must find everything in order. All processes run side by side on one server,
//! each under a name of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::backend::{
    Claim, Failure, Patience, Put, RegisterPromise, Registered, Registers, Release, Renew, Renewal, Stamp,
    Step,
};
use leasehold::{
    Backend, Client, ErrorKind, LoadError, Profile, Resource, ResourceSummary, Snapshot, SnapshotVersion,
};
use leasehold_testkit::RedisServer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Not a test: the code of this program when it is started as a second process.
#[test]
fn player() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let mut args = order.split(' ');
    let mut next = || args.next().unwrap().to_owned();
    let (url, part, name, at) = (next(), next(), next(), next().parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Client::open(&url).await.unwrap().backend().clone();
        let mortal = Arc::new(Mortal { store, left: AtomicU32::new(at) });
        let locks = Client::builder().over(mortal).unwrap();
        play(&locks, &part, &name).await;
        locks.close(Duration::from_secs(10)).await;
    });
    println!("{MARK}ended");
}

async fn play(locks: &Client, part: &str, name: &str) {
    let mutex = locks.mutex(name).ttl(TTL);
    let condition = locks.condition(name).ttl(TTL);
    match part {
        "wait" => {
            let guard = mutex.lock().await.unwrap();
            // On a busy machine a lease of a second may be over before.
            if let Ok(guard) = guard.wait(&condition).await {
                println!("{MARK}woken");
                let _ = guard.release().await;
            }
        }
        "notify" => {
            let guard = mutex.lock().await.unwrap();
            if guard.notify_one(&condition).await.is_ok() {
                let _ = guard.release().await;
            }
        }
        "count" => locks.latch(name, 3).count_down_as("player").await.unwrap(),
        "pass" => {
            // With or without another party, and also if the wait ends: this process only has to be
            // killed.
            let _ = locks.barrier(name, 2).ttl(TTL).wait_for(Duration::from_secs(20)).await;
        }
        "use_up" => {
            locks.rate_limit(name, 2, PERIOD).acquire_many(2).await.unwrap();
            println!("{MARK}granted");
            std::future::pending::<()>().await;
        }
        "load" => {
            let load = || async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok::<_, String>(Some(b"old".to_vec()))
            };
            let flight = locks.single_flight(name).with(|turn| Ok(turn.ttl(TTL))).unwrap();
            flight.get_or_load(Duration::from_secs(60), load).await.unwrap();
        }
        other => panic!("{other}"),
    }
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
impl Backend for Mortal {
    fn profile(&self) -> &Profile {
        self.store.profile()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.around(self.store.contend(claim, patience)).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        self.store.renew(batch).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.around(self.store.release(batch)).await
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.store.inspect(resource, seen, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.store.list(prefix, after, limit).await
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

/// A process that plays a part. Killed when it is dropped.
struct Player {
    child: Child,
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
    was_woken: bool,
}

impl Player {
    fn start(url: &str, part: &str, name: &str, at: u32) -> Player {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "player", "--nocapture", "--test-threads=1"])
            .env(ORDER, format!("{url} {part} {name} {at}"))
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
        Player { child, lines, was_woken: false }
    }

    /// Returns the next line of the player; `None` if it is dead.
    async fn next_message(&mut self) -> Option<String> {
        tokio::time::timeout(Duration::from_secs(60), self.lines.recv()).await.unwrap()
    }

    /// Waits until the lock is held, by the player if no other client has come, or until the player is
    /// dead.
    async fn holds(&mut self, locks: &Client, name: &str) {
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
    async fn is_killed(&mut self) -> bool {
        while let Some(message) = self.next_message().await {
            self.was_woken |= message == "woken";
            if message == "ended" {
                return false;
            }
        }
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(self.child.wait().unwrap().signal(), Some(9), "it failed by itself");
        true
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays a part `steps` times side by side, dying a step later each time: at least `least` have to die,
/// and not all.
async fn at_each_step<F>(
    part: &'static str,
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
        let name = format!("{part}-{step}");
        let locks = Client::open(&server.url()).await.unwrap();
        let player = Player::start(&server.url(), part, &name, step);
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

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| panic!("{what} does not end"))
}

/// Starts a live waiter, and returns its task and a message that it has the lock: the next holder of the
/// lock finds it waiting.
fn waiter(locks: &Client, name: &str) -> (JoinHandle<()>, oneshot::Receiver<()>) {
    let (mutex, condition) = (locks.mutex(name), locks.condition(name).ttl(TTL));
    let (lock_sender, has_lock) = oneshot::channel();
    let waiting = tokio::spawn(async move {
        let guard = mutex.lock().await.unwrap();
        let _ = lock_sender.send(());
        guard.wait(&condition).await.unwrap().release().await.unwrap();
    });
    (waiting, has_lock)
}

/// A waiter dies: the one notification goes to the other waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_dies_at_each_step() {
    at_each_step("wait", 30, 12, |locks, name, mut player| async move {
        let (mutex, condition) = (locks.mutex(&name), locks.condition(&name).ttl(TTL));
        // The player comes first, if it comes at all.
        player.holds(&locks, &format!("{name}!waiting")).await;
        let (other, has_lock) = waiter(&locks, &name);
        has_lock.await.unwrap();
        let notify = || async {
            let guard = soon("lock", mutex.lock()).await.unwrap();
            guard.notify_one(&condition).await.unwrap();
            guard.release().await.unwrap();
        };
        notify().await;
        let killed = player.is_killed().await;
        if player.was_woken {
            // The player used the notification, whether or not it lived to the end; the other waiter
            // still needs one.
            notify().await;
        }
        soon("the other waiter", other).await.unwrap();
        killed
    })
    .await;
}

/// A notifier dies: the next notifier wakes the waiter, and the notification of the first was complete
/// or not made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notifier_dies_at_each_step() {
    at_each_step("notify", 14, 6, |locks, name, mut player| async move {
        let (mutex, condition) = (locks.mutex(&name), locks.condition(&name).ttl(TTL));
        let (waiting, has_lock) = waiter(&locks, &name);
        let killed = player.is_killed().await;
        // The player may have notified before the waiter waited, so the waiter is notified once more.
        has_lock.await.unwrap();
        let guard = soon("lock", mutex.lock()).await.unwrap();
        guard.notify_one(&condition).await.unwrap();
        guard.release().await.unwrap();
        soon("the waiter", waiting).await.unwrap();
        killed
    })
    .await;
}

/// A counter dies, and counts again: it is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latch_survives_a_counter_that_dies_at_any_step() {
    at_each_step("count", 8, 4, |locks, name, mut player| async move {
        let killed = player.is_killed().await;
        let latch = locks.latch(&name, 3);
        latch.count_down_as("player").await.unwrap();
        latch.count_down_as("another").await.unwrap();
        assert_eq!(latch.remaining().await.unwrap(), 1);
        latch.count_down_as("a third").await.unwrap();
        soon("the latch", latch.wait()).await.unwrap();
        killed
    })
    .await;
}

/// A party dies: the other passes, or gets an error, and the barrier can be used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_party_dies_at_each_step() {
    at_each_step("pass", 20, 8, |locks, name, mut player| async move {
        let barrier = locks.barrier(&name, 2).ttl(TTL);
        match soon("the barrier", barrier.wait_for(Duration::from_secs(8))).await {
            Ok(_) => {}
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Broken | ErrorKind::Timeout), "{error}");
                assert!(barrier.is_broken().await.unwrap());
            }
        }
        let killed = player.is_killed().await;
        // A player that died while it arrived for a second time would still be recorded there.
        barrier.reset().await.unwrap();
        let (one, two) = soon("the barrier", async { tokio::join!(barrier.wait(), barrier.wait()) }).await;
        assert!(one.unwrap().is_leader() != two.unwrap().is_leader());
        killed
    })
    .await;
}

/// The process that used up the rate dies: the rate stays used up, and is available again after the
/// period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_limit_survives_a_client_that_dies_at_any_step() {
    at_each_step("use_up", 5, 2, |locks, name, mut player| async move {
        let rate = locks.rate_limit(&name, 2, PERIOD);
        let granted = player.next_message().await.as_deref() == Some("granted");
        if granted {
            player.child.kill().unwrap();
            assert!(!rate.try_acquire().await.unwrap(), "the death of the process gave it back");
        }
        soon("the rate", rate.acquire_many(2)).await.unwrap();
        assert!(!rate.try_acquire().await.unwrap());
        !granted
    })
    .await;
}

/// A loader dies: another takes over, and all get a value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loader_dies_at_each_step() {
    at_each_step("load", 30, 12, |locks, name, mut player| async move {
        player.holds(&locks, &format!("{name}!loading")).await;
        let asks = (0..3).map(|_| {
            let flight = locks.single_flight(&name).with(|turn| Ok(turn.ttl(TTL))).unwrap();
            let load = || async { Ok::<_, String>(Some(b"new".to_vec())) };
            async move { flight.get_or_load(Duration::from_secs(60), load).await }
        });
        for loaded in soon("loading", futures_util::future::join_all(asks)).await {
            let loaded: Result<_, LoadError<String>> = loaded;
            assert!(matches!(loaded.unwrap().value.as_deref(), Some(b"new" | b"old")));
        }
        player.is_killed().await
    })
    .await;
}

const ORDER: &str = "LEASEHOLD_TEST_PLAYER";
const MARK: &str = "player says: ";
const TTL: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(3);
