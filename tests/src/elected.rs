//! Groups of Redis servers that replace a primary by a replica, for campaigns that do not care which
//! kind it is.

use std::time::Duration;

use leasehold_testkit::{Data, RedisCluster, RedisSentinel, RedisServer};

/// A group whose primary is elected.
pub enum Elected {
    /// The locks lie in the first third of the slots, which are handed over together.
    Cluster(Box<RedisCluster>),
    Sentinel(Box<RedisSentinel>),
}

impl Elected {
    /// Starts three primaries with so many replicas each. `None`, with the reason printed, if no server
    /// is installed.
    pub async fn cluster(replicas: usize) -> Option<Elected> {
        let builder = RedisCluster::builder().replicas(replicas).node_timeout(SILENCE);
        let cluster = builder.start_or_skip().await?;
        Some(Elected::Cluster(Box::new(cluster)))
    }

    /// Starts a primary, two replicas and three Sentinels. `None`, with the reason printed, if no server
    /// is installed.
    pub async fn sentinel() -> Option<Elected> {
        let sentinel = RedisSentinel::start_or_skip().await?;
        Some(Elected::Sentinel(Box::new(sentinel)))
    }

    pub fn url(&self) -> String {
        match self {
            Elected::Cluster(cluster) => cluster.url(),
            Elected::Sentinel(group) => group.url(),
        }
    }

    /// Names that begin so and that the campaign's primary decides over.
    pub async fn names(&self, prefix: &str, count: usize) -> Vec<String> {
        let mut names = Vec::with_capacity(count);
        for number in 0.. {
            let name = format!("{prefix}/{number}");
            if names.len() == count {
                break;
            }
            if self.decides_over(&name).await {
                names.push(name);
            }
        }
        names
    }

    async fn decides_over(&self, name: &str) -> bool {
        match self {
            Elected::Cluster(cluster) => cluster.slot_of(&format!("lh:{name}")).await.unwrap() < FIRST_THIRD,
            Elected::Sentinel(_) => true,
        }
    }

    /// Returns the server that decides over them now.
    pub async fn primary(&self) -> usize {
        match self {
            Elected::Cluster(cluster) => cluster.primary_of(0).await.unwrap(),
            Elected::Sentinel(group) => group.primary().await.unwrap(),
        }
    }

    /// Returns the replicas of the primary.
    pub async fn replicas(&self, primary: usize) -> Vec<usize> {
        match self {
            Elected::Cluster(cluster) => {
                let port = cluster.member(primary).port().to_string();
                let mut replicas = Vec::new();
                for member in 0..cluster.members() {
                    let followed = cluster.member(member).info_field("master_port").await.unwrap();
                    replicas.extend((followed.as_deref() == Some(&port)).then_some(member));
                }
                replicas
            }
            Elected::Sentinel(group) => (0..group.servers()).filter(|server| *server != primary).collect(),
        }
    }

    /// Cuts these replicas off from the primary, until it is killed.
    pub async fn part(&self, primary: usize, replicas: &[usize]) {
        for replica in replicas {
            match self {
                Elected::Cluster(cluster) => cluster.stop(*replica).unwrap(),
                Elected::Sentinel(group) => group.stop(*replica).unwrap(),
            }
        }
        // What waits in sockets would arrive after all.
        self.server(primary).command(&["CLIENT", "KILL", "TYPE", "replica"]).await.unwrap();
    }

    /// Kills the primary; replicas that were cut off continue.
    pub fn kill(&self, primary: usize, parted: &[usize]) {
        match self {
            Elected::Cluster(cluster) => cluster.kill(primary).unwrap(),
            Elected::Sentinel(group) => group.kill(primary).unwrap(),
        }
        for replica in parted {
            match self {
                Elected::Cluster(cluster) => cluster.resume(*replica).unwrap(),
                Elected::Sentinel(group) => group.resume(*replica).unwrap(),
            }
        }
    }

    /// Waits for another primary.
    pub async fn promoted(&self, old: usize) -> usize {
        match self {
            Elected::Cluster(cluster) => cluster.promoted(0, old).await.unwrap(),
            Elected::Sentinel(group) => group.promoted(old).await.unwrap(),
        }
    }

    /// Brings the old primary back, empty, as a replica in step.
    pub async fn restore(&self, old: usize) {
        match self {
            Elected::Cluster(cluster) => {
                cluster.restart(old, Data::Lose).await.unwrap();
                cluster.settle().await.unwrap();
            }
            Elected::Sentinel(group) => {
                group.restart(old, Data::Lose).await.unwrap();
                group.settle().await.unwrap();
            }
        }
    }

    fn server(&self, number: usize) -> &RedisServer {
        match self {
            Elected::Cluster(cluster) => cluster.member(number),
            Elected::Sentinel(group) => group.server(number),
        }
    }
}

/// After this silence a primary is taken for dead.
const SILENCE: Duration = Duration::from_secs(1);

/// As the kit shares slots out.
const FIRST_THIRD: u16 = 16_384 / 3;
