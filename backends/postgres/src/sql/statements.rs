//! The statements. Names of tables are checked before they come here; everything else is a parameter.
//!
//! Ground rules: operands of every operator, and arguments of every function, have exactly the types of one
//! in `pg_catalog`: another one with closer types, in a schema of the search path that others may create
//! in, would be called in its place. Each statement is a transaction of its own, so it works through any
//! pooler. Time is that of the statement's own running (`clock_timestamp`), never that at which a
//! transaction began. A statement of one row waits for nothing but the lock of this row. A statement of
//! several rows waits for none: it leaves out those that a transaction keeps locked, so that one such row
//! delays nothing that is done to the others.

use std::sync::LazyLock;

use tokio_postgres::types::Type;

use crate::config::Names;
use crate::net::dial::{Sql, TIMELINE};

/// A table of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Locks,
    Registers,
}

impl Table {
    /// Returns the end of its name.
    pub(crate) fn ending(self) -> &'static str {
        match self {
            Table::Locks => "",
            Table::Registers => "_registers",
        }
    }

    /// Returns the name under which a statement is known on a connection.
    fn name(self, locks: &'static str, registers: &'static str) -> &'static str {
        match self {
            Table::Locks => locks,
            Table::Registers => registers,
        }
    }
}

/// The statements for one table of cells. `PostgresCells` sends them, for these calls of the seam:
///
/// | call | statements |
/// |---|---|
/// | `contend` on a lock of which this client knows nothing | `free` |
/// | `contend` on a lock that this client released last | `emptied_one`, or for several tasks `own_few`, `own_many` |
/// | `contend` on a lock that others hold or wait for | `free` shows the cell, or `read_one`; `seen_one` writes it |
/// | `renew` of claims that are alone in their cells | `living_many` |
/// | `release` of claims that are alone in their cells | `living_one`, `living_full`; several at once `living_many` |
/// | `renew` and `release` of all other claims | `read_one` or `read_many`, then `seen_many` |
/// | `inspect`, `list` | `read_one`, `list` |
/// | `read` and `changed` of a register | `read_one` |
/// | `swap` of a register | `free` for its first value, then `seen_one` |
///
/// The names before `_one`, `_few`, `_many` and `_full` are those of the conditions in
/// [`WriteCondition`](leasehold_backend::cell::WriteCondition).
#[derive(Debug)]
pub(crate) struct Statements {
    /// Reads one cell.
    pub(crate) read_one: Sql,
    /// Reads several cells.
    pub(crate) read_many: Sql,
    /// Puts a claim into a cell in which none lives, or a value into a register. Answers the row if a claim
    /// lives in it.
    pub(crate) free: Sql,
    /// Puts a claim into the cell that this client left empty. The last parameter is the timeline of the connection.
    pub(crate) emptied_one: Sql,
    /// Ends a claim that is alone in its cell.
    pub(crate) living_one: Sql,
    /// As `living_one`, and answers the row where the condition does not hold.
    pub(crate) living_full: Sql,
    /// Renews or ends claims, each of which is alone in its cell. The last parameter says whether the commit is waited
    /// for, as it must be if one is renewed.
    pub(crate) living_many: Sql,
    /// As `own_many`, with the rows written out: one statement for each of the smallest numbers of rows.
    own_few: Vec<Sql>,
    /// Puts claims into cells that this client left empty, and ends claims that are alone in their cells: what
    /// several tasks of a client ask for at the same time. The last parameter is the timeline of the connection.
    pub(crate) own_many: Sql,
    /// Writes a cell that was read, for a claim that is queued or granted beside others, or the next value of
    /// a register.
    pub(crate) seen_one: Sql,
    /// Writes cells that were read, for claims that share their cells with others and are renewed, released or
    /// swept.
    pub(crate) seen_many: Sql,
    /// Reads the cells in which claims live, in the order of their names.
    pub(crate) list: Sql,
}

impl Statements {
    /// Returns the statements for one of the tables.
    pub(crate) fn of(names: &Names, table: Table) -> Statements {
        let (own, table, epoch) = (table, names.table(table.ending()), epoch(names));
        let cell = format!("c.name, c.claims, c.version, c.epoch, c.seq, {AGE}, {epoch}, {NOW}");
        Statements {
            free: free(own.name("free", "free_register"), &table, &epoch, &cell),
            emptied_one: emptied_one(
                own.name("emptied_one", "emptied_register"),
                &table,
                &epoch_on(names, 6),
            ),
            living_one: living_one(own, &table),
            living_full: living_full(own, &table, &cell),
            living_many: living_many(own, &table),
            own_few: own_few(own, &table, names),
            own_many: own_many(own.name("own_many", "own_registers"), &table, &epoch_on(names, 7)),
            seen_one: seen_one(own.name("seen_one", "seen_register"), &table, &epoch),
            seen_many: seen_many(own.name("seen_many", "seen_registers"), &table, &epoch),
            // An array could be of any length, so the server would make a plan for each question.
            read_one: sql(
                own.name("read_one", "read_register"),
                format!("SELECT {cell} FROM {table} c WHERE c.name = $1"),
                &[Type::TEXT],
            ),
            read_many: sql(
                own.name("read_many", "read_registers"),
                format!("SELECT {cell} FROM {table} c WHERE c.name = ANY($1)"),
                &[Type::TEXT_ARRAY],
            ),
            list: sql(
                own.name("list", "list_registers"),
                format!(
                    "SELECT {cell} FROM {table} c WHERE c.name >= $1 AND c.name > $2 AND c.name < $3 \
                     AND c.lapses > clock_timestamp() ORDER BY c.name LIMIT $4"
                ),
                &[Type::TEXT, Type::TEXT, Type::TEXT, Type::INT8],
            ),
        }
    }
}

impl Statements {
    /// Returns the statement for so many cells, where they are few. Its parameters are, of each cell: name,
    /// whether it is emptied, seen, claims, version and keep; and behind them the timeline of the connection.
    pub(crate) fn own_few(&self, cells: usize) -> Option<&Sql> {
        self.own_few.get(cells.checked_sub(FEWEST)?)
    }
}

// A new row's counter begins at the server's time, so that fences rise even after the loss of the table.
fn free(name: &'static str, table: &str, epoch: &str, cell: &str) -> Sql {
    sql(
        name,
        format!(
            "WITH put AS (INSERT INTO {table} AS c (name, claims, version, epoch, seq, origin, lapses) \
                     VALUES ($1, $2, $3, {epoch}, {NOW}, \
                     clock_timestamp(), clock_timestamp() + $4::float8 * interval '1 microsecond') \
                     ON CONFLICT (name) DO UPDATE SET claims = excluded.claims, version = excluded.version, \
                     epoch = greatest(c.epoch, excluded.epoch), seq = {NEXT}, origin = clock_timestamp(), \
                     lapses = clock_timestamp() + $4::float8 * interval '1 microsecond' \
                     WHERE c.lapses <= clock_timestamp() OR c.claims = '' RETURNING c.epoch, c.seq) \
                     SELECT true, CASE WHEN $5 <> '' THEN pg_notify($6, $5)::text END, NULL, NULL::int8, epoch, seq, 0::int8, epoch, 0::int8 FROM put \
                     UNION ALL SELECT false, {cell} FROM {table} c \
                     WHERE c.name = $1 AND NOT EXISTS (SELECT FROM put)"
        ),
        &[Type::TEXT, Type::TEXT, Type::INT8, Type::INT8, Type::TEXT, Type::TEXT],
    )
}

// A change of a row is half the work of an insertion that turns into one: the server need not look for what
// is in its way, lock it, and keep rows between two parts of a statement.
fn emptied_one(name: &'static str, table: &str, epoch: &str) -> Sql {
    sql(
        name,
        format!(
            "UPDATE {table} c SET claims = $3, version = $4, epoch = greatest(c.epoch, {epoch}), \
                     seq = {NEXT}, origin = clock_timestamp(), \
                     lapses = clock_timestamp() + $5::float8 * interval '1 microsecond' \
                     WHERE c.name = $1 AND c.version = $2 RETURNING c.epoch, c.seq"
        ),
        &[Type::TEXT, Type::INT8, Type::TEXT, Type::INT8, Type::INT8, Type::INT8],
    )
}

/// Selects those of the given rows whose cells have the version that was seen and are locked by nobody, and
/// locks them.
///
/// A join by `= ANY` of one can only be made row by row, so that no plan that was made for an empty table
/// reads a long one as a whole.
fn unlocked(table: &str, given: &str) -> String {
    format!(
        "w AS MATERIALIZED (SELECT w.* FROM {given} JOIN {table} c ON {SAME} FOR NO KEY UPDATE OF c SKIP LOCKED)"
    )
}

/// Condition that a row `c` is the cell of `w`, and in the state that was seen.
const SAME: &str = "c.name = ANY (ARRAY[w.name]) AND c.version = ANY (ARRAY[w.seen])";

// Rows that are emptied, and rows in which a claim lives, each on the condition that it has in a statement of its
// own.
fn own(name: &'static str, table: &str, epoch: &str, given: &str, types: &'static [Type]) -> Sql {
    let unlocked = unlocked(table, &format!("{given} AS w (name, anew, seen, claims, version, keep)"));
    sql(
        name,
        format!(
            "WITH {unlocked} UPDATE {table} c SET claims = w.claims, version = w.version, \
                     epoch = CASE WHEN w.anew THEN greatest(c.epoch, {epoch}) ELSE c.epoch END, \
                     seq = CASE WHEN w.anew THEN {NEXT} ELSE c.seq END, origin = clock_timestamp(), \
                     lapses = clock_timestamp() + w.keep::float8 * interval '1 microsecond' \
                     FROM w WHERE {SAME} AND (w.anew OR c.lapses > clock_timestamp()) RETURNING c.name, c.epoch, c.seq"
        ),
        types,
    )
}

// Written out one by one, which costs the server half as much as arrays of which it makes rows first.
fn own_few(own: Table, table: &str, names: &Names) -> Vec<Sql> {
    let one = |first: usize| {
        let parameters = (first..first + OWN.len()).map(|at| format!("${at}")).collect::<Vec<_>>();
        format!("({})", parameters.join(", "))
    };
    let of = |(place, (locks, registers)): (usize, &(&'static str, &'static str))| {
        let count = place + FEWEST;
        let given: Vec<String> = (0..count).map(|at| one(at * OWN.len() + 1)).collect();
        let given = format!("(VALUES {})", given.join(", "));
        let (epoch, types) = (epoch_on(names, count * OWN.len() + 1), &OWNS[place]);
        self::own(own.name(locks, registers), table, &epoch, &given, types)
    };
    NAMES_OF_FEW.iter().enumerate().map(of).collect()
}

fn own_many(name: &'static str, table: &str, epoch: &str) -> Sql {
    let types = &[
        Type::TEXT_ARRAY,
        Type::BOOL_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8,
    ];
    own(name, table, epoch, "unnest($1, $2, $3, $4, $5, $6)", types)
}

/// Returns the statement by which a claim alone in its cell continues, or ends. Epoch and counter stay, and
/// nobody is called.
///
/// The commit of an end is not waited for.
fn living(own: Table, table: &str) -> String {
    let without_waiting = without_waiting(own, "$3 <> ''");
    format!(
        "UPDATE {table} c SET claims = $3, version = $4, origin = clock_timestamp(), \
         lapses = clock_timestamp() + $5::float8 * interval '1 microsecond' \
         WHERE c.name = $1 AND c.version = $2 AND c.lapses > clock_timestamp() {without_waiting}RETURNING true"
    )
}

/// Returns a condition that always holds, and by which the commit is not waited for unless `waits`. It is for the ends
/// of claims alone.
///
/// If the server crashes before such a commit is on the disk, the claims end with their leases instead. A later commit
/// that is waited for brings it to the disk as well. The value of a register is always waited for.
fn without_waiting(own: Table, waits: &str) -> String {
    match own {
        Table::Locks => {
            format!("AND ({waits} OR pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL) ")
        }
        Table::Registers => String::new(),
    }
}

fn living_one(own: Table, table: &str) -> Sql {
    sql(own.name("living_one", "living_register"), living(own, table), &LIVING)
}

// It costs the server twice as much as the change alone, so it is for rows that others use. A row that
// another transaction has changed meanwhile is seen as it was before, and left out of the answer.
fn living_full(own: Table, table: &str, cell: &str) -> Sql {
    let living = living(own, table);
    sql(
        own.name("living_full", "living_register_full"),
        format!(
            "WITH put AS ({living}) SELECT true, NULL::text, NULL, NULL::int8, 0::int8, 0::int8, 0::int8, 0::int8, 0::int8 FROM put \
             UNION ALL SELECT false, {cell} FROM {table} c WHERE c.name = $1 AND c.version <> $2"
        ),
        &LIVING,
    )
}

fn living_many(own: Table, table: &str) -> Sql {
    let unlocked = unlocked(table, "unnest($1, $2, $3, $4, $5) AS w (name, seen, claims, version, keep)");
    let without_waiting = without_waiting(own, "$6");
    sql(
        own.name("living_many", "living_registers"),
        format!(
            "WITH {unlocked} UPDATE {table} c SET claims = w.claims, version = w.version, origin = clock_timestamp(), \
                     lapses = clock_timestamp() + w.keep::float8 * interval '1 microsecond' \
                     FROM w WHERE {SAME} AND c.lapses > clock_timestamp() {without_waiting}\
                     RETURNING c.name, c.epoch, c.seq"
        ),
        &[
            Type::TEXT_ARRAY,
            Type::INT8_ARRAY,
            Type::TEXT_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8_ARRAY,
            Type::BOOL,
        ],
    )
}

fn seen_one(name: &'static str, table: &str, epoch: &str) -> Sql {
    sql(
        name,
        format!(
            "UPDATE {table} c SET claims = $5, version = $6, epoch = $7, seq = $8, \
                     origin = CASE WHEN $4 THEN clock_timestamp() ELSE c.origin END, \
                     lapses = CASE WHEN $4 THEN clock_timestamp() ELSE c.origin END \
                     + $9::float8 * interval '1 microsecond' \
                     WHERE c.name = $1 AND c.version = $2 AND $3 = {within} \
                     AND (NOT $4 OR c.lapses > clock_timestamp()) \
                     RETURNING true, CASE WHEN $10 <> '' THEN pg_notify($11, $10)::text END",
            within = within(epoch)
        ),
        &[
            Type::TEXT,
            Type::INT8,
            Type::INT8,
            Type::BOOL,
            Type::TEXT,
            Type::INT8,
            Type::INT8,
            Type::INT8,
            Type::INT8,
            Type::TEXT,
            Type::TEXT,
        ],
    )
}

fn seen_many(name: &'static str, table: &str, epoch: &str) -> Sql {
    let unlocked = unlocked(
        table,
        "unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
         AS w (name, seen, within, anew, claims, version, epoch, seq, keep, call)",
    );
    sql(
        name,
        format!(
            "WITH {unlocked}, done AS (UPDATE {table} c SET claims = w.claims, version = w.version, epoch = w.epoch, \
                     seq = w.seq, origin = CASE WHEN w.anew THEN clock_timestamp() ELSE c.origin END, \
                     lapses = CASE WHEN w.anew THEN clock_timestamp() ELSE c.origin END \
                     + w.keep::float8 * interval '1 microsecond' \
                     FROM w WHERE {SAME} AND w.within = {within} \
                     AND (NOT w.anew OR c.lapses > clock_timestamp()) RETURNING c.name, c.epoch, c.seq, w.call) \
                     SELECT name, epoch, seq, CASE WHEN call <> '' THEN pg_notify($11, call)::text END FROM done",
            within = within(epoch)
        ),
        &[
            Type::TEXT_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8_ARRAY,
            Type::BOOL_ARRAY,
            Type::TEXT_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8_ARRAY,
            Type::INT8_ARRAY,
            Type::TEXT_ARRAY,
            Type::TEXT,
        ],
    )
}

/// Returns the epoch of a grant in the row `c`. It is never below that of the row, as a client calculates it from the
/// same row: the present one may be, where the tables came from another cluster or `leasehold_meta` was lost.
fn within(epoch: &str) -> String {
    format!("greatest(c.epoch, {epoch})")
}

/// The types of the parameters for a row in which a claim lives.
const LIVING: [Type; 5] = [Type::TEXT, Type::INT8, Type::TEXT, Type::INT8, Type::INT8];
/// The types of the parameters for each of several rows.
const OWN: [Type; 6] = [Type::TEXT, Type::BOOL, Type::INT8, Type::TEXT, Type::INT8, Type::INT8];
/// The types of all parameters of each statement that is written out.
static OWNS: LazyLock<Vec<Vec<Type>>> = LazyLock::new(|| {
    let types = |count| OWN.iter().cloned().cycle().take(OWN.len() * count).chain([Type::INT8]).collect();
    (FEWEST..FEWEST + NAMES_OF_FEW.len()).map(types).collect()
});
/// Fewer have statements of their own.
const FEWEST: usize = 2;
const NAMES_OF_FEW: [(&str, &str); 7] = [
    ("own_2", "own_2_registers"),
    ("own_3", "own_3_registers"),
    ("own_4", "own_4_registers"),
    ("own_5", "own_5_registers"),
    ("own_6", "own_6_registers"),
    ("own_7", "own_7_registers"),
    ("own_8", "own_8_registers"),
];

fn sql(name: &'static str, text: String, types: &'static [Type]) -> Sql {
    Sql { name, text, types }
}

/// Returns the store's present epoch: the timeline, which rises with every promotion, above what other
/// clusters counted.
///
/// It can only be asked for on a primary: on a standby the statement fails, as it should.
pub(crate) fn epoch(names: &Names) -> String {
    format!("((SELECT epoch_base FROM {}) + {TIMELINE})", names.table("_meta"))
}

/// Returns the present epoch as [`epoch`] does, over a connection that knows its timeline: it is the parameter of this
/// number, or null where something in between may lead to another server each time. A statement of several rows
/// would ask the server anew for each of them.
fn epoch_on(names: &Names, parameter: usize) -> String {
    format!("((SELECT epoch_base FROM {}) + coalesce(${parameter}, {TIMELINE}))", names.table("_meta"))
}

pub(crate) const AGE: &str =
    "greatest((extract(epoch FROM clock_timestamp() - c.origin)::float8 * 1000000::float8)::int8, 0::int8)";

/// The server's clock, in microseconds since 1970.
pub(crate) const NOW: &str = "(extract(epoch FROM clock_timestamp())::float8 * 1000000::float8)::int8";

/// The counter of the next fence of the row `c`. It never falls behind the clock, so that fences rise also
/// where an older copy of the table was put back.
const NEXT: &str =
    "greatest(c.seq + 1, (extract(epoch FROM clock_timestamp())::float8 * 1000000::float8)::int8)";
