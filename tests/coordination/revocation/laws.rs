//! A revocation request reaches the clients that hold the lock at that time, and no others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::layer::{Mode, Verb};
use leasehold::{Client, ErrorKind, Owner, Revocation};

use crate::world::{Chance, Peer, clients, on_half_of_them};

fn reason(revocation: leasehold::Result<Revocation>) -> String {
    revocation.unwrap().reason
}

/// Holders come and go and listen, and many clients send revocation requests, some of which die
/// meanwhile: each holder sees the requests that were made while it held the lock, and no others.
#[test]
fn revocation_reaches_all_holders_and_no_others() {
    let received = Arc::new(AtomicU64::new(0));
    on_half_of_them(|mut world| {
        let received = received.clone();
        async move {
            // The claims for which each request was meant.
            let targets = Targets::default();
            let askers: Vec<_> = (0..2)
                .map(|asker| {
                    let client = world.client();
                    tokio::spawn(ask(client, asker, targets.clone(), world.chance.fork()))
                })
                .collect();
            let holders: Vec<_> = (0..3)
                .map(|_| {
                    let (client, targets) = (world.client(), targets.clone());
                    let (received, mut chance) = (received.clone(), world.chance.fork());
                    tokio::spawn(async move {
                        for _ in 0..4 {
                            let mutex = client.locks.mutex("m").ttl(Duration::from_millis(400));
                            let Ok(Some(guard)) = mutex.try_lock_for(Duration::from_secs(20)).await else {
                                continue;
                            };
                            match tokio::time::timeout(chance.ms(200), guard.revoked()).await {
                                Ok(Ok(revocation)) => {
                                    received.fetch_add(1, Ordering::SeqCst);
                                    // Not known yet if the holder saw the request before its sender got
                                    // an answer.
                                    if let Some(targets) = targets.lock().unwrap().get(&revocation.reason) {
                                        assert!(
                                            targets.contains(&guard.tag()),
                                            "{targets:?}, not {}",
                                            guard.tag()
                                        );
                                    }
                                }
                                Ok(Err(error)) => assert!(error.is_lost(), "{error}"),
                                Err(_) => {}
                            }
                            drop(guard);
                        }
                    })
                })
                .collect();
            for task in askers.into_iter().chain(holders) {
                task.await.unwrap();
            }
            // Earlier requests do not concern the present holder.
            let (late, asker) = (world.calm_client(), world.calm_client());
            let guard = late.locks.mutex("m").try_lock_for(Duration::from_secs(60)).await.unwrap().unwrap();
            let early = tokio::time::timeout(Duration::from_secs(5), guard.revoked()).await;
            assert!(early.is_err(), "{early:?}");
            let holders = asker.locks.revoke("m", "now").await.unwrap();
            assert_eq!(holders.iter().map(|one| one.id.tag()).collect::<Vec<_>>(), [guard.tag()]);
            assert_eq!(reason(guard.revoked().await), "now");
        }
    });
    let received = received.load(Ordering::SeqCst);
    println!("{received} requests were heard");
    assert!(received > 0, "no request was ever seen");
}

async fn ask(client: Peer, asker: u32, targets: Targets, mut chance: Chance) {
    for number in 0..6 {
        tokio::time::sleep(chance.ms(150)).await;
        let reason = format!("{asker}/{number}");
        match tokio::time::timeout(chance.ms(100), client.locks.revoke("m", &reason)).await {
            Ok(Ok(holders)) => {
                let tags = holders.iter().map(|one| one.id.tag()).collect();
                targets.lock().unwrap().insert(reason, tags);
            }
            Ok(Err(_)) => {}
            Err(_) if chance.below(3) == 0 => return client.falls_silent(),
            Err(_) => {}
        }
    }
}

type Targets = Arc<Mutex<HashMap<String, Vec<String>>>>;

#[tokio::test(start_paused = true)]
async fn revocation_waits_for_a_listener_and_outlives_its_sender() {
    let [holder, asker] = clients();
    let guard = holder.locks.mutex("m").lock().await.unwrap();
    assert_eq!(asker.locks.revoke("m", "first").await.unwrap().len(), 1);
    asker.falls_silent();
    assert_eq!(reason(guard.revoked().await), "first");
    assert_eq!(reason(guard.revoked().await), "first", "a second call returns the same request");
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn revocation_reaches_all_holders_but_no_later_one() {
    let [one, two] = clients();
    let held = [&one, &two].map(|client| client.locks.semaphore("s", 3));
    let guards = [held[0].acquire().await.unwrap(), held[1].acquire().await.unwrap()];
    assert_eq!(two.locks.revoke("s", "all of you").await.unwrap().len(), 2);
    let late = held[0].acquire().await.unwrap();
    for guard in &guards {
        assert_eq!(reason(guard.revoked().await), "all of you");
    }
    assert!(tokio::time::timeout(Duration::from_secs(5), late.revoked()).await.is_err());
}

/// The holder listens late, and the store has not forgotten the request.
#[tokio::test(start_paused = true)]
async fn revocation_is_kept_for_a_holder_that_listens_within_a_day() {
    let [holder, asker] = clients();
    let guard = holder.locks.mutex("m").lock().await.unwrap();
    assert_eq!(asker.locks.revoke("m", "in time").await.unwrap().len(), 1);
    tokio::time::sleep(Duration::from_secs(23 * 3600)).await;
    let seen = tokio::time::timeout(Duration::from_secs(5), guard.revoked()).await;
    assert_eq!(reason(seen.unwrap()), "in time");
}

/// A request for claims that were seen does not reach a holder that came after the look.
#[tokio::test(start_paused = true)]
async fn revocation_of_claims_that_were_seen_is_for_these_alone() {
    let [one, two] = clients();
    let held = one.locks.semaphore("s", 3);
    let guards = [held.acquire().await.unwrap(), held.acquire().await.unwrap()];
    let seen = two.locks.inspect("s").await.unwrap().holders;
    let [gone, stays] = guards;
    gone.release().await.unwrap();
    let late = held.acquire().await.unwrap();
    let asked = two.locks.revoke_claims("s", &seen, "of those that were seen").await.unwrap();
    assert_eq!(asked.iter().map(|claim| claim.id.tag()).collect::<Vec<_>>(), [stays.tag()]);
    assert_eq!(reason(stays.revoked().await), "of those that were seen");
    assert!(tokio::time::timeout(Duration::from_secs(5), late.revoked()).await.is_err());
    stays.release().await.unwrap();
    assert_eq!(two.locks.revoke_claims("s", &seen, "of nobody").await.unwrap(), []);
    assert!(tokio::time::timeout(Duration::from_secs(5), late.revoked()).await.is_err());
}

/// A request to the giver does not reach the holder that continues the lock; a request that was made
/// while the token was out does.
#[tokio::test(start_paused = true)]
async fn revocation_is_not_inherited_by_a_transfer() {
    let [old, new] = clients();
    let guard = old.locks.mutex("m").lock().await.unwrap();
    new.locks.revoke("m", "of the old one").await.unwrap();
    let token = guard.transfer().await.unwrap();
    let guard = new.locks.mutex("m").accept_transfer(&token).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(5), guard.revoked()).await.is_err());
    let token = guard.transfer().await.unwrap();
    new.locks.revoke("m", "of the next one").await.unwrap();
    let guard = old.locks.mutex("m").accept_transfer(&token).await.unwrap();
    assert_eq!(reason(guard.revoked().await), "of the next one");
}

/// The claim stays with another guard of the owner, and so does the request to release it.
#[tokio::test(start_paused = true)]
async fn transfer_that_fails_takes_no_revocation_away() {
    let [holder, asker] = clients();
    let mutex = holder.locks.mutex("m").owner(&Owner::new());
    let guard = mutex.lock().await.unwrap();
    asker.locks.revoke("m", "before the transfer").await.unwrap();
    holder.fault(Verb::Swap, Mode::Hang);
    let transfer = tokio::spawn(guard.transfer());
    while holder.calls(Verb::Swap) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let other = mutex.lock().await.unwrap();
    holder.fault(Verb::Swap, Mode::Pass);
    assert_eq!(transfer.await.unwrap().unwrap_err().kind(), ErrorKind::Invalid);
    let seen = tokio::time::timeout(Duration::from_secs(5), other.revoked()).await;
    assert_eq!(reason(seen.unwrap()), "before the transfer");
}

/// A lock that was requested is not handed to the next task of the same process.
#[tokio::test(start_paused = true)]
async fn revoked_lock_is_not_handed_off_locally() {
    let [holder, other] = clients();
    let guard = holder.locks.mutex("m").lock().await.unwrap();
    let elsewhere = tokio::spawn(async move { other.locks.mutex("m").lock().await.unwrap().fence() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let here = holder.locks.mutex("m");
    let here = tokio::spawn(async move { here.lock().await.unwrap().fence() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    holder.locks.revoke("m", "for others").await.unwrap();
    guard.revoked().await.unwrap();
    guard.release().await.unwrap();
    assert!(elsewhere.await.unwrap() < here.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn holder_that_does_not_listen_sends_nothing_and_sees_loss() {
    let [holder, asker] = clients();
    let mutex = holder.locks.mutex("m").ttl(Duration::from_millis(400));
    let guard = mutex.lock().await.unwrap();
    asker.locks.revoke("m", "unheard").await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((holder.calls(Verb::Read), holder.calls(Verb::Swap)), (0, 0));
    asker.locks.inspect("m").await.unwrap();
    guard.release().await.unwrap();
    let guard = mutex.lock().await.unwrap();
    let listening = tokio::time::timeout(Duration::from_secs(60), guard.revoked());
    holder.fault(Verb::Renew, Mode::Hang);
    assert!(listening.await.unwrap().unwrap_err().is_lost());
}

#[tokio::test(start_paused = true)]
async fn revocation_without_holder_is_empty_and_long_reason_refused() {
    let locks = Client::open("mem:").await.unwrap();
    assert_eq!(locks.revoke("m", "why").await.unwrap(), []);
    let error = locks.revoke("m", &"x".repeat(257)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = locks.revoke(&"x".repeat(510), "why").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}
