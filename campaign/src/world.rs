//! A store that runs for one history: its servers, the networks before them, and what can be done to them.
//!
//! Ground rules: every server is one of the test kit, which ends it no matter how the campaign ends. Half of the
//! workers use one network, half another, so that a fault can hit one half alone.

mod c_program;
mod clock;
mod effect;
mod nodes;
mod operations;
mod own_way;
mod redis;
mod servers;
mod slow_disk;
mod sql;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::{Directory, Proxy, SmallDisk, Way};

use crate::{Outcome, Store};
use own_way::OwnWay;
use slow_disk::SlowDisk;

pub use clock::ClockShim;
pub use effect::{Effect, Target};
pub use servers::Servers;

/// The preparations before the servers start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// A standby or a replica that can be promoted.
    pub standby: bool,
    /// A pooler between the clients and the server.
    pub pooler: bool,
    /// Little memory or disk.
    pub small: bool,
    /// A wall clock that can be moved.
    pub clock: bool,
    /// Wall clocks of the clients of one network that can be moved.
    pub client_clock: bool,
    /// A place in memory for what is in files.
    pub in_memory: bool,
    /// A user of the clients' own, who can be locked out.
    pub user: bool,
    /// Connections with TLS.
    pub tls: bool,
    /// A file of changes that survives a kill, where the server has none by itself.
    pub durable: bool,
    /// A disk that can become slow, and that what is confirmed has reached.
    pub slow_disk: bool,
    /// A way of half of the clients to servers that Sentinels watch.
    pub own_way: bool,
}

/// A running store.
pub struct World {
    /// Its kind.
    pub store: Store,
    /// The preparations.
    pub needs: Needs,
    // Dropped in this order: nothing is passed on to a server that has ended.
    networks: [Vec<Proxy>; 2],
    pub(crate) own_way: Option<Box<OwnWay>>,
    pub(crate) servers: Servers,
    pub(crate) clock: Option<ClockShim>,
    pub(crate) slow_disk: Option<SlowDisk>,
    /// The file system of files that may be full.
    pub(crate) disk: Option<SmallDisk>,
    _directory: Option<Directory>,
}

/// The room for files that may be full: several times what they take.
const SMALL_DISK_MB: u32 = 16;

/// One of the two networks before the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The one of workers with an even number.
    Even,
    /// The one of the others.
    Odd,
}

impl Network {
    /// Returns the network of a worker.
    pub fn of(worker: usize) -> Network {
        if worker.is_multiple_of(2) { Network::Even } else { Network::Odd }
    }

    /// Picks a network by a number.
    pub fn pick(number: u64) -> Network {
        if number.is_multiple_of(2) { Network::Even } else { Network::Odd }
    }

    fn index(self) -> usize {
        match self {
            Network::Even => 0,
            Network::Odd => 1,
        }
    }
}

impl World {
    /// Starts the servers of a store.
    ///
    /// # Errors
    /// [`leasehold_testkit::Error`], which says if a program is missing.
    pub async fn start(store: Store, needs: Needs) -> Outcome<World> {
        let disk = match needs.small && store.is_embedded() {
            true => Some(SmallDisk::mount("campaign", SMALL_DISK_MB)?),
            false => None,
        };
        let directory = match store {
            _ if disk.is_some() => None,
            Store::File | Store::Sqlite if needs.in_memory => Some(Directory::create_in_memory("campaign")?),
            Store::Sqlite => Some(Directory::create_in_memory("campaign")?),
            Store::File => Some(Directory::create("campaign")?),
            _ => None,
        };
        let clock = if needs.clock || needs.client_clock { Some(ClockShim::build()?) } else { None };
        let of_servers = clock.as_ref().filter(|_| needs.clock);
        let slow_disk = if needs.slow_disk { Some(SlowDisk::build()?) } else { None };
        let path = directory.as_ref().map(Directory::path).or(disk.as_ref().map(SmallDisk::path));
        let servers = Servers::start(store, needs, path, of_servers, slow_disk.as_ref()).await?;
        let mut networks = [Vec::new(), Vec::new()];
        for network in &mut networks {
            for addr in servers.entrances() {
                network.push(Proxy::start(addr).await?);
            }
        }
        let own_way = match &servers {
            Servers::Sentinel(group) if needs.own_way => Some(Box::new(OwnWay::start(group).await?)),
            _ => None,
        };
        let _directory = directory;
        let world = World { store, needs, networks, own_way, servers, clock, slow_disk, disk, _directory };
        if store == Store::Redlock {
            world.arm().await?;
        }
        if store == Store::Memcached {
            world.await_use().await?;
        }
        Ok(world)
    }

    /// Returns the URL by which the workers of a network reach the store.
    pub fn url(&self, network: Network) -> String {
        if let (Network::Odd, Some(way), Servers::Sentinel(group)) = (network, &self.own_way, &self.servers) {
            return self.with_options(&way.url(group));
        }
        let addrs: Vec<SocketAddr> = self.networks[network.index()].iter().map(Proxy::addr).collect();
        self.with_options(&self.of_user(self.servers.url_at(&addrs)))
    }

    /// Puts the user of the clients' own into a URL, where there is one.
    fn of_user(&self, url: String) -> String {
        match self.needs.user {
            true if self.store == Store::Etcd => url.replacen("://", "://jobs:secret@", 1),
            true => url.replacen("://postgres@", "://jobs@", 1).replacen("://root@", "://jobs@", 1),
            false => url,
        }
    }

    /// Returns the URL that no fault of a network reaches.
    pub fn direct_url(&self) -> String {
        self.with_options(&self.of_user(self.servers.url_at(&self.servers.entrances())))
    }

    /// Returns the URL as [`World::direct_url`] does, with the time for answers that a busy machine needs.
    pub fn patient_url(&self) -> String {
        let url = self.direct_url();
        let Some((before, after)) = url.split_once("timeout=") else { return url };
        let after = after.split_once('&').map_or(String::new(), |(_, rest)| format!("&{rest}"));
        format!("{before}timeout=10s{after}")
    }

    /// Adds the options that let a fault outlast a timeout often.
    fn with_options(&self, url: &str) -> String {
        let silence = format!("silence={}ms", self.store.ttl().as_millis());
        let options = match self.store {
            Store::File | Store::Sqlite => String::new(),
            Store::Redis | Store::Memcached => "timeout=500ms".to_owned(),
            Store::Sentinel | Store::Cluster => "timeout=1s".to_owned(),
            Store::Redlock => "timeout=300ms&max-ttl=3s".to_owned(),
            Store::Etcd => "timeout=2s".to_owned(),
            Store::ZooKeeper => format!("session={}ms", self.store.ttl().as_millis()),
            Store::Postgres | Store::MariaDb => "timeout=700ms".to_owned(),
            Store::PostgresAdvisory => format!("method=advisory&{silence}&timeout=700ms"),
            Store::PostgresForUpdate | Store::MariaDbForUpdate => {
                format!("method=for-update&{silence}&timeout=700ms&transactions=200")
            }
            Store::MariaDbGetLock => format!("method=get-lock&{silence}&timeout=700ms"),
        };
        match (options.is_empty(), url.contains('?')) {
            (true, _) => url.to_owned(),
            (false, true) => format!("{url}&{options}"),
            (false, false) => format!("{url}?{options}"),
        }
    }

    /// Waits until a server that has just been started is used.
    async fn await_use(&self) -> Outcome {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            match self.client().await {
                Ok(locks) => {
                    locks.close(Duration::from_secs(5)).await;
                    return Ok(());
                }
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Opens a client that no fault of a network reaches.
    ///
    /// # Errors
    /// Those of [`Client::open`].
    pub async fn client(&self) -> Outcome<Client> {
        Ok(Client::open(&self.direct_url()).await?)
    }

    /// Returns how many connections of a network are open.
    pub fn connections(&self, network: Network) -> usize {
        self.proxies(network).iter().map(|proxy| proxy.connections()).sum()
    }

    /// Returns how much the faults of both networks have done to what passed, in bytes, answers and connections.
    pub fn touched(&self) -> u64 {
        let both = self.networks.iter().flatten().map(Proxy::touched).sum::<u64>();
        both + self.servers.own_proxies().into_iter().map(Proxy::touched).sum::<u64>()
    }

    /// Returns `true` if the networks are those of clients alone, and no server needs them.
    pub fn has_own_networks(&self) -> bool {
        self.servers.own_proxies().is_empty()
    }

    /// Drops what passes that way, on one network.
    pub fn blackhole(&self, network: Network, way: Way) {
        self.proxies(network).iter().for_each(|proxy| proxy.blackhole(way));
    }

    /// Keeps what the servers send on one network, for later.
    pub fn hold_answers(&self, network: Network) {
        self.proxies(network).iter().for_each(|proxy| proxy.hold(Way::ToClient));
    }

    /// Replaces what the servers send on one network by nonsense.
    pub fn garble_answers(&self, network: Network) {
        self.proxies(network).iter().for_each(|proxy| proxy.garble(Way::ToClient));
    }

    /// Delays what passes on one network.
    pub fn delay(&self, network: Network, delay: Duration) {
        self.proxies(network).iter().for_each(|proxy| proxy.delay(Way::Both, delay));
    }

    /// Loses the answer to one of the next requests on each connection of one network.
    pub fn lose_an_answer(&self, network: Network, after: u64) {
        let proxies = self.proxies(network);
        proxies.iter().for_each(|proxy| proxy.cut_after_request(after.max(1)));
    }

    /// Closes all connections of one network, and refuses new ones.
    ///
    /// # Errors
    /// If a proxy has ended.
    pub fn reset(&self, network: Network) -> Outcome {
        for proxy in self.proxies(network) {
            proxy.cut()?;
        }
        Ok(())
    }

    /// Ends all faults of both networks, and of what the servers have before them.
    ///
    /// # Errors
    /// If a port was taken meanwhile.
    pub fn heal_networks(&self) -> Outcome {
        for proxy in self.proxies(Network::Even).into_iter().chain(self.proxies(Network::Odd)) {
            proxy.heal()?;
        }
        Ok(())
    }

    /// Leads new connections of one network to other servers.
    pub fn lead_to(&self, network: Network, addrs: &[SocketAddr]) {
        for (proxy, addr) in self.networks[network.index()].iter().zip(addrs) {
            proxy.set_upstream(*addr);
        }
    }

    /// Returns the proxies of a network. Sentinel has one network, which its servers share.
    fn proxies(&self, network: Network) -> Vec<&Proxy> {
        match self.servers.own_proxies() {
            own if own.is_empty() => self.networks[network.index()].iter().collect(),
            own => own,
        }
    }
}
