//! A way of half of the clients to the servers that Sentinels watch, which stays when the others lose theirs.
//!
//! Sentinels name each server by the one address that everybody has for it. On its way to these clients that address is
//! translated, as by a router, so that they reach each server by a proxy of their own.

use leasehold_testkit::{Proxy, RedisSentinel, Way};

use crate::Outcome;

/// The proxies of half of the clients.
pub(crate) struct OwnWay {
    sentinels: Vec<Proxy>,
    servers: Vec<Proxy>,
}

impl OwnWay {
    pub(super) async fn start(group: &RedisSentinel) -> Outcome<OwnWay> {
        let (mut servers, mut sentinels) = (Vec::new(), Vec::new());
        for number in 0..group.servers() {
            servers.push(Proxy::start(group.server(number).addr()).await?);
        }
        for number in 0..group.sentinels() {
            let sentinel = Proxy::start(group.sentinel(number).addr()).await?;
            for (number, own) in servers.iter().enumerate() {
                // The kit's ports have five digits.
                sentinel.translate(&group.addr(number).port().to_string(), &own.addr().port().to_string());
            }
            sentinels.push(sentinel);
        }
        Ok(OwnWay { sentinels, servers })
    }

    /// Returns the URL of these clients.
    pub(super) fn url(&self, group: &RedisSentinel) -> String {
        let sentinels: Vec<_> = self.sentinels.iter().map(Proxy::addr).collect();
        group.url_at(&sentinels)
    }

    /// Lets the clients hear of no Sentinel, so that they stay where they are.
    pub(crate) fn cut_off_sentinels(&self) {
        self.sentinels.iter().for_each(|sentinel| sentinel.blackhole(Way::Both));
    }

    /// Ends that.
    pub(crate) fn heal(&self) -> Outcome {
        for sentinel in &self.sentinels {
            sentinel.heal()?;
        }
        Ok(())
    }

    /// Returns how many connections these clients have to a server.
    pub(crate) fn connections(&self, server: usize) -> usize {
        self.servers[server].connections()
    }
}
