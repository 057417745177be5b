//! Primaries that are killed under load, with any kind of election: the effects on holders and fences.

use std::time::{Duration, Instant};

use leasehold::{Client, Guard};

use crate::elected::Elected;
use crate::load::{Load, TTL};
use crate::opening::{LIMIT, opened};

/// The writes that the replicas miss before the primary dies.
#[derive(Clone, Copy, Debug)]
pub enum Missed {
    /// Nothing but what was on its way.
    Nothing,
    /// Everything for so long, as when they lag behind, or when the machine goes and not the process alone.
    All(Duration),
}

#[derive(Debug, Default)]
struct Times(Vec<Duration>);

impl Times {
    fn shown(&mut self) -> String {
        self.0.sort();
        let at = |index: usize| self.0[index].as_secs_f64();
        format!("{:.1} s, {:.1} s at most", at(self.0.len() / 2), at(self.0.len() - 1))
    }
}

/// The outcome of the locks that the replicas missed.
#[derive(Debug, Default)]
struct Exposed {
    granted: usize,
    refused: usize,
    /// Granted to another client as well, while their first holder's own check said that it held.
    double: usize,
    longest: Duration,
}

/// Kills primaries of the group under load, and prints what was seen.
///
/// # Panics
/// If a fence was not above those before it, a holder did not see its loss, or locking did not continue.
pub async fn kill_primaries(group: &Elected, options: &str, missed: Missed) {
    let failovers: usize = std::env::var("LEASEHOLD_FAILOVERS").map_or(1, |number| number.parse().unwrap());
    let url = format!("{}?timeout=2s{options}", group.url());
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(opened(&url).await);
    }
    let load = Load::begin(&clients, 16, group.names("load", 40).await);
    let (mut own, mut until_granted, mut notified) = (Times::default(), Times::default(), 0);
    let mut exposed = Exposed::default();
    for round in 0..failovers {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let watched = watch(&clients[0], group.names(&format!("watched/{round}"), 10).await).await;
        let names = group.names("exposed", EXPOSED).await;
        let epoch = load.seen().epochs.last_key_value().map_or(0, |(epoch, _)| *epoch);
        let (old, unreplicated) = kill(group, missed, &clients[2], &names, &mut exposed).await;
        let killed = Instant::now();
        let rivals = unreplicated.into_iter().map(|guard| tokio::spawn(rival(clients[1].clone(), guard)));
        let rivals: Vec<_> = rivals.collect();
        group.promoted(old).await;
        own.0.push(killed.elapsed());
        let first = first_grant(&load, epoch + 1).await;
        until_granted.0.push(first.saturating_duration_since(killed));
        notified += count_notified(&clients[1], &watched).await;
        for rival in rivals {
            if let Some(time) = rival.await.unwrap() {
                exposed.double += 1;
                exposed.longest = exposed.longest.max(time);
            }
        }
        for guard in watched {
            // Lost or not: it is released.
            let _ = guard.release().await;
        }
        group.restore(old).await;
    }
    let seen = load.end().await;
    println!(
        "{failovers} failovers, replicas missed {missed:?}, options {options:?}: {} grants, {} double grants, the longest for {:.1} s; \
         {} guards lost, {notified} of those watched; {} refusals; {exposed:?}; the failovers took {}; granted again after {}",
        seen.grants,
        seen.doubles,
        seen.longest_double.as_secs_f64(),
        seen.losses,
        seen.failures,
        own.shown(),
        until_granted.shown(),
    );
    assert!(seen.longest_double < TTL, "a holder did not see its loss for {:?}", seen.longest_double);
    assert!(exposed.longest < EXPOSED_TTL, "a holder did not see its loss for {:?}", exposed.longest);
    let slack = Duration::from_secs(30);
    let last = |times: &Times| *times.0.last().unwrap();
    assert!(last(&until_granted) < last(&own) + slack, "acquisitions waited for more than the failover");
}

/// The ttl of the locks that the replicas miss: they are not renewed before a failover is done.
const EXPOSED_TTL: Duration = Duration::from_secs(10);

/// The number of locks that are tried for while the replicas miss everything.
const EXPOSED: usize = 5;

/// Takes locks that stay held over the failover.
async fn watch(client: &Client, names: Vec<String>) -> Vec<Guard> {
    let mut guards = Vec::new();
    for name in names {
        let mutex = client.mutex(&name).ttl(TTL);
        guards.push(mutex.try_lock_for(Duration::from_secs(10)).await.unwrap().unwrap());
    }
    guards
}

/// Kills the primary, and takes some locks before that its replicas miss, if they miss anything. Returns the primary
/// and these locks.
async fn kill(
    group: &Elected,
    missed: Missed,
    client: &Client,
    names: &[String],
    exposed: &mut Exposed,
) -> (usize, Vec<Guard>) {
    let (mut unreplicated, mut parted) = (Vec::new(), Vec::new());
    // Asked for this late: a busy machine may have failed over by itself meanwhile.
    let (old, replicas) = followed(group).await;
    if let Missed::All(time) = missed {
        parted = replicas;
        group.part(old, &parted).await;
        let begun = Instant::now();
        for name in names {
            let mutex = client.mutex(name).ttl(EXPOSED_TTL);
            match tokio::time::timeout(time, mutex.try_lock()).await {
                Ok(Ok(Some(guard))) => unreplicated.push(guard),
                // Where a replica has to confirm.
                _ => exposed.refused += 1,
            }
        }
        exposed.granted += unreplicated.len();
        tokio::time::sleep(time.saturating_sub(begun.elapsed())).await;
    }
    group.kill(old, &parted);
    (old, unreplicated)
}

/// Returns the primary and its replicas, of one and the same moment.
async fn followed(group: &Elected) -> (usize, Vec<usize>) {
    let begun = Instant::now();
    loop {
        let primary = group.primary().await;
        let replicas = group.replicas(primary).await;
        if !replicas.is_empty() && group.primary().await == primary {
            return (primary, replicas);
        }
        assert!(begun.elapsed() < LIMIT, "nothing follows server {primary}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Requests a lock that is held. Returns the time for which two clients held it by their own checks, if
/// they did; the fence of the second is greater.
async fn rival(client: Client, holder: Guard) -> Option<Duration> {
    let mutex = client.mutex(holder.resource().as_str()).ttl(TTL);
    let begun = Instant::now();
    let guard = loop {
        match mutex.try_lock_for(Duration::from_secs(20)).await {
            Ok(Some(guard)) => break guard,
            // No server decides.
            Err(error) if begun.elapsed() > LIMIT => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            missed => {
                assert!(holder.remaining() > Duration::ZERO, "{missed:?}, although nobody holds it");
                assert!(begun.elapsed() < LIMIT * 2, "it was replicated after all: its holder renews it");
            }
        }
    };
    assert!(guard.fence() > holder.fence(), "{:?}, then {:?}", holder.fence(), guard.fence());
    let granted = Instant::now();
    let doubled = holder.check().is_ok();
    holder.lost().await;
    let time = granted.elapsed();
    // On a busy machine its lease may have ended.
    let _ = guard.release().await;
    doubled.then_some(time)
}

async fn first_grant(load: &Load, epoch: u64) -> Instant {
    let begun = Instant::now();
    loop {
        if let Some((_, at)) = load.seen().epochs.range(epoch..).next() {
            return *at;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing is granted under the new primary");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Checks that the new primary knows every client that believes to hold, and that each other one has
/// seen its loss. Returns the number of these.
async fn count_notified(client: &Client, watched: &[Guard]) -> usize {
    let begun = Instant::now();
    while !is_notified(client, watched).await {
        assert!(begun.elapsed() < TTL * 10, "a holder has lost its lock, and does not see it");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    watched.iter().filter(|guard| guard.check().is_err()).count()
}

async fn is_notified(client: &Client, watched: &[Guard]) -> bool {
    for guard in watched {
        // A machine that is busy with other tests may fail over once more.
        let Ok(seen) = client.inspect(guard.resource().as_str()).await else { return false };
        let is_known = seen.holders.iter().any(|holder| holder.fence == guard.fence());
        if !is_known && guard.check().is_ok() {
            return false;
        }
    }
    true
}
