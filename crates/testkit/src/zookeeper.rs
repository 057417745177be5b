//! A real ZooKeeper ensemble, of one server or several, with its faults as methods.
//!
//! The kit asks its servers by ZooKeeper's four-letter words, each over a connection of its own, which open
//! no session and are not counted as requests.

use std::ffi::OsString;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::certificates::Certificates;
use crate::chosen;
use crate::directory::Directory;
use crate::error::{Error, cannot};
use crate::port::{Port, on_free_ports};
use crate::process::Process;
use crate::require;

/// A ZooKeeper ensemble of this test alone, on free ports of 127.0.0.1.
///
/// # Promises
/// - When `start` returns, every server serves clients: alone, or as leader or follower.
/// - The servers are ended when this is dropped, and also when the test's process is killed.
/// - Their directories are removed then; after a panic they stay, and the end of each log is printed.
///
/// # Does not promise
/// Transactions are not forced to the disk, so that tests are quick: a killed server loses nothing by that,
/// a machine without power would.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    nodes: Vec<Node>,
    /// The certificates, with the directory that they are in.
    tls: Option<(Certificates, Directory)>,
}

/// One server.
#[derive(Debug)]
struct Node {
    // Dropped in this order: the process ends before its ports are free for others.
    process: Process,
    ports: NodePorts,
}

#[derive(Debug)]
struct NodePorts {
    client: Port,
    secure: Port,
    quorum: Port,
    election: Port,
}

impl ZooKeeperEnsemble {
    /// Starts as many servers and waits until all of them serve.
    ///
    /// # Errors
    /// [`Error::is_missing`] when Java or ZooKeeper are not installed. Otherwise the end of a server's log
    /// is in the text. A port that another program took meanwhile is not an error: the start is tried on
    /// others, 5 times.
    pub async fn start(servers: usize) -> Result<Self, Error> {
        Self::start_as(servers, Speech::Plain, "").await
    }

    /// Starts as [`ZooKeeperEnsemble::start`] does, each server by a launcher that gets its command line, and with these
    /// settings, as [`ZooKeeperEnsemble::start_with_or_skip`] takes them.
    ///
    /// # Errors
    /// As [`ZooKeeperEnsemble::start`].
    pub async fn start_by(launcher: &Path, servers: usize, settings: &str) -> Result<Self, Error> {
        on_free_ports(|| Self::start_once(servers, Speech::Plain, settings, Some(launcher))).await
    }

    /// Starts as [`ZooKeeperEnsemble::start`] does; besides, clients may speak TLS on ports of their own,
    /// where they have to prove their identity, with certificates made for this ensemble.
    ///
    /// # Errors
    /// As [`ZooKeeperEnsemble::start`].
    pub async fn start_tls(servers: usize) -> Result<Self, Error> {
        Self::start_as(servers, Speech::Tls, "").await
    }

    /// Starts as [`ZooKeeperEnsemble::start_or_skip`] does, with settings of the test's own: lines as in a
    /// server's file, which go before the kit's. `srvr` has to stay in `4lw.commands.whitelist`.
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_with_or_skip(servers: usize, settings: &str) -> Option<Self> {
        require::or_skip("zookeeper", Self::start_as(servers, Speech::Plain, settings).await)
    }

    async fn start_as(servers: usize, speech: Speech, settings: &str) -> Result<Self, Error> {
        on_free_ports(|| Self::start_once(servers, speech, settings, None)).await
    }

    /// Starts as [`ZooKeeperEnsemble::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(servers: usize) -> Option<Self> {
        require::or_skip("zookeeper", Self::start(servers).await)
    }

    /// Starts as [`ZooKeeperEnsemble::start_tls`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_tls_or_skip(servers: usize) -> Option<Self> {
        require::or_skip("zookeeper", Self::start_tls(servers).await)
    }

    async fn start_once(
        servers: usize,
        speech: Speech,
        settings: &str,
        launcher: Option<&Path>,
    ) -> Result<Self, Error> {
        let java = require::program("java", "default-jre-headless")?;
        let chosen = chosen::place(chosen::ZOOKEEPER)?;
        let is_chosen = chosen.is_some();
        let jars = chosen.unwrap_or_else(|| JARS.into());
        if !jars.join(JAR).is_file() {
            return Err(match is_chosen {
                true => Error::failed(format!("{} has no {JAR}", jars.display())),
                false => Error::missing(JAR, "zookeeper"),
            });
        }
        let ports: Result<Vec<NodePorts>, Error> = (0..servers).map(|_| NodePorts::take()).collect();
        let ports = ports?;
        let tls = match speech {
            Speech::Plain => None,
            Speech::Tls => {
                let directory = Directory::create("zookeeper-tls")?;
                Some((Certificates::create(&directory)?, directory))
            }
        };
        // Of two lines for one setting the later one counts.
        let mut configs: Vec<String> =
            (0..servers).map(|number| format!("{}{settings}\n", config(number, &ports))).collect();
        if let Some((certificates, directory)) = &tls {
            let keys = key_store(certificates, directory)?;
            for (config, ports) in configs.iter_mut().zip(&ports) {
                config.push_str(&secure_config(certificates, &keys, ports.secure.number()));
            }
        }
        let mut nodes = Vec::with_capacity(servers);
        for (number, (ports, config)) in ports.into_iter().zip(configs).enumerate() {
            let directory = Directory::create("zookeeper")?;
            let data = directory.path().join(DATA);
            std::fs::create_dir(&data).map_err(cannot("create", data.display()))?;
            directory.write(&format!("{DATA}/myid"), &format!("{}\n", number + 1))?;
            directory.write(CONFIG, &config)?;
            let args = java_args(&jars).into_iter().map(OsString::from);
            let process = Process::spawn_by(launcher, &java, args, directory)?;
            nodes.push(Node { process, ports });
        }
        let ensemble = Self { nodes, tls };
        for number in 0..servers {
            ensemble.ready(number).await?;
        }
        Ok(ensemble)
    }

    /// Returns `zk://…` with all servers.
    pub fn url(&self) -> String {
        let servers: Vec<String> =
            self.nodes.iter().map(|node| node.ports.client.addr().to_string()).collect();
        format!("zk://{}", servers.join(","))
    }

    /// Returns `zk://…` with one address: a server's, or a [`Proxy`](crate::Proxy)'s.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        format!("zk://{addr}")
    }

    /// Returns the address where a server's clients connect by TLS.
    ///
    /// # Panics
    /// If the server does not exist, or does not speak TLS.
    pub fn secure_addr(&self, server: usize) -> SocketAddr {
        assert!(self.tls.is_some(), "this ensemble was started without TLS");
        self.nodes[server].ports.secure.addr()
    }

    /// Returns the certificates that clients trust, and show.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.tls.as_ref().map(|(certificates, _)| certificates)
    }

    /// Returns how many servers there are.
    pub fn servers(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the address where a server's clients connect.
    ///
    /// # Panics
    /// As all methods that take a server's number, where there is none of this number.
    pub fn addr(&self, server: usize) -> SocketAddr {
        self.nodes[server].ports.client.addr()
    }

    /// Stops a server (SIGSTOP): connections stay open, and nothing answers. See [`Process::stop`].
    pub fn stop(&self, server: usize) -> Result<(), Error> {
        self.nodes[server].process.stop()
    }

    /// Continues a server after [`ZooKeeperEnsemble::stop`].
    pub fn resume(&self, server: usize) -> Result<(), Error> {
        self.nodes[server].process.resume()
    }

    /// Kills a server (SIGKILL), stopped or not, and waits until it is gone.
    pub fn kill(&self, server: usize) -> Result<(), Error> {
        self.nodes[server].process.kill()
    }

    /// Starts a server again on its data after it was killed, and waits until it serves.
    pub async fn restart(&self, server: usize) -> Result<(), Error> {
        self.nodes[server].process.start()?;
        self.ready(server).await
    }

    /// Returns the directory where a server keeps its transactions and snapshots.
    pub fn data(&self, server: usize) -> PathBuf {
        self.nodes[server].process.directory().path().join(DATA)
    }

    /// Returns the number of the server that leads, or runs alone. `None` while there is none, and
    /// where it does not answer within two seconds.
    pub async fn leader(&self) -> Option<usize> {
        for server in 0..self.nodes.len() {
            let state = self.ask_within(server, "srvr", NEXT_LIMIT).await.unwrap_or_default();
            if state.contains("Mode: leader") || state.contains("Mode: standalone") {
                return Some(server);
            }
        }
        None
    }

    /// Returns a server's answer to a four-letter word such as `srvr`, `mntr` or `wchs`.
    pub async fn ask(&self, server: usize, command: &str) -> Result<String, Error> {
        self.ask_within(server, command, ANSWER_LIMIT).await
    }

    async fn ask_within(&self, server: usize, command: &str, limit: Duration) -> Result<String, Error> {
        let addr = self.addr(server);
        let asked = async {
            let mut stream = TcpStream::connect(addr).await?;
            stream.write_all(command.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        match tokio::time::timeout(limit, asked).await {
            Ok(answer) => answer.map_err(cannot("ask", addr)),
            Err(_) => Err(cannot("ask", addr)(format!("no answer within {limit:?}"))),
        }
    }

    /// Returns one number of a server's `mntr` answer, such as `zk_watch_count`.
    pub async fn metric(&self, server: usize, name: &str) -> Result<f64, Error> {
        let answer = self.ask(server, "mntr").await?;
        let mut lines = answer.lines().filter_map(|line| line.split_once('\t'));
        let value = lines.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse().ok());
        value.ok_or_else(|| Error::failed(format!("server {server} has no metric {name}: {answer}")))
    }

    /// Waits until a server serves clients.
    async fn ready(&self, server: usize) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        let process = &self.nodes[server].process;
        loop {
            let answer = self.ask_within(server, "srvr", NEXT_LIMIT).await;
            if answer.is_ok_and(|answer| answer.contains("Mode: ")) {
                return Ok(());
            }
            if let Some(status) = process.exited() {
                let tail = process.directory().log_tail();
                let text = format!("ZooKeeper ended with {status}:\n{tail}");
                let taken = tail.contains("Address already in use");
                return Err(if taken { Error::port_taken(text) } else { Error::failed(text) });
            }
            if Instant::now() > deadline {
                let tail = process.directory().log_tail();
                let text = format!("ZooKeeper does not serve after {START_LIMIT:?}:\n{tail}");
                return Err(Error::failed(text));
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }
}

impl NodePorts {
    fn take() -> Result<Self, Error> {
        Ok(Self {
            client: Port::take()?,
            secure: Port::take()?,
            quorum: Port::take()?,
            election: Port::take()?,
        })
    }
}

/// Returns the configuration of one server. A tick of half a second makes sessions of one second possible.
fn config(number: usize, ports: &[NodePorts]) -> String {
    let mut config = format!(
        "tickTime=500\ninitLimit=20\nsyncLimit=4\ndataDir={DATA}\nclientPort={}\n\
         clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\n\
         extendedTypesEnabled=true\nmaxClientCnxns=0\n\
         maxSessionTimeout=60000\n",
        ports[number].client.number()
    );
    if ports.len() > 1 {
        for (number, ports) in ports.iter().enumerate() {
            let (quorum, election) = (ports.quorum.number(), ports.election.number());
            // Writing into a String does not fail.
            let _ = writeln!(config, "server.{}=127.0.0.1:{quorum}:{election}", number + 1);
        }
    }
    config
}

/// The way in which an ensemble speaks to its clients.
#[derive(Clone, Copy)]
enum Speech {
    Plain,
    Tls,
}

/// Returns a key store as ZooKeeper reads PEM: the key and the certificate in one file.
fn key_store(certificates: &Certificates, directory: &Directory) -> Result<PathBuf, Error> {
    let server = certificates.server();
    let read = |path: &Path| std::fs::read_to_string(path).map_err(cannot("read", path.display()));
    let text = format!("{}{}", read(&server.key)?, read(&server.certificate)?);
    directory.write("server-store.pem", &text)?;
    Ok(directory.path().join("server-store.pem"))
}

/// Returns the lines for a port of its own that speaks TLS. Certificates are for the loopback address.
fn secure_config(certificates: &Certificates, keys: &Path, port: u16) -> String {
    format!(
        "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.clientAuth=need\nssl.clientHostnameVerification=false\n\
         ssl.keyStore.location={}\nssl.keyStore.type=PEM\n\
         ssl.trustStore.location={}\nssl.trustStore.type=PEM\n",
        keys.display(),
        certificates.ca_path().display()
    )
}

/// Returns arguments for few threads, a small heap and only the jars that are needed: a server starts in
/// half a second.
///
/// Jars that the folder of a chosen version does not have are the installed ones. Its own jar comes last: Debian's
/// names the installed ones, which would take the places of those behind it.
fn java_args(chosen: &Path) -> Vec<String> {
    let path = |jar: &&str| {
        let own = chosen.join(jar);
        if own.is_file() { own } else { Path::new(JARS).join(jar) }.display().to_string()
    };
    let jars: Vec<String> = MORE_JARS.iter().chain(&[JAR]).map(path).collect();
    let mut args: Vec<String> = [
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dzookeeper.forceSync=no",
        "-Dzookeeper.preAllocSize=1024",
        // Containers go a second after their last child, not a minute.
        "-Dznode.container.checkIntervalMs=1000",
        "-cp",
    ]
    .map(str::to_owned)
    .into();
    args.push(jars.join(":"));
    args.extend([MAIN, CONFIG].map(str::to_owned));
    args
}

const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
const JARS: &str = "/usr/share/java";
const JAR: &str = "zookeeper.jar";
/// The jars that ZooKeeper of Debian needs beside its own, logging on stderr included.
const MORE_JARS: &[&str] = &[
    "zookeeper-jute.jar",
    "slf4j-api.jar",
    "slf4j-simple.jar",
    "metrics-core.jar",
    "snappy-java.jar",
    "netty-buffer.jar",
    "netty-codec.jar",
    "netty-common.jar",
    "netty-handler.jar",
    "netty-resolver.jar",
    "netty-transport.jar",
    "netty-transport-native-epoll.jar",
    "netty-transport-native-unix-common.jar",
];
const CONFIG: &str = "zoo.cfg";
const DATA: &str = "data";
const START_LIMIT: Duration = Duration::from_secs(120);
const START_PAUSE: Duration = Duration::from_millis(50);
/// The time that an answer may take, on a machine that is busy with other tests.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The time after which a question that is repeated goes to the next server: one that is stopped never answers.
const NEXT_LIMIT: Duration = Duration::from_secs(2);
