//! The backend's behaviour when connections break, sessions end and servers die.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{
    AT_LAST, SESSION, backend, claim, endless, eventually, gone, hold, leader, locks, no_patience, release,
    renew, requests, short_lived, take,
};
use futures_util::future::join_all;
use leasehold::backend::{
    Backend, ClaimInfo, Clock, Effect, FailureKind, LossCause, Patience, Put, Registered, Registers, Release,
    Renew, Renewal, Resource, Share, Stamp, Step,
};
use leasehold::{Client, ErrorKind, State, SystemClock, Tuning};
use leasehold_testkit::{Lateness, Proxy, Way, ZooKeeperEnsemble};
use leasehold_zookeeper::ZooKeeperBackend;

/// A client that receives nothing from its servers any more sees the loss before another client can be granted.
#[tokio::test(flavor = "multi_thread")]
async fn partitioned_holder_sees_loss_before_its_successor_is_granted() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let cut_off = locks(&short_lived(&servers.url_at(proxy.addr()))).await;
    let other = locks(&servers.url()).await;
    for round in 0..2 {
        let guard = Arc::new(cut_off.mutex("job").lock().await.unwrap());
        let fence = guard.fence();
        let (mutex, before) = (other.mutex("job"), guard.clone());
        let successor = tokio::spawn(async move {
            let next = mutex.lock().await.unwrap();
            // By the clock: which of the two tasks runs first on a busy machine says nothing.
            (next, before.state())
        });
        tokio::time::sleep(SESSION / 4).await;
        proxy.blackhole(Way::Both);
        let (cut_at, lateness) = (Instant::now(), Lateness::watch());
        // On a busy machine it may see the end at once.
        assert_ne!(guard.changed(State::Valid).await, State::Valid, "round {round}");
        let cause = guard.lost().await;
        let (took, late) = (cut_at.elapsed(), lateness.end().await);
        let (next, seen) = successor.await.unwrap();
        assert!(matches!(seen, State::Lost(_)), "granted while the one that is cut off is {seen:?}");
        match late < Duration::from_millis(500) {
            true => assert!(took < SESSION, "reported after {took:?} ({cause})"),
            false => println!("round {round}: reported after {took:?}, on a machine that was {late:?} late"),
        }
        assert!(next.fence() > fence);
        next.release().await.unwrap();
        proxy.heal().unwrap();
        drop(guard);
    }
}

/// A runtime that is blocked sends as little as a process that is stopped. What it is granted afterwards counts only
/// from when the server it is connected to has had the time to report the session to the leader.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_pause_the_leader_hears_of_the_session_first() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let url = format!("{}?session=30s", servers.url());
    let paused = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = backend(&url).await;
            let held = claim("held", Share::MUTEX);
            hold(&client, &held).await;
            std::thread::sleep(Duration::from_secs(30) / 5);
            let resumed = SystemClock.now();
            eventually(async || !matches!(renew(&client, &held).await, Renewal::Unknown(_))).await;
            let renewed = SystemClock.now();
            std::thread::sleep(Duration::from_secs(30) / 5);
            let again = SystemClock.now();
            let free = claim("free", Share::MUTEX);
            let patience = Patience::none(Arc::new(SystemClock));
            let step = loop {
                match client.contend(&free, &patience).await {
                    Ok(step) => break step,
                    Err(failure) => assert!(failure.is_transient(), "{failure}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            let Step::Granted(grant) = step else { panic!("{step:?}") };
            (renewed.since(resumed), grant.asked_at.since(again))
        })
    });
    let (renewed, granted) = tokio::task::spawn_blocking(|| paused.join().unwrap()).await.unwrap();
    // Half of the tick of the servers.
    let lag = Duration::from_millis(250);
    assert!(renewed >= lag, "renewed {renewed:?} after a pause");
    assert!(granted >= lag, "a grant counts from {granted:?} after a pause");
}

/// The session outlives the connection, and with it the claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_within_the_session_keeps_the_lock() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let (broken, other) = (locks(&servers.url_at(proxy.addr())).await, locks(&servers.url()).await);
    let guard = broken.mutex("job").lock().await.unwrap();
    for _ in 0..3 {
        proxy.cut().unwrap();
        assert_eq!(guard.changed(State::Valid).await, State::Suspect);
        proxy.heal().unwrap();
        assert_eq!(guard.changed(State::Suspect).await, State::Valid);
        let seen = other.inspect("job").await.unwrap();
        assert_eq!(seen.holders.len(), 1);
        assert_eq!(seen.holders[0].fence, guard.fence(), "the same node, not another");
    }
    guard.release().await.unwrap();
    assert!(other.inspect("job").await.unwrap().holders.is_empty());
}

/// The session continues, so a node that is forgotten would stay for as long as the client lives.
#[tokio::test(flavor = "multi_thread")]
async fn release_while_disconnected_completes_in_the_background() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let broken = backend(&format!("{}?session=60s&timeout=500ms", servers.url_at(proxy.addr()))).await;
    let other = backend(&servers.url()).await;
    let (held, waits) = (claim("held", Share::MUTEX), claim("held", Share::MUTEX));
    // A busy disk may take longer for it than the timeout.
    take(&broken, &held).await;
    let waiting = tokio::spawn({
        let (broken, waits) = (broken.clone(), waits.clone());
        async move { take(&broken, &waits).await }
    });
    eventually(async || {
        other.inspect(&held.resource, None, &no_patience()).await.is_ok_and(|seen| seen.waiting.len() == 1)
    })
    .await;
    proxy.cut().unwrap();
    eventually(async || matches!(renew(&broken, &held).await, Renewal::Unknown(_))).await;
    let unsure = broken.contend(&held, &no_patience()).await.unwrap_err();
    assert!(unsure.is_transient() && unsure.effect == Effect::Unknown, "its node is there: {unsure}");
    for given_up in [&held, &waits] {
        assert!(matches!(release(&broken, given_up).await, Release::Unknown(_)));
    }
    waiting.abort();
    let again = broken.contend(&held, &no_patience()).await.unwrap_err();
    assert!(again.is_transient() && again.effect == Effect::None, "{again}");
    proxy.heal().unwrap();
    // Nobody asks any more.
    eventually(async || gone(&other, &held.resource).await).await;
    take(&broken, &claim("held", Share::MUTEX)).await;
}

/// Requests made in an outage are not kept until its end once their callers have left.
#[tokio::test(flavor = "multi_thread")]
async fn requests_do_not_pile_up_without_a_connection() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let broken = backend(&format!("{}?session=60s&timeout=2s", servers.url_at(proxy.addr()))).await;
    let first = claim("first", Share::MUTEX);
    take(&broken, &first).await;
    let before = requests(&servers).await;
    proxy.cut().unwrap();
    eventually(async || matches!(renew(&broken, &first).await, Renewal::Unknown(_))).await;
    for _ in 0..2 {
        let claims: Vec<_> = (0..50).map(|n| claim(&format!("outage/{n}"), Share::MUTEX)).collect();
        let asked = claims.iter().map(async |claim| {
            let failure = broken.contend(claim, &endless()).await.unwrap_err();
            assert!(failure.is_transient() && failure.effect == Effect::None, "{failure}");
            let looked = broken.inspect(&claim.resource, None, &no_patience()).await;
            assert!(looked.is_err_and(|failure| failure.is_transient()));
        });
        join_all(asked).await;
    }
    proxy.heal().unwrap();
    eventually(async || matches!(renew(&broken, &first).await, Renewal::Alive)).await;
    // The renewals of this test are a few of these; what was asked in between would be 400.
    let sent = requests(&servers).await - before;
    assert!(sent < 100, "{sent} requests came after the outage");
}

/// The client crate sets all watches again after a reconnect, and succeeds only with as many as fit in
/// one request. However many wait, what the session holds must not be lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_hundreds_of_waits_is_resumed() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let client = backend(&format!("{}?session=40s&timeout=10s", servers.url_at(proxy.addr()))).await;
    let other = backend(&format!("{}?session=40s&timeout=60s", servers.url())).await;
    let names: Vec<String> = (0..300).map(|n| format!("{n:0>500}")).collect();
    let theirs: Vec<_> = names.iter().map(|name| claim(name, Share::MUTEX)).collect();
    join_all(theirs.iter().map(|claim| hold(&other, claim))).await;
    let mut waits: Vec<_> = names
        .iter()
        .map(|name| {
            let (client, ours) = (client.clone(), claim(name, Share::MUTEX));
            tokio::spawn(async move { take(&client, &ours).await })
        })
        .collect();
    for claim in &theirs {
        eventually(async || {
            let seen = other.inspect(&claim.resource, None, &no_patience()).await.unwrap();
            seen.waiting.len() == 1
        })
        .await;
    }
    is_resumed(&client, &proxy).await;
    // Waiters without a watch notice a release, too.
    for n in (0..names.len()).step_by(30).rev() {
        assert!(matches!(release(&other, &theirs[n]).await, Release::Freed));
        waits.swap_remove(n).await.unwrap();
    }
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

/// As above, of those who wait for a register to be made.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_hundreds_of_absent_registers_is_resumed() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let client = backend(&format!("{}?session=40s&timeout=10s", servers.url_at(proxy.addr()))).await;
    let before = requests(&servers).await;
    let names: Vec<_> = (0..300).map(|n| Resource::new(&format!("{n:0>500}")).unwrap()).collect();
    let never = client.registers().unwrap().read(&names[0]).await.unwrap().stamp;
    let wait_for = |at: &Resource| {
        let (client, at, seen) = (client.clone(), at.clone(), never.clone());
        tokio::spawn(async move {
            loop {
                match client.registers().unwrap().changed(&at, &seen, &endless()).await {
                    Ok(found) => return found.value,
                    Err(failure) => assert!(failure.is_transient(), "{failure}"),
                }
            }
        })
    };
    let mut waits: Vec<_> = names.iter().map(wait_for).collect();
    // Each reads, with a `sync`, and then asks for what is not there.
    eventually(async || requests(&servers).await - before >= 3 * names.len() as u64).await;
    is_resumed(&client, &proxy).await;
    for n in (0..names.len()).step_by(30).rev() {
        let put = Put { value: Some(b"there".to_vec()), keep: None };
        assert!(client.registers().unwrap().swap(&names[n], &never, &put).await.unwrap().is_some());
        assert_eq!(waits.swap_remove(n).await.unwrap().as_deref(), Some(&b"there"[..]));
    }
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The connection ends and comes back, and what the session holds stays.
async fn is_resumed(client: &ZooKeeperBackend, proxy: &Proxy) {
    let held = claim("held", Share::MUTEX);
    hold(client, &held).await;
    proxy.cut().unwrap();
    eventually(async || matches!(renew(client, &held).await, Renewal::Unknown(_))).await;
    proxy.heal().unwrap();
    eventually(async || matches!(renew(client, &held).await, Renewal::Alive)).await;
}

/// The node was made, and its client did not get the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_making_was_not_answered_is_found_again() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let broken = backend(&servers.url_at(proxy.addr())).await;
    let other = backend(&servers.url()).await;
    // The container is there, so that the one request that is not answered is the making of the node.
    let first = claim("job", Share::permits(1, 9).unwrap());
    hold(&broken, &first).await;
    for resumes in [true, false] {
        let unsure = claim("job", Share::permits(1, 9).unwrap());
        proxy.drop_replies();
        let failure = broken.contend(&unsure, &endless()).await.unwrap_err();
        assert_eq!(failure.effect, Effect::Unknown, "{failure}");
        proxy.heal().unwrap();
        let made = async || {
            let seen = other.inspect(&unsure.resource, None, &no_patience()).await.unwrap();
            seen.holders.iter().filter(|standing| standing.id == unsure.id).count()
        };
        assert_eq!(made().await, 1, "made, and not answered");
        if resumes {
            let grant = take(&broken, &unsure).await;
            assert_eq!(made().await, 1, "one claim, one node");
            let seen = other.inspect(&unsure.resource, None, &no_patience()).await.unwrap();
            assert_eq!(seen.holders.last().unwrap().fence, grant.fence);
        }
        eventually(async || matches!(release(&broken, &unsure).await, Release::Freed | Release::Gone)).await;
        assert_eq!(made().await, 0);
    }
    eventually(async || matches!(renew(&broken, &first).await, Renewal::Alive)).await;
}

/// A child that cannot be read is beside the claim's node, which is removed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_node_beside_a_strange_one_is_removed() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let broken = backend(&format!("{}?session=20s&timeout=2s", servers.url_at(proxy.addr()))).await;
    let first = claim("job", Share::permits(1, 9).unwrap());
    take(&broken, &first).await;
    let unsure = claim("job", Share::permits(1, 9).unwrap());
    proxy.drop_replies();
    let failure = broken.contend(&unsure, &endless()).await.unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
    let other = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let acls = zookeeper_client::Acls::anyone_all();
    let persistent = zookeeper_client::CreateMode::Persistent.with_acls(acls);
    other.create("/leasehold/job/strange", b"", &persistent).await.unwrap();
    assert_eq!(other.list_children("/leasehold/job").await.unwrap().len(), 3);
    proxy.heal().unwrap();
    // Nobody asks again.
    release(&broken, &unsure).await;
    eventually(async || other.list_children("/leasehold/job").await.unwrap().len() == 2).await;
    release(&broken, &first).await;
    eventually(async || other.list_children("/leasehold/job").await.unwrap() == ["strange"]).await;
}

/// The servers refuse the end of a claim until an operator gives the right to it. Its client continues
/// to ask. The claim of another client, which it was to take away, it leaves alone after a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_was_refused_completes_in_the_background() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let url = format!("{}?session=20s", servers.url());
    let (client, other) = (backend(&url).await, backend(&url).await);
    let [ours, theirs] = ["ours", "theirs"].map(|name| claim(name, Share::MUTEX));
    hold(&client, &ours).await;
    hold(&other, &theirs).await;
    let operator = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let permit = async |permission| {
        for name in ["ours", "theirs"] {
            let acl = zookeeper_client::Acl::new(permission, zookeeper_client::AuthId::anyone());
            operator.set_acl(&format!("/leasehold/{name}"), &[acl], None).await.unwrap();
        }
    };
    permit(zookeeper_client::Permission::READ | zookeeper_client::Permission::ADMIN).await;
    let Release::Unknown(refused) = release(&client, &ours).await else { panic!("it was not refused") };
    assert_eq!((refused.kind, refused.effect), (FailureKind::Denied, Effect::Unknown), "it may end later");
    let Release::Unknown(refused) = release(&client, &theirs).await else { panic!("it was not refused") };
    assert_eq!((refused.kind, refused.effect), (FailureKind::Denied, Effect::None), "it does not end");
    // The background has tried as well.
    tokio::time::sleep(Duration::from_secs(2)).await;
    permit(zookeeper_client::Permission::ALL).await;
    eventually(async || gone(&other, &ours.resource).await).await;
    assert!(matches!(renew(&other, &theirs).await, Renewal::Alive));
}

/// In other libraries' semaphores a claim moves from one node to another. No matter which answer is
/// lost, the claim has one node, and the client finds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_found_again_whichever_answer_was_lost() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    for dialect in ["curator", "kazoo"] {
        let proxy = Proxy::start(servers.addr(0)).await.unwrap();
        let options = format!("session=20s&prefix=of-{dialect}&dialect={dialect}");
        let broken = backend(&format!("{}?{options}", servers.url_at(proxy.addr()))).await;
        let other = backend(&format!("{}?{options}", servers.url())).await;
        let share = Share::permits(1, 2).unwrap();
        let first = claim("job", share);
        hold(&broken, &first).await;
        let mut last = None;
        let mut untold = 0;
        for n in 1..=8 {
            let unsure = claim("job", share);
            proxy.cut_after_request(n);
            let asked = broken.contend(&unsure, &endless()).await;
            proxy.heal().unwrap();
            let made = async || {
                let seen = other.inspect(&unsure.resource, None, &no_patience()).await.unwrap();
                let own = |standing: &&ClaimInfo| standing.id == unsure.id;
                let fences: Vec<_> = seen.holders.iter().filter(own).map(|holder| holder.fence).collect();
                (fences, seen.waiting.iter().filter(own).count())
            };
            let (holds, waits) = made().await;
            assert!(holds.len() + waits <= 1, "{dialect} {n}: {holds:?} and {waits} that wait");
            match asked {
                Ok(step) => assert!(matches!(step, Step::Granted(_)), "{dialect} {n}: {step:?}"),
                Err(failure) => {
                    assert!(failure.is_transient(), "{dialect} {n}: {failure}");
                    // What is there is never said to be not there.
                    assert!(
                        failure.effect == Effect::Unknown || holds.is_empty(),
                        "{dialect} {n}: {failure}"
                    );
                    untold += holds.len();
                }
            }
            if n % 2 == 0 {
                let grant = take(&broken, &unsure).await;
                assert_eq!(made().await, (vec![grant.fence], 0), "{dialect} {n}: one claim, one node");
                assert!(grant.fence > last, "{dialect} {n}: {:?} after {last:?}", grant.fence);
                last = grant.fence;
            }
            eventually(async || matches!(release(&broken, &unsure).await, Release::Freed | Release::Gone))
                .await;
            assert_eq!(made().await, (Vec::new(), 0), "{dialect} {n}");
        }
        assert!(untold > 0, "{dialect}: no lease was made whose answer was lost");
        eventually(async || matches!(renew(&broken, &first).await, Renewal::Alive)).await;
        assert!(matches!(release(&broken, &first).await, Release::Freed));
    }
}

/// A node may have the claim's name and belong to a session that is about to end. It would be lost
/// without notice, so it does not count as the claim's place.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_session_is_never_adopted() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let broken = backend(&servers.url_at(proxy.addr())).await;
    let first = claim("job", Share::MUTEX);
    hold(&broken, &first).await;
    assert!(matches!(release(&broken, &first).await, Release::Freed));
    let unsure = claim("job", Share::MUTEX);
    proxy.drop_replies();
    let failure = broken.contend(&unsure, &endless()).await.unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
    // What was made, as another session would have made it.
    let other = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let container = "/leasehold/job";
    let mut made = other.list_children(container).await.unwrap();
    let made = made.pop().unwrap();
    other.delete(&format!("{container}/{made}"), None).await.unwrap();
    let options =
        zookeeper_client::CreateMode::EphemeralSequential.with_acls(zookeeper_client::Acls::anyone_all());
    let stem = made.trim_end_matches(|c: char| c.is_ascii_digit());
    let (stat, _) = other.create(&format!("{container}/{stem}"), b"", &options).await.unwrap();
    proxy.heal().unwrap();
    let grant = take(&broken, &unsure).await;
    assert!(grant.fence.unwrap().seq > stat.czxid.cast_unsigned(), "it was taken for ours");
    let left = other.list_children(container).await.unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    let (_, stat) = other.get_data(&format!("{container}/{}", left[0])).await.unwrap();
    assert!(stat.ephemeral_owner != 0 && stat.ephemeral_owner != other.session_id().0);
}

/// Everything that a session held ends with it, at once and for good; the next claim gets a new session.
#[tokio::test(flavor = "multi_thread")]
async fn session_end_is_reported_and_a_new_session_opened() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.addr(0)).await.unwrap();
    let broken = backend(&short_lived(&servers.url_at(proxy.addr()))).await;
    let other = backend(&servers.url()).await;
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        let claim = claim(name, Share::MUTEX);
        let grant = hold(&broken, &claim).await;
        held.push((claim, grant));
    }
    let blocked = claim("d", Share::MUTEX);
    hold(&other, &blocked).await;
    let waits = claim("d", Share::MUTEX);
    let waiting = tokio::spawn({
        let (broken, waits) = (broken.clone(), waits.clone());
        async move { take(&broken, &waits).await }
    });
    eventually(async || {
        other.inspect(&waits.resource, None, &no_patience()).await.unwrap().waiting.len() == 1
    })
    .await;
    proxy.blackhole(Way::Both);
    for (claim, _) in &held {
        eventually(async || gone(&other, &claim.resource).await).await;
    }
    proxy.heal().unwrap();
    for (claim, grant) in &mut held {
        let cause = tokio::time::timeout(AT_LAST, grant.lost.as_mut().unwrap().fired()).await;
        assert_eq!(cause, Ok(LossCause::SessionEnded));
        eventually(async || matches!(renew(&broken, claim).await, Renewal::Lost)).await;
        assert!(matches!(release(&broken, claim).await, Release::Gone));
    }
    // A waiter is queued again, by itself, under the new session.
    eventually(async || {
        other.inspect(&waits.resource, None, &no_patience()).await.unwrap().waiting.len() == 1
    })
    .await;
    assert!(matches!(release(&other, &blocked).await, Release::Freed));
    waiting.await.unwrap();
    hold(&broken, &claim("a", Share::MUTEX)).await;
}

/// A claim that another client breaks is lost at the next renewal, and a waiter is queued again.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_claim_is_lost_to_its_holder_alone() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let (ours, theirs) = (locks(&servers.url()).await, locks(&servers.url()).await);
    let broken = ours.mutex("a").lock().await.unwrap();
    let spared = ours.mutex("b").lock().await.unwrap();
    let seen = theirs.inspect("a").await.unwrap();
    let told = theirs.break_claim("a", &seen.holders[0]).await.unwrap();
    assert_eq!(told, leasehold::BreakOutcome::Ended { also_released: Vec::new() });
    let cause = tokio::time::timeout(AT_LAST, broken.lost()).await;
    assert_eq!(cause, Ok(LossCause::Gone));
    let next = theirs.mutex("a").try_lock_for(AT_LAST).await.unwrap().unwrap();
    assert!(next.fence() > broken.fence());
    assert_eq!(spared.state(), State::Valid);
}

/// One server of three is killed, another hangs: holders keep their locks, and the queue advances.
#[tokio::test(flavor = "multi_thread")]
async fn three_servers_lose_their_leader_and_nothing_else() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(3).await else { return };
    let url = format!("{}?session=60s", servers.url());
    // On a busy machine an election takes longer than a client usually tolerates an outage.
    let patient = async || {
        let tuning = Tuning::default().outage(AT_LAST);
        Client::builder().tuning(tuning).over(backend(&url).await).unwrap()
    };
    let (ours, theirs) = (Arc::new(patient().await), patient().await);
    let held = ours.mutex("held").lock().await.unwrap();
    let mut last = None;
    for fault in ["kill", "stop"] {
        let leader = leader(&servers).await;
        let first = ours.mutex("line").lock().await.unwrap();
        assert!(first.fence() > last, "{fault}");
        let mutex = theirs.mutex("line");
        let second = tokio::spawn(async move { mutex.lock().await.unwrap() });
        eventually(async || ours.inspect("line").await.is_ok_and(|seen| seen.waiting.len() == 1)).await;
        match fault {
            "kill" => servers.kill(leader).unwrap(),
            _ => servers.stop(leader).unwrap(),
        }
        // It may have been lost meanwhile, which is not a fault as long as it is said; it must not hold
        // beside the next.
        let fence = first.fence();
        drop(first);
        let second = tokio::time::timeout(AT_LAST, second).await.unwrap().unwrap();
        assert!(second.fence() > fence, "{fault}: fences rise over an election");
        last = second.fence();
        second.release().await.unwrap();
        match fault {
            "kill" => servers.restart(leader).await.unwrap(),
            _ => servers.resume(leader).unwrap(),
        }
    }
    assert!(held.check().is_ok(), "held through both: {:?}", held.state());
    // The server of this client may only just have found the new leader.
    eventually(async || match theirs.mutex("held").try_lock().await {
        Ok(next) => {
            assert!(next.is_none(), "granted beside a holder");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            false
        }
    })
    .await;
    assert!(held.check().is_ok(), "lost meanwhile: {:?}", held.state());
}

/// A leader that continues after a pause may not have noticed yet that another one leads.
#[tokio::test(flavor = "multi_thread")]
async fn deposed_leader_shows_no_replaced_register() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(3).await else { return };
    let leader = leader(&servers).await;
    let at = |server| format!("{}?session=60s", servers.url_at(servers.addr(server)));
    let (behind, waiter) = (backend(&at(leader)).await, backend(&at(leader)).await);
    let ahead = backend(&at((leader + 1) % 3)).await;
    let name = Resource::new("job").unwrap();
    let put = |text: &str| Put { value: Some(text.into()), keep: None };
    let never = behind.read(&name).await.unwrap().stamp;
    let old = behind.swap(&name, &never, &put("old")).await.unwrap().unwrap();

    servers.stop(leader).unwrap();
    // If an answer was lost, the next one says that the state is another one.
    eventually(async || ahead.swap(&name, &old, &put("new")).await.is_ok()).await;
    let new = read_by(ahead.clone(), name.clone(), None).await;
    assert_eq!(new.value.as_deref(), Some(&b"new"[..]));
    let read = tokio::spawn(read_by(behind, name.clone(), None));
    let waits = tokio::spawn(read_by(waiter, name.clone(), Some(new.stamp.clone())));
    // Their requests are to be there when the server continues.
    tokio::time::sleep(Duration::from_millis(100)).await;
    servers.resume(leader).unwrap();
    let limit = Duration::from_secs(120);
    let read = tokio::time::timeout(limit, read).await.unwrap().unwrap();
    assert_eq!(read.value.as_deref(), Some(&b"new"[..]));
    eventually(async || ahead.swap(&name, &new.stamp, &put("newest")).await.is_ok()).await;
    let waits = tokio::time::timeout(limit, waits).await.unwrap().unwrap();
    assert_eq!(waits.value.as_deref(), Some(&b"newest"[..]));
}

/// Reads a register until the server answers; with `seen`, waits for another state.
async fn read_by(client: Arc<ZooKeeperBackend>, name: Resource, seen: Option<Stamp>) -> Registered {
    loop {
        let found = match &seen {
            Some(seen) => client.changed(&name, seen, &endless()).await,
            None => client.read(&name).await,
        };
        match found {
            Ok(found) => return found,
            Err(failure) => assert!(failure.is_transient(), "{failure}"),
        }
    }
}

/// Servers write down the paths of all nodes of a session when it ends, and read no more than 2 MiB
/// again when they start. 1,700 long ones are more than one session is given; `LEASEHOLD_CLAIMS=4000`
/// are more than the servers would read if it were.
#[tokio::test(flavor = "multi_thread")]
async fn client_drop_with_many_claims_does_not_take_the_servers_down() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let count: usize = std::env::var("LEASEHOLD_CLAIMS").map_or(1_700, |number| number.parse().unwrap());
    let client = backend(&format!("{}?session=60s&timeout=60s", servers.url())).await;
    let claims: Vec<_> = (0..count).map(|n| claim(&format!("{n:0>500}"), Share::MUTEX)).collect();
    let mut grants = Vec::new();
    for some in claims.chunks(500) {
        grants.extend(join_all(some.iter().map(|claim| hold(&client, claim))).await);
    }
    let renews: Vec<_> =
        claims.iter().zip(&grants).map(|(claim, grant)| Renew { claim, proof: &grant.proof }).collect();
    let renewals = client.renew(&renews).await;
    assert!(renewals.iter().all(|renewal| matches!(renewal, Renewal::Alive)), "every session is renewed");
    let metric = async |name| servers.metric(0, name).await.unwrap() as usize;
    assert_eq!(metric("zk_ephemerals_count").await, count);
    assert!(metric("zk_global_sessions").await > count / 1_700, "one session has all of them");
    // It says good-bye, and gives nothing back.
    drop(client);
    for _ in 0..600 {
        if metric("zk_ephemerals_count").await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(metric("zk_ephemerals_count").await, 0);
    servers.kill(0).unwrap();
    servers.restart(0).await.expect("it reads what it wrote");
    hold(&*backend(&servers.url()).await, &claims[0]).await;
}
