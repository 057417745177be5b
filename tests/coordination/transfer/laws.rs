//! A lock that goes from process to process is never free in between and never held twice, and each
//! token can be used once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::fenced::FenceGate;
use leasehold::layer::{Mode, Verb};
use leasehold::{Client, ErrorKind, Fence, Guard, LossCause, Note, Owner, TransferToken};
use tokio::time::Instant;

use crate::world::{Chance, Peer, World, clients, is_whole_campaign, on_schedules};

/// The state that all clients of one schedule share: the holders, the last fence, and the token that is
/// out.
#[derive(Debug, Default)]
struct Ring {
    inside: Mutex<Inside>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Inside {
    /// The guards of the present holders, until a task takes one to end it.
    guards: Vec<Arc<Mutex<Option<Guard>>>>,
    last: Fence,
    /// The time until which no client but the taker of the token is granted the lock.
    token: Option<Instant>,
}

/// The number of times that each outcome happened, over all schedules.
#[derive(Debug, Default)]
struct Counts {
    handed_off: AtomicU64,
    taken_over: AtomicU64,
    used_before: AtomicU64,
    expired: AtomicU64,
    unclear: AtomicU64,
}

fn one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::SeqCst);
}

type Slot = Arc<Mutex<Option<Guard>>>;

impl Ring {
    /// Records a grant: no other client may hold, the fence is the greatest, and no token of another
    /// holder is out.
    fn granted(&self, guard: Guard, by_token: bool) -> Slot {
        let mut inside = self.inside.lock().unwrap();
        for other in &inside.guards {
            let other = other.lock().unwrap();
            let valid = other.as_ref().filter(|other| other.check().is_ok());
            assert!(valid.is_none(), "two hold: {valid:?} and {guard:?}");
        }
        let fence = guard.fence().unwrap();
        assert!(fence > inside.last, "{fence} after {}", inside.last);
        inside.last = fence;
        if !by_token {
            let out = inside.token.filter(|until| Instant::now() < *until);
            assert!(out.is_none(), "granted to a stranger while a token is out");
        }
        inside.token = None;
        let slot = Arc::new(Mutex::new(Some(guard)));
        inside.guards.push(slot.clone());
        slot
    }

    /// A guard has become a token.
    fn handed_off(&self, token: &TransferToken) {
        let mut inside = self.inside.lock().unwrap();
        assert_eq!(inside.last, token.fence(), "another client was granted the lock during the transfer");
        inside.token = Some(Instant::now() + token.lasts());
        one(&self.counts.handed_off);
    }
}

/// Takes locks without any token.
async fn strange(client: Peer, ring: Arc<Ring>, mut chance: Chance) {
    for _ in 0..4 {
        tokio::time::sleep(chance.ms(200)).await;
        let mutex = client.locks.mutex("baton").ttl(TTL);
        if let Ok(Some(guard)) = mutex.try_lock_for(chance.ms(1500)).await {
            let slot = ring.granted(guard, false);
            tokio::time::sleep(chance.ms(40)).await;
            let guard = slot.lock().unwrap().take();
            drop(guard);
        }
    }
}

/// Holds for a while, and then transfers, releases, or dies; several processes want the token.
async fn run(ring: Arc<Ring>, mut runners: Vec<Peer>, mut slot: Slot, mut chance: Chance) {
    while let Some(runner) = runners.pop() {
        tokio::time::sleep(chance.ms(60)).await;
        let Some(guard) = slot.lock().unwrap().take() else { return };
        let dies = chance.below(8) == 0;
        let handing = guard.transfer();
        let patience = if dies { chance.ms(30) } else { LONG };
        let Ok(Ok(token)) = tokio::time::timeout(patience, handing).await else {
            if dies {
                runner.falls_silent();
            }
            return;
        };
        ring.handed_off(&token);
        if chance.below(8) == 0 {
            return; // The token is lost on the way.
        }
        let text = token.to_string();
        let all_late = chance.below(8) == 0;
        let takers = (0..2).map(|number| {
            let (client, ring, text) = (runner.clone(), ring.clone(), text.clone());
            // One of them is the next process, the other has a copy of the token, and comes sometimes
            // much later.
            let late = all_late || chance.below(8) == 0;
            let wait = if late { chance.ms(1_000) } else { chance.ms(40) };
            let dies = (chance.below(8) == 0).then(|| chance.ms(30));
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                let token: TransferToken = text.parse().unwrap();
                let mutex =
                    client.locks.mutex("baton").ttl(TTL).note(Note::new(&number.to_string()).unwrap());
                let taking = mutex.accept_transfer(&token);
                let taken = match tokio::time::timeout(dies.unwrap_or(LONG), taking).await {
                    Ok(taken) => taken,
                    Err(_) => {
                        client.falls_silent();
                        return None;
                    }
                };
                match taken {
                    Ok(guard) => {
                        assert!(guard.fence().unwrap() > token.fence());
                        one(&ring.counts.taken_over);
                        Some(ring.granted(guard, true))
                    }
                    Err(error) => {
                        one(match error.kind() {
                            ErrorKind::Lost(LossCause::Transferred) => &ring.counts.used_before,
                            ErrorKind::Lost(LossCause::Expired) => &ring.counts.expired,
                            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown => &ring.counts.unclear,
                            kind => panic!("{kind:?}: {error}"),
                        });
                        None
                    }
                }
            })
        });
        let mut taken = Vec::new();
        for taker in takers.collect::<Vec<_>>() {
            taken.extend(taker.await.unwrap());
        }
        assert!(taken.len() <= 1, "one token was used {} times", taken.len());
        match taken.pop() {
            Some(next) => slot = next,
            None => return,
        }
    }
    let guard = slot.lock().unwrap().take();
    drop(guard);
}

async fn schedule(mut world: World, counts: Arc<Counts>) {
    let ring = Arc::new(Ring { counts, ..Ring::default() });
    let others: Vec<_> = (0..1 + world.chance.below(3))
        .map(|_| tokio::spawn(strange(world.client(), ring.clone(), world.chance.fork())))
        .collect();
    let first = world.client();
    let runners = (0..1 + world.chance.below(4)).map(|_| world.client()).collect();
    if let Ok(Some(guard)) = first.locks.mutex("baton").ttl(TTL).try_lock_for(LONG).await {
        let slot = ring.granted(guard, false);
        run(ring.clone(), runners, slot, world.chance.fork()).await;
    }
    for other in others {
        other.await.unwrap();
    }
    // The queue continues, with or without the token.
    let last = world.calm_client();
    let guard = last.locks.mutex("baton").ttl(TTL).try_lock_for(LONG).await.unwrap().unwrap();
    drop(ring.granted(guard, false));
}

/// Givers are stopped and cut off in the middle, takers race, come late and die, and requests and
/// answers get lost: two clients never hold at once, no other client is granted the lock while a token
/// is out, no token can be used twice, and fences rise.
#[test]
fn transferred_lock_has_one_holder_at_any_time() {
    let counts = Arc::new(Counts::default());
    on_schedules(|world| schedule(world, counts.clone()));
    println!("{counts:?}");
    if is_whole_campaign() {
        let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
        let seen = [&counts.handed_off, &counts.taken_over, &counts.used_before, &counts.expired].map(of);
        assert!(seen.iter().all(|count| *count > 10), "the schedules are too tame: {counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn transfer_precedes_waiters_and_the_old_fence_is_refused() {
    let [old, new, other] = clients();
    let gate = FenceGate::new(0);
    let guard = old.locks.mutex("m").ttl(TTL).lock().await.unwrap();
    let before = gate.open(guard.fence()).unwrap();
    let waiting = tokio::spawn({
        let locks = other.locks.clone();
        async move { locks.mutex("m").lock().await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let token = guard.transfer().await.unwrap();
    let note = Note::new("the next one").unwrap();
    let guard = new.locks.mutex("m").ttl(TTL).note(note).accept_transfer(&token).await.unwrap();
    let after = gate.open(guard.fence()).unwrap();
    assert_eq!(before.access(|value| *value += 1).unwrap_err().seen, guard.fence().unwrap());
    after.access(|value| *value += 1).unwrap();
    // The new holder renews the lock, and others see it as the holder.
    tokio::time::sleep(TTL * 5).await;
    guard.check().unwrap();
    let seen = other.locks.inspect("m").await.unwrap();
    assert_eq!(seen.holders.iter().map(|one| one.note.as_str()).collect::<Vec<_>>(), ["the next one"]);
    assert!(!waiting.is_finished());
    let again = other.locks.mutex("m").accept_transfer(&token).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Lost(LossCause::Transferred), "{again}");
    guard.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert!(next.fence() > Some(token.fence()));
    let late = other.locks.mutex("m").accept_transfer(&token).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost(LossCause::Expired), "{late}");
    next.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn unaccepted_transfer_ends_with_its_lease() {
    let [old, new, other] = clients();
    let token = old.locks.mutex("m").ttl(TTL).lock().await.unwrap().transfer().await.unwrap();
    assert!(token.lasts() <= TTL && token.lasts() > TTL / 2, "{token:?}");
    let began = Instant::now();
    let next = other.locks.mutex("m").ttl(TTL).lock().await.unwrap();
    assert!(began.elapsed() >= token.lasts(), "granted after {:?}", began.elapsed());
    let error = new.locks.mutex("m").accept_transfer(&token).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LossCause::Expired), "{error}");
    next.check().unwrap();
    next.release().await.unwrap();
    // A late token does not take the lock either when it is free.
    assert!(new.locks.mutex("m").accept_transfer(&token).await.unwrap_err().is_lost());
    assert!(other.locks.mutex("m").try_lock().await.unwrap().is_some());
}

/// Watchers in the process that transfers the lock are notified before the token exists.
#[tokio::test(start_paused = true)]
async fn transfer_ends_the_old_hold_before_the_new_begins() {
    let [old, _, _] = clients();
    let owner = Owner::new();
    let mutex = old.locks.mutex("m").owner(&owner);
    let (guard, twice) = (mutex.lock().await.unwrap(), mutex.lock().await.unwrap());
    let error = guard.transfer().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    twice.check().unwrap();
    let next = old.locks.mutex("m");
    let waiting = tokio::spawn(async move { next.lock().await.unwrap() });
    tokio::task::yield_now().await;
    let token = twice.transfer().await.unwrap();
    // The next task of the same process has no privilege: it waits until the lease ends.
    tokio::time::sleep(token.lasts() - Duration::from_millis(1)).await;
    assert!(!waiting.is_finished());
    assert!(waiting.await.unwrap().fence() > Some(token.fence()));
}

/// If it is dropped at any point, a transfer leaves the lock released, and a take-over leaves it
/// released or where it was.
#[tokio::test(start_paused = true)]
async fn a_dropped_half_leaves_nothing_behind() {
    for polls in 0..12 {
        let [old, new, other] = clients();
        let guard = old.locks.mutex("m").ttl(TTL).lock().await.unwrap();
        let token = {
            let mut handing = Box::pin(guard.transfer());
            polled(polls, &mut handing).await
        };
        let Some(token) = token else {
            drop(other.locks.mutex("m").try_lock_for(TTL / 2).await.unwrap().unwrap());
            continue;
        };
        let token = token.unwrap();
        for polls in 0..12 {
            let mutex = new.locks.mutex("m").ttl(TTL);
            let mut taking = Box::pin(mutex.accept_transfer(&token));
            if let Some(taken) = polled(polls, &mut taking).await {
                drop(taken);
                break;
            }
        }
        drop(other.locks.mutex("m").try_lock_for(TTL * 2).await.unwrap().unwrap());
    }
}

/// Polls the future `polls` times, and lets all other tasks run in between.
async fn polled<T>(polls: u32, future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    for _ in 0..polls {
        if let std::task::Poll::Ready(done) = futures_util::poll!(&mut *future) {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test(start_paused = true)]
async fn transferred_readers_and_permits_coexist_with_others() {
    let [old, new, other] = clients();
    let beside = other.locks.rwlock("r").read().await.unwrap();
    let reader = old.locks.rwlock("r").read().await.unwrap().transfer().await.unwrap();
    let reader = new.locks.rwlock("r").accept_transfer(&reader).await.unwrap();
    beside.release().await.unwrap();
    assert!(other.locks.rwlock("r").try_write().await.unwrap().is_none());
    drop(reader);
    let two = old.locks.semaphore("s", 3).acquire_many(2).await.unwrap().transfer().await.unwrap();
    let third = other.locks.semaphore("s", 3).try_acquire().await.unwrap().unwrap();
    assert!(other.locks.semaphore("s", 3).try_acquire().await.unwrap().is_none());
    let two = new.locks.semaphore("s", 3).accept_transfer(&two).await.unwrap();
    assert_eq!(two.share().weight(), 2);
    assert!(other.locks.semaphore("s", 3).try_acquire().await.unwrap().is_none());
    drop((two, third));
}

#[tokio::test(start_paused = true)]
async fn a_token_of_another_lock_is_refused_and_stays_good() {
    let [old, new, _] = clients();
    let token = old.locks.semaphore("s", 3).acquire().await.unwrap().transfer().await.unwrap();
    let owner = Owner::new();
    let calls = new.calls(Verb::Swap);
    for wrong in [
        new.locks.mutex("s").accept_transfer(&token).await,
        new.locks.semaphore("s", 4).accept_transfer(&token).await,
        new.locks.semaphore("t", 3).accept_transfer(&token).await,
        new.locks.semaphore("s", 3).owner(&owner).accept_transfer(&token).await,
    ] {
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(new.calls(Verb::Swap), calls);
    let elsewhere = Client::open("mem:").await.unwrap();
    let error = elsewhere.semaphore("s", 3).accept_transfer(&token).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LossCause::Expired), "{error}");
    new.locks.semaphore("s", 3).accept_transfer(&token).await.unwrap().release().await.unwrap();
}

/// A giver that was stopped past its lease during the transfer has lost the lock, and returns no token.
#[tokio::test(start_paused = true)]
async fn stopped_sender_of_a_transfer_has_lost_the_lock() {
    let [old, _, other] = clients();
    let guard = old.locks.mutex("m").ttl(TTL).lock().await.unwrap();
    old.fault(Verb::Renew, Mode::Hang);
    old.fault(Verb::Swap, Mode::LateReply(TTL * 2));
    let error = guard.transfer().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LossCause::Expired), "{error}");
    other.locks.mutex("m").lock().await.unwrap().check().unwrap();
}

const TTL: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);
