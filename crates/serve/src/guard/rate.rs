//! The number of requests that one address may send.
//!
//! Ground rules: the table of addresses is bounded. What is counted is a request, so a client that waits or
//! streams costs one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};

use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

use crate::problem::{Code, Problem};

/// The rates of all addresses.
pub(super) struct Rates {
    limiter: RateLimiter<IpAddr, HashMapStateStore<IpAddr>, DefaultClock>,
    rate: u32,
    counted: AtomicUsize,
}

impl std::fmt::Debug for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rates({}/s)", self.rate)
    }
}

impl Rates {
    /// Creates the limit of `rate` requests a second for each address, with a burst of twice as many.
    pub(super) fn new(rate: u32) -> Rates {
        let rate = NonZeroU32::new(rate).unwrap_or(NonZeroU32::MIN);
        let burst = rate.saturating_mul(NonZeroU32::MIN.saturating_add(1));
        let limiter = RateLimiter::hashmap(Quota::per_second(rate).allow_burst(burst));
        Rates { limiter, rate: rate.get(), counted: AtomicUsize::new(0) }
    }

    /// Counts a request of this address; all clients of Unix sockets count as one.
    ///
    /// # Errors
    /// `too_many_requests`.
    pub(super) fn count(&self, ip: Option<IpAddr>) -> Result<(), Problem> {
        if self.counted.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.limiter.retain_recent();
        }
        self.limiter.check_key(&key_of(ip)).map_err(|_| {
            let text = format!(
                "more than {} requests a second: wait a second; to wait for a lock use ?wait= or a stream instead of \
                 asking again and again",
                self.rate
            );
            Problem::new(Code::TooManyRequests, text)
        })
    }
}

/// Returns what an address is counted under: a client of IPv6 has a whole network of them.
fn key_of(ip: Option<IpAddr>) -> IpAddr {
    match ip {
        None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Some(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_none() => {
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64))
        }
        Some(ip) => ip,
    }
}

/// After so many requests, addresses that were quiet are forgotten; so the table has at most so many more.
const SWEEP_EVERY: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_that_sends_too_much_is_refused_and_others_are_not() {
        let rates = Rates::new(5);
        let one = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
        let refused = (0..100).filter(|_| rates.count(one).is_err()).count();
        assert!(refused >= 80, "{refused}");
        assert!(rates.count(None).is_ok());
    }

    #[test]
    fn network_of_one_client_counts_as_one() {
        let ip = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        assert_eq!(key_of(ip("2001:db8::1")), key_of(ip("2001:db8::2")));
        assert_ne!(key_of(ip("2001:db8::1")), key_of(ip("2001:db8:0:1::1")));
        assert_ne!(key_of(ip("10.0.0.1")), key_of(ip("10.0.0.2")));
    }
}
