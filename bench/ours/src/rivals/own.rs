//! The contestants beside the rivals: leasehold, the least that each server can do for a lock, and the least for a
//! lock with a fence.
//!
//! Each is a program of its own, as the rivals are: this one, started as `peer KIND AT TASKS LOCKS` by the
//! protocol of `bench/peer`.

mod databases;
mod process;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Guard, Mutex};
use leasehold_bench_peer::{Arguments, Contestant, serve};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd};
use rustix::fs::{FlockOperation, flock};

use crate::Outcome;
use crate::captured::CapturedCycle;
use crate::consensus::etcd::RawEtcd;
use crate::consensus::zookeeper::RawZooKeeper;
use crate::raw::{self, COMPARE_AND_DELETE};

/// Runs the contestant that the arguments name, until the harness has no more to ask.
pub(crate) fn run(arguments: &Arguments) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let Arguments { at, tasks, .. } = arguments;
        match arguments.kind.as_str() {
            "leasehold" => serve(Leasehold::open(arguments).await?, arguments, OURS).await,
            "leasehold-memory" => serve(InMemory(Leasehold::open(arguments).await?), arguments, OURS).await,
            "set-nx" => serve(SetNx::connect(arguments).await?, arguments, "").await,
            "scripts" => serve(Scripts::connect(arguments).await?, arguments, "").await,
            "token" => serve(Token::connect(at, *tasks).await?, arguments, "").await,
            "flock" => serve(Flock::new(arguments), arguments, "").await,
            "tokio-mutex" => serve(TokioMutex(Arc::default()), arguments, "").await,
            "add-delete" => serve(databases::Memcached::connect(arguments)?, arguments, "").await,
            "add-delete-async" => {
                serve(databases::AsyncMemcached::connect(arguments).await?, arguments, "").await
            }
            "insert-delete" => serve(databases::Sqlite::open(arguments)?, arguments, "").await,
            "advisory" => serve(databases::Postgres::advisory(arguments).await?, arguments, "").await,
            "postgres-updates" => serve(databases::Postgres::updates(arguments).await?, arguments, "").await,
            "get-lock" => serve(databases::MariaDb::get_lock(arguments).await?, arguments, "").await,
            "mariadb-updates" => serve(databases::MariaDb::updates(arguments).await?, arguments, "").await,
            "put-delete" => serve(RawEtcd::connect(host(at).parse()?).await?, arguments, "").await,
            "create-delete" => serve(RawZooKeeper::connect(host(at).parse()?).await?, arguments, "").await,
            "command" => serve(process::Program::read(at)?, arguments, "").await,
            unknown => Err(format!("no contestant is called {unknown}").into()),
        }
    })
}

const OURS: &str = env!("CARGO_PKG_VERSION");

/// Returns host and port of a URL.
fn host(url: &str) -> &str {
    url.split("//").nth(1).unwrap_or(url)
}

/// Mutexes of one client, one for each task.
struct Leasehold(Vec<Mutex>);

impl Leasehold {
    async fn open(arguments: &Arguments) -> Outcome<Leasehold> {
        let client = Client::open(&arguments.at).await?;
        let mutex = |task| {
            let mutex = client.mutex(arguments.name_of(task));
            // The option `max-ttl` of a quorum limits it.
            if arguments.at.starts_with("redlock:") { mutex.ttl(REDLOCK_TTL) } else { mutex }
        };
        Ok(Leasehold((0..arguments.tasks).map(mutex).collect()))
    }
}

/// The option `max-ttl` of the URL.
pub(super) const REDLOCK_TTL: Duration = Duration::from_secs(2);

impl Contestant for Leasehold {
    type Held = Guard;

    async fn lock(&self, task: usize) -> Outcome<Guard> {
        Ok(self.0[task].lock().await?)
    }

    async fn unlock(&self, _: usize, held: Guard) -> Outcome<()> {
        Ok(held.release().await?)
    }
}

/// Leasehold where a cycle takes hardly longer than a look at the clock.
struct InMemory(Leasehold);

impl Contestant for InMemory {
    type Held = Guard;
    const AT_ONCE: u64 = 32;

    fn lock(&self, task: usize) -> impl Future<Output = Outcome<Guard>> + Send {
        self.0.lock(task)
    }

    fn unlock(&self, task: usize, held: Guard) -> impl Future<Output = Outcome<()>> + Send {
        self.0.unlock(task, held)
    }
}

/// Tokio's own mutex.
struct TokioMutex(Arc<tokio::sync::Mutex<()>>);

impl Contestant for TokioMutex {
    type Held = tokio::sync::OwnedMutexGuard<()>;
    const AT_ONCE: u64 = 32;

    async fn lock(&self, _: usize) -> Outcome<Self::Held> {
        Ok(self.0.clone().lock_owned().await)
    }

    async fn unlock(&self, _: usize, held: Self::Held) -> Outcome<()> {
        drop(held);
        Ok(())
    }
}

/// `SET NX PX`, and a script that compares and deletes, on one connection that all tasks share.
struct SetNx {
    connection: MultiplexedConnection,
    script: String,
    names: Vec<String>,
}

impl SetNx {
    async fn connect(arguments: &Arguments) -> Outcome<SetNx> {
        let mut connection = connect(&arguments.at).await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(COMPARE_AND_DELETE);
        let script = load.query_async(&mut connection).await?;
        let names = (0..arguments.tasks).map(|task| arguments.name_of(task)).collect();
        Ok(SetNx { connection, script, names })
    }
}

impl Contestant for SetNx {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        let mut set = redis::cmd("SET");
        set.arg(&self.names[task]).arg(VALUE).arg("NX").arg("PX").arg(30_000);
        let set: Option<String> = set.query_async(&mut self.connection.clone()).await?;
        set.map(drop).ok_or_else(|| "the key was there before".into())
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        let mut delete = redis::cmd("EVALSHA");
        delete.arg(&self.script).arg(1).arg(&self.names[task]).arg(VALUE);
        match delete.query_async(&mut self.connection.clone()).await? {
            1 => Ok(()),
            count => Err(format!("{count} keys were deleted").into()),
        }
    }
}

/// The scripts that leasehold sends, with the arguments that it sends, on one connection that all tasks share.
struct Scripts {
    connection: MultiplexedConnection,
    pairs: Vec<(Cmd, Cmd)>,
}

impl Scripts {
    async fn connect(arguments: &Arguments) -> Outcome<Scripts> {
        let captured = CapturedCycle::on(&arguments.at).await?;
        let pair = |task| {
            let (name, id) = (arguments.name_of(task), raw::id(task));
            (captured.acquire.command(&name, &id), captured.release.command(&name, &id))
        };
        let pairs = (0..arguments.tasks).map(pair).collect();
        Ok(Scripts { connection: connect(&arguments.at).await?, pairs })
    }
}

impl Contestant for Scripts {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        raw::granted(self.connection.clone().send_packed_command(&self.pairs[task].0).await?)
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        raw::granted(self.connection.clone().send_packed_command(&self.pairs[task].1).await?)
    }
}

const VALUE: &str = "0123456789abcdef0123456789abcdef";

/// A token that is taken from a list and pushed back, on a connection for each task.
struct Token(Vec<MultiplexedConnection>);

impl Token {
    async fn connect(url: &str, tasks: usize) -> Outcome<Token> {
        let mut connections = Vec::new();
        for _ in 0..tasks {
            connections.push(connect(url).await?);
        }
        let first = connections.first_mut().ok_or("no task wants the token")?;
        // There is one token for all processes.
        let made: bool = redis::cmd("SETNX").arg("bench-token-made").arg(1).query_async(first).await?;
        if made {
            redis::cmd("RPUSH").arg(TOKEN).arg("token").exec_async(first).await?;
        }
        Ok(Token(connections))
    }
}

const TOKEN: &str = "bench-token";

impl Contestant for Token {
    type Held = String;

    async fn lock(&self, task: usize) -> Outcome<String> {
        let mut connection = self.0[task].clone();
        let taken: Option<(String, String)> =
            redis::cmd("BLPOP").arg(TOKEN).arg(30).query_async(&mut connection).await?;
        taken.map(|(_, token)| token).ok_or_else(|| "the token was lost".into())
    }

    async fn unlock(&self, task: usize, held: String) -> Outcome<()> {
        Ok(redis::cmd("RPUSH").arg(TOKEN).arg(held).exec_async(&mut self.0[task].clone()).await?)
    }
}

/// Opens a connection that waits as long as it takes: a busy machine is not an error here.
async fn connect(url: &str) -> Outcome<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

/// `open`, `flock` and `close`.
struct Flock(Vec<PathBuf>);

impl Flock {
    fn new(arguments: &Arguments) -> Flock {
        let path = |task| Path::new(&arguments.at).with_extension(arguments.name_of(task));
        Flock((0..arguments.tasks).map(path).collect())
    }
}

impl Contestant for Flock {
    type Held = File;

    async fn lock(&self, task: usize) -> Outcome<File> {
        let file = File::options().create(true).append(true).open(&self.0[task])?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    async fn unlock(&self, _: usize, held: File) -> Outcome<()> {
        drop(held);
        Ok(())
    }
}

impl Contestant for RawEtcd {
    type Held = ();

    async fn lock(&self, _: usize) -> Outcome<()> {
        self.put().await
    }

    async fn unlock(&self, _: usize, (): ()) -> Outcome<()> {
        self.delete().await
    }
}

impl Contestant for RawZooKeeper {
    type Held = String;

    async fn lock(&self, _: usize) -> Outcome<String> {
        self.create().await
    }

    async fn unlock(&self, _: usize, held: String) -> Outcome<()> {
        self.delete(&held).await
    }
}
