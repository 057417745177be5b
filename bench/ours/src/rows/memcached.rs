//! memcached, beside add and delete on a bare socket, and beside tooz.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_testkit::{Error, MemcachedServer, peers};

use super::{AsyncRate, Comparison, RAW, in_turn};
use crate::Outcome;
use crate::cycle::Ours;
use crate::plan::Plan;
use crate::report::Report;

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let server = MemcachedServer::start().await?;
    for (dialect, group) in [("", "memcached"), ("?dialect=plain", "memcached, dialect=plain")] {
        let url = format!("{}{dialect}", server.url());
        for tasks in [1, TASKS] {
            let ours = Ours::open(&url, tasks, |task| format!("rows/{task}")).await?;
            let raw = Bare { addr: server.addr(), tasks };
            let mut others =
                vec![Comparison::new("add and delete, bare socket, all at once", Some(RAW), raw)];
            if tasks == 1 {
                match Tooz::start(server.addr()).await? {
                    Ok(tooz) => others.push(Comparison::new("tooz, its memcached driver", None, tooz)),
                    Err(missing) => report.skip(format!("memcached beside tooz: {missing}")),
                }
            }
            in_turn(group, &ours, tasks, others, plan, report).await?;
        }
    }
    Ok(())
}

const TASKS: usize = 64;

/// One connection that adds all items, then deletes them.
struct Bare {
    addr: SocketAddr,
    tasks: usize,
}

#[async_trait]
impl AsyncRate for Bare {
    async fn rate(&mut self, plan: &Plan) -> Outcome<f64> {
        let (addr, tasks, length) = (self.addr, self.tasks, plan.round);
        tokio::task::spawn_blocking(move || bare(addr, tasks, length)).await?
    }
}

fn bare(addr: SocketAddr, tasks: usize, length: Duration) -> Outcome<f64> {
    let mut socket = TcpStream::connect(addr)?;
    socket.set_nodelay(true)?;
    let mut answers = BufReader::new(socket.try_clone()?);
    let (mut adds, mut deletes) = (String::new(), String::new());
    for task in 0..tasks {
        write!(adds, "add raw/{task} 0 30 {}\r\n{VALUE}\r\n", VALUE.len())?;
        write!(deletes, "delete raw/{task}\r\n")?;
    }
    let mut line = String::new();
    let mut all = |request: &str, expected: &str| {
        socket.write_all(request.as_bytes())?;
        for _ in 0..tasks {
            line.clear();
            answers.read_line(&mut line)?;
            if line.trim_end() != expected {
                return Err(format!("memcached said {line:?} instead of {expected}").into());
            }
        }
        Outcome::Ok(())
    };
    let (began, mut cycles) = (Instant::now(), 0u64);
    while began.elapsed() < length {
        all(&adds, "STORED")?;
        all(&deletes, "DELETED")?;
        cycles += tasks as u64;
    }
    Ok(cycles as f64 / began.elapsed().as_secs_f64())
}

/// About as long as what leasehold writes.
const VALUE: &str = "leasehold 1 0123456789abcdef0123456789abcdef - rows host=bench";

/// The lock of Python's tooz, in a program of its own.
struct Tooz(Option<peers::Peer>);

impl Tooz {
    /// Starts it, or says what is missing.
    async fn start(addr: SocketAddr) -> Outcome<Result<Tooz, Error>> {
        tokio::task::spawn_blocking(move || {
            let mut python = match peers::python(&["tooz", "pymemcache"]) {
                Ok(python) => python,
                Err(error) if error.is_missing() => return Ok(Err(error)),
                Err(error) => return Err(error.into()),
            };
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rivals/peers/tooz_cycle.py");
            python.arg(script).arg(addr.to_string());
            Ok(Ok(Tooz(Some(peers::Peer::start(python)?))))
        })
        .await?
    }
}

#[async_trait]
impl AsyncRate for Tooz {
    async fn rate(&mut self, plan: &Plan) -> Outcome<f64> {
        let mut peer = self.0.take().ok_or("the peer was lost with an earlier round")?;
        let millis = plan.round.as_millis();
        let (peer, answer) = tokio::task::spawn_blocking(move || {
            let answer = peer.ask(&millis.to_string());
            (peer, answer)
        })
        .await?;
        self.0 = Some(peer);
        Ok(answer?.parse()?)
    }
}
