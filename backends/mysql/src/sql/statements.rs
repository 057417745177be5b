//! The statements. Names of tables are checked before they come here; everything else is a parameter, or is
//! written in hexadecimal digits.
//!
//! Ground rules: each request is a transaction of its own. Time is that at which the statement began, never
//! that at which a transaction did: a statement that had to wait for a row is late, so that it finds less
//! dead than there is, and never more. A statement waits for nothing but its row. A request that changes
//! several rows waits for none of them for long. Whether a row was written, and with which counter, is read
//! from the row, in the same transaction: triggers and proxies change what the server counts. On MariaDB a
//! statement that changes one row answers with it.

use std::collections::HashSet;
use std::fmt::Write as _;

use leasehold_backend::cell::{Write, WriteAnswer, WriteCondition};
use leasehold_backend::sql::{micros, signed};
use mysql_async::Value;

use crate::config::Names;
use crate::net::dial;
use crate::net::session::IS_READ_ONLY;

/// The statements for one table.
#[derive(Debug)]
pub(crate) struct Statements {
    table: String,
    pub(crate) read: String,
    pub(crate) list: String,
    pub(crate) all: String,
    /// The statements that answer with the row that they change.
    answering: Answering,
}

/// The statements that change one row and answer with it, by their conditions.
///
/// Each is an insertion, because only that has an answer. Where no row exists, those that need one insert an empty
/// row: what a refused write had to write would be read as a value, if the row is a register. The first column of an
/// answer is 1 if this statement wrote the row: it then has the new version, and the statement's own time. The last
/// column is 1 if the server is read-only.
#[derive(Debug)]
struct Answering {
    free: String,
    emptied: String,
    living: String,
    /// As `living`, with the row.
    living_full: String,
}

impl Statements {
    /// Returns the statements for the table of this ending.
    pub(crate) fn of(names: &Names, ending: &str) -> Statements {
        let table = names.table(ending);
        Statements {
            read: format!("SELECT name, claims, {FACTS} FROM {table} WHERE name = ?"),
            all: format!(
                "SELECT name, claims, {FACTS}, {NOW} - lapses FROM {table} WHERE name > ? ORDER BY name LIMIT ?"
            ),
            // No name has the byte 255 in it, so this is behind all that begin with the prefix.
            list: format!(
                "SELECT name, claims, {FACTS} FROM {table} WHERE name >= ? AND name > ? AND name < CONCAT(?, X'FF') \
                 AND lapses > {NOW} ORDER BY name LIMIT ?"
            ),
            answering: Answering::of(&table),
            table,
        }
    }

    /// Returns the statement of one write that answers with the row, and its parameters, for a server that has such
    /// statements. Of a row that was read, nothing in it would say by which statement it was written.
    pub(crate) fn change(&self, write: &Write) -> Option<(&str, Vec<Value>)> {
        let Write { at, when, put, answer } = write;
        let (name, text) = (Value::from(at.as_str()), Value::from(put.text.as_str()));
        let (version, keep) = (Value::from(signed(put.version)), Value::from(micros(put.keep)));
        let seen = |seen: u64| Value::from(signed(seen));
        Some(match *when {
            WriteCondition::Free => {
                let values = vec![name, text, version.clone(), keep, version.clone(), version];
                (&self.answering.free, values)
            }
            WriteCondition::Emptied(left) => {
                let seen = || seen(left);
                let values =
                    vec![name, version.clone(), seen(), text, seen(), seen(), seen(), keep, seen(), version];
                (&self.answering.emptied, values)
            }
            WriteCondition::Living { version: left, .. } => {
                let seen = || seen(left);
                let mut values =
                    vec![name, version.clone(), seen(), text, seen(), seen(), keep, version.clone()];
                match answer {
                    WriteAnswer::Brief => (&self.answering.living, values),
                    WriteAnswer::Full => {
                        values.push(version);
                        (&self.answering.living_full, values)
                    }
                }
            }
            WriteCondition::Seen { .. } => return None,
        })
    }

    /// Reads these names.
    pub(crate) fn read_many<'a>(&self, names: impl Iterator<Item = &'a str>) -> String {
        let names: Vec<String> = names.map(literal).collect();
        format!("SELECT name, claims, {FACTS} FROM {} WHERE name IN ({})", self.table, names.join(", "))
    }

    /// Reads which of these rows no transaction keeps locked. A lock of its own ends with the statement.
    pub(crate) fn unlocked<'a>(&self, names: impl Iterator<Item = &'a str>) -> String {
        let names: Vec<String> = names.map(literal).collect();
        let (table, names) = (&self.table, names.join(", "));
        format!(
            "SELECT name FROM {table} FORCE INDEX (PRIMARY) WHERE name IN ({names}) FOR UPDATE SKIP LOCKED"
        )
    }

    /// Makes these writes, and reads those rows that were written, with their counters: the statements of a
    /// transaction. A row that another client keeps locked is waited for as shortly as both servers can, and
    /// for `seconds` from then on.
    pub(crate) fn write_many(&self, writes: &[&Write], seconds: f64) -> Vec<String> {
        let mut statements = vec![format!("{LOCK_WAIT} = 1")];
        for some in parts(writes) {
            statements.extend([self.write_some(some), self.read_written(some)]);
        }
        statements.push(format!("{LOCK_WAIT} = {seconds}"));
        statements
    }

    /// Makes writes that are all on what was read, or all on other conditions, by one statement. A
    /// statement for each costs the server three times as much. By their key it meets no other rows.
    fn write_some(&self, writes: &[&Write]) -> String {
        let table = &self.table;
        // A version belongs to one state of one cell, so it can choose among the values.
        let by_version = |value: fn(&Write) -> String| {
            let values: Vec<String> = writes.iter().map(|write| value(write)).collect();
            if values.iter().all(|value| *value == values[0]) {
                return values[0].clone();
            }
            let mut all = "CASE version".to_owned();
            for (write, value) in writes.iter().zip(&values) {
                // Writing into a String does not fail.
                let _ = write!(all, " WHEN {} THEN {value}", seen_by(write));
            }
            all + " END"
        };
        let claims = by_version(|write| literal(&write.put.text));
        let version = by_version(|write| signed(write.put.version).to_string());
        let keep = by_version(|write| micros(write.put.keep).to_string());
        let pairs = joined(writes.iter(), |write| format!("({}, {})", name_of(write), seen_by(write)));
        let rows = format!("name IN ({}) AND (name, version) IN ({pairs})", joined(writes.iter(), name_of));
        let update = format!("UPDATE {table} FORCE INDEX (PRIMARY) SET claims = {claims}");
        // Assignments are made from left to right, and each sees those before it.
        if writes.iter().all(|write| matches!(write.when, WriteCondition::Seen { .. })) {
            let seq = by_version(|write| signed(write.put.fence.seq).to_string());
            return format!(
                "{update}, seq = {seq}, lapses = origin + {keep}, version = {version} WHERE {rows}"
            );
        }
        let living = |write: &&&Write| matches!(write.when, WriteCondition::Living { .. });
        let set = format!("origin = {NOW}, lapses = origin + {keep}, version = {version}");
        if writes.iter().all(|write| living(&write)) {
            return format!("{update}, {set} WHERE {rows} AND lapses > {NOW}");
        }
        let emptied = joined(writes.iter().filter(|write| !living(write)), seen_by);
        let seq = format!("IF(version IN ({emptied}), GREATEST(seq + 1, {NOW}), seq)");
        format!("{update}, seq = {seq}, {set} WHERE {rows} AND (lapses > {NOW} OR version IN ({emptied}))")
    }

    /// Reads name and counter of the rows that were just written.
    fn read_written(&self, writes: &[&Write]) -> String {
        let table = &self.table;
        let versions = joined(writes.iter(), |write| signed(write.put.version).to_string());
        format!(
            "SELECT name, seq FROM {table} FORCE INDEX (PRIMARY) WHERE name IN ({}) AND version IN ({versions})",
            joined(writes.iter(), name_of)
        )
    }

    /// Makes one write, and reads its row, without the text that was written: the statements of a
    /// transaction. A row that was not written is read only if the answer is to have it.
    pub(crate) fn write_one(&self, write: &Write) -> [String; 2] {
        let (table, name, version) = (&self.table, name_of(write), signed(write.put.version));
        let which = match write.answer {
            WriteAnswer::Brief => format!(" AND version = {version}"),
            WriteAnswer::Full => String::new(),
        };
        let read = format!(
            "SELECT name, IF(version = {version}, '', claims), {FACTS} FROM {table} WHERE name = {name}{which}"
        );
        [self.written_out(write), read]
    }

    /// Returns the statement of a write, with its values.
    fn written_out(&self, write: &Write) -> String {
        let Write { at, when, put, .. } = write;
        let statement: fn(&str, &Values<'_>) -> String = match *when {
            WriteCondition::Free => free,
            WriteCondition::Emptied(_) => emptied,
            WriteCondition::Living { .. } => living,
            WriteCondition::Seen { .. } => self::seen,
        };
        let (claims, name, seen) = (literal(&put.text), literal(at.as_str()), &seen_by(write));
        let numbers = [signed(put.version), signed(put.fence.seq), micros(put.keep)];
        let [version, seq, keep] = &numbers.map(|number| number.to_string());
        statement(&self.table, &Values { claims: &claims, version, seq, keep, name: &name, seen })
    }
}

impl Answering {
    // Assignments are made from left to right, and each sees those before it: what a condition is about is assigned
    // last.
    fn of(table: &str) -> Answering {
        let insert = format!("INSERT INTO {table} (name, claims, version, seq, origin, lapses)");
        let written = format!("version = ? AND origin = {NOW}");
        let brief = format!("RETURNING {written}, seq, {IS_READ_ONLY}");
        let full = format!("RETURNING {written}, IF(version = ?, '', claims), {FACTS}, {IS_READ_ONLY}");
        let free = format!(
            "{insert} VALUES (?, ?, ?, {NOW}, {NOW}, {NOW} + ?) ON DUPLICATE KEY UPDATE \
             version = IF({DEAD}, VALUES(version), version), seq = IF({DEAD}, GREATEST(seq + 1, {NOW}), seq), \
             origin = IF({DEAD}, {NOW}, origin), claims = IF({DEAD}, VALUES(claims), claims), \
             lapses = IF(version = VALUES(version) AND origin = {NOW}, VALUES(lapses), lapses) {full}"
        );
        let emptied = format!(
            "{insert} VALUES (?, '', ?, {NOW}, 0, 0) ON DUPLICATE KEY UPDATE \
             claims = IF(version = ?, ?, claims), seq = IF(version = ?, GREATEST(seq + 1, {NOW}), seq), \
             origin = IF(version = ?, {NOW}, origin), lapses = IF(version = ?, {NOW} + ?, lapses), \
             version = IF(version = ?, VALUES(version), version) {brief}"
        );
        let lives = format!("version = ? AND lapses > {NOW}");
        let living = format!(
            "{insert} VALUES (?, '', ?, {NOW}, 0, 0) ON DUPLICATE KEY UPDATE \
             claims = IF({lives}, ?, claims), origin = IF({lives}, {NOW}, origin), \
             version = IF({lives}, VALUES(version), version), \
             lapses = IF(version = VALUES(version) AND origin = {NOW}, {NOW} + ?, lapses)"
        );
        Answering {
            free,
            emptied,
            living_full: format!("{living} {full}"),
            living: format!("{living} {brief}"),
        }
    }
}

/// Cuts writes into those that one statement makes: they are of one kind, no two of them replace the same
/// version, and no more than so many have to choose among their values.
fn parts<'a, 'w>(writes: &'a [&'w Write]) -> Vec<&'a [&'w Write]> {
    let is_seen = |write: &Write| matches!(write.when, WriteCondition::Seen { .. });
    let mut parts = Vec::new();
    let mut versions = HashSet::new();
    let mut first = 0;
    for (at, write) in writes.iter().enumerate() {
        let is_other = is_seen(write) != is_seen(writes[first]);
        if !versions.insert(seen_by(write)) || is_other || at - first == MAX_ROWS {
            parts.push(&writes[first..at]);
            first = at;
            versions = HashSet::from([seen_by(write)]);
        }
    }
    parts.push(&writes[first..]);
    parts
}

/// Returns the version that the row must have, as a number.
fn seen_by(write: &Write) -> String {
    let version = match write.when {
        WriteCondition::Free => 0,
        WriteCondition::Emptied(version)
        | WriteCondition::Living { version, .. }
        | WriteCondition::Seen { version, .. } => version,
    };
    signed(version).to_string()
}

fn name_of(write: &Write) -> String {
    literal(write.at.as_str())
}

fn joined<'a, 'w: 'a>(
    writes: impl Iterator<Item = &'a &'w Write>,
    value: impl Fn(&Write) -> String,
) -> String {
    writes.map(|write| value(write)).collect::<Vec<_>>().join(", ")
}

/// The most rows of a statement that writes several.
const MAX_ROWS: usize = 64;

/// Returns the statement that puts a claim into a row without claims. The counter never falls behind the
/// server's clock, so that fences rise even after the loss of the table, and over a failover that lost the
/// last writes.
fn free(table: &str, put: &Values<'_>) -> String {
    let Values { claims, version, keep, name, .. } = put;
    // Assignments are made from left to right, and each sees those before it: what a condition is about is assigned
    // last.
    format!(
        "INSERT INTO {table} (name, claims, version, seq, origin, lapses) \
         VALUES ({name}, {claims}, {version}, {NOW}, {NOW}, {NOW} + {keep}) ON DUPLICATE KEY UPDATE \
         version = IF({DEAD}, {version}, version), seq = IF({DEAD}, GREATEST(seq + 1, {NOW}), seq), \
         origin = IF({DEAD}, {NOW}, origin), claims = IF({DEAD}, {claims}, claims), \
         lapses = IF(version = {version} AND origin = {NOW}, {NOW} + {keep}, lapses)"
    )
}

/// Returns the statement that puts a claim into a row that its client left empty, and so without an
/// insertion that has to fail first.
fn emptied(table: &str, put: &Values<'_>) -> String {
    let Values { claims, version, keep, name, seen, .. } = put;
    // Assignments are made from left to right, and each sees those before it.
    format!(
        "UPDATE {table} SET claims = {claims}, version = {version}, seq = GREATEST(seq + 1, {NOW}), \
         origin = {NOW}, lapses = origin + {keep} WHERE name = {name} AND version = {seen}"
    )
}

/// Returns the statement by which a claim alone in its cell continues, or ends.
fn living(table: &str, put: &Values<'_>) -> String {
    let Values { claims, version, keep, name, seen, .. } = put;
    format!(
        "UPDATE {table} SET claims = {claims}, version = {version}, origin = {NOW}, lapses = origin + {keep} \
         WHERE name = {name} AND version = {seen} AND lapses > {NOW}"
    )
}

/// Returns the statement that changes a row which was read. The origin stays.
fn seen(table: &str, put: &Values<'_>) -> String {
    let Values { claims, version, seq, keep, name, seen } = put;
    format!(
        "UPDATE {table} SET claims = {claims}, version = {version}, seq = {seq}, lapses = origin + {keep} \
         WHERE name = {name} AND version = {seen}"
    )
}

/// Sets for how many seconds a statement waits for a row.
const LOCK_WAIT: &str = "SET SESSION innodb_lock_wait_timeout";

/// The values of a write, as its statement has them.
struct Values<'a> {
    claims: &'a str,
    version: &'a str,
    seq: &'a str,
    keep: &'a str,
    name: &'a str,
    seen: &'a str,
}

/// Returns a text in a form that nothing in it can end, compared byte by byte.
pub(crate) fn literal(text: &str) -> String {
    dial::literal(text.as_bytes())
}

/// Returns a text in a form that nothing in it can end, where texts are compared as such.
pub(crate) fn utf8(text: &str) -> String {
    format!("CONVERT({} USING utf8mb4)", literal(text))
}

/// The server's clock in microseconds, in universal time, so that no time zone and no summer time moves it.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The condition that no claim lives in a row. An empty one is of no time: the clock may have been set back since.
const DEAD: &str = "(claims = '' OR lapses <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))";

/// The columns that are read of a cell, behind its name and text.
const FACTS: &str = "version, seq, \
                     GREATEST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - origin, 0), \
                     TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
