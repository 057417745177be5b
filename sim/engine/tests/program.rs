//! The program of one task: a random sequence of locks, waits and ends.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use simulated::backend::{Note, Resource, Share};
use simulated::{Client, ErrorKind, Guard, Lock, Owner, Result, probe};
use tokio::time::{Instant, sleep, timeout};

use crate::dice::Dice;
use crate::judge::says_too_much;
use crate::polled::{Polled, step_aside};
use crate::world::World;

/// The thing that is locked in this run.
#[derive(Clone, Debug)]
pub(crate) struct Thing {
    pub(crate) resource: Resource,
    pub(crate) kind: Kind,
    pub(crate) ttl: Duration,
    /// The linger time of most requests.
    pub(crate) linger: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    RwLock,
    Semaphore(u32),
}

/// The request of one step.
#[derive(Clone, Debug)]
struct Ask {
    thing: Thing,
    share: Share,
    patience: Patience,
    ttl: Duration,
    max_hold: Option<Duration>,
    min_hold: Duration,
    lock_delay: Duration,
    linger: Duration,
    priority: i32,
    /// `true` if its note differs from most, so that no other claim may replace it.
    is_noted: bool,
    owner: Option<Owner>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    Try,
    For(Duration),
    Forever,
}

impl Thing {
    pub(crate) fn draw(dice: &Dice, lingers: &Dice, number: u64) -> Thing {
        let kind = match dice.below(3) {
            0 => Kind::Mutex,
            1 => Kind::RwLock,
            _ => Kind::Semaphore(dice.between(2, 4) as u32),
        };
        let ttl = dice.one_of(&[300, 1_000, 5_000]);
        let resource = Resource::new(&format!("thing/{number}")).expect("a name");
        // Half of the things never linger.
        let linger = if lingers.percent(50) { lingers.ms(5, ttl) } else { Duration::ZERO };
        Thing { resource, kind, ttl: Duration::from_millis(ttl), linger }
    }

    fn share(&self, dice: &Dice) -> Share {
        match self.kind {
            Kind::Mutex => Share::MUTEX,
            Kind::RwLock if dice.percent(60) => Share::READER,
            Kind::RwLock => Share::WRITER,
            Kind::Semaphore(all) => {
                Share::permits(dice.between(1, u64::from(all)) as u32, all).expect("permits")
            }
        }
    }
}

impl Ask {
    fn draw(thing: &Thing, dice: &Dice, owner: Option<Owner>) -> Ask {
        let rarely = |chance: u64, first: u64, last: u64| match dice.percent(chance) {
            true => dice.ms(first, last),
            false => Duration::ZERO,
        };
        let patience = match dice.below(10) {
            0 | 1 => Patience::Try,
            2..=4 => Patience::For(dice.ms(1, 3_000)),
            _ => Patience::Forever,
        };
        let limit = rarely(10, 20, 2_000);
        let share = thing.share(dice);
        let ttl = if dice.percent(85) { thing.ttl } else { dice.ms(200, 4_000) };
        let (min_hold, lock_delay) = (rarely(10, 50, 3_000), rarely(10, 100, 1_500));
        let priority = if dice.percent(80) { 0 } else { dice.below(3) as i32 };
        Ask {
            share,
            patience,
            ttl,
            // A request with another priority lingers for another time, and so does not match.
            linger: if priority == 2 { thing.linger.min(ttl) / 2 } else { thing.linger.min(ttl) },
            max_hold: Some(limit).filter(|limit| !limit.is_zero()),
            min_hold,
            lock_delay,
            priority,
            is_noted: dice.percent(15),
            owner,
            thing: thing.clone(),
        }
    }

    /// Sends the request through the method that users call for it.
    async fn go(self, client: Client) -> Result<Option<Guard>> {
        let name = self.thing.resource.as_str().to_owned();
        match self.thing.kind {
            Kind::Mutex => {
                let lock = self.settle(client.mutex(&name));
                match self.patience {
                    Patience::Try => lock.try_lock().await,
                    Patience::For(limit) => lock.try_lock_for(limit).await,
                    Patience::Forever => lock.lock().await.map(Some),
                }
            }
            Kind::RwLock if self.share == Share::READER => {
                let lock = self.settle(client.rwlock(&name));
                match self.patience {
                    Patience::Try => lock.try_read().await,
                    Patience::For(limit) => lock.try_read_for(limit).await,
                    Patience::Forever => lock.read().await.map(Some),
                }
            }
            Kind::RwLock => {
                let lock = self.settle(client.rwlock(&name));
                match self.patience {
                    Patience::Try => lock.try_write().await,
                    Patience::For(limit) => lock.try_write_for(limit).await,
                    Patience::Forever => lock.write().await.map(Some),
                }
            }
            Kind::Semaphore(all) => {
                let (lock, permits) = (self.settle(client.semaphore(&name, all)), self.share.weight());
                match self.patience {
                    Patience::Try => lock.try_acquire_many(permits).await,
                    Patience::For(limit) => lock.try_acquire_many_for(permits, limit).await,
                    Patience::Forever => lock.acquire_many(permits).await.map(Some),
                }
            }
        }
    }

    fn settle<K: simulated::kind::Kind>(&self, lock: Lock<K>) -> Lock<K> {
        let mut lock =
            lock.ttl(self.ttl).min_hold(self.min_hold).lock_delay(self.lock_delay).priority(self.priority);
        lock = lock.linger(self.linger);
        if let Some(limit) = self.max_hold {
            lock = lock.max_hold(limit);
        }
        if self.is_noted {
            lock = lock.note(Note::new("another").expect("a note"));
        }
        match &self.owner {
            Some(owner) => lock.owner(owner),
            None => lock,
        }
    }
}

/// Runs one task from its first step to its last.
pub(crate) async fn run(world: Arc<World>, client: usize, dice: Dice) {
    let owner = dice.percent(30).then(|| world.owner(client, &dice));
    for _ in 0..dice.between(1, 5) {
        if dice.percent(60) {
            sleep(dice.ms(0, 1_500)).await;
        }
        let thing = &world.things[dice.below(world.things.len() as u64) as usize];
        let go_on = match dice.below(20) {
            // An upgrade trusts that in a store without an order no waiter is in its way.
            0 if thing.kind == Kind::RwLock && owner.is_none() && world.is_in_order() => {
                upgrade(&world, client, thing, &dice).await
            }
            1 => look_around(&world, client, thing, &dice).await,
            2 => accept_transfer(&world, client, &dice).await,
            _ => lock(&world, client, Ask::draw(thing, &dice, owner.clone()), &dice).await,
        };
        if !go_on {
            return;
        }
    }
}

/// Acquires, holds and releases one lock; `false` where the client is closed.
async fn lock(world: &Arc<World>, client: usize, ask: Ask, dice: &Dice) -> bool {
    let Some(asked) = acquire(world, client, &ask, dice).await else { return true };
    match asked {
        Ok(Some(guard)) => {
            hold(world, client, &ask, guard, dice).await;
            true
        }
        Ok(None) => true,
        Err(kind) => kind != ErrorKind::Closed,
    }
}

/// Requests a lock. Drops the request midway now and then (`None`).
async fn acquire(
    world: &Arc<World>,
    client: usize,
    ask: &Ask,
    dice: &Dice,
) -> Option<Result<Option<Arc<Guard>>, ErrorKind>> {
    let judge = &world.judge;
    let before = judge.highest_fence(&ask.thing.resource);
    let number = judge.waits(client, &ask.thing.resource, ask.share);
    let leaving = Leaving { world, number: Some(number) };
    let began = Instant::now();
    let asking = Polled::late(ask.clone().go(world.client(client)), dice);
    let asked = match dice.below(10) {
        0 => asking.dropped_after(dice.between(1, 6)).await,
        1 => timeout(dice.ms(1, 2_000), asking).await.ok().flatten(),
        _ => asking.await,
    };
    if let Patience::For(limit) = ask.patience
        && began.elapsed() > limit + LAST_WORD + SLACK
    {
        judge.fail(format!("w{number} waited {:?}, and said {limit:?}", began.elapsed()));
    }
    leaving.ended(format_args!(
        "{}",
        match &asked {
            None => "it left",
            Some(Ok(Some(_))) => "granted",
            Some(Ok(None)) => "busy",
            Some(Err(error)) => error.op(),
        }
    ));
    match asked? {
        Ok(guard) => {
            // An owner may have it already.
            if let Some(guard) = guard.as_ref().filter(|_| ask.owner.is_none()) {
                judge.granted_after(number, before, guard);
            }
            Some(Ok(guard.map(Arc::new)))
        }
        Err(error) => {
            judge.note(format_args!("w{number}: {error}"));
            if error.kind() == ErrorKind::Closed {
                judge.says_closed(client);
            }
            if error.kind() == ErrorKind::Deadlock
                && ask.owner.is_some()
                && !world.owns_any(client, ask.owner.as_ref(), &ask.thing.resource)
            {
                judge.fail(format!("w{number} would wait for itself, and holds nothing: {error}"));
            }
            Some(Err(error.kind()))
        }
    }
}

/// Holds it for a while, and ends that in one of the possible ways.
async fn hold(world: &Arc<World>, client: usize, ask: &Ask, guard: Arc<Guard>, dice: &Dice) {
    let judge = &world.judge;
    let number = judge.granted(client, &guard, ask.owner.is_some());
    let owned = ask.owner.as_ref().map(|owner| world.owned(client, owner, &guard));
    judge.count("granted");
    let given_back = Arc::new(AtomicBool::new(false));
    if dice.percent(40) {
        world.listen(number, probe::ending(&guard), given_back.clone());
    }
    let length = match dice.below(20) {
        0..=7 => Duration::ZERO,
        8..=14 => dice.ms(1, 150),
        15..=17 => dice.ms(150, 4_000),
        _ => dice.ms(4_000, 60_000),
    };
    match dice.below(6) {
        0 => {
            tokio::select! {
                biased;
                cause = guard.lost() => judge.note(format_args!("h{number} is lost: {cause}")),
                () = sleep(length) => {}
            }
        }
        1 => {
            let ran = guard.run(sleep(length)).await;
            judge.note(format_args!("h{number} ran: {}", ran.is_ok()));
        }
        2 if ask.owner.is_some() => {
            sleep(length / 2).await;
            let again = Ask { share: world.smaller(ask.share, dice), max_hold: None, ..ask.clone() };
            if let Some(Ok(Some(inner))) = acquire(world, client, &again, dice).await {
                let inner_number = judge.granted(client, &inner, true);
                let released = Arc::new(AtomicBool::new(false));
                world.listen(inner_number, probe::ending(&inner), released.clone());
                let inner_owned = again.owner.as_ref().map(|owner| world.owned(client, owner, &inner));
                sleep(length / 2).await;
                drop(inner_owned);
                judge.lets_go(inner_number, "releases the inner one");
                released.store(probe::look(&inner).is_valid(), Ordering::Relaxed);
                drop(Arc::into_inner(inner));
            }
        }
        3 => {
            tokio::select! {
                biased;
                asked = guard.revoked() => judge.note(format_args!("h{number} is asked to release: {}", asked.is_ok())),
                () = sleep(length) => {}
            }
        }
        _ => sleep(length).await,
    }
    step_aside(dice).await;
    let state = judge.looks_a_last_time(number, &guard);
    let was_valid = state.is_valid();
    let Some(guard) = Arc::into_inner(guard) else {
        unreachable!("only the judge looks, and never for long")
    };
    match dice.below(12) {
        0..=5 => {
            judge.lets_go(number, "releases");
            let began = Instant::now();
            let released = Polled::late(guard.release(), dice).await;
            judge.note(format_args!("h{number} released: {}", matches!(released, Some(Ok(())))));
            if !was_valid && matches!(released, Some(Ok(()))) {
                judge.fail(format!("h{number} was lost, and its release says that it was held: {state:?}"));
            }
            given_back.store(matches!(released, Some(Ok(()))), Ordering::Relaxed);
            let limit = ask.ttl + ask.lock_delay + ask.min_hold + RELEASE_SLACK;
            if began.elapsed() > limit {
                judge.fail(format!("h{number} was released for {:?}", began.elapsed()));
            }
        }
        6..=7 => {
            judge.lets_go(number, "begins to release and leaves");
            drop(Polled::late(guard.release(), dice).dropped_after(dice.between(1, 4)).await);
        }
        8 => {
            judge.lets_go(number, "hands off");
            match Polled::late(guard.transfer(), dice).await {
                Some(Ok(token)) => world.offer(token),
                Some(Err(error)) => judge.note(format_args!("h{number} not handed off: {error}")),
                None => {}
            }
        }
        _ => {
            judge.lets_go(number, "is dropped");
            drop(guard);
            given_back.store(was_valid, Ordering::Relaxed);
        }
    }
    drop(owned);
}

/// Becomes a reader, a writer, and a reader again.
async fn upgrade(world: &Arc<World>, client: usize, thing: &Thing, dice: &Dice) -> bool {
    let lock = world.client(client).rwlock(thing.resource.as_str()).ttl(thing.ttl).linger(thing.linger);
    let number = world.judge.waits(client, &thing.resource, Share::READER);
    let leaving = Leaving { world, number: Some(number) };
    let read = Polled::late(lock.upgradable_read(), dice).await;
    leaving.ended(format_args!("an upgradable reader: {}", matches!(read, Some(Ok(_)))));
    let mut guard = match read {
        Some(Ok(guard)) => guard,
        Some(Err(error)) => return error.kind() != ErrorKind::Closed,
        None => return true,
    };
    world.judge.returned(client, &thing.resource);
    sleep(dice.ms(0, 200)).await;
    world.judge.note(format_args!("u{number} upgrades"));
    let upgrading = world.judge.waits(client, &thing.resource, Share::WRITER);
    let leaving = Leaving { world, number: Some(upgrading) };
    let upgraded = match dice.percent(30) {
        true => Polled::late(guard.try_upgrade_for(dice.ms(1, 2_000)), dice).await,
        false => Polled::late(guard.upgrade(), dice).await.map(|upgraded| upgraded.map(|()| true)),
    };
    leaving.ended(format_args!("an upgrade: {}", matches!(upgraded, Some(Ok(true)))));
    if let Some(Ok(true)) = upgraded {
        world.judge.returned(client, &thing.resource);
        world.judge.upgraded(&thing.resource, guard.fence());
    }
    world.judge.count("upgraded");
    sleep(dice.ms(0, 200)).await;
    if dice.percent(50) {
        drop(Polled::late(guard.downgrade(), dice).await);
    }
    if dice.percent(50) {
        drop(Polled::late(guard.release(), dice).await);
    }
    true
}

/// Reads the state of the store. Drops the request midway now and then.
async fn look_around(world: &Arc<World>, client: usize, thing: &Thing, dice: &Dice) -> bool {
    let client = world.client(client);
    let polls = dice.between(1, 8);
    match dice.below(3) {
        0 => drop(Polled::late(client.inspect(thing.resource.as_str()), dice).dropped_after(polls).await),
        1 => drop(Polled::late(client.list("", None, 10), dice).dropped_after(polls).await),
        _ => drop(
            Polled::late(client.revoke(thing.resource.as_str(), "please"), dice).dropped_after(polls).await,
        ),
    }
    true
}

/// Takes over what another task handed off.
async fn accept_transfer(world: &Arc<World>, client: usize, dice: &Dice) -> bool {
    let Some(token) = world.offered() else { return true };
    let Some(thing) = world.things.iter().find(|thing| thing.resource == *token.resource()) else {
        return true;
    };
    let (engine, name) = (world.client(client), thing.resource.as_str().to_owned());
    let ask = Ask {
        max_hold: None,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        share: token.share(),
        ..Ask::draw(thing, dice, None)
    };
    let taken: Option<Result<Guard>> = match thing.kind {
        Kind::Mutex => Polled::late(engine.mutex(&name).ttl(ask.ttl).accept_transfer(&token), dice).await,
        Kind::RwLock => Polled::late(engine.rwlock(&name).ttl(ask.ttl).accept_transfer(&token), dice).await,
        Kind::Semaphore(all) => {
            Polled::late(engine.semaphore(&name, all).ttl(ask.ttl).accept_transfer(&token), dice).await
        }
    };
    match taken {
        Some(Ok(guard)) => {
            world.judge.count("taken over");
            let taken: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(hold(world, client, &ask, Arc::new(guard), dice));
            taken.await;
            true
        }
        Some(Err(error)) => error.kind() != ErrorKind::Closed,
        None => true,
    }
}

/// A guard that ends a wait in the judge's list, also where the task is dropped.
struct Leaving<'a> {
    world: &'a World,
    number: Option<u64>,
}

impl Leaving<'_> {
    fn ended(mut self, why: std::fmt::Arguments<'_>) {
        if let Some(number) = self.number.take() {
            self.world.judge.waits_no_more(number, why);
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            self.world.judge.waits_no_more(number, format_args!("dropped"));
        }
    }
}

/// Waits for the end of a hold, and checks it.
pub(crate) async fn listen(
    world: Arc<World>,
    number: u64,
    ending: impl Future<Output = Option<simulated::backend::LossCause>>,
    given_back: Arc<AtomicBool>,
) {
    let ended = ending.await;
    world.judge.hears(number);
    let late = given_back.load(Ordering::Relaxed);
    if says_too_much(ended, late) {
        world.judge.fail(format!("h{number} was released, and reports a loss: {ended:?}"));
    }
}

/// The time that the store has to answer after the limit; the answer says whether the lock is busy or
/// the store is away.
const LAST_WORD: Duration = Duration::from_secs(2);
/// Timers count in milliseconds, and two of them may be in the way.
const SLACK: Duration = Duration::from_millis(5);
/// The time that a request may take on a bad wire, and the pauses between two.
const RELEASE_SLACK: Duration = Duration::from_secs(40);
