//! The thread that owns the connection.
//!
//! Ground rules: SQLite blocks, so nothing of it runs on a thread of the runtime. One connection serves one
//! client: its requests are carried out one after the other, as the database would do anyway. A request
//! that was handed over is carried out, also where its caller has left. A file that was removed or replaced
//! lives on for the processes that have it open, which would hold alongside those that open it now: so each
//! request first checks whether the path still leads to the file.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use leasehold_backend::url::Create;
use leasehold_core::Failure;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::oneshot;

use crate::config::SqliteConfig;
use crate::error::{failure, unsupported};
use crate::sql::schema;

/// A connection on a thread of its own, which ends with this value.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) config: SqliteConfig,
    jobs: Sender<Job>,
}

type Job = Box<dyn FnOnce(Result<&mut Connection, Failure>) + Send>;

impl Worker {
    /// Opens the database and prepares it.
    pub(crate) async fn start(config: SqliteConfig) -> Result<Worker, Failure> {
        let (jobs, requests) = channel::<Job>();
        let (opened, reply) = oneshot::channel();
        let own = config.clone();
        let begun = std::thread::Builder::new().name("leasehold-sqlite".to_owned()).spawn(move || {
            let mut database = match Database::open(own) {
                Ok(database) => database,
                Err(failure) => return drop(opened.send(Err(failure))),
            };
            drop(opened.send(Ok(())));
            while let Ok(job) = requests.recv() {
                job(database.connection());
            }
        });
        begun.map_err(|error| {
            Failure::unavailable(format!("the operating system gives no thread: {error}"))
        })?;
        reply.await.unwrap_or_else(|_| Err(Failure::unavailable("the thread of the database ended")))?;
        Ok(Worker { config, jobs })
    }

    /// Carries out `work`, and repeats it while others write, for up to the timeout. Nothing of it was done
    /// if the database itself can no longer be opened.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let limit = self.config.timeout;
        let (done, reply) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let connection = match connection {
                Ok(connection) => connection,
                Err(failure) => return drop(done.send(Err(failure))),
            };
            let begun = Instant::now();
            let mut pause = Pause::new();
            let outcome = loop {
                match work(connection) {
                    Err(error) if is_busy(&error) && begun.elapsed() < limit => {
                        std::thread::sleep(pause.next())
                    }
                    outcome => break outcome,
                }
            };
            drop(done.send(Ok(outcome)));
        });
        let ended = || Failure::unanswered("the thread of the database ended");
        self.jobs.send(job).map_err(|_| ended())?;
        let outcome = reply.await.map_err(|_| ended())??;
        outcome.map_err(|error| failure(&self.config, error))
    }
}

/// The database, and the identity of its file when it was opened.
struct Database {
    config: SqliteConfig,
    connection: Connection,
    file: Option<(u64, u64)>,
}

impl Database {
    fn open(mut config: SqliteConfig) -> Result<Database, Failure> {
        // The working directory may change while the database is open.
        if let Ok(path) = std::path::absolute(&config.path) {
            config.path = path;
        }
        let (begun, mut pause, mut reopened) = (Instant::now(), Pause::new(), 0);
        while reopened < MAX_REOPEN {
            let before = file_at(&config.path);
            let connection = match open(&config) {
                Ok(connection) => connection,
                // Another process writes, or sets the mode of the journal.
                Err(refused) if cause(&refused).is_some_and(is_busy) && begun.elapsed() < config.timeout => {
                    std::thread::sleep(pause.next());
                    continue;
                }
                // Another process closes the database at this moment, and removes its log.
                Err(refused) if is_log_gone(&refused) => {
                    std::thread::sleep(pause.next());
                    reopened += 1;
                    continue;
                }
                Err(refused) => return Err(refused),
            };
            // A file that was replaced between the two looks is not the one that this connection has. Of a
            // file that was made by opening it nothing was known before: it is opened once more.
            if before == file_at(&config.path) && (before.is_some() || cfg!(not(unix))) {
                return Ok(Database { file: before, connection, config });
            }
            reopened += 1;
        }
        Err(Failure::unavailable(format!(
            "{}: the file is replaced again and again while it is opened",
            config.path.display()
        )))
    }

    /// Returns the connection to the file that the path leads to now.
    fn connection(&mut self) -> Result<&mut Connection, Failure> {
        if file_at(&self.config.path) != self.file {
            *self = Database::open(self.config.clone())?;
            tracing::warn!(database = %self.config, "the file was removed or replaced: all its locks are lost");
        }
        Ok(&mut self.connection)
    }
}

/// Returns the error of SQLite that a failure is about.
fn cause(failure: &Failure) -> Option<&rusqlite::Error> {
    failure.cause().and_then(|cause| cause.downcast_ref())
}

/// Returns `true` if the log vanished while the database was opened, as it does when the last other process
/// closes it.
fn is_log_gone(refused: &Failure) -> bool {
    let code = cause(refused).and_then(rusqlite::Error::sqlite_error).map(|error| error.extended_code);
    code == Some(rusqlite::ffi::SQLITE_IOERR_DELETE_NOENT)
}

/// The number of times that the file may change while it is opened.
const MAX_REOPEN: u32 = 100;

/// Returns which file this is, under any name; `None` where it does not exist, or the system has no such
/// numbers.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

fn open(config: &SqliteConfig) -> Result<Connection, Failure> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    match config.create {
        Create::Yes => flags |= OpenFlags::SQLITE_OPEN_CREATE,
        Create::No if !config.path.exists() => {
            let text = "no such database exists: name another one; a client that locks creates it, unless its URL \
                        says create=no";
            return Err(unsupported(config, text));
        }
        Create::No => {}
    }
    let failed = |error| failure(config, error);
    let mut connection = Connection::open_with_flags(&config.path, flags).map_err(failed)?;
    // Callers wait by themselves, with pauses: SQLite does not wait in each case, as for the mode of the journal.
    connection.busy_timeout(Duration::ZERO).map_err(failed)?;
    schema::prepare(&mut connection, config)?;
    connection.set_prepared_statement_cache_capacity(16);
    Ok(connection)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Pauses of one to four milliseconds. They do not grow: a client that has waited long must not have a
/// smaller chance than one that has just come.
struct Pause(u64);

impl Pause {
    fn new() -> Pause {
        // Without random bytes two that meet may meet again; that costs time and nothing else.
        Pause(getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id())))
    }

    fn next(&mut self) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_micros(1_000 + (self.0 >> 33) % 3_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_pass_while_a_database_is_opened_are_recognized() {
        let config = SqliteConfig::parse("sqlite:/locks.db").unwrap();
        let of_code =
            |code| failure(&config, rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
        assert!(is_log_gone(&of_code(rusqlite::ffi::SQLITE_IOERR_DELETE_NOENT)));
        assert!(!is_log_gone(&of_code(rusqlite::ffi::SQLITE_BUSY)));
        assert!(cause(&of_code(rusqlite::ffi::SQLITE_BUSY)).is_some_and(is_busy));
        assert!(!cause(&of_code(rusqlite::ffi::SQLITE_FULL)).is_some_and(is_busy));
    }
}
