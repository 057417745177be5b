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

/// The session timeout that clients request and get in these tests: eight ticks of the test servers.
pub const SESSION: Duration = Duration::from_secs(4);

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

/// A backend with short sessions, unless the URL says otherwise.
pub async fn backend(url: &str) -> Arc<ZooKeeperBackend> {
    let url = if url.contains('?') { url.to_owned() } else { format!("{url}?session=4s") };
    Arc::new(ZooKeeperBackend::connect(ZooKeeperConfig::parse(&url).unwrap()).await.unwrap())
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

/// Looks once, and must be granted.
pub async fn hold(backend: &ZooKeeperBackend, claim: &Claim) -> Grant {
    match backend.contend(claim, &no_patience()).await.unwrap() {
        Step::Granted(grant) => grant,
        Step::Busy(hint) => panic!("busy: {hint:?}"),
    }
}

/// Asks again while the answer is a failure that may pass.
pub async fn take(backend: &ZooKeeperBackend, claim: &Claim) -> Grant {
    for _ in 0..200 {
        match backend.contend(claim, &endless()).await {
            Ok(Step::Granted(grant)) => return grant,
            Ok(Step::Busy(_)) => {}
            Err(failure) if failure.is_transient() => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(failure) => panic!("{failure}"),
        }
    }
    panic!("never granted");
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

/// Waits until it is so.
pub async fn eventually(so: impl AsyncFn() -> bool) {
    for _ in 0..600 {
        if so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came");
}
