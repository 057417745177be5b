//! A server in a process of its own, which can be killed and stopped. The process is this test program again.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use leasehold::Client;
use leasehold_serve::{Config, Listen, Server};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::http::{Reply, Request, Stream};

/// A server in a process of its own.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

impl ServerProcess {
    /// Starts a server over this store, with a token file in this folder.
    pub(crate) fn start(store: &str, folder: &Path) -> ServerProcess {
        ServerProcess::start_at(store, folder, "127.0.0.1:0")
    }

    /// The same at this address.
    pub(crate) fn start_at(store: &str, folder: &Path, listen: &str) -> ServerProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "support::child::the_server_process", "--nocapture"]);
        command.env("SERVE_STORE", store).env("SERVE_FOLDER", folder).env("SERVE_LISTEN", listen);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address =
            lines.find_map(|line| line.unwrap().split("LISTENS ").nth(1).map(|text| text.parse().unwrap()));
        // The rest of its output is of no interest, and must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let token = std::fs::read_to_string(folder.join("token")).unwrap().trim().to_owned();
        ServerProcess { child, address: address.expect("the server started"), token }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the server, and waits until it has stopped: one of its threads has to run first, to stop the others.
    pub(crate) fn stop(&self) {
        leasehold_testkit::stop(&self.child).unwrap();
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> Request {
        Request::new(self.address, method, path).header("authorization", &format!("Bearer {}", self.token))
    }

    pub(crate) async fn put(&self, id: &str, wait: &str, body: &Value) -> Reply {
        self.request("PUT", &format!("/v1/holds/{id}?wait={wait}")).body(body).send().await
    }

    pub(crate) async fn renew(&self, id: &str) -> Reply {
        self.request("POST", &format!("/v1/holds/{id}/renew")).send().await
    }

    pub(crate) async fn release(&self, id: &str) -> Reply {
        self.request("DELETE", &format!("/v1/holds/{id}")).send().await
    }

    pub(crate) async fn stream(&self, id: &str, wait: &str, body: &Value) -> Stream {
        let request = self.request("PUT", &format!("/v1/holds/{id}?wait={wait}"));
        request.header("accept", "application/x-ndjson").body(body).open().await
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A stopped process is killed too. It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server, when this test program is started as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_process() {
    let Ok(store) = std::env::var("SERVE_STORE") else { return };
    let folder = std::env::var("SERVE_FOLDER").unwrap();
    let mut config = Config::default();
    config.listen = vec![std::env::var("SERVE_LISTEN").unwrap().parse().unwrap()];
    config.token_file = Some(Path::new(&folder).join("token"));
    config.grace = std::time::Duration::from_secs(2);
    let server = Server::bind(Client::open(&store).await.unwrap(), config).await.unwrap();
    let Some(Listen::Tcp(address)) = server.addresses().pop() else { panic!("no address") };
    println!("LISTENS {address}");
    let wait = || -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut term = signal(SignalKind::terminate()).unwrap();
        Box::pin(async move {
            term.recv().await;
        })
    };
    server.run(wait).await;
    // As the command does: nothing is dropped in order, so nothing that is still held is released.
    std::process::exit(0);
}
