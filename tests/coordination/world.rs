//! The fixture of every law: one store in memory, its clients, and the faults between them, on random
//! schedules.
//!
//! Time is that of the runtime, and stands still while any task can run, so a schedule of minutes takes
//! milliseconds. `LEASEHOLD_SCHEDULES` sets how many schedules each law tries, `LEASEHOLD_SEED` the
//! first seed; a schedule that fails prints its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Backend, Client, ClientBuilder, Clock, Moment, Tuning};

use crate::fixture::{until, within};

/// Randomness that can be repeated: xorshift64*.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn of(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }

    pub(crate) fn ms(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }

    /// Lets others go first, a few times.
    pub(crate) async fn pause(&mut self) {
        for _ in 0..self.below(4) {
            tokio::task::yield_now().await;
        }
    }

    /// So many different numbers below `end`, in any order.
    pub(crate) fn some_of(&mut self, end: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..end).collect();
        for last in (1..end).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
        all.truncate(1 + self.below(end as u64) as usize);
        all
    }

    /// Another chance, so that tasks do not disturb each other's.
    pub(crate) fn fork(&mut self) -> Chance {
        Chance::of(self.below(1 << 31))
    }
}

/// The clock of the runtime, which a test lets stand still.
#[derive(Debug)]
struct Ticks(tokio::time::Instant);

impl Clock for Ticks {
    fn now(&self) -> Moment {
        Moment::START.after(self.0.elapsed() + Duration::from_secs(1))
    }
}

/// A clock that stands still when the runtime's does.
pub(crate) fn ticks() -> Arc<dyn Clock> {
    Arc::new(Ticks(tokio::time::Instant::now()))
}

/// One store and the chance of one schedule.
pub(crate) struct World {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) chance: Chance,
}

/// A client of its own, as another process would be.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) locks: Client,
    fault: Arc<Fault>,
    is_silent: Arc<AtomicBool>,
}

impl World {
    /// Returns a store in which waiters sleep until they are called, for tests that choose the schedule
    /// and the clock of the runtime themselves.
    pub(crate) fn at_once() -> World {
        let clock = ticks();
        let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
        World { store, clock, chance: Chance::of(3) }
    }

    fn new(seed: u64) -> World {
        let clock = ticks();
        let mut chance = Chance::of(seed);
        let store = MemoryBackend::with_clock(clock.clone());
        // Some stores only answer when they are asked.
        let store = if chance.below(4) == 0 { store.polling() } else { store };
        World { store: Arc::new(store), clock, chance }
    }

    /// A client whose wire loses and delays by chance for a while.
    pub(crate) fn client(&mut self) -> Peer {
        let client = self.calm_client();
        tokio::spawn(trouble(client.clone(), self.chance.fork()));
        client
    }

    pub(crate) fn calm_client(&self) -> Peer {
        self.client_of(Client::builder())
    }

    pub(crate) fn tuned_client(&self, tuning: Tuning) -> Peer {
        self.client_of(Client::builder().tuning(tuning))
    }

    fn client_of(&self, builder: ClientBuilder) -> Peer {
        let fault = Arc::new(Fault::over(self.store.clone()));
        let locks = builder.clock(self.clock.clone()).over(fault.clone()).unwrap();
        Peer { locks, fault, is_silent: Arc::default() }
    }
}

/// Returns clients of one store, for tests that choose the schedule themselves.
pub(crate) fn clients<const COUNT: usize>() -> [Peer; COUNT] {
    let world = World::at_once();
    std::array::from_fn(|_| world.calm_client())
}

impl Peer {
    /// Cuts this client off for ever, as after `kill -9`.
    pub(crate) fn falls_silent(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
        self.fault.set_all(Mode::Hang);
    }

    fn trouble(&self, verb: Verb, mode: Mode) {
        if !self.is_silent.load(Ordering::SeqCst) {
            self.fault.set(verb, mode);
        }
    }

    /// Sets the fault of its requests from now on.
    pub(crate) fn fault(&self, verb: Verb, mode: Mode) {
        self.fault.set(verb, mode);
    }

    /// Sets the fault of all its requests from now on.
    pub(crate) fn fault_all(&self, mode: Mode) {
        self.fault.set_all(mode);
    }

    /// Returns the number of requests so far.
    pub(crate) fn calls(&self, verb: Verb) -> u64 {
        self.fault.calls(verb)
    }
}

async fn trouble(client: Peer, mut chance: Chance) {
    for _ in 0..TROUBLES {
        tokio::time::sleep(chance.ms(20)).await;
        let verb = Verb::ALL[chance.below(Verb::ALL.len() as u64) as usize];
        let mode = match chance.below(4) {
            0 => Mode::LoseReply,
            1 => Mode::LoseRequest,
            2 => Mode::Refuse,
            _ => Mode::LateReply(chance.ms(30)),
        };
        client.trouble(verb, mode);
        tokio::time::sleep(chance.ms(20)).await;
        client.trouble(verb, Mode::Pass);
    }
}

/// Waits until no claim holds this name or waits for it, for less than a lease lasts by default: what only
/// the end of its lease removes is a claim that was left behind.
pub(crate) async fn settles(locks: &Client, name: &str) {
    until(locks, name, LOOKS, |seen| seen.holders.is_empty() && seen.waiting.is_empty()).await;
}

/// Waits until `count` claims wait for this name on the server.
pub(crate) async fn waiting(locks: &Client, name: &str, count: usize) {
    until(locks, name, LOOKS, |seen| seen.waiting.len() == count).await;
}

/// Fails with `what` if it does not end soon.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    within(SOON, what, work).await
}

/// Tries `schedule` on a thousand seeds, each in a runtime of its own whose time stands still while any
/// task can run.
pub(crate) fn on_schedules<F>(schedule: impl Fn(World) -> F)
where
    F: Future<Output = ()>,
{
    on(SCHEDULES, schedule);
}

/// The same on half of them, where another schedule of the same law has the other half.
pub(crate) fn on_half_of_them<F>(schedule: impl Fn(World) -> F)
where
    F: Future<Output = ()>,
{
    on(SCHEDULES / 2, schedule);
}

/// The same on a quarter of them, where three other schedules of the same law have the rest.
pub(crate) fn on_a_quarter_of_them<F>(schedule: impl Fn(World) -> F)
where
    F: Future<Output = ()>,
{
    on(SCHEDULES / 4, schedule);
}

fn on<F>(count: u64, schedule: impl Fn(World) -> F)
where
    F: Future<Output = ()>,
{
    let first = env_number("LEASEHOLD_SEED").unwrap_or(1);
    for seed in first..first + env_number("LEASEHOLD_SCHEDULES").unwrap_or(count) {
        let seed_printer = SeedPrinter(seed);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let ended = tokio::time::timeout(LONG, schedule(World::new(seed))).await;
            ended.unwrap_or_else(|_| panic!("it does not come to its end"));
        });
        std::mem::forget(seed_printer);
    }
}

/// Returns `true` if so many schedules are tried that each rare case occurs among them.
pub(crate) fn is_whole_campaign() -> bool {
    env_number("LEASEHOLD_SCHEDULES").is_none_or(|count| count >= SCHEDULES)
}

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Prints the seed of a schedule that failed.
struct SeedPrinter(u64);

impl Drop for SeedPrinter {
    fn drop(&mut self) {
        eprintln!("failed with LEASEHOLD_SEED={} LEASEHOLD_SCHEDULES=1", self.0);
    }
}

/// Longer than anything takes in memory, and shorter than a lease by default.
const SOON: Duration = Duration::from_secs(20);
const LOOKS: u32 = 500;
/// Longer than everything that is promised to end, many times over.
const LONG: Duration = Duration::from_secs(600);
/// So often the wire of one client is in trouble, for a second in all.
const TROUBLES: u64 = 50;
const SCHEDULES: u64 = 1_000;
