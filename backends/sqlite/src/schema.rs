//! The tables: what creates them, and whether this client may use what is there.
//!
//! Ground rules: a change of the tables only adds, so that old and new clients run together; the table says which is the
//! oldest client that may still use it.

use leasehold_core::Failure;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::config::SqliteConfig;
use crate::failure::{failure, unsupported};
use crate::time;

/// The form of the tables that this client writes.
const FORM: i64 = 1;

/// Statements that create the tables, for those who want to see them. Running them again changes nothing.
pub fn schema(config: &SqliteConfig) -> String {
    format!("{}\n", statements(&config.table))
}

/// Prepares the connection and the tables.
pub(crate) fn prepare(connection: &mut Connection, config: &SqliteConfig) -> Result<(), Failure> {
    let failed = |error| failure(config, error);
    refuse_network(config)?;
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed)?;
    if !mode.eq_ignore_ascii_case("wal") {
        let text = format!(
            "its journal stays in mode {mode}, and locks need WAL: is it on a disk that cannot be mapped?"
        );
        return Err(unsupported(config, &text));
    }
    connection.pragma_update(None, "synchronous", config.synchronous.word()).map_err(failed)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    transaction.execute_batch(&statements(&config.table)).map_err(failed)?;
    let meta = format!("SELECT oldest_client, boot, namespace FROM {}_meta", config.table);
    let found: Option<(i64, String, String)> = transaction
        .query_row(&meta, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()
        .map_err(failed)?;
    let (boot, namespace) = (time::boot(), time::namespace());
    match found {
        Some((oldest_client, ..)) if oldest_client > FORM => {
            return Err(unsupported(config, "its tables were made for a newer leasehold: update this one"));
        }
        Some((_, known, there)) if known == boot && there != namespace => {
            let text =
                "other processes of this machine use it from another time namespace, and count another time";
            return Err(unsupported(config, text));
        }
        Some((_, known, _)) if known == boot => {}
        _ => {
            // Whoever held something before the machine started again is gone. Fences stay.
            let table = &config.table;
            let clear = format!(
                "UPDATE {table} SET claims = '', version = abs(random() / 2) + 1, origin = 0, lapses = 0"
            );
            transaction.execute(&clear, []).map_err(failed)?;
            // Registers stay; what they are to be kept for is counted from the start of the machine now.
            let settle = format!("UPDATE {table}_registers SET lapses = lapses - origin, origin = 0");
            transaction.execute(&settle, []).map_err(failed)?;
            let settle = format!(
                "INSERT INTO {table}_meta (one, form, oldest_client, boot, namespace) VALUES (1, {FORM}, {FORM}, ?1, ?2) \
                 ON CONFLICT (one) DO UPDATE SET boot = excluded.boot, namespace = excluded.namespace"
            );
            transaction.execute(&settle, (&boot, &namespace)).map_err(failed)?;
        }
    }
    transaction.commit().map_err(failed)
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
    namespace     TEXT NOT NULL
);"
    )
}

/// WAL shares memory between processes, so two machines would each see their own locks only.
#[cfg(target_os = "linux")]
fn refuse_network(config: &SqliteConfig) -> Result<(), Failure> {
    let folder = config.path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Ok(system) = rustix::fs::statfs(folder.unwrap_or_else(|| std::path::Path::new("."))) else {
        // Opening the file says better what is wrong.
        return Ok(());
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the kernel's numbers have 32 bits"
    )]
    let number = system.f_type as u32;
    match NETWORK_SYSTEMS.iter().find(|(magic, _)| *magic == number) {
        None => Ok(()),
        Some((_, name)) => {
            let text = format!(
                "lies on a network file system ({name}), where two machines could hold one lock: \
                                use a local disk, or a lock server"
            );
            Err(unsupported(config, &text))
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_config: &SqliteConfig) -> Result<(), Failure> {
    Ok(())
}

/// File systems of several machines, by their numbers in `linux/magic.h`.
#[cfg(target_os = "linux")]
const NETWORK_SYSTEMS: &[(u32, &str)] = &[
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x517b, "smb"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
    (0x7461_636f, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0x0bd0_0bd0, "lustre"),
];
