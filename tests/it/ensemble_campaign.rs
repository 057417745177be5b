//! Ensembles that lose their leader, servers that hang, clients that are cut off and holders that are
//! paused, all under load.
//!
//! A register that checks fences never sees two valid holders; every loss is reported before the next
//! grant; the queue moves on. Short by default; `docs/book/src/track-record.md` reports on
//! `LEASEHOLD_CAMPAIGN=whole`.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{Durability, Fence};
use leasehold_testkit::peers::Peer;
use leasehold_testkit::{Proxy, Way};
use leasehold_tests::{Campaign, Ensemble, campaign::NAME, opened};

/// Of a lease, or of a session.
const TTL: Duration = Duration::from_secs(2);

/// The time for which a deposed leader of etcd may continue to propose revocations: 5 s and two timeouts of an election,
/// and one more until everybody sees them.
const REVOKES: Duration = Duration::from_secs(8);

/// The time after another holder's grant by which a client was told of its loss, on a busy machine. Its other lock may
/// have been renewed later.
const TOLD: Duration = Duration::from_secs(5);

/// The number of times that each fault happens.
fn rounds(short: usize, whole: usize) -> usize {
    if std::env::var("LEASEHOLD_CAMPAIGN").is_ok_and(|length| length == "whole") { whole } else { short }
}

async fn campaign(store: &str, ensemble: Ensemble) {
    let began = Instant::now();
    let campaign = Campaign::start(ensemble, TTL).await;
    campaign.moves_on(20).await;
    campaign.referee.take_gap();
    leaders_are_killed(store, &campaign, rounds(2, 20)).await;
    servers_hang(store, &campaign, rounds(1, 5)).await;
    a_client_is_cut_off(store, &campaign, rounds(1, 5)).await;
    a_holder_is_paused(store, &campaign, rounds(1, 5)).await;
    campaign.moves_on(20).await;
    let counts = campaign.referee.counts();
    let others = campaign.finish().await;
    println!("{store}: {counts:?}, {others} cycles of other locks, {:.0?}", began.elapsed());
}

fn report(store: &str, what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{store}: {what}: {} times, median {median:.1?}, longest {longest:.1?}", times.len());
}

async fn leaders_are_killed(store: &str, campaign: &Campaign, rounds: usize) {
    let mut gaps = Vec::new();
    for _ in 0..rounds {
        let leader = campaign.ensemble.leader().await;
        campaign.referee.take_gap();
        campaign.ensemble.kill(leader).unwrap();
        campaign.moves_on(10).await;
        gaps.push(campaign.referee.take_gap());
        campaign.ensemble.restart(leader).await.unwrap();
        campaign.moves_on(10).await;
    }
    report(store, "leader killed, longest time without a grant", &mut gaps);
}

/// The leader first, then one that follows, past every lease.
///
/// A leader of etcd before 3.4.31 and 3.5.13 that resumes can revoke leases that its successor has renewed, and the
/// profile says so. It proposes them for up to [`REVOKES`], also by way of the new leader. A server that is stopped
/// meanwhile keeps its proposals until it resumes, so the deposed one is not the next to hang.
async fn servers_hang(store: &str, campaign: &Campaign, rounds: usize) {
    let client = opened(&campaign.ensemble.url(TTL)).await;
    let may_revoke = client.profile().durability == Durability::LostOnFailover;
    client.close(TTL).await;
    let mut gaps = Vec::new();
    let mut deposed = None;
    for round in 0..rounds * 2 {
        let is_leader = round % 2 == 0;
        let elections = campaign.ensemble.elections().await;
        let leader = campaign.ensemble.leader().await;
        let follower = [1, 2].map(|next| (leader + next) % 3).into_iter().find(|one| deposed != Some(*one));
        let server = if is_leader { leader } else { follower.unwrap_or(leader) };
        campaign.referee.expect_overlaps(may_revoke && is_leader);
        campaign.referee.take_gap();
        campaign.ensemble.stop(server).unwrap();
        tokio::time::sleep(TTL + TTL / 2).await;
        // An election between the look and the stop has made the follower the leader.
        let witness = (server + 1) % 3;
        let was_leader = is_leader || campaign.ensemble.elections_of(witness).await != elections[witness];
        campaign.referee.expect_overlaps(may_revoke && was_leader);
        campaign.moves_on(10).await;
        campaign.ensemble.resume(server).unwrap();
        campaign.moves_on(10).await;
        deposed = was_leader.then_some(server);
        if may_revoke && was_leader {
            tokio::time::sleep(REVOKES).await;
        }
        campaign.referee.expect_overlaps(false);
        gaps.push(campaign.referee.take_gap());
    }
    report(store, "server stopped and continued, longest time without a grant", &mut gaps);
}

async fn a_client_is_cut_off(store: &str, campaign: &Campaign, rounds: usize) {
    let mut proxies = Vec::new();
    for addr in campaign.ensemble.addrs() {
        proxies.push(Proxy::start(addr).await.unwrap());
    }
    let addrs: Vec<_> = proxies.iter().map(Proxy::addr).collect();
    let locks = opened(&campaign.ensemble.url_at(&addrs, TTL)).await;
    let mut told = Vec::new();
    for _ in 0..rounds {
        let guard = Arc::new(locks.mutex(NAME).ttl(TTL).lock().await.unwrap());
        campaign.referee.enter(&guard);
        // Nobody looks at this one. A look, as the referee's, reports the loss that nobody was told of.
        let unseen = locks.mutex("unseen").ttl(TTL).lock().await.unwrap();
        let hearing = tokio::spawn(async move {
            unseen.lost().await;
            unseen
        });
        tokio::time::sleep(TTL / 3).await;
        proxies.iter().for_each(|proxy| proxy.blackhole(Way::Both));
        let cut_at = Instant::now();
        // The others continue only when its lease or session has ended; the referee checks this guard at
        // that moment.
        campaign.moves_on(1).await;
        tokio::time::timeout(TOLD, guard.lost()).await.expect("it is told of its loss");
        let unseen = tokio::time::timeout(TOLD, hearing).await.expect("it is told of its loss").unwrap();
        assert!(guard.check().is_err(), "it holds, and another does");
        told.push(cut_at.elapsed());
        campaign.referee.leave(&guard);
        for proxy in &proxies {
            proxy.heal().unwrap();
        }
        assert!(Arc::into_inner(guard).unwrap().release().await.unwrap_err().is_lost());
        assert!(unseen.release().await.unwrap_err().is_lost());
        campaign.moves_on(10).await;
    }
    report(store, "client cut off from all servers, time until another holds", &mut told);
    locks.close(TTL).await;
}

async fn a_holder_is_paused(store: &str, campaign: &Campaign, rounds: usize) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holder"));
    command.arg(campaign.ensemble.url(TTL)).arg(NAME).arg(TTL.as_millis().to_string());
    command.arg(campaign.register());
    let peer = Arc::new(Mutex::new(Peer::start(command).unwrap()));
    let ask = async |order: &'static str| {
        let peer = peer.clone();
        tokio::task::spawn_blocking(move || peer.lock().unwrap().ask(order).unwrap()).await.unwrap()
    };
    let mut paused = Vec::new();
    for _ in 0..rounds {
        // On a busy machine its lease may end before it has written.
        let mut tries = 0;
        while !writes_elsewhere(campaign, &ask).await {
            assert_eq!(ask("release").await, "lost");
            tries += 1;
            assert!(tries < 10, "each lease ended before its holder had written");
        }
        peer.lock().unwrap().stop().unwrap();
        let stopped_at = Instant::now();
        campaign.moves_on(3).await;
        paused.push(stopped_at.elapsed());
        peer.lock().unwrap().resume().unwrap();
        // The very first thing that it does is to look at the clock, and the second to write.
        if ask("check").await != "lost" {
            campaign.referee.accuse("a holder that was paused past its lease believes that it holds");
        }
        assert_eq!(ask("write").await, "refused");
        assert_eq!(ask("release").await, "lost");
        campaign.moves_on(5).await;
    }
    report(store, "holder paused, time until three others held", &mut paused);
}

/// Lets another process acquire the lock and write. Returns `true` if the lock is valid after that.
async fn writes_elsewhere(campaign: &Campaign, ask: &impl AsyncFn(&'static str) -> String) -> bool {
    let held = ask("lock").await;
    let fence: Fence = held.strip_prefix("held ").unwrap().parse().unwrap();
    let is_newest = campaign.referee.enter_elsewhere(fence);
    let is_written = ask("write").await == "written";
    if is_written {
        campaign.written_elsewhere();
    }
    let is_valid = ask("check").await == "valid";
    if is_valid && !(is_newest && is_written) {
        campaign.referee.accuse("a holder that another one has overtaken believes that it holds");
    }
    is_valid
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_never_has_two_holders() {
    let Some(ensemble) = Ensemble::etcd().await else { return };
    campaign("etcd", ensemble).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_never_has_two_holders() {
    let Some(ensemble) = Ensemble::zookeeper().await else { return };
    campaign("zookeeper", ensemble).await;
}
