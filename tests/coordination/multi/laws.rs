//! Several locks as one: no circle of waiters, refused requests, and the loss of one as the loss of all.

use std::time::Duration;

use leasehold::layer::{Mode, Verb};
use leasehold::{Client, ErrorKind, MultiLock};

use crate::fixture::within;
use crate::history::{Event, crowds};
use crate::world::{Chance, World, clients, is_whole_campaign, settles, soon};

const ROUNDS: usize = 2;

async fn memory() -> Client {
    Client::open("mem:").await.unwrap()
}

#[tokio::test]
async fn a_bad_name_is_refused_before_anything_is_taken() {
    let locks = memory().await;
    let refusal = locks.lock_all(["a", "", "b"]).lock().await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Invalid);
    assert!(locks.inspect("a").await.unwrap().holders.is_empty());
    let many: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
    assert_eq!(locks.lock_all(many).lock().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(MultiLock::new().lock().await.unwrap().release().await.is_ok(), "nothing is held at once");
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_is_the_loss_of_all_and_says_which() {
    let [shaky] = clients();
    let steady = World::at_once().calm_client().locks;
    let all =
        MultiLock::new().and(steady.mutex("a")).and(shaky.locks.mutex("b").ttl(Duration::from_millis(200)));
    let guard = all.lock().await.unwrap();
    shaky.fault(Verb::Renew, Mode::Hang);
    let lost = soon("the loss", guard.run(std::future::pending::<()>())).await.unwrap_err();
    assert!(matches!(lost.kind(), ErrorKind::Lost(_)) && lost.to_string().contains(" b:"), "{lost}");
    assert_eq!(guard.loss().unwrap().resource.as_str(), "b");
    assert_eq!(guard.lost().await.resource.as_str(), "b");
    assert!(guard.check().is_err() && guard.remaining().is_zero());
    shaky.fault(Verb::Renew, Mode::Pass);
    assert!(matches!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost(_)));
    settles(&steady, "a").await;
}

/// A store that does not answer keeps no lock of another store.
#[tokio::test(start_paused = true)]
async fn release_of_one_store_does_not_wait_for_another() {
    let [shaky] = clients();
    let [steady, other] = clients();
    let ttl = Duration::from_secs(30);
    let all = MultiLock::new().and(steady.locks.mutex("a")).and(shaky.locks.mutex("b").ttl(ttl));
    let guard = all.lock().await.unwrap();
    shaky.fault(Verb::Release, Mode::LoseRequest);
    let began = tokio::time::Instant::now();
    let release = tokio::spawn(guard.release());
    let free = soon("the lock of the other store", other.locks.mutex("a").lock()).await.unwrap();
    assert!(began.elapsed() < ttl / 10, "{:?}", began.elapsed());
    free.release().await.unwrap();
    assert_eq!(release.await.unwrap().unwrap_err().kind(), ErrorKind::OutcomeUnknown);
}

#[tokio::test(start_paused = true)]
async fn a_loss_while_it_waits_for_the_next_ends_the_wait() {
    let [shaky] = clients();
    let steady = World::at_once().calm_client().locks;
    let busy = steady.mutex("b").lock().await.unwrap();
    shaky.fault(Verb::Renew, Mode::Hang);
    let all =
        MultiLock::new().and(shaky.locks.mutex("a").ttl(Duration::from_millis(200))).and(steady.mutex("b"));
    let lost = soon("the loss", all.lock()).await.unwrap_err();
    assert!(matches!(lost.kind(), ErrorKind::Lost(_)) && lost.to_string().contains(" a:"), "{lost}");
    assert_eq!(steady.inspect("b").await.unwrap().waiting.len(), 0, "and its place in the queue is given up");
    drop(busy);
}

#[test]
fn multi_locks_never_wait_in_a_circle() {
    let events = crowds(|locks, history, mut chance| async move {
        for _ in 0..ROUNDS {
            let wanted = chance.some_of(4);
            let all = locks.lock_all(wanted.iter().map(|number| number.to_string()));
            chance.pause().await;
            let guard = match chance.below(4) {
                0 => all.try_lock().await.unwrap(),
                _ => Some(all.lock().await.unwrap()),
            };
            let Some(guard) = guard else { continue };
            assert_eq!(guard.guards().len(), wanted.len(), "all, or none");
            for number in &wanted {
                history.note(Event::Took(*number, guard.fence(&number.to_string()).unwrap()));
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
    assert!(events > 10_000 || !is_whole_campaign(), "{events} events are too few for a campaign");
}

#[test]
fn fifty_multi_locks_in_random_orders_come_to_an_end() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::at_once();
        let mut tasks = Vec::new();
        for _ in 0..50 {
            // Each is a client of its own, so all lines meet in the store.
            let locks = world.calm_client().locks;
            tasks.push(tokio::spawn(async move {
                let mut chance = Chance::of(u64::from(getrandom::u32().unwrap()));
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
            within(Duration::from_secs(60), "they wait for each other", task).await.unwrap();
        }
    });
}
