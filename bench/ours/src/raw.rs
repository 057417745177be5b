//! The same commands without leasehold: over the client library that it uses, and over a bare socket.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};

use crate::Outcome;
use crate::captured::{CapturedCycle, Template};
use crate::load::Load;

/// One shared connection of the client library, with two commands for each task.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    pairs: Arc<Vec<(Cmd, Cmd)>>,
}

impl Raw {
    /// Builds the scripts of leasehold, a lock for each task.
    pub(crate) async fn scripts(
        server: &RedisServer,
        captured: &CapturedCycle,
        tasks: usize,
    ) -> Outcome<Raw> {
        let pair = |task| {
            let (name, id) = (name(task), id(task));
            (captured.acquire.command(&name, &id), captured.release.command(&name, &id))
        };
        Raw::of(server, (0..tasks).map(pair).collect()).await
    }

    /// Builds the well-known lock: `SET NX PX`, and compare-and-delete. It has no fence, no line and no
    /// message for waiters, so it is a floor and not a rival.
    pub(crate) async fn classic(server: &RedisServer, tasks: usize) -> Outcome<Raw> {
        let script = redis::Script::new(COMPARE_AND_DELETE);
        script.prepare_invoke().load_async(&mut connect(server).await?).await?;
        let pair = |task| {
            let (name, id) = (format!("classic:{}", name(task)), id(task));
            let mut set = redis::cmd("SET");
            set.arg(&name).arg(&id).arg("NX").arg("PX").arg(30_000);
            let mut delete = redis::cmd("EVALSHA");
            delete.arg(script.get_hash()).arg(1).arg(&name).arg(&id);
            (set, delete)
        };
        Raw::of(server, (0..tasks).map(pair).collect()).await
    }

    async fn of(server: &RedisServer, pairs: Vec<(Cmd, Cmd)>) -> Outcome<Raw> {
        Ok(Raw { connection: connect(server).await?, pairs: Arc::new(pairs) })
    }

    /// Runs the tasks: each repeats its pair.
    pub(crate) async fn run(&self, length: Duration) -> Outcome<Load> {
        let raw = self.clone();
        let cycle = move |task: usize| {
            let raw = raw.clone();
            async move {
                let Raw { mut connection, pairs } = raw;
                let (acquire, release) = &pairs[task];
                granted(connection.send_packed_command(acquire).await?)?;
                granted(connection.send_packed_command(release).await?)
            }
        };
        Load::run(self.pairs.len(), length, cycle).await
    }
}

/// Opens a connection that waits as long as it takes: a busy machine is not an error here.
pub(crate) async fn connect(server: &RedisServer) -> Outcome<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(server.url())?.get_multiplexed_async_connection_with_config(&config).await?)
}

/// Cycles per second over one bare socket: `depth` acquires at once, then as many releases. Nothing of
/// it costs the client anything worth speaking of, so it is the server's limit for these locks on one
/// connection.
pub(crate) async fn bare(
    server: &RedisServer,
    captured: &CapturedCycle,
    depth: usize,
    length: Duration,
) -> Outcome<f64> {
    let all = |template: &Template| {
        (0..depth).flat_map(|task| template.bytes(&name(task), &id(task))).collect::<Vec<u8>>()
    };
    let (acquires, releases) = (all(&captured.acquire), all(&captured.release));
    let address = server.addr();
    let pump = move || {
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        let (began, mut cycles) = (Instant::now(), 0);
        while began.elapsed() < length {
            ask(&mut socket, &acquires, depth * ACQUIRED_LINES)?;
            ask(&mut socket, &releases, depth)?;
            cycles += depth;
        }
        Outcome::Ok(cycles as f64 / began.elapsed().as_secs_f64())
    };
    tokio::task::spawn_blocking(pump).await?
}

/// Returns the name of a task's lock.
pub(crate) fn name(task: usize) -> String {
    format!("measured/{task}")
}

/// Returns the id of a task's claim.
pub(crate) fn id(task: usize) -> String {
    format!("{task:032x}")
}

/// Checks that it worked: `OK`, 1, an array that begins with 1, or a fence.
pub(crate) fn granted(answer: Value) -> Outcome<()> {
    match answer {
        Value::Okay | Value::Int(1) | Value::BulkString(_) => Ok(()),
        Value::Array(parts) if matches!(parts.first(), Some(Value::Int(1))) => Ok(()),
        other => Err(format!("a raw command was answered with {other:?}").into()),
    }
}

/// Sends requests, and reads until `lines` lines have come.
fn ask(socket: &mut TcpStream, requests: &[u8], lines: usize) -> Outcome<()> {
    socket.write_all(requests)?;
    let mut left = lines;
    let mut buffer = [0; 16 * 1024];
    while left > 0 {
        let count = socket.read(&mut buffer)?;
        let answer = &buffer[..count];
        if count == 0 || answer.contains(&b'-') {
            return Err(format!("a raw command was answered with {}", String::from_utf8_lossy(answer)).into());
        }
        left = left.saturating_sub(answer.iter().filter(|byte| **byte == b'\n').count());
    }
    Ok(())
}

/// A fence as a text, behind its length.
const ACQUIRED_LINES: usize = 2;

pub(crate) const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
