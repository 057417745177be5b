//! Helpers of this crate's tests: clients, claims, patience and a clock.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test program uses its own part")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::backend::{
    Backend, Claim, ClaimId, Clock, Grant, Moment, Note, Patience, Proof, Release, Renew, Renewal, Resource,
    Share, Step,
};
use leasehold_testkit::ZooKeeperEnsemble;
use leasehold_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

/// The session timeout of the clients whose session has to end in a test: eight ticks of the test servers.
///
/// Too short for others: a client leaves a server that is silent for a sixth of it, as servers on a busy machine
/// are.
pub const SESSION: Duration = Duration::from_secs(4);

/// The time in which what has to come comes on the busiest machine.
pub const AT_LAST: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Ticking(Instant);

impl Clock for Ticking {
    fn now(&self) -> Moment {
        Moment::START.after(self.0.elapsed())
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(Ticking(Instant::now()))
}

/// Connects. The session outlasts the pauses of a busy machine, unless the URL says otherwise. Tries again while
/// a server that has just started answers later than the URL allows for.
pub async fn backend(url: &str) -> Arc<ZooKeeperBackend> {
    let url = if url.contains('?') { url.to_owned() } else { format!("{url}?session=20s") };
    let config = ZooKeeperConfig::parse(&url).unwrap();
    let limit = Instant::now() + AT_LAST;
    loop {
        match ZooKeeperBackend::connect(config.clone()).await {
            Ok(backend) => return Arc::new(backend),
            Err(failure) if failure.is_transient() && Instant::now() < limit => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// Returns the URL of a client whose session ends [`SESSION`] after its last sign of life.
pub fn short_lived(url: &str) -> String {
    format!("{url}?session={}s", SESSION.as_secs())
}

/// A client of its own, as another process would be.
pub async fn locks(url: &str) -> Client {
    Client::builder().over(backend(url).await).unwrap()
}

pub fn no_patience() -> Patience {
    Patience::none(clock())
}

pub fn endless() -> Patience {
    Patience::unlimited(clock())
}

pub fn claim(name: &str, share: Share) -> Claim {
    let mut id = [0; 16];
    getrandom::fill(&mut id).unwrap();
    Claim::new(ClaimId::from_bytes(id), Resource::new(name).unwrap(), share, Duration::from_secs(1))
        .note(Note::new("a test").unwrap())
}

/// Looks, and must be granted at the first answer. Asks again while the answer is a failure that may pass.
pub async fn hold(backend: &ZooKeeperBackend, claim: &Claim) -> Grant {
    match settled(backend, claim, &no_patience()).await {
        Step::Granted(grant) => grant,
        Step::Busy(hint) => panic!("busy: {hint:?}"),
    }
}

/// Waits until it is granted. Asks again while the answer is a failure that may pass.
pub async fn take(backend: &ZooKeeperBackend, claim: &Claim) -> Grant {
    for _ in 0..200 {
        if let Step::Granted(grant) = settled(backend, claim, &endless()).await {
            return grant;
        }
    }
    panic!("never granted");
}

/// Returns the first answer that is not a failure that may pass, asking for the same claim.
async fn settled(backend: &ZooKeeperBackend, claim: &Claim, patience: &Patience) -> Step {
    let mut failing_since = None;
    loop {
        match backend.contend(claim, patience).await {
            Ok(step) => return step,
            Err(failure) => {
                let since = failing_since.get_or_insert_with(Instant::now).elapsed();
                assert!(failure.is_transient() && since < AT_LAST, "after {since:?}: {failure}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn release(backend: &ZooKeeperBackend, claim: &Claim) -> Release {
    backend.release(&[claim]).await.pop().unwrap()
}

pub async fn renew(backend: &ZooKeeperBackend, claim: &Claim) -> Renewal {
    backend.renew(&[Renew { claim, proof: &Proof::none() }]).await.pop().unwrap()
}

/// Returns `true` if the server says so.
pub async fn gone(backend: &ZooKeeperBackend, resource: &Resource) -> bool {
    match backend.inspect(resource, None, &no_patience()).await {
        Ok(seen) => seen.holders.is_empty() && seen.waiting.is_empty(),
        Err(failure) if failure.is_transient() => false,
        Err(failure) => panic!("{failure}"),
    }
}

/// Returns the number of requests that all clients of a server have sent, without pings: a slower test
/// has more of those.
pub async fn requests(servers: &ZooKeeperEnsemble) -> u64 {
    let answer = servers.ask(0, "cons").await.unwrap();
    let counts = answer.split("lcxid=0x").skip(1).map(|rest| {
        let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap();
        u64::from_str_radix(digits, 16).unwrap()
    });
    counts.sum()
}

/// Returns the server that leads; waits for an election to end.
pub async fn leader(servers: &ZooKeeperEnsemble) -> usize {
    let limit = Instant::now() + AT_LAST;
    loop {
        match servers.leader().await {
            Some(leader) => return leader,
            None => assert!(Instant::now() < limit, "no server leads"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until it is so. An election on a busy machine takes half a minute; a session of a minute has not ended
/// by the limit.
pub async fn eventually(so: impl AsyncFn() -> bool) {
    for _ in 0..2_000 {
        if so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came");
}
