//! The tables: what creates them, and whether this client may use existing ones.
//!
//! Ground rules: a change of the tables only adds, so that old and new clients run together; the table says
//! which is the oldest client that may still use it.

use leasehold_core::Failure;
use leasehold_machine::{FileSystem, is_mount};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::config::SqliteConfig;
use crate::error::{failure, unsupported};
use crate::sql::fences::Fences;
use crate::sql::time;

/// The form of the tables that this client writes. Clients of form 1 remove all claims when they read
/// another boot identity, which a container on the same kernel has; those of form 2 know no bounds of
/// fences. Neither may open what this client uses.
const FORM: i64 = 3;

/// The time namespace of a database that no process uses any more, as its operator says. The bounds of its fences stay:
/// without them a fence could be given out again.
const MOVED: &str = "moved";

/// Returns the statements that create the tables, to be read. Running them again changes nothing.
pub fn schema(config: &SqliteConfig) -> String {
    format!("{}\n", statements(&config.table))
}

/// Prepares a connection whose commits are synced, and the tables. Returns the bounds of the fences.
pub(crate) fn prepare(connection: &mut Connection, config: &SqliteConfig) -> Result<Fences, Failure> {
    let failed = |error| failure(config, error);
    refuse_network(config)?;
    refuse_second_name(config)?;
    remove_memory_of_earlier_file(connection).map_err(failed)?;
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed)?;
    if !mode.eq_ignore_ascii_case("wal") {
        let text = format!(
            "its journal stays in mode {mode}, and locks need WAL: put the file on a disk that can be mapped"
        );
        return Err(unsupported(config, &text));
    }
    connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    transaction.execute_batch(&statements(&config.table)).map_err(failed)?;
    add_bounds(&transaction, &config.table).map_err(failed)?;
    let fences = settle(&transaction, config, &Machine::here(&transaction).map_err(failed)?)?;
    transaction.commit().map_err(failed)?;
    Ok(fences)
}

/// Removes the memory of locks (`-shm`) beside an empty file. It is that of an earlier file, which was removed, and
/// which other processes may still have open: SQLite would trust what this memory says of the log.
///
/// Each process that uses a file with a log keeps a lock on the file, and such a file is not empty. So nobody else uses
/// the memory of this one.
fn remove_memory_of_earlier_file(connection: &mut Connection) -> rusqlite::Result<()> {
    let Some(file) = connection.path().map(str::to_owned) else { return Ok(()) };
    let is_empty = || std::fs::metadata(&file).is_ok_and(|found| found.len() == 0);
    if is_empty() {
        let locked = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
        if is_empty() {
            // Most often there is none.
            let _ = std::fs::remove_file(format!("{file}-shm"));
        }
        locked.rollback()?;
    }
    Ok(())
}

/// Adds the bounds of fences to a table of an earlier form, where they are 0.
fn add_bounds(transaction: &Connection, table: &str) -> rusqlite::Result<()> {
    let has_bounds = format!("SELECT count(*) FROM pragma_table_info('{table}_meta') WHERE name = 'high'");
    if transaction.query_row(&has_bounds, [], |row| row.get::<_, i64>(0))? > 0 {
        return Ok(());
    }
    transaction.execute_batch(&format!(
        "ALTER TABLE {table}_meta ADD COLUMN low INTEGER NOT NULL DEFAULT 0; \
         ALTER TABLE {table}_meta ADD COLUMN high INTEGER NOT NULL DEFAULT 0"
    ))
}

/// The identity that distinguishes one run of the machine from another.
struct Machine {
    /// The identity of the boot; empty where it cannot be read.
    boot: String,
    namespace: String,
    /// Microseconds since the machine started.
    now: i64,
    /// The microseconds by which the wall clock is ahead of that.
    wall_ahead: i64,
}

impl Machine {
    fn here(connection: &Connection) -> rusqlite::Result<Machine> {
        let boot = leasehold_machine::boot_id().unwrap_or_default();
        let (namespace, now) = (leasehold_machine::time_namespace(), time::now());
        Ok(Machine { boot, namespace, now, wall_ahead: time::wall_ahead(connection)? })
    }
}

/// The row that says which client, on which run of which machine, last decided about the claims.
struct Signed {
    oldest_client: i64,
    boot: String,
    namespace: String,
}

/// A decision about the claims in the tables.
#[derive(Debug, PartialEq, Eq)]
enum Claims {
    /// They are of this run of the machine, and the bounds of the fences hold.
    OfThisRun,
    /// Nothing proves that they are of an earlier run: they stay, and end with their leases at the latest.
    PerhapsOfThisRun,
    /// Their holders are gone, for this reason. Without a reason there never were any.
    Gone(Option<&'static str>),
}

/// Decides whether the claims in the tables are of this run of the machine, and removes those of an earlier
/// one. Returns the bounds of the fences.
///
/// Another boot identity may follow a loss of power, so all fences from then on are above those that may have
/// been lost. If the machine did not stop, fences only skip some numbers.
fn settle(transaction: &Connection, config: &SqliteConfig, here: &Machine) -> Result<Fences, Failure> {
    let (failed, table) = (|error| failure(config, error), &config.table);
    let found = format!("SELECT oldest_client, boot, namespace FROM {table}_meta");
    let found = transaction.query_row(&found, [], |row| {
        Ok(Signed { oldest_client: row.get(0)?, boot: row.get(1)?, namespace: row.get(2)? })
    });
    let latest = || {
        let latest = format!(
            "SELECT max(coalesce((SELECT max(origin) FROM {table}), 0), \
                        coalesce((SELECT max(origin) FROM {table}_registers), 0))"
        );
        transaction.query_row(&latest, [], |row| row.get(0)).map_err(failed)
    };
    match judge(config, found.optional().map_err(failed)?, here, latest)? {
        Claims::OfThisRun => return Fences::read(transaction, table, here.wall_ahead).map_err(failed),
        Claims::PerhapsOfThisRun => {}
        Claims::Gone(why) => {
            if let Some(why) = why {
                tracing::info!(database = %config, "{why}: claims from before are removed");
            }
            remove_claims(transaction, table).map_err(failed)?;
        }
    }
    sign(transaction, config, here)
}

/// Decides about the claims from what was `found`. `latest` reads the latest time in a row; it is called only if
/// nothing else decides.
///
/// Another boot identity does not prove a restart: containers on this very kernel read one of their own, or
/// none. What is evidence is the clock that counts from the start: it shows less than a row says only after
/// a restart. Without that evidence nothing is removed. Claims of an earlier run then end with their
/// leases, as after any crash. A database that was moved from another time namespace has no holders, and times of
/// another clock.
fn judge(
    config: &SqliteConfig,
    found: Option<Signed>,
    here: &Machine,
    latest: impl FnOnce() -> Result<i64, Failure>,
) -> Result<Claims, Failure> {
    let Some(found) = found else { return Ok(Claims::Gone(None)) };
    if found.oldest_client > FORM {
        return Err(unsupported(config, "its tables were made for a newer leasehold: update this one"));
    }
    if found.namespace == MOVED {
        return Ok(Claims::Gone(Some("the time namespace is another")));
    }
    if found.namespace != here.namespace {
        let table = &config.table;
        let text = format!(
            "it was last used in another time namespace, where time since the start of the machine is another: \
             use it from one time namespace; when no process uses it any more, \
             `UPDATE {table}_meta SET namespace = '{MOVED}'` removes its claims and makes it usable here"
        );
        return Err(unsupported(config, &text));
    }
    if found.boot == here.boot && !found.boot.is_empty() && found.oldest_client == FORM {
        return Ok(Claims::OfThisRun);
    }
    if here.now >= latest()? {
        return Ok(Claims::PerhapsOfThisRun);
    }
    Ok(Claims::Gone(Some("the machine was started again")))
}

/// Removes all claims. Fences stay, and so do registers.
fn remove_claims(transaction: &Connection, table: &str) -> rusqlite::Result<()> {
    let clear =
        format!("UPDATE {table} SET claims = '', version = abs(random() / 2) + 1, origin = 0, lapses = 0");
    transaction.execute(&clear, [])?;
    // What registers are to be kept for is counted from the start of the machine now.
    let settle = format!("UPDATE {table}_registers SET lapses = lapses - origin, origin = 0");
    transaction.execute(&settle, [])?;
    Ok(())
}

/// Writes down which client, on which run of the machine, last decided about the claims, and the bounds of its
/// fences.
fn sign(transaction: &Connection, config: &SqliteConfig, here: &Machine) -> Result<Fences, Failure> {
    let (failed, table) = (|error| failure(config, error), &config.table);
    let before = Fences::read(transaction, table, here.wall_ahead).optional().map_err(failed)?;
    let seen = format!("SELECT coalesce(max(seq), 0) FROM {table}");
    let seen = transaction.query_row(&seen, [], |row| row.get(0)).map_err(failed)?;
    let fences = Fences::after_start(before, seen, here.now, here.wall_ahead);
    let sign = format!(
        "INSERT INTO {table}_meta (one, form, oldest_client, boot, namespace, low, high) \
         VALUES (1, {FORM}, {FORM}, ?1, ?2, ?3, ?4) \
         ON CONFLICT (one) DO UPDATE SET form = excluded.form, oldest_client = excluded.oldest_client, \
                                         boot = excluded.boot, namespace = excluded.namespace, \
                                         low = excluded.low, high = excluded.high"
    );
    let row = (&here.boot, &here.namespace, fences.low(), fences.high());
    transaction.execute(&sign, row).map_err(failed)?;
    Ok(fences)
}

fn statements(table: &str) -> String {
    let columns = "
    name    TEXT PRIMARY KEY COLLATE BINARY,
    claims  TEXT NOT NULL,
    version INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    origin  INTEGER NOT NULL,
    lapses  INTEGER NOT NULL
";
    format!(
        "CREATE TABLE IF NOT EXISTS {table} ({columns}) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {table}_registers ({columns}) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {table}_meta (
    one           INTEGER PRIMARY KEY CHECK (one = 1),
    form          INTEGER NOT NULL,
    oldest_client INTEGER NOT NULL,
    boot          TEXT NOT NULL,
    namespace     TEXT NOT NULL,
    low           INTEGER NOT NULL DEFAULT 0,
    high          INTEGER NOT NULL DEFAULT 0
);"
    )
}

/// Refuses a file system of several machines. WAL shares memory between processes, so two machines would
/// each see their own locks only.
///
/// The file itself is judged where there is one, through symbolic links and bind mounts; else the directory
/// that it is made in.
fn refuse_network(config: &SqliteConfig) -> Result<(), Failure> {
    let folder = config.path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let system = FileSystem::of(&config.path)
        .or_else(|_| FileSystem::of(folder.unwrap_or_else(|| std::path::Path::new("."))));
    match system {
        Ok(FileSystem::Network(name)) => {
            let text = format!(
                "lies on a network file system ({name}), where two machines could hold one lock: \
                 use a local disk, or a lock server"
            );
            Err(unsupported(config, &text))
        }
        // Where nothing can be looked up, opening the file says better what is wrong.
        Ok(FileSystem::Local | FileSystem::Fleeting) | Err(_) => Ok(()),
    }
}

/// Refuses a file with several names: SQLite calls the log and the memory of its locks after the path, so clients
/// under two names would each see their own locks only, and overwrite each other's pages.
///
/// This is checked at opening only, which is enough: a client that opens a second name finds both. Clients that have
/// the file open keep their locks if a backup makes a hard link for a moment. If a file is mounted alone in a container,
/// the mount is seen inside only. So the clients there are refused, also if nobody else uses the file: the log would
/// lie in the container, and be gone with it.
fn refuse_second_name(config: &SqliteConfig) -> Result<(), Failure> {
    let names = names(&config.path);
    if names > 1 {
        let text = format!(
            "has {names} names (hard links), and under each of them SQLite keeps other locks: remove all \
             but one, which `find / -samefile` with this path lists"
        );
        return Err(unsupported(config, &text));
    }
    if is_mount(&config.path) {
        let text = "is mounted alone, so SQLite keeps its log and its locks apart from those on the other side of the \
                    mount: mount its directory instead of the file";
        return Err(unsupported(config, text));
    }
    Ok(())
}

/// Returns the number of hard links to a file; 1 where it is not known.
fn names(path: &std::path::Path) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).map_or(1, |found| found.nlink())
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> (Connection, SqliteConfig) {
        let config = SqliteConfig::parse("sqlite:/x.db").unwrap();
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&statements(&config.table)).unwrap();
        (connection, config)
    }

    fn machine(boot: &str, now: i64) -> Machine {
        Machine { boot: boot.to_owned(), namespace: String::new(), now, wall_ahead: 0 }
    }

    fn hold(connection: &Connection, origin: i64) {
        let row = "INSERT OR REPLACE INTO leasehold VALUES ('job', 'held', 7, 1, ?1, ?1 + 30)";
        connection.execute(row, [origin]).unwrap();
    }

    fn is_held(connection: &Connection) -> bool {
        connection.query_row("SELECT claims = 'held' FROM leasehold", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn what_the_last_client_wrote_decides_about_the_claims() {
        let (_, config) = database();
        let here = Machine { namespace: "here".to_owned(), ..machine("boot", 1_000) };
        let started = Claims::Gone(Some("the machine was started again"));
        for (oldest_client, boot, namespace, latest, expected) in [
            (FORM, "boot", "here", None, Claims::OfThisRun),
            (FORM, "boot", MOVED, None, Claims::Gone(Some("the time namespace is another"))),
            (FORM, "other", "here", Some(1_000), Claims::PerhapsOfThisRun),
            (FORM, "other", "here", Some(1_001), started),
            (FORM, "", "here", Some(0), Claims::PerhapsOfThisRun),
            (FORM - 1, "boot", "here", Some(0), Claims::PerhapsOfThisRun),
        ] {
            let found = Signed { oldest_client, boot: boot.to_owned(), namespace: namespace.to_owned() };
            let latest = || latest.ok_or_else(|| Failure::unavailable("nothing asks for it"));
            let claims = judge(&config, Some(found), &here, latest).unwrap();
            assert_eq!(claims, expected, "{oldest_client}, '{boot}', {namespace}");
        }
        let none = || -> Result<i64, Failure> { unreachable!("nothing asks for it") };
        assert_eq!(judge(&config, None, &here, none).unwrap(), Claims::Gone(None));
        for (oldest_client, namespace, why) in
            [(FORM + 1, MOVED, "newer leasehold"), (FORM, "there", "another time namespace")]
        {
            let found = Signed { oldest_client, boot: "boot".to_owned(), namespace: namespace.to_owned() };
            let refused = judge(&config, Some(found), &here, none).unwrap_err();
            assert!(refused.detail().contains(why), "{refused}");
        }
        // Two machines that cannot read their boot identity are not taken for one.
        let nameless = Signed { oldest_client: FORM, boot: String::new(), namespace: String::new() };
        assert_eq!(
            judge(&config, Some(nameless), &machine("", 1_000), || Ok(1_001)).unwrap(),
            Claims::Gone(Some("the machine was started again"))
        );
    }

    #[test]
    fn another_boot_id_on_one_kernel_removes_no_claim() {
        let (connection, config) = database();
        settle(&connection, &config, &machine("host", 1_000)).unwrap();
        hold(&connection, 1_000);
        for (boot, now) in [("container", 1_001), ("", 1_002), ("host", 1_003), ("another", 1_004)] {
            settle(&connection, &config, &machine(boot, now)).unwrap();
            assert!(is_held(&connection), "opened as '{boot}'");
        }
    }

    #[test]
    fn a_clock_that_begins_again_removes_claims() {
        let (connection, config) = database();
        settle(&connection, &config, &machine("first", 1_000)).unwrap();
        hold(&connection, 1_000);
        settle(&connection, &config, &machine("second", 999)).unwrap();
        assert!(!is_held(&connection));
        hold(&connection, 999);
        settle(&connection, &config, &machine("", 5)).unwrap();
        assert!(!is_held(&connection), "the boot identity cannot be read, and the clock decides");
    }

    #[test]
    fn another_time_namespace_is_refused_under_any_boot_id() {
        let (connection, config) = database();
        settle(&connection, &config, &machine("host", 1_000)).unwrap();
        hold(&connection, 1_000);
        for boot in ["host", "container", ""] {
            let there = Machine { namespace: "boottime 86400 0".to_owned(), ..machine(boot, 5) };
            let refused = settle(&connection, &config, &there).unwrap_err();
            assert!(refused.detail().contains("time namespace"), "{refused}");
            assert!(is_held(&connection));
        }
    }

    /// The clock there is behind the one here, or ahead of it.
    #[test]
    fn database_that_is_moved_keeps_fences_and_registers() {
        for now in [5, 1_000_000] {
            let (connection, config) = database();
            let before = settle(&connection, &config, &machine("host", 1_000)).unwrap();
            hold(&connection, 1_000);
            connection
                .execute("INSERT INTO leasehold_registers VALUES ('r', 'value', 7, 1, 1000, 1500)", [])
                .unwrap();
            let there = Machine { namespace: "boottime 86400 0".to_owned(), ..machine("host", now) };
            let refused = settle(&connection, &config, &there).unwrap_err();
            let advice = refused.detail().split('`').nth(1).unwrap();
            assert_eq!(connection.execute(advice, []).unwrap(), 1, "{advice}");
            let after = settle(&connection, &config, &there).unwrap();
            assert!(after.low() > before.high(), "{after:?} after {before:?}");
            assert!(!is_held(&connection), "no process uses it any more");
            let kept = "SELECT lapses - origin, origin <= ?1 FROM leasehold_registers";
            let kept: (i64, bool) =
                connection.query_row(kept, [now], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            assert_eq!(kept, (500, true));
            // It is of that namespace now, and of no other.
            assert_eq!(settle(&connection, &config, &there).unwrap().low(), after.low());
            settle(&connection, &config, &machine("host", 1_000)).unwrap_err();
        }
    }

    #[test]
    fn clients_that_trust_the_boot_id_are_locked_out() {
        let (connection, config) = database();
        connection.execute("INSERT INTO leasehold_meta VALUES (1, 1, 1, 'host', '', 0, 0)", []).unwrap();
        hold(&connection, 1_000);
        settle(&connection, &config, &machine("host", 1_001)).unwrap();
        assert!(is_held(&connection));
        let oldest = "SELECT oldest_client FROM leasehold_meta";
        let oldest: i64 = connection.query_row(oldest, [], |row| row.get(0)).unwrap();
        assert_eq!(oldest, FORM);
    }
}
