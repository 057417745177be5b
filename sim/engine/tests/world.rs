//! One run: the store, its clients, their tasks, and what goes wrong.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use simulated::backend::{Clock, LossCause, Moment, QueueOrder, Resource, Share};
use simulated::{
    AcquireSource, Client, Event, EventSubscriber, Guard, Owner, State, TokioClock, TransferToken, Tuning,
    probe,
};
use tokio::time::{Instant, sleep};

use crate::dice::Dice;
use crate::judge::{Judge, Verdict};
use crate::program::{self, Thing};
use crate::store::Store;
use crate::subscriber::Listener;
use crate::wire::Wire;

/// The state of one run.
pub(crate) struct World {
    pub(crate) judge: Arc<Judge>,
    pub(crate) things: Vec<Thing>,
    store: Arc<Store>,
    clients: Vec<Peer>,
    tokens: Mutex<Vec<TransferToken>>,
    owned: Mutex<BTreeMap<u64, (Owned, Weak<Guard>)>>,
    running: AtomicUsize,
    /// The work of crashed clients: never polled again, and not dropped before the end.
    graves: Mutex<Vec<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

struct Peer {
    wire: Arc<Wire>,
    locks: Client,
    owners: Vec<Owner>,
}

/// The owner of a guard: by client, owner and resource.
type Owned = (usize, usize, Resource);

/// The parts of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) mutant: &'static str,
    pub(crate) keeps_log: bool,
    pub(crate) panics_in: Option<u64>,
}

/// Runs one seed.
pub(crate) fn run(how: Run) -> Verdict {
    let Run { seed, mutant, panics_in, .. } = how;
    probe::begin(seed, mutant);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let (verdict, world) = runtime.block_on(async {
        let judge = Arc::new(Judge::new(how.keeps_log, panics_in));
        // Everything runs on this thread. A subscriber is called more often than everything else
        // together, so half of the runs have none.
        let listener = panics_in
            .filter(|_| seed % 2 == 0)
            .map(|_| tracing::subscriber::set_default(Listener::new(judge.clone())));
        let played = play(how, judge).await;
        drop(listener);
        played
    });
    drop(runtime);
    drop(world);
    verdict
}

async fn play(how: Run, judge: Arc<Judge>) -> (Verdict, Arc<World>) {
    let dice = Dice::new(how.seed);
    let world = Arc::new(World::new(&dice, &Dice::new(!how.seed), judge.clone()));
    let tasks = dice.between(2, 8) as usize;
    for _ in 0..tasks {
        let client = dice.below(world.clients.len() as u64) as usize;
        world.start(client, program::run(world.clone(), client, dice.split()));
    }
    let chaos = dice.split();
    let calm_from = Instant::now() + if dice.percent(30) { Duration::ZERO } else { TROUBLE };
    if dice.percent(70) {
        tokio::spawn(trouble(world.clone(), chaos));
    }
    let began = Instant::now();
    while world.running.load(Ordering::Relaxed) > 0 && !judge.has_failed() {
        sleep(TICK).await;
        let calm = Instant::now() > calm_from.max(began + TROUBLE) + LATEST;
        judge.look_for_sleepers(&world.store, calm);
        world.look_at_heads();
        world.look_for_suspects(calm);
        judge.look_for_ignored_losses();
        judge.look_for_unheard_losses();
        if judge.still_for() > STILL {
            judge.fail(format!("{} tasks have not come to their end", world.running.load(Ordering::Relaxed)));
        }
    }
    if !judge.has_failed() {
        world.nothing_is_left().await;
    }
    judge.end();
    (judge.verdict(), world)
}

impl World {
    fn new(dice: &Dice, lingers: &Dice, judge: Arc<Judge>) -> World {
        let store = Arc::new(Store::new(dice));
        let calm_from = Instant::now() + TROUBLE;
        let is_calm = dice.percent(30);
        let clients = (0..dice.between(1, 3) as usize).map(|number| {
            let calm_from = if is_calm { Instant::now() } else { calm_from };
            let wire = Wire::new(number, store.clone(), judge.clone(), dice.split(), calm_from);
            Peer::open(number, Arc::new(wire), judge.clone(), dice)
        });
        let clients = clients.collect();
        let things = (0..dice.between(1, 2)).map(|number| Thing::draw(dice, lingers, number)).collect();
        World {
            judge,
            things,
            store,
            clients,
            tokens: Mutex::default(),
            owned: Mutex::default(),
            running: AtomicUsize::new(0),
            graves: Mutex::default(),
        }
    }

    pub(crate) fn client(&self, number: usize) -> Client {
        self.clients[number].locks.clone()
    }

    /// Returns whether the store says that it keeps an order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.store.profile().order == QueueOrder::Fifo
    }

    pub(crate) fn owner(&self, client: usize, dice: &Dice) -> Owner {
        let owners = &self.clients[client].owners;
        owners[dice.below(owners.len() as u64) as usize].clone()
    }

    /// Draws a share that the holder of `share` may have once more.
    pub(crate) fn smaller(&self, share: Share, dice: &Dice) -> Share {
        match share {
            Share::WRITER if dice.percent(50) => Share::READER,
            other => other,
        }
    }

    /// Remembers that an owner has a guard, for as long as the returned value lives.
    pub(crate) fn owned<'a>(
        &'a self,
        client: usize,
        owner: &Owner,
        guard: &Arc<Guard>,
    ) -> impl Drop + use<'a> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let whose = (client, self.number_of(client, owner), guard.resource().clone());
        self.owned.lock().unwrap().insert(key, (whose, Arc::downgrade(guard)));
        Owning { world: self, key }
    }

    /// Returns whether an owner has a guard of a resource that is not lost.
    pub(crate) fn owns_any(&self, client: usize, owner: Option<&Owner>, resource: &Resource) -> bool {
        let Some(owner) = owner else { return false };
        let whose = (client, self.number_of(client, owner), resource.clone());
        let owned = self.owned.lock().unwrap();
        owned.values().any(|(theirs, guard)| {
            // A claim that is being released is held until that is done.
            *theirs == whose && guard.upgrade().is_none_or(|guard| probe::look(&guard).is_valid())
        })
    }

    fn number_of(&self, client: usize, owner: &Owner) -> usize {
        let text = format!("{owner:?}");
        self.clients[client]
            .owners
            .iter()
            .position(|known| format!("{known:?}") == text)
            .unwrap_or(usize::MAX)
    }

    pub(crate) fn offer(&self, token: TransferToken) {
        self.tokens.lock().unwrap().push(token);
    }

    pub(crate) fn offered(&self) -> Option<TransferToken> {
        self.tokens.lock().unwrap().pop()
    }

    /// Starts a task of a client, which stops in the middle of everything when its client crashes.
    fn start(self: &Arc<Self>, client: usize, work: impl Future<Output = ()> + Send + 'static) {
        self.running.fetch_add(1, Ordering::Relaxed);
        let (world, wire) = (self.clone(), self.clients[client].wire.clone());
        tokio::spawn(async move {
            let running = Running(world.clone());
            let mut work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
            let crashed = tokio::select! {
                biased;
                () = wire.crashed() => true,
                () = &mut work => false,
            };
            if crashed {
                world.graves.lock().unwrap().push(work);
            }
            drop(running);
        });
    }

    pub(crate) fn listen(
        self: &Arc<Self>,
        number: u64,
        ending: impl Future<Output = Option<LossCause>> + Send + 'static,
        given_back: Arc<AtomicBool>,
    ) {
        self.judge.listens(number);
        drop(tokio::spawn(program::listen(self.clone(), number, ending, given_back)));
    }

    fn look_for_suspects(&self, calm: bool) {
        let suspects = self.judge.states().into_iter().filter(|(_, state)| *state == State::Suspect);
        let suspects: Vec<_> = suspects.map(|(number, _)| number).collect();
        if calm && !suspects.is_empty() {
            self.judge.fail(format!("{suspects:?} are suspect, although each renewal is answered"));
        }
    }

    /// Checks the first waiter of each queue.
    fn look_at_heads(&self) {
        for thing in &self.things {
            let look = self.store.look(&thing.resource);
            for (number, client) in self.clients.iter().enumerate() {
                let head = probe::head(&client.locks, &thing.resource).filter(|_| !client.wire.is_crashed());
                self.judge.look_at_head(number, &thing.resource, head, &look);
            }
        }
    }

    /// Ends what is left in order, and looks for claims without an owner.
    async fn nothing_is_left(&self) {
        self.tokens.lock().unwrap().clear();
        let began = Instant::now();
        let alive = || self.clients.iter().enumerate().filter(|(_, client)| !client.wire.is_crashed());
        let remembered = || {
            alive().any(|(number, client)| probe::queues(&client.locks) > 0 || self.judge.keeps(number) != 0)
        };
        while (remembered() || !self.store.busy().is_empty()) && began.elapsed() < LEFT {
            sleep(TICK).await;
        }
        let busy = self.store.busy();
        if !busy.is_empty() {
            return self.judge.fail(format!("without holders and waiters, the store still has {busy:?}"));
        }
        for (number, client) in alive() {
            let (lines, kept) = (probe::queues(&client.locks), self.judge.keeps(number));
            if lines > 0 || kept != 0 {
                self.judge.fail(format!("c{number} remembers {lines} resources and keeps {kept} claims"));
            }
            if !self.judge.is_closed(number) {
                let began = Instant::now();
                let answered = client.locks.close(Duration::from_secs(5)).await;
                self.judge.closed(number, answered);
                if began.elapsed() > Duration::from_millis(5_005) {
                    self.judge.fail(format!("c{number} was closed for {:?}", began.elapsed()));
                }
            }
        }
    }
}

impl Peer {
    fn open(number: usize, wire: Arc<Wire>, judge: Arc<Judge>, dice: &Dice) -> Peer {
        let tuning = match dice.below(3) {
            0 => Tuning::default().local_handoff_limit(1),
            1 => Tuning::default().local_handoff_time(Duration::from_secs(1)),
            _ => Tuning::default(),
        };
        let clock = Arc::new(Watched { tokio: TokioClock::new(), judge: judge.clone() });
        let subscriber = Arc::new(Reporter { number, judge });
        let builder = Client::builder().clock(clock).tuning(tuning).subscriber(subscriber);
        let locks = builder.note(simulated::Note::default()).over(wire.clone()).expect("a client");
        let owners = (0..2).map(|_| Owner::new()).collect();
        Peer { wire, locks, owners }
    }
}

/// Makes things go wrong beside single calls.
async fn trouble(world: Arc<World>, dice: Dice) {
    let began = Instant::now();
    for _ in 0..dice.between(1, 4) {
        sleep(dice.ms(0, 3_000)).await;
        if began.elapsed() > TROUBLE {
            return;
        }
        let number = dice.below(world.clients.len() as u64) as usize;
        let client = &world.clients[number];
        match dice.below(8) {
            0..=3 => {
                let thing = &world.things[dice.below(world.things.len() as u64) as usize];
                let look = world.store.look(&thing.resource);
                if look.holders.is_empty() {
                    continue;
                }
                let which = dice.below(look.holders.len() as u64) as usize;
                world.judge.took_away(&thing.resource, look.holders[which].id.tag());
                world.judge.note(format_args!("holder {which} of {} is taken away", thing.resource));
                world.store.take_away(&look, which);
                world.judge.count("taken away");
            }
            4 | 5 => {
                let length = dice.ms(50, 6_000);
                world.judge.note(format_args!("c{number} is cut off for {length:?}"));
                client.wire.cut_off(length);
                world.judge.count("cut off");
            }
            6 if !world.judge.is_closed(number) => {
                world.judge.crashed(number);
                client.wire.crash();
                world.judge.count("crashed");
            }
            7 if !client.wire.is_crashed() => {
                let limit = dice.ms(0, 5_000);
                world.judge.closes(number);
                world.judge.note(format_args!("c{number} is being closed for {limit:?}"));
                let began = Instant::now();
                let answered = client.locks.close(limit).await;
                if began.elapsed() > limit + Duration::from_millis(5) {
                    world
                        .judge
                        .fail(format!("c{number} was closed for {:?}, and said {limit:?}", began.elapsed()));
                }
                world.judge.count("closed");
                if answered {
                    world.judge.closed(number, answered);
                }
            }
            _ => {}
        }
    }
}

/// A count of one task that has not come to its end.
struct Running(Arc<World>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Owning<'a> {
    world: &'a World,
    key: u64,
}

impl Drop for Owning<'_> {
    fn drop(&mut self) {
        self.world.owned.lock().unwrap().remove(&self.key);
    }
}

/// The clock of a client, which may panic.
#[derive(Debug)]
struct Watched {
    tokio: TokioClock,
    judge: Arc<Judge>,
}

impl Clock for Watched {
    fn now(&self) -> Moment {
        self.judge.foreign();
        self.tokio.now()
    }
}

/// An event subscriber that logs all events.
#[derive(Debug)]
struct Reporter {
    number: usize,
    judge: Arc<Judge>,
}

impl EventSubscriber for Reporter {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::LeaseStarted { .. } => self.judge.kept(self.number, 1),
            Event::LeaseEnded { .. } => self.judge.kept(self.number, -1),
            Event::BecameSuspect { .. } => self.judge.suspected(self.number),
            Event::Acquired { resource, source, waited, .. } => {
                if *source == AcquireSource::LocalQueue && waited.is_zero() {
                    self.judge.count("used again");
                }
                self.judge.reported(self.number, resource, true);
            }
            Event::Released { resource, .. } => self.judge.reported(self.number, resource, false),
            _ => {}
        }
        self.judge.note(format_args!("c{} {event:?}", self.number));
        self.judge.foreign();
    }
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Judge")
    }
}

/// The interval at which it is checked whether any claim sleeps for no reason.
const TICK: Duration = Duration::from_millis(500);
/// The time for which calls fail and things go wrong.
const TROUBLE: Duration = Duration::from_secs(10);
/// The latest that a call ends which began in that time: cut off, and slow twice.
const LATEST: Duration = Duration::from_secs(20);
/// More than any one hold, and any one release on a bad wire.
const STILL: Duration = Duration::from_secs(200);
/// The longest lease, its lock delay, and the longest minimum.
const LEFT: Duration = Duration::from_secs(60);
