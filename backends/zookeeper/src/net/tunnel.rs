//! TLS to the servers: a listener of this process for each of them, whose connections are forwarded through
//! TLS.
//!
//! Ground rules: the client crate opens plain TCP connections only, unless it brings a cryptographic
//! provider of its own. So it is sent to loopback ports, and a connection there is carried to the
//! server only if it is *this process's own*, since the other end trusts the certificate that is shown
//! for it. Nothing is read or changed on the way; a connection ends on both sides when it ends on one.
//! A connection that is under way does not end with the tunnel, so that the client can still say that
//! it ends its session.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_backend::url::{Host, TlsFiles, client_settings};
use leasehold_core::{Effect, Failure, FailureKind};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// A tunnel that the client crate connects to, instead of the servers. It takes no new connections once
/// it is dropped.
#[derive(Debug)]
pub(crate) struct Tunnel {
    local_addrs: Vec<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
    last_error: LastError,
}

/// The reason why the last connection failed: the client sees only that it ends.
type LastError = Arc<Mutex<Option<String>>>;

impl Tunnel {
    /// Opens a local port for each server. Connections to a server fail if it is not reached within `limit`.
    ///
    /// # Errors
    /// `Invalid` where the files of TLS cannot be used, `Unavailable` where this machine gives no port.
    pub(crate) async fn open(hosts: &[Host], files: &TlsFiles, limit: Duration) -> Result<Tunnel, Failure> {
        if !cfg!(target_os = "linux") {
            // The owner of a connection to the loopback port could not be known.
            let text = "TLS to ZooKeeper works on Linux only: write zk://, and encrypt below it";
            return Err(Failure::new(FailureKind::Unsupported, Effect::None, text));
        }
        // The files are read again for each connection; this one reports mistakes at once.
        client_settings(files)?;
        let last_error = LastError::default();
        let (mut local_addrs, mut tasks) = (Vec::new(), Vec::new());
        for host in hosts {
            let failed = |error| Failure::unavailable(format!("no loopback port for TLS: {error}"));
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed)?;
            local_addrs.push(listener.local_addr().map_err(failed)?);
            let (host, files, last_error) = (host.clone(), files.clone(), last_error.clone());
            tasks.push(leasehold_machine::spawn(serve(listener, host, files, limit, last_error)));
        }
        Ok(Tunnel { local_addrs, tasks, last_error })
    }

    /// Returns the servers as ZooKeeper's clients write them.
    pub(crate) fn connect_string(&self) -> String {
        let local_addrs: Vec<String> = self.local_addrs.iter().map(SocketAddr::to_string).collect();
        local_addrs.join(",")
    }

    /// Returns why the last connection failed; empty where it did not.
    pub(crate) fn last_error(&self) -> String {
        let last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        last_error.as_ref().map(|text| format!(": {text}")).unwrap_or_default()
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Forwards every connection of this process to `host`.
async fn serve(listener: TcpListener, host: Host, files: TlsFiles, limit: Duration, last_error: LastError) {
    loop {
        let Ok((client, from)) = listener.accept().await else {
            // Too many open files, most likely: the client tries again, and so may this.
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (host, files, last_error) = (host.clone(), files.clone(), last_error.clone());
        leasehold_machine::spawn(async move {
            let outcome =
                match tokio::time::timeout(limit, connect_to_server(&client, from, &host, files)).await {
                    Ok(outcome) => outcome,
                    Err(_) => Err(format!("no TLS with {host} within {limit:?}")),
                };
            match outcome {
                Ok(server) => {
                    *last_error.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    forward(client, server).await;
                }
                Err(text) => {
                    tracing::debug!(%host, text, "no TLS connection");
                    *last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                }
            }
        });
    }
}

/// Opens the connection to the server to which `client` is forwarded.
async fn connect_to_server(
    client: &TcpStream,
    from: SocketAddr,
    host: &Host,
    files: TlsFiles,
) -> Result<ServerStream, String> {
    let local = client.local_addr().map_err(|error| error.to_string())?;
    // Both read files.
    let prepared = tokio::task::spawn_blocking(move || (is_own(from, local), client_settings(&files)));
    let (own, settings) = prepared.await.map_err(|error| error.to_string())?;
    if !own {
        tracing::warn!(%from, "a connection to this process's tunnel is not its own, and was refused");
        return Err("a connection that is not this process's own was refused".to_owned());
    }
    let settings = settings.map_err(|failure| failure.detail().to_owned())?;
    let name = ServerName::try_from(host.name.clone()).map_err(|error| format!("{host}: {error}"))?;
    let connected = async {
        let server = TcpStream::connect((host.name.as_str(), host.port)).await?;
        // Requests are small, and each is waited for.
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        TlsConnector::from(Arc::new(settings)).connect(name, server).await
    };
    connected.await.map_err(|error| format!("no TLS with {host}: {error}"))
}

/// Forwards a connection until it ends on one side, then ends the other, too. One that hangs is left to
/// the client, which closes its side.
async fn forward(client: TcpStream, server: ServerStream) {
    let (mut client_read, mut client_write) = client.into_split();
    let (mut server_read, mut server_write) = tokio::io::split(server);
    // The client and the server see how it ends, by the end of their connections.
    tokio::select! {
        _ = tokio::io::copy(&mut client_read, &mut server_write) => {
            let _ = tokio::time::timeout(SHUTDOWN_LIMIT, server_write.shutdown()).await;
        }
        _ = tokio::io::copy(&mut server_read, &mut client_write) => {
            let _ = tokio::time::timeout(SHUTDOWN_LIMIT, client_write.shutdown()).await;
        }
    }
}

/// Returns `true` if the connection from `from` to the port `local` has its other end in this
/// process, by the kernel's table of connections and the table of what this process has open. Returns
/// `false` where they cannot be read.
fn is_own(from: SocketAddr, local: SocketAddr) -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/self/net/tcp") else { return false };
    let Some(inode) = inode_of(&table, from, local) else { return false };
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return false };
    let socket = format!("socket:[{inode}]");
    open.flatten()
        .any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == &*socket))
}

/// Returns the inode of the socket whose own end is `from` and whose other end is `local`, in the
/// kernel's table.
fn inode_of(table: &str, from: SocketAddr, local: SocketAddr) -> Option<u64> {
    let written = |addr: SocketAddr| match addr {
        SocketAddr::V4(addr) => {
            Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(addr.ip().octets()), addr.port()))
        }
        SocketAddr::V6(_) => None,
    };
    let (from, local) = (written(from)?, written(local)?);
    table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_it = columns.get(1) == Some(&&*from) && columns.get(2) == Some(&&*local);
        columns.get(9).filter(|_| is_it)?.parse().ok()
    })
}

type ServerStream = TlsStream<TcpStream>;

const PAUSE: Duration = Duration::from_millis(100);
/// The time that the shutdown of one side may take when the other has ended.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_connection_of_this_process_is_its_own() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let local = listener.local_addr().unwrap();
        let ours = TcpStream::connect(local).await.unwrap();
        let (_client, from) = listener.accept().await.unwrap();
        assert!(is_own(from, local));
        drop(ours);

        // Another process, of the same user.
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{}; read -r _ <&3", local.port());
        let mut theirs = std::process::Command::new("bash").args(["-c", &script]).spawn().unwrap();
        let (client, from) = listener.accept().await.unwrap();
        assert!(!is_own(from, local));
        drop(client);
        theirs.wait().unwrap();
    }

    #[test]
    fn the_kernels_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:0050 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 1234 1\n";
        let [a, b] = ["127.0.0.1:80", "127.0.0.1:49153"].map(|addr| addr.parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(inode_of(table, a, b), Some(1234));
        }
        assert_eq!(inode_of(table, b, a), None);
        assert_eq!(inode_of("", a, b), None);
    }
}
