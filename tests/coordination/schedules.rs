//! A thousand random schedules for each primitive, in memory: the events are recorded, and checked
//! against its law.
//!
//! A schedule is a number: it decides the requests of each task, their order, and how often each task
//! lets others go first. A failed one is named, and runs alone with `LEASEHOLD_SCHEDULE=<number>`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Client, Fence};

const SCHEDULES: u64 = 1_000;
/// Clients over one memory, as processes are over one server.
const CLIENTS: usize = 2;
const TASKS: usize = 5;
const ROUNDS: usize = 2;
const LIMIT: Duration = Duration::from_secs(60);

/// The numbers of one task in one schedule: xorshift.
struct Chance(u64);

impl Chance {
    fn of(schedule: u64, task: usize) -> Chance {
        let seed = (schedule + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (task as u64 + 1).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mut chance = Chance(seed | 1);
        for _ in 0..8 {
            chance.below(2);
        }
        chance
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    /// Lets others go first, a few times.
    async fn pause(&mut self) {
        for _ in 0..self.below(4) {
            tokio::task::yield_now().await;
        }
    }

    /// So many different numbers below `bound`, in any order.
    fn some_of(&mut self, bound: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..bound).collect();
        for last in (1..bound).rev() {
            all.swap(last, self.below(last + 1));
        }
        all.truncate(1 + self.below(bound));
        all
    }
}

/// The events, in order.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A task acquired the resource, under this fence.
    Took(usize, Fence),
    /// The task is about to release it.
    Gives(usize),
}

#[derive(Clone, Default)]
struct History(Arc<Mutex<Vec<Event>>>);

impl History {
    fn note(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }

    /// Asserts that no resource had two holders, and that each grant had a later fence than the one
    /// before it.
    fn judge(&self, schedule: u64) -> usize {
        let events = self.0.lock().unwrap();
        let mut holders = BTreeSet::new();
        let mut newest = std::collections::BTreeMap::new();
        for (index, event) in events.iter().enumerate() {
            match *event {
                Event::Took(resource, fence) => {
                    let is_alone = holders.insert(resource);
                    let rises = newest.insert(resource, fence).is_none_or(|before| before < fence);
                    assert!(is_alone && rises, "schedule {schedule}, event {index}: {:?}", &events[..=index]);
                }
                Event::Gives(resource) => assert!(holders.remove(&resource)),
            }
        }
        assert!(holders.is_empty(), "schedule {schedule}: {holders:?} were never released");
        events.len()
    }
}

/// Runs `task` in all schedules, for each task of each. Returns the number of events that were checked.
fn in_all_schedules<F>(task: impl Fn(Client, String, History, Chance) -> F) -> usize
where
    F: Future<Output = ()> + Send + 'static,
{
    let only = std::env::var("LEASEHOLD_SCHEDULE").ok().map(|number| number.parse::<u64>().unwrap());
    // One thread: only the pauses of the schedule decide which task continues, and nothing else of this
    // machine.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = Arc::new(leasehold::local::MemoryBackend::new());
        let client = || Client::builder().over(backend.clone()).unwrap();
        let clients: Vec<Client> = (0..CLIENTS).map(|_| client()).collect();
        let mut events = 0;
        for schedule in 0..SCHEDULES {
            if only.is_some_and(|only| only != schedule) {
                continue;
            }
            let history = History::default();
            let mut tasks = Vec::new();
            for number in 0..TASKS {
                let locks = clients[number % CLIENTS].clone();
                let chance = Chance::of(schedule, number);
                tasks.push(tokio::spawn(task(locks, schedule.to_string(), history.clone(), chance)));
            }
            for task in tasks {
                let ended = tokio::time::timeout(LIMIT, task).await;
                ended.unwrap_or_else(|_| panic!("schedule {schedule}: a task waits for ever")).unwrap();
            }
            events += history.judge(schedule);
        }
        events
    })
}

#[test]
fn multi_locks_never_wait_in_a_circle() {
    let events = in_all_schedules(|locks, name, history, mut chance| async move {
        for _ in 0..ROUNDS {
            let wanted = chance.some_of(4);
            let all = locks.lock_all(wanted.iter().map(|number| format!("{name}/{number}")));
            chance.pause().await;
            let guard = match chance.below(4) {
                0 => all.try_lock().await.unwrap(),
                _ => Some(all.lock().await.unwrap()),
            };
            let Some(guard) = guard else { continue };
            assert_eq!(guard.guards().len(), wanted.len(), "all, or none");
            for number in &wanted {
                history.note(Event::Took(*number, guard.fence(&format!("{name}/{number}")).unwrap()));
            }
            chance.pause().await;
            for number in &wanted {
                history.note(Event::Gives(*number));
            }
            match chance.below(2) {
                0 => drop(guard),
                _ => guard.release().await.unwrap(),
            }
        }
    });
    assert!(events > 10_000, "{events} events are too few for a campaign");
}

#[test]
fn fifty_multi_locks_in_random_orders_come_to_an_end() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = Arc::new(leasehold::local::MemoryBackend::new());
        let mut tasks = Vec::new();
        for number in 0..50 {
            // Each is a client of its own, so all lines meet in the store.
            let locks = Client::builder().over(backend.clone()).unwrap();
            tasks.push(tokio::spawn(async move {
                let mut chance = Chance::of(u64::from(getrandom::u32().unwrap()), number);
                for _ in 0..10 {
                    let wanted = chance.some_of(6);
                    let all = locks.lock_all(wanted.iter().map(|number| format!("r{number}")));
                    let guard = all.lock().await.unwrap();
                    chance.pause().await;
                    guard.release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            tokio::time::timeout(LIMIT, task).await.expect("they wait for each other").unwrap();
        }
    });
}

#[test]
fn segments_have_one_holder_each() {
    let events = in_all_schedules(|locks, name, history, mut chance| async move {
        let stock = locks.striped_mutex(&name, 3);
        for _ in 0..ROUNDS {
            chance.pause().await;
            let guards = match chance.below(5) {
                0 => stock.try_lock_any().await.unwrap().into_iter().collect(),
                1 => vec![stock.for_key(chance.below(9).to_string()).lock().await.unwrap()],
                2 => {
                    let whole = stock.all().lock().await.unwrap();
                    for (number, guard) in whole.guards().iter().enumerate() {
                        history.note(Event::Took(number, guard.fence().unwrap()));
                    }
                    chance.pause().await;
                    (0..3).for_each(|number| history.note(Event::Gives(number)));
                    drop(whole);
                    Vec::new()
                }
                _ => vec![stock.lock_any().await.unwrap()],
            };
            for guard in guards {
                let number = guard.resource().as_str().rsplit_once('#').unwrap().1.parse().unwrap();
                history.note(Event::Took(number, guard.fence().unwrap()));
                chance.pause().await;
                history.note(Event::Gives(number));
                guard.release().await.unwrap();
            }
        }
    });
    assert!(events > 10_000, "{events} events are too few for a campaign");
}

#[test]
fn elections_have_one_leader_and_no_value_outlives_its_leader() {
    let events = in_all_schedules(|locks, name, history, mut chance| async move {
        let election = locks.election(&name);
        for round in 0..ROUNDS {
            chance.pause().await;
            let value = format!("{}/{round}", chance.below(1_000_000));
            let leadership = match chance.below(4) {
                0 => election.try_campaign(&value).await.unwrap(),
                _ => Some(election.campaign(&value).await.unwrap()),
            };
            let Some(leadership) = leadership else { continue };
            history.note(Event::Took(0, leadership.fence().unwrap()));
            let mut seen = election.leader().await.unwrap().unwrap();
            assert_eq!((seen.value.as_str(), seen.fence), (value.as_str(), leadership.fence()));
            if chance.below(2) == 0 {
                leadership.proclaim("again").await.unwrap();
                seen = election.leader().await.unwrap().unwrap();
                assert_eq!((seen.value.as_str(), seen.fence), ("again", leadership.fence()));
            }
            chance.pause().await;
            history.note(Event::Gives(0));
            leadership.resign().await.unwrap();
        }
    });
    assert!(events > 10_000, "{events} events are too few for a campaign");
}
