//! The thread of a database, and what its callers carry out themselves.
//!
//! Ground rules: SQLite blocks, so what may wait for the disk or for another process runs on a thread of its
//! own. A few changes of locks are not synced, and take less time than the way to a thread and back: they are
//! tried by their caller, once. One request at a time uses the connections, as the database would have it
//! anyway. A request that was handed to the thread is carried out, also where its caller has left. A file that
//! was removed or replaced lives on for the processes that have it open, which would hold alongside those that
//! open it now: so each request first checks whether the path still leads to the file.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use leasehold_backend::url::Create;
use leasehold_core::Failure;
use leasehold_machine::FileSystem;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::oneshot;

use crate::config::SqliteConfig;
use crate::error::{failure, unsupported};
use crate::sql::fences::Fences;
use crate::sql::{schema, time};

/// A database, and a thread for what may block, which ends with this value.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) config: SqliteConfig,
    /// The thread has the only strong reference, so that it closes the connections, which may sync.
    shared: Weak<Shared>,
    jobs: Sender<Job>,
    /// `true` if the file is gone after a restart of the machine, or with its container.
    pub(crate) is_fleeting: bool,
}

/// The state that the thread and the callers share.
#[derive(Debug)]
struct Shared {
    database: Mutex<Database>,
    /// The number of jobs that the thread has not finished.
    queued: AtomicUsize,
}

impl Shared {
    fn database(&self) -> MutexGuard<'_, Database> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Job = Box<dyn FnOnce(&Shared) + Send>;

impl Worker {
    /// Opens the database and prepares it.
    pub(crate) async fn start(config: SqliteConfig) -> Result<Worker, Failure> {
        let (jobs, requests) = channel::<Job>();
        let (opened, reply) = oneshot::channel();
        let own = config.clone();
        let begun =
            std::thread::Builder::new().name("leasehold-sqlite".to_owned()).spawn(
                move || match Database::open(own, Instant::now()) {
                    Ok(database) => {
                        let is_fleeting = database.is_fleeting;
                        let shared =
                            Arc::new(Shared { database: Mutex::new(database), queued: AtomicUsize::new(0) });
                        drop(opened.send(Ok((Arc::downgrade(&shared), is_fleeting))));
                        carry_out(&shared, &requests);
                    }
                    Err(failure) => drop(opened.send(Err(failure))),
                },
            );
        begun.map_err(|error| {
            Failure::unavailable(format!("the operating system gives no thread: {error}"))
        })?;
        let (shared, is_fleeting) =
            reply.await.unwrap_or_else(|_| Err(Failure::unavailable("the thread of the database ended")))?;
        Ok(Worker { config, shared, jobs, is_fleeting })
    }

    /// Carries out `work`, and repeats it while others write, for up to the timeout from now. The time behind
    /// other jobs counts, but it is tried once in any case. Nothing of it was done if the database itself can no
    /// longer be opened.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&mut Database) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let (limit, begun) = (self.config.timeout, Instant::now());
        let (done, reply) = oneshot::channel();
        let job: Job = Box::new(move |shared| {
            let mut pause = Pause::new();
            let outcome = loop {
                // Not locked during the pause, so that callers may try meanwhile.
                let outcome = shared.database().current(begun).map(&mut work);
                match outcome {
                    Ok(Err(error)) if is_busy(&error) && begun.elapsed() < limit => {
                        std::thread::sleep(pause.next());
                    }
                    outcome => break outcome,
                }
            };
            drop(done.send(outcome));
        });
        self.send(job)?;
        let outcome = reply.await.map_err(|_| ended())??;
        outcome.map_err(|error| failure(&self.config, error))
    }

    /// Carries out `work` likewise, here and now where nothing else uses the database.
    ///
    /// It has to be short, and must not sync.
    pub(crate) async fn run_short<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&mut Database) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        match self.try_now(&mut work) {
            Some(outcome) => outcome,
            None => self.run(work).await,
        }
    }

    /// Tries short `work` on this thread; `None` if something is in its way, and nothing was done.
    pub(crate) fn try_now<T>(
        &self,
        work: impl FnOnce(&mut Database) -> rusqlite::Result<T>,
    ) -> Option<Result<T, Failure>> {
        let shared = self.shared.upgrade()?;
        // What was handed to the thread comes first.
        if shared.queued.load(Ordering::Acquire) > 0 {
            return None;
        }
        let mut database = match shared.database.try_lock() {
            Ok(database) => database,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if database.must_block() {
            return None;
        }
        let outcome = work(&mut database);
        let is_long = database.takes_checkpoint();
        drop(database);
        if is_long {
            // The thread ended only if the process ends; the log is then written back at the next opening.
            drop(self.send(Box::new(|shared| shared.database().checkpoint())));
        }
        match outcome {
            Err(error) if is_busy(&error) => None,
            outcome => Some(outcome.map_err(|error| failure(&self.config, error))),
        }
    }

    fn send(&self, job: Job) -> Result<(), Failure> {
        self.shared.upgrade().ok_or_else(ended)?.queued.fetch_add(1, Ordering::AcqRel);
        self.jobs.send(job).map_err(|_| ended())
    }
}

fn ended() -> Failure {
    Failure::unanswered("the thread of the database ended")
}

/// Carries out jobs until their sender is gone.
fn carry_out(shared: &Shared, jobs: &Receiver<Job>) {
    /// Counts a job as finished, also if it panics.
    struct Finished<'a>(&'a AtomicUsize);

    impl Drop for Finished<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::AcqRel);
        }
    }

    while let Ok(job) = jobs.recv() {
        let _finished = Finished(&shared.queued);
        job(shared);
        let mut database = shared.database();
        if database.takes_checkpoint() {
            database.checkpoint();
        }
    }
}

/// The connections to a database, and the identity of its file when it was opened.
#[derive(Debug)]
pub(crate) struct Database {
    config: SqliteConfig,
    /// The connection for locks, whose commits are not synced.
    locks: Connection,
    /// The connection for registers and for the bounds of fences, whose commits are synced, with all before.
    durable: Connection,
    /// The bounds of the fences of locks.
    fences: Fences,
    /// Those of registers.
    unlimited: Fences,
    file: Option<(u64, u64)>,
    /// `true` if the file is gone after a restart of the machine, or with its container.
    is_fleeting: bool,
    /// The pages of the log after the last commit of this client. The commits of other clients count, too.
    log: Arc<AtomicUsize>,
    /// The pages at which the log is to be written back.
    log_max: usize,
}

impl Database {
    /// Opens it, and waits for others that use it, for up to the timeout since `begun`.
    fn open(mut config: SqliteConfig, begun: Instant) -> Result<Database, Failure> {
        // The working directory may change while the database is open.
        if let Ok(path) = std::path::absolute(&config.path) {
            config.path = path;
        }
        let (mut pause, mut reopened) = (Pause::new(), 0);
        while reopened < MAX_REOPEN {
            let before = file_at(&config.path);
            let mut database = match open(&config) {
                Ok(database) => database,
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
                database.file = before;
                return Ok(database);
            }
            reopened += 1;
        }
        Err(Failure::unavailable(format!(
            "{}: the file is replaced again and again while it is opened",
            config.path.display()
        )))
    }

    /// Returns the database of the file that the path leads to now, for a request that began at `begun`.
    fn current(&mut self, begun: Instant) -> Result<&mut Database, Failure> {
        if !self.is_current() {
            let opened = Database::open(self.config.clone(), begun)?;
            if opened.is_fleeting && !self.is_fleeting {
                let text = "was replaced by a file that does not outlive a restart of the machine, or its container, \
                            and the client promises that: open it again, or put the file back on the disk";
                return Err(unsupported(&self.config, text));
            }
            *self = opened;
            tracing::warn!(database = %self.config, "the file was removed or replaced: all its locks are lost");
        }
        Ok(self)
    }

    fn is_current(&self) -> bool {
        file_at(&self.config.path) == self.file
    }

    /// Returns `true` if the next change of a lock has to open or to sync something first.
    fn must_block(&self) -> bool {
        !self.is_current() || self.fences.needs_reserve(time::now())
    }

    /// Returns the connection for locks, to read.
    pub(crate) fn locks(&self) -> &Connection {
        &self.locks
    }

    /// Returns the least fence of the next grant of a lock.
    pub(crate) fn low(&self) -> i64 {
        self.fences.low()
    }

    /// Returns the connection for locks, and the bounds of their fences, to change them.
    pub(crate) fn change_locks(&mut self) -> rusqlite::Result<(&mut Connection, &mut Fences)> {
        self.fences.reserve(&self.durable, &self.config.table, time::now())?;
        Ok((&mut self.locks, &mut self.fences))
    }

    /// Returns the same for registers.
    pub(crate) fn change_registers(&mut self) -> (&mut Connection, &mut Fences) {
        (&mut self.durable, &mut self.unlimited)
    }

    /// Returns `true` once the log has grown so far that it should be written back.
    fn takes_checkpoint(&mut self) -> bool {
        let pages = self.log_pages();
        // Another client may have begun the log anew.
        self.log_max = self.log_max.min(pages + PAGES_MAX);
        pages >= self.log_max
    }

    fn log_pages(&self) -> usize {
        self.log.load(Ordering::Relaxed)
    }

    /// Writes the log back into the database, as far as no reader is in the way.
    ///
    /// SQLite itself would do so at the end of some commit, on the thread of its caller.
    fn checkpoint(&mut self) {
        let written: rusqlite::Result<i64> =
            self.durable.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(0));
        // The next change begins the log anew and syncs it, which callers must not wait for. One that leaves a row as
        // it is would not be written; the bound of fences may always rise.
        let table = &self.config.table;
        let begin = format!("UPDATE {table}_meta SET high = high + (high < 9000000000000000000)");
        if let Err(error) = written.and_then(|_| self.locks.execute(&begin, [])) {
            tracing::debug!(database = %self.config, %error, "the log could not be written back");
        }
        // A log that a reader keeps from being begun anew is not tried again at each commit.
        self.log_max = self.log_pages() + PAGES_MAX;
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

/// The pages after which the log is written back, as SQLite does by default.
const PAGES_MAX: usize = 1_000;

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

/// Opens both connections, and prepares the tables.
fn open(config: &SqliteConfig) -> Result<Database, Failure> {
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
    let connect = || {
        let connection = Connection::open_with_flags(&config.path, flags)?;
        // Callers wait by themselves, with pauses: SQLite does not wait in each case, as for the mode of the
        // journal.
        connection.busy_timeout(Duration::ZERO)?;
        connection.set_prepared_statement_cache_capacity(16);
        Ok(connection)
    };
    let mut durable = connect().map_err(failed)?;
    let fences = schema::prepare(&mut durable, config)?;
    let mut locks = connect().map_err(failed)?;
    locks.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
    let log = Arc::new(AtomicUsize::new(0));
    for connection in [&mut durable, &mut locks] {
        let log = log.clone();
        // It takes the place of the hook by which SQLite writes the log back itself.
        let note_pages = move |_: &mut Wal, pages| {
            log.store(usize::try_from(pages).unwrap_or_default(), Ordering::Relaxed);
            Ok(())
        };
        connection.wal_hook(Some(note_pages)).map_err(failed)?;
    }
    let unlimited = Fences::unlimited(time::wall_ahead(&locks).map_err(failed)?);
    let config = config.clone();
    // Where it cannot be looked up, nothing is promised.
    let is_fleeting = !matches!(FileSystem::of(&config.path), Ok(FileSystem::Local));
    let log_max = PAGES_MAX;
    Ok(Database { config, locks, durable, fences, unlimited, file: None, is_fleeting, log, log_max })
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

    /// The change that begins it writes its header, and syncs it.
    #[test]
    fn log_is_begun_anew_where_it_was_written_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks.db");
        let config = SqliteConfig::parse(&format!("sqlite:{}", path.display())).unwrap();
        let mut database = Database::open(config, Instant::now()).unwrap();
        // The number of times that the log was begun is in its header.
        let begun = || {
            let log = std::fs::read(dir.path().join("locks.db-wal")).unwrap();
            u32::from_be_bytes(log[12..16].try_into().unwrap())
        };
        let change = |database: &mut Database| {
            let change = format!("UPDATE {}_meta SET high = high + 1", database.config.table);
            database.change_locks().unwrap().0.execute(&change, []).unwrap();
        };
        change(&mut database);
        let before = begun();
        database.checkpoint();
        assert_eq!(begun(), before + 1);
        change(&mut database);
        assert_eq!(begun(), before + 1);
    }

    /// A fence is on the disk before it is granted. A lock need not be: it does not outlive the machine.
    #[test]
    fn commits_of_fences_are_synced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks.db");
        let config = SqliteConfig::parse(&format!("sqlite:{}", path.display())).unwrap();
        let Database { durable, locks, .. } = open(&config).unwrap();
        let level = |connection: &Connection| -> i64 {
            connection.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap()
        };
        const NORMAL: i64 = 1;
        const FULL: i64 = 2;
        assert_eq!((level(&durable), level(&locks)), (FULL, NORMAL));
    }

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
