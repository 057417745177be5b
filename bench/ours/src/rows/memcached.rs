//! memcached, beside add and delete on a bare socket.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_testkit::MemcachedServer;

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
            let others = vec![Comparison::new("add and delete, bare socket, all at once", Some(RAW), raw)];
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
