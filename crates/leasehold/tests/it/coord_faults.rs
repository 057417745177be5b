//! Coordination over a wire that loses answers, with futures that nobody polls, and on a store that loses its
//! values.

use crate::common;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Store, ms};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{
    Barrier, Cache, CacheError, Cached, Client, ErrorKind, MultiLock, Owner, SingleFlight, TokioClock,
    Tuning, ValueSource,
};
use leasehold_core::{Backend, Put, Resource};

/// No machine is so busy.
const SOON: Duration = Duration::from_secs(60);

/// Waits until so many parties wait at the barrier.
async fn arrived(barrier: &Barrier, count: u32) {
    let waiting = async {
        while barrier.arrived().await.unwrap() != count {
            tokio::time::sleep(ms(1)).await;
        }
    };
    tokio::time::timeout(SOON, waiting).await.unwrap();
}

/// Lets every task that is ready run.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn party_that_follows_another_of_its_process_arrives_anew() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.tuned(Tuning::default().local_handoff_time(SOON));
    let barrier = locks.barrier("round", 2);
    let mut first = Box::pin(barrier.wait());
    tokio::select! {
        biased;
        _ = &mut first => panic!("it passes alone"),
        () = arrived(&barrier, 1) => {}
    }
    assert_eq!(barrier.wait().await.unwrap().generation, 0);
    // The first one still shows its sign of life, and the second one comes again.
    wire.set(Verb::Contend, Mode::Hang);
    let again = tokio::spawn({
        let barrier = barrier.clone();
        async move { barrier.wait().await }
    });
    settle().await;
    assert_eq!(first.await.unwrap().generation, 0);
    settle().await;
    wire.set(Verb::Contend, Mode::Pass);
    arrived(&barrier, 1).await;
    assert_eq!(barrier.wait().await.unwrap().generation, 1);
    assert_eq!(again.await.unwrap().unwrap().generation, 1);
}

/// The request by which it arrives is under way while it leaves, and takes effect later.
#[tokio::test(start_paused = true)]
async fn party_that_leaves_while_it_arrives_does_not_count() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    for (name, used) in [("used", true), ("fresh", false)] {
        let barrier = locks.barrier(name, 2);
        if used {
            let (one, two) = tokio::join!(barrier.wait(), barrier.wait());
            assert_ne!(one.unwrap().index, two.unwrap().index);
        }
        wire.set(Verb::Swap, Mode::Hang);
        let asked = wire.calls(Verb::Swap);
        let arriving = tokio::spawn({
            let barrier = barrier.clone();
            async move { barrier.wait().await }
        });
        let sent = async {
            while wire.calls(Verb::Swap) == asked {
                tokio::time::sleep(ms(1)).await;
            }
        };
        tokio::time::timeout(SOON, sent).await.unwrap();
        arriving.abort();
        assert!(arriving.await.unwrap_err().is_cancelled());
        settle().await;
        tokio::time::sleep(ms(10)).await;
        wire.set(Verb::Swap, Mode::Pass);
        tokio::time::sleep(ms(10)).await;
        let alone = tokio::time::timeout(ms(100), barrier.wait()).await;
        assert!(!matches!(alone, Ok(Ok(_))), "{name}: it passes alone");
    }
}

#[tokio::test(start_paused = true)]
async fn count_whose_answer_was_lost_is_not_made_in_the_next_latch() {
    let store = Store::in_virtual_time();
    let ((one, wire), (other, _)) = (store.client(), store.client());
    let (mine, latch) = (one.latch("loaded", 2), other.latch("loaded", 2));
    latch.count_down_as("other").await.unwrap();
    wire.set(Verb::Swap, Mode::LoseReply);
    let counting = tokio::spawn(async move { mine.count_down_as("one").await });
    tokio::time::timeout(SOON, latch.wait()).await.unwrap().unwrap();
    latch.reset().await.unwrap();
    wire.set(Verb::Swap, Mode::Pass);
    counting.await.unwrap().unwrap();
    assert_eq!(latch.remaining().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn reset_whose_answer_was_lost_does_not_remove_the_next_latch() {
    let store = Store::in_virtual_time();
    let ((one, wire), (other, _)) = (store.client(), store.client());
    let (mine, latch) = (one.latch("loaded", 2), other.latch("loaded", 2));
    latch.count_down_as("other").await.unwrap();
    wire.set(Verb::Swap, Mode::LoseReply);
    let resetting = tokio::spawn(async move { mine.reset().await });
    let removed = async {
        while latch.remaining().await.unwrap() != 2 {
            tokio::time::sleep(ms(1)).await;
        }
    };
    tokio::time::timeout(SOON, removed).await.unwrap();
    latch.count_down_as("other").await.unwrap();
    wire.set(Verb::Swap, Mode::Pass);
    resetting.await.unwrap().unwrap();
    assert_eq!(latch.remaining().await.unwrap(), 1);
}

#[tokio::test]
async fn successor_of_the_same_process_is_not_seen_as_the_leader_before() {
    let store = Store::new();
    let (locks, _) = store.tuned(Tuning::default().local_handoff_time(SOON));
    let election = locks.election("boss");
    let first = election.campaign("host1").await.unwrap();
    first.proclaim("host1 ready").await.unwrap();
    let second = tokio::spawn({
        let election = election.clone();
        async move { election.campaign("host1").await }
    });
    settle().await;
    let tag = first.guard().tag();
    first.resign().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert_ne!(second.guard().tag(), tag);
    let seen = election.leader().await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.fence), ("host1", second.fence()));
}

/// The lock is kept for its minimum time, and with it the value.
#[tokio::test(start_paused = true)]
async fn leader_that_resigns_is_shown_under_its_last_value() {
    let store = Store::in_virtual_time();
    let ((locks, _), (other, _)) = (store.client(), store.client());
    let election = locks.election("boss").with(|lock| Ok(lock.min_hold(SOON))).unwrap();
    for is_dropped in [false, true] {
        let began = tokio::time::Instant::now();
        let leadership = election.campaign("starting").await.unwrap();
        leadership.proclaim("early").await.unwrap();
        leadership.proclaim("ready").await.unwrap();
        let resigning = if is_dropped {
            drop(leadership);
            None
        } else {
            Some(tokio::spawn(leadership.resign()))
        };
        while began.elapsed() < SOON - ms(1_000) {
            tokio::time::sleep(ms(500)).await;
            let seen = other.election("boss").leader().await.unwrap().map(|leader| leader.value);
            assert_eq!(seen.as_deref(), Some("ready"), "dropped: {is_dropped}, {:?}", began.elapsed());
        }
        // The value that was replaced is not kept.
        assert_eq!(other.inspect("boss!proclaimed").await.unwrap().holders.len(), 1);
        if let Some(resigning) = resigning {
            resigning.await.unwrap().unwrap();
        }
        for name in ["boss", "boss!proclaimed"] {
            common::settles(&other, name).await;
        }
    }
}

#[tokio::test]
async fn value_that_a_later_update_could_not_write_is_refused_at_once() {
    let (locks, _) = Store::new().client();
    let longest = 512 * 1024 - 129;
    let too_long = |_: Option<&[u8]>| Some(vec![b'x'; longest + 1]);
    let error = locks.versioned("stock").update(too_long).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Invalid, "update"), "{error}");
    assert_eq!(locks.versioned("stock").read().await.unwrap().value(), None);
    for _ in 0..20 {
        locks.versioned("stock").update(|_| Some(vec![b'x'; longest])).await.unwrap();
    }
}

#[tokio::test]
async fn name_without_room_for_that_of_a_part_is_refused_at_once() {
    let (locks, wire) = Store::new().client();
    let name = |length| "n".repeat(length);
    let (stock, boss) = (locks.versioned(name(504)), locks.election(name(502)));
    let update = stock.update(|_| Some(Vec::new())).await.unwrap_err();
    assert_eq!((update.kind(), update.op()), (ErrorKind::Invalid, "update"), "{update}");
    let campaign = boss.campaign("host1").await.unwrap_err();
    assert_eq!((campaign.kind(), campaign.op()), (ErrorKind::Invalid, "campaign"), "{campaign}");
    assert_eq!([Verb::Contend, Verb::Read, Verb::Swap].map(|verb| wire.calls(verb)), [0; 3]);

    locks.versioned(name(503)).escalate_after(0).update(|_| Some(Vec::new())).await.unwrap();
    let boss = locks.election(name(501));
    let leadership = boss.campaign("host1").await.unwrap();
    leadership.proclaim("host1 ready").await.unwrap();
    assert_eq!(boss.leader().await.unwrap().unwrap().value, "host1 ready");
    leadership.resign().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn loader_that_nobody_polls_does_not_block_its_key() {
    let store = Store::in_virtual_time();
    let tuning = Tuning::default().outage(ms(100));
    let ((one, _), (two, _)) = (store.tuned(tuning.clone()), store.tuned(tuning));
    let hour = Duration::from_secs(3600);
    let flight = one.single_flight("page").within(ms(200));
    let (begun, mut is_begun) = tokio::sync::oneshot::channel();
    let mut first = Box::pin(flight.get_or_load(hour, || async {
        begun.send(()).unwrap();
        std::future::pending::<Result<_, std::io::Error>>().await
    }));
    tokio::select! {
        biased;
        _ = &mut first => panic!("it loads for ever"),
        loads = &mut is_begun => loads.unwrap(),
    }
    let load = || async { Ok::<_, std::io::Error>(Some(b"text".to_vec())) };
    let there = two.single_flight("page").within(ms(200));
    let loaded = tokio::time::timeout(SOON, there.get_or_load(hour, load)).await.unwrap().unwrap();
    assert_eq!(loaded.origin, ValueSource::Loaded);
    let here = tokio::time::timeout(SOON, flight.get_or_load(hour, load)).await.unwrap().unwrap();
    assert_eq!(here.value, loaded.value);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn party_does_not_pass_with_a_generation_that_began_after_a_loss_of_data() {
    let clock = Arc::new(TokioClock::new());
    let backend = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let wire = Arc::new(Fault::over(backend.clone()));
    let far = Client::builder().clock(clock.clone()).over(wire.clone()).unwrap();
    let barrier = Client::builder().clock(clock).over(backend.clone()).unwrap().barrier("round", 2);
    wire.set(Verb::Swap, Mode::LateReply(ms(500)));
    let waiting = tokio::spawn({
        let barrier = far.barrier("round", 2);
        async move { barrier.wait().await }
    });
    arrived(&barrier, 1).await;
    wire.set(Verb::Read, Mode::Hang);
    let (at, registers) = (Resource::new("round!barrier").unwrap(), backend.registers().unwrap());
    let seen = registers.read(&at).await.unwrap();
    registers.swap(&at, &seen.stamp, &Put { value: None, keep: None }).await.unwrap().unwrap();
    let (second, third) = tokio::join!(barrier.wait(), barrier.wait());
    assert_eq!(second.unwrap().generation, third.unwrap().generation);
    wire.set(Verb::Read, Mode::Pass);
    let error = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
}

#[tokio::test(start_paused = true)]
async fn wait_for_any_stripe_of_many_ends_on_a_slow_store() {
    let store = Store::in_virtual_time();
    let ((holder, _), (locks, wire)) = (store.client(), store.client());
    let all = holder.striped_mutex("stock", 300).all().lock().await.unwrap();
    // All stripes together take longer than a store may take for one answer.
    wire.set(Verb::Contend, Mode::LateReply(ms(15)));
    let granted = locks.striped_mutex("stock", 300).try_lock_any_for(ms(100)).await.unwrap();
    assert!(granted.is_none());
    all.release().await.unwrap();
}

/// The request that is under way at the limit is granted, and a later one would be refused because of it.
#[tokio::test(start_paused = true)]
async fn free_stripe_is_granted_by_an_answer_after_the_limit() {
    let (locks, wire) = Store::in_virtual_time().client();
    let parts = locks.striped_mutex("parts", 1);
    wire.set(Verb::Contend, Mode::LateReply(ms(30)));
    let stripe = parts.stripe(0).try_lock_for(ms(20)).await.unwrap().expect("free");
    assert_eq!(parts.report().stripes.first().map(|used| (used.taken, used.waited)), Some((1, 0)));
    stripe.release().await.unwrap();
    common::settles(&locks, "parts#0").await;
    let any = parts.try_lock_any_for(ms(20)).await.unwrap().expect("free");
    any.release().await.unwrap();
}

/// A request of an owner is refused while another one of the same owner is under way.
#[tokio::test(start_paused = true)]
async fn free_stripe_is_granted_to_an_owner_after_the_limit() {
    let store = Store::in_virtual_time();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let owner = Owner::new();
    wire.set(Verb::Contend, Mode::LateReply(ms(30)));
    for count in [1, 2, 40] {
        let parts = locks.striped_mutex("parts", count).with(|part| part.owner(&owner));
        let looked = parts.try_lock_any_for(ms(20)).await.unwrap().expect("free at the first look");
        looked.release().await.unwrap();

        // The longest first look takes 1.2 seconds, and the answer that counts comes 20 milliseconds after the limit.
        let all = other.striped_mutex("parts", count).all().lock().await.unwrap();
        let waiting = parts.try_lock_any_for(ms(2_500));
        let ending = async {
            tokio::time::sleep(ms(2_490)).await;
            all.release().await.unwrap();
        };
        let (waited, ()) = tokio::join!(waiting, ending);
        let waited = waited.unwrap().unwrap_or_else(|| panic!("one of {count} was free in time"));
        waited.release().await.unwrap();
    }
}

#[tokio::test]
async fn try_for_no_time_finds_the_only_free_stripe() {
    let (locks, _) = Store::new().client();
    let stock = locks.striped_mutex("stock", 40);
    let parts = (0..40).filter(|number| *number != 7).map(|number| stock.stripe(number).mutex().clone());
    let others = parts.fold(MultiLock::new(), |all, part| all.and(&part)).lock().await.unwrap();
    let free = stock.try_lock_any_for(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(free.resource().as_str(), "stock#7");
    others.release().await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn many_locks_at_once_take_a_time_in_proportion_to_their_number() {
    use rustix::time::{ClockId, clock_gettime};

    let (locks, _) = Store::new().client();
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    // The quickest of five each, by turns: others of the machine take part of its caches, for a while.
    let mut spent = [Duration::MAX; 2];
    for attempt in 0..5 {
        for (quickest, count) in spent.iter_mut().zip([512, 4096]) {
            let all = locks.lock_all((0..count).map(|number| format!("{count}/{attempt}/{number}")));
            let began = now();
            let guard = all.lock().await.unwrap();
            *quickest = (now() - began).min(*quickest);
            guard.release().await.unwrap();
        }
    }
    // Eight times as many; with a step for each pair of them it would be sixty-four.
    assert!(spent[1] < spent[0] * 24, "{spent:?}");
}

#[tokio::test]
async fn loss_of_one_lock_ends_the_wait_for_the_others() {
    let store = Store::new();
    let ((locks, _), (other, _)) = (store.client(), store.client());
    let held = other.mutex("b").lock().await.unwrap();
    let waiting = tokio::spawn({
        let all = locks.lock_all(["a", "b"]);
        async move { all.lock().await }
    });
    common::waiting(&other, "b", 1).await;
    let claim = other.inspect("a").await.unwrap().holders[0].clone();
    other.break_claim("a", &claim).await.unwrap();
    let error = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)) && error.to_string().contains("lock a:"), "{error}");
    held.release().await.unwrap();
}

/// A cache in memory that keeps nothing for longer than a hundred years, as the servers do.
#[derive(Debug, Default)]
struct Clamping(std::sync::Mutex<Option<(Vec<u8>, u64, Duration)>>);

#[async_trait::async_trait]
impl Cache for Clamping {
    async fn get(&self, _: &str) -> Result<Option<Cached>, CacheError> {
        let kept = self.0.lock().unwrap().clone();
        Ok(kept.map(|(value, version, left)| Cached { value, version: version.to_string(), left }))
    }

    async fn put(
        &self,
        _: &str,
        seen: Option<&str>,
        value: &[u8],
        keep: Duration,
    ) -> Result<Option<String>, CacheError> {
        let mut kept = self.0.lock().unwrap();
        let last = kept.as_ref().map_or(0, |(_, version, _)| *version);
        if kept.as_ref().map(|_| last.to_string()).as_deref() != seen {
            return Ok(None);
        }
        *kept = Some((value.to_owned(), last + 1, keep.min(Duration::from_secs(100 * 365 * 24 * 3600))));
        Ok(Some((last + 1).to_string()))
    }

    async fn remove(&self, _: &str, _: &str) -> Result<bool, CacheError> {
        Ok(self.0.lock().unwrap().take().is_some())
    }
}

#[tokio::test]
async fn value_that_may_be_stale_for_ever_is_fresh_at_first() {
    let (locks, _) = Store::new().client();
    for ttl in [Duration::from_secs(3600), Duration::MAX] {
        let flight = locks.single_flight("page").cache(Arc::new(Clamping::default()));
        let flight = flight.stale_for(Duration::MAX).negative_for(Duration::MAX).within(Duration::MAX);
        let load = || async { Ok::<_, std::io::Error>(Some(b"text".to_vec())) };
        assert_eq!(flight.get_or_load(ttl, load).await.unwrap().origin, ValueSource::Loaded);
        assert_eq!(flight.get().await.unwrap().unwrap().origin, ValueSource::Kept);
    }
}

#[tokio::test]
async fn loader_without_any_time_is_refused() {
    let (locks, _) = Store::new().client();
    let flight = locks.single_flight("page").within(Duration::ZERO);
    let load = || async { Ok::<_, std::io::Error>(None) };
    let error = flight.get_or_load(Duration::from_secs(60), load).await.unwrap_err();
    assert!(
        matches!(&error, leasehold::LoadError::Store(error) if error.kind() == ErrorKind::Invalid),
        "{error}"
    );
}

#[tokio::test]
async fn too_many_locks_at_once_are_refused_by_name() {
    let (locks, _) = Store::new().client();
    let error = locks.striped_mutex("stock", 4097).all().lock().await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("stock")), (ErrorKind::Invalid, true), "{error}");
}

/// The order of the two settings does not matter.
#[tokio::test(start_paused = true)]
async fn max_hold_of_a_loader_outlives_a_later_limit_of_the_flight() {
    let store = Arc::new(MemoryBackend::with_clock(Arc::new(TokioClock::new())));
    let open = || Client::builder().clock(Arc::new(TokioClock::new())).over(store.clone()).unwrap();
    let (limit, minute) = (Duration::from_millis(300), Duration::from_secs(60));
    for (key, is_set_first) in [("first", true), ("second", false)] {
        let flight = |locks: &Client| {
            let flight = locks.single_flight(key);
            let limited = |flight: SingleFlight| flight.with(|lock| Ok(lock.max_hold(limit))).unwrap();
            if is_set_first { limited(flight).within(minute) } else { limited(flight.within(minute)) }
        };
        let (stuck, next) = (flight(&open()), flight(&open()));
        let stuck = tokio::spawn(async move {
            let load = || std::future::pending::<Result<Option<Vec<u8>>, std::io::Error>>();
            stuck.get_or_load(minute, load).await
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        let began = tokio::time::Instant::now();
        let load = || async { Ok::<_, std::io::Error>(Some(b"value".to_vec())) };
        let loaded = next.get_or_load(minute, load).await.unwrap();
        assert_eq!(loaded.value.as_deref(), Some(&b"value"[..]));
        assert!(began.elapsed() < limit * 2, "{key}: {:?}", began.elapsed());
        stuck.abort();
    }
}

/// The task that waits for the answer ends with its runtime, after the store has made the change.
#[test]
fn change_whose_runtime_ends_may_have_happened() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (store, wire, stock) = runtime.block_on(async {
        let store = Store::new();
        let (locks, wire) = store.client();
        (store, wire, locks.versioned("stock"))
    });
    wire.set(Verb::Swap, Mode::LateReply(SOON));
    let updating =
        std::thread::spawn(move || common::block_on(stock.update(|_| Some(b"1".to_vec()))).unwrap_err());
    while wire.calls(Verb::Swap) == 0 {
        std::thread::sleep(ms(1));
    }
    drop(runtime);
    let error = updating.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.may_have_happened(), "{error}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (locks, _) = store.client();
        let found = locks.versioned("stock").read().await.unwrap();
        assert_eq!(found.value(), Some(b"1".as_slice()));
    });
}

/// What may be made twice without harm is made again, although it is not known what became of the first request.
#[tokio::test(start_paused = true)]
async fn one_lost_request_fails_no_first_write_of_what_may_be_repeated() {
    for fault in [Mode::LoseRequest, Mode::LoseReply] {
        let store = Store::in_virtual_time();
        let (locks, wire) = store.client();
        let latch = locks.latch("latch", 1);
        with_one_lost(&wire, fault, latch.count_down()).await.unwrap();
        with_one_lost(&wire, fault, locks.latch("other", 1).count_down_as("one")).await.unwrap();
        with_one_lost(&wire, fault, locks.barrier("round", 1).wait()).await.unwrap();
        let flight = locks.single_flight("page");
        let load = || async { Ok::<_, std::io::Error>(Some(b"text".to_vec())) };
        let loading = Box::pin(flight.get_or_load(SOON, load));
        let loaded = with_one_lost(&wire, fault, loading).await.unwrap();
        assert_eq!(loaded.origin, ValueSource::Loaded);
        let guard = locks.mutex("job").lock().await.unwrap();
        with_one_lost(&wire, fault, locks.revoke("job", "drain")).await.unwrap();
        let condition = locks.condition("changed");
        let waiting = Box::pin(guard.wait_for(&condition, ms(50)));
        _ = with_one_lost(&wire, fault, waiting).await.unwrap();
        let guard = locks.mutex("camera").lock().await.unwrap();
        with_one_lost(&wire, fault, guard.transfer()).await.unwrap();
    }
}

/// Loses the first write of this work.
async fn with_one_lost<T>(wire: &Fault, fault: Mode, work: impl Future<Output = T>) -> T {
    let before = wire.calls(Verb::Swap);
    wire.set(Verb::Swap, fault);
    let heals = async {
        while wire.calls(Verb::Swap) == before {
            tokio::time::sleep(ms(1)).await;
        }
        wire.set(Verb::Swap, Mode::Pass);
    };
    let (done, ()) = tokio::time::timeout(SOON, async { tokio::join!(work, heals) }).await.unwrap();
    done
}
