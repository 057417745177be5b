//! SQL for a fence that is stored in a column: checked text for statements, and the meaning of their answers.
//!
//! Pure: it knows no client of any database. Any database client can run the statements and
//! bind the parameters.

use std::fmt;

use leasehold_core::Fence;

use super::{NoFence, Stale, compare, required};

/// The SQL dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SqlDialect {
    /// PostgreSQL, and compatible databases.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    /// SQLite.
    Sqlite,
}

/// A fence that is stored in a column: of the rows that it protects, or of a table that has no other columns.
///
/// The fence is stored as its text, compared byte by byte, so that it can be read in any console and
/// bound by any client, a shell script with `LEASEHOLD_FENCE` included.
///
/// **A write that needs no read before it** is one statement. It raises the fence as well:
///
/// ```
/// # use leasehold::{Fence, fenced::{FenceColumn, SqlDialect}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let held = Fence::new(0, 34, 0); // guard.fence()
/// let stock = FenceColumn::new(SqlDialect::Postgres, "stock", "id")?;
/// let sell = stock.update_sql("pieces = pieces - $3").text;
/// let fence = stock.value(held)?; // execute(sell, [fence, id, 1]): no row changed, so a newer holder was here
/// assert_eq!(
///     sell,
///     r#"update "stock" set pieces = pieces - $3, "fence" = $1 where "id" = $2 and "fence" collate "C" <= $1"#
/// );
/// # Ok(())
/// # }
/// ```
///
/// A new row is inserted with the fence of its first holder, by [`insert_sql`](FenceColumn::insert_sql). A
/// row that is deleted forgets its fence, so an old holder could insert it again: mark it as deleted
/// instead, or keep the fences in [a table of their own](FenceColumn::create_table_sql).
///
/// **A write that depends on a read:**
///
/// 1. [`raise_sql`](FenceColumn::raise_sql), or
///    [`raise_or_insert_sql`](FenceColumn::raise_or_insert_sql), and then
///    [`select_sql`](FenceColumn::select_sql), whose row [`check`](FenceColumn::check) judges: together
///    they are `open`. Do it before the first read, in a transaction of its own.
/// 2. Then read and write. A statement about the row itself carries the
///    [`condition_sql`](FenceColumn::condition_sql); if it touches no row, a newer holder was here.
///    (MySQL counts unchanged rows only for clients that ask for found rows.) A transaction that touches
///    other rows begins with [`select_for_update_sql`](FenceColumn::select_for_update_sql), whose row is
///    checked like that of `select_sql`: newer holders wait for its end.
///
/// ```
/// use leasehold::{Fence, fenced::{FenceColumn, SqlDialect}};
///
/// let stock = FenceColumn::new(SqlDialect::Postgres, "shop.stock", "id")?;
/// assert_eq!(
///     stock.raise_sql().text,
///     r#"update "shop"."stock" set "fence" = $1 where "id" = $2 and "fence" collate "C" <= $1"#
/// );
/// let update = format!("update shop.stock set pieces = pieces - 1 where id = $2 and {}", stock.condition_sql(1));
/// assert_eq!(update, r#"update shop.stock set pieces = pieces - 1 where id = $2 and "fence" = $1"#);
/// stock.check(Fence::new(0, 34, 0), Some("00000000000000000034"))?;
/// assert!(stock.check(Fence::new(0, 33, 0), Some("00000000000000000034")).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Promises
/// After a fence was raised, no statement that carries the condition of an older one changes the row,
/// at every isolation level; nor reads it, unless in a transaction that had begun to read before.
///
/// # Does not promise
/// Statements without the condition are not stopped. Rows may be read as of before `open`, if `open` ran
/// inside a transaction that had read something before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceColumn {
    dialect: SqlDialect,
    table: String,
    key: String,
    column: String,
}

/// A statement, with the value for each of its parameters, in order. No field will be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The text.
    pub text: String,
    /// The values to bind.
    pub parameters: Vec<Parameter>,
}

/// A value to bind. No variant will be added, so a match is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// [`FenceColumn::value`] of the holder's fence: a text.
    Fence,
    /// The key of the row, in the type of its column.
    Key,
}

/// A name that is not a plain SQL identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} cannot be a name in SQL here: use letters, digits and underscores, up to 63 of them and no \
     digit first, and a single dot between schema and table"
)]
pub struct InvalidColumn {
    name: String,
}

/// The reason why the holder of a fence may not use the row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowRefusal {
    /// A newer holder was here.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The lock has no fence to compare.
    #[error(transparent)]
    NoFence(#[from] NoFence),
    /// No row has this key.
    #[error(
        "no row has this key: create it first, or use `raise_or_insert` where the table holds fences only"
    )]
    NoRow,
    /// The row's fence is older than the holder's, so it was not raised, or was set back.
    #[error(
        "the row's fence {seen} is older than yours, {yours}: open it first; if you did, the fence was set back"
    )]
    NotOpened {
        /// The fence that was presented.
        yours: Fence,
        /// The fence in the row.
        seen: Fence,
    },
    /// The value in the column is not a fence. It is left as it is: starting again at nothing would let
    /// old holders in.
    #[error("{found:?} in the row is not a fence; restore it, or set it to '' once no holder uses the row")]
    Damaged {
        /// The value in the column.
        found: String,
    },
}

impl FenceColumn {
    /// Describes the column `fence` of `table`, which may be written `schema.table`, where `key` is the
    /// column that identifies a row.
    ///
    /// Names are quoted as they are written, so case counts in PostgreSQL.
    ///
    /// # Errors
    /// [`InvalidColumn`] for a name that would have to be escaped.
    pub fn new(dialect: SqlDialect, table: &str, key: &str) -> Result<FenceColumn, InvalidColumn> {
        let parts = table.split('.').map(|part| quoted(dialect, part)).collect::<Option<Vec<_>>>();
        let table = parts.filter(|parts| parts.len() <= 2).ok_or_else(|| invalid(table))?.join(".");
        let key = quoted(dialect, key).ok_or_else(|| invalid(key))?;
        let column = quoted(dialect, COLUMN).ok_or_else(|| invalid(COLUMN))?;
        Ok(FenceColumn { dialect, table, key, column })
    }

    /// Sets another name for the column.
    ///
    /// # Errors
    /// As [`FenceColumn::new`].
    pub fn named(mut self, column: &str) -> Result<FenceColumn, InvalidColumn> {
        self.column = quoted(self.dialect, column).ok_or_else(|| invalid(column))?;
        Ok(self)
    }

    /// Returns the value to bind for the fence.
    ///
    /// # Errors
    /// [`NoFence`].
    pub fn value(&self, fence: impl Into<Option<Fence>>) -> Result<String, NoFence> {
        required(fence).map(|fence| fence.to_string())
    }

    /// Returns the statement that adds the column to an existing table. Rows begin with a fence
    /// older than any.
    ///
    /// On PostgreSQL and MariaDB it can be run at each start: it changes nothing if the column exists. MySQL
    /// and SQLite know no such statement. There, run it if [`has_column_sql`](FenceColumn::has_column_sql)
    /// shows no row. If two programs do so at once, the second gets error 1060 of MySQL or "duplicate column
    /// name" of SQLite, which says that the column exists.
    pub fn add_column_sql(&self) -> Statement {
        let if_missing = match self.dialect {
            SqlDialect::Postgres => "if not exists ",
            // A comment to MySQL.
            SqlDialect::MySql => "/*M! if not exists */ ",
            SqlDialect::Sqlite => "",
        };
        let FenceColumn { table, column, .. } = self;
        self.plain(format!("alter table {table} add column {if_missing}{column} {}", self.kind()))
    }

    /// Returns the query for the name of the column: one row if the table has it, none if it or the table
    /// does not exist.
    pub fn has_column_sql(&self) -> Statement {
        let column = unquoted(&self.column);
        let (schema, table) = match self.table.split_once('.') {
            Some((schema, table)) => (Some(unquoted(schema)), unquoted(table)),
            None => (None, unquoted(&self.table)),
        };
        // All of them are plain names, without quotes.
        self.plain(match self.dialect {
            SqlDialect::Postgres => format!(
                "select attname::text from pg_attribute where attrelid = to_regclass('{}') and attname = '{column}' \
                 and not attisdropped",
                self.table
            ),
            SqlDialect::MySql => {
                let schema = schema.map_or("database()".to_owned(), |schema| format!("'{schema}'"));
                format!(
                    "select column_name from information_schema.columns where table_schema = {schema} and \
                     table_name = '{table}' and column_name = '{column}'"
                )
            }
            SqlDialect::Sqlite => {
                let schema = schema.map_or(String::new(), |schema| format!(", '{schema}'"));
                format!("select name from pragma_table_info('{table}'{schema}) where name = '{column}'")
            }
        })
    }

    /// Returns the statement that creates a table of fences only, by keys of text up to 255 bytes: for
    /// resources that are not one row.
    pub fn create_table_sql(&self) -> Statement {
        let key = match self.dialect {
            SqlDialect::MySql => "varchar(255) character set utf8mb4 collate utf8mb4_bin",
            SqlDialect::Postgres | SqlDialect::Sqlite => "varchar(255)",
        };
        let FenceColumn { table, column, .. } = self;
        let kind = self.kind();
        self.plain(format!(
            "create table if not exists {table} ({} {key} primary key, {column} {kind})",
            self.key
        ))
    }

    /// Returns the statement that raises the fence of an existing row. A newer one stays;
    /// [`FenceColumn::select_sql`] shows it.
    pub fn raise_sql(&self) -> Statement {
        let FenceColumn { table, key, column, .. } = self;
        let (bound, older) = (self.place(1), self.older(1));
        let id = self.place(2);
        self.bound(
            format!("update {table} set {column} = {bound} where {key} = {id} and {older}"),
            &[Parameter::Fence, Parameter::Key, Parameter::Fence],
        )
    }

    /// Returns the statement that raises the fence of a row, or inserts the row, if the table
    /// holds fences only.
    pub fn raise_or_insert_sql(&self) -> Statement {
        let FenceColumn { table, key, column, .. } = self;
        let insert =
            format!("insert into {table} ({column}, {key}) values ({}, {})", self.place(1), self.place(2));
        let or_raise = match self.dialect {
            SqlDialect::MySql => {
                format!("on duplicate key update {column} = greatest({column}, values({column}))")
            }
            SqlDialect::Postgres => format!(
                "on conflict ({key}) do update set {column} = excluded.{column} where {table}.{column} collate \"C\" <= excluded.{column}"
            ),
            SqlDialect::Sqlite => format!(
                "on conflict ({key}) do update set {column} = excluded.{column} where {column} <= excluded.{column}"
            ),
        };
        self.bound(format!("{insert} {or_raise}"), &[Parameter::Fence, Parameter::Key])
    }

    /// Returns the statement that writes to an existing row and raises its fence: for a write that depends on
    /// nothing that was read before. If it changes no row, a newer holder was here, or the row does not
    /// exist: [`FenceColumn::select_sql`] and [`FenceColumn::check`] say which. (MySQL counts a row that it
    /// found and did not change only for clients that ask for found rows.)
    ///
    /// `assignments` is SQL, such as `pieces = $3, sold_at = now()`. It is not checked. The values of its
    /// parameters are bound beside those of [`Statement::parameters`]: on PostgreSQL and SQLite they are
    /// numbered from 3 on, on MySQL they come first.
    pub fn update_sql(&self, assignments: &str) -> Statement {
        let FenceColumn { table, key, column, .. } = self;
        let (bound, id, older) = (self.place(1), self.place(2), self.older(1));
        self.bound(
            format!("update {table} set {assignments}, {column} = {bound} where {key} = {id} and {older}"),
            &[Parameter::Fence, Parameter::Key, Parameter::Fence],
        )
    }

    /// Returns the statement that inserts a row with its fence, and other columns with values that are bound
    /// after those of [`Statement::parameters`], in this order. An existing row stays as it is, whatever its
    /// fence is, and then no row is changed. (MySQL counts that row for clients that ask for found rows.)
    ///
    /// # Errors
    /// As [`FenceColumn::new`], for the name of a column.
    pub fn insert_sql(&self, columns: &[&str]) -> Result<Statement, InvalidColumn> {
        let FenceColumn { dialect, table, key, column, .. } = self;
        let mut names = vec![column.clone(), key.clone()];
        for name in columns {
            names.push(quoted(*dialect, name).ok_or_else(|| invalid(name))?);
        }
        let places: Vec<String> = (1..).take(names.len()).map(|number| self.place(number)).collect();
        let or_nothing = match dialect {
            SqlDialect::MySql => format!("on duplicate key update {key} = {key}"),
            SqlDialect::Postgres | SqlDialect::Sqlite => format!("on conflict ({key}) do nothing"),
        };
        let text =
            format!("insert into {table} ({}) values ({}) {or_nothing}", names.join(", "), places.join(", "));
        Ok(self.bound(text, &[Parameter::Fence, Parameter::Key]))
    }

    /// Returns the statement that reads the fence of a row, for [`FenceColumn::check`].
    pub fn select_sql(&self) -> Statement {
        let FenceColumn { table, key, column, .. } = self;
        let text = format!("select {column} from {table} where {key} = {}", self.place(1));
        self.bound(text, &[Parameter::Key])
    }

    /// Returns the statement that reads the fence of a row, for [`FenceColumn::check`], and keeps newer
    /// holders waiting until the transaction ends.
    ///
    /// SQLite has one writer at a time: begin the transaction there with `begin immediate`.
    pub fn select_for_update_sql(&self) -> Statement {
        let mut statement = self.select_sql();
        if self.dialect != SqlDialect::Sqlite {
            statement.text.push_str(" for update");
        }
        statement
    }

    /// Returns the condition for a custom statement about the row, whose parameter `place` is the
    /// fence. MySQL counts its parameters itself.
    ///
    /// It is `fence = …`, and not `fence <= …` as in [`raise_sql`](FenceColumn::raise_sql): a holder that has not
    /// opened the row changes nothing.
    pub fn condition_sql(&self, place: u16) -> String {
        format!("{} = {}", self.column, self.place(place))
    }

    /// Judges the answer of [`FenceColumn::select_sql`] or [`FenceColumn::select_for_update_sql`]:
    /// `seen` is its column, `None` if it has no row.
    ///
    /// # Errors
    /// [`RowRefusal`].
    pub fn check(&self, fence: impl Into<Option<Fence>>, seen: Option<&str>) -> Result<(), RowRefusal> {
        let yours = required(fence)?;
        let seen = match seen.ok_or(RowRefusal::NoRow)? {
            "" => Fence::default(),
            text => text.parse().map_err(|_| RowRefusal::Damaged { found: shortened(text) })?,
        };
        compare(yours, seen)?;
        if yours == seen { Ok(()) } else { Err(RowRefusal::NotOpened { yours, seen }) }
    }

    fn kind(&self) -> &'static str {
        // The text of a fence sorts as the fence only if bytes are compared.
        match self.dialect {
            SqlDialect::Postgres => "varchar(53) collate \"C\" not null default ''",
            SqlDialect::MySql => "varchar(53) character set ascii collate ascii_bin not null default ''",
            SqlDialect::Sqlite => "text collate binary not null default ''",
        }
    }

    fn older(&self, place: u16) -> String {
        let collate = if self.dialect == SqlDialect::Postgres { " collate \"C\"" } else { "" };
        format!("{}{collate} <= {}", self.column, self.place(place))
    }

    fn place(&self, number: u16) -> String {
        match self.dialect {
            SqlDialect::Postgres => format!("${number}"),
            SqlDialect::Sqlite => format!("?{number}"),
            SqlDialect::MySql => "?".to_owned(),
        }
    }

    fn plain(&self, text: String) -> Statement {
        Statement { text, parameters: Vec::new() }
    }

    /// Builds a statement. `all` are the parameters that MySQL binds; the others name a place
    /// twice and bind it once.
    fn bound(&self, text: String, all: &[Parameter]) -> Statement {
        let mut parameters: Vec<Parameter> = Vec::with_capacity(all.len());
        for parameter in all {
            if self.dialect == SqlDialect::MySql || !parameters.contains(parameter) {
                parameters.push(*parameter);
            }
        }
        Statement { text, parameters }
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The default name of the column.
const COLUMN: &str = "fence";
/// The longest name of PostgreSQL, in bytes; MySQL's is one longer.
const LONGEST_NAME: usize = 63;
/// The part of a damaged fence that is shown, in characters.
const SHOWN: usize = 64;

fn quoted(dialect: SqlDialect, name: &str) -> Option<String> {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let quote = if dialect == SqlDialect::MySql { '`' } else { '"' };
    (starts && plain && name.len() <= LONGEST_NAME).then(|| format!("{quote}{name}{quote}"))
}

fn unquoted(name: &str) -> &str {
    name.trim_matches(['"', '`'])
}

fn invalid(name: &str) -> InvalidColumn {
    InvalidColumn { name: shortened(name) }
}

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [SqlDialect; 3] = [SqlDialect::Postgres, SqlDialect::MySql, SqlDialect::Sqlite];

    #[test]
    fn names_that_would_have_to_be_escaped_are_refused() {
        for dialect in ALL {
            for bad in
                ["", "1a", "a-b", "a b", "a\"b", "a`b", "a;drop", "ä", "a.b.c", ".a", "a.", &"a".repeat(64)]
            {
                assert!(FenceColumn::new(dialect, bad, "id").is_err(), "{bad:?}");
                assert!(FenceColumn::new(dialect, "t", "id").unwrap().named(bad).is_err(), "{bad:?}");
                assert!(FenceColumn::new(dialect, "t", bad).is_err(), "{bad:?}");
            }
            let column = FenceColumn::new(dialect, "t", "id").unwrap();
            assert!(column.insert_sql(&["pieces", "a\"b"]).is_err() && column.insert_sql(&["a`b"]).is_err());
            assert!(FenceColumn::new(dialect, "t", "a.b").is_err(), "only tables have schemas");
            assert!(FenceColumn::new(dialect, "_s.T_1", &"k".repeat(63)).is_ok());
        }
    }

    #[test]
    fn each_place_has_its_value() {
        for dialect in ALL {
            let column = FenceColumn::new(dialect, "stock", "id").unwrap().named("lock_fence").unwrap();
            for statement in [
                column.raise_sql(),
                column.raise_or_insert_sql(),
                column.update_sql("pieces = pieces - 1"),
                column.insert_sql(&[]).unwrap(),
                column.select_sql(),
                column.select_for_update_sql(),
            ] {
                let marks = match dialect {
                    SqlDialect::MySql => statement.text.matches('?').count(),
                    SqlDialect::Sqlite => {
                        (1..9).filter(|n| statement.text.contains(&format!("?{n}"))).count()
                    }
                    SqlDialect::Postgres => {
                        (1..9).filter(|n| statement.text.contains(&format!("${n}"))).count()
                    }
                };
                assert_eq!(marks, statement.parameters.len(), "{statement}");
                assert!(statement.text.contains("lock_fence"), "{statement}");
            }
        }
        let column = FenceColumn::new(SqlDialect::MySql, "stock", "id").unwrap();
        assert_eq!(column.raise_sql().text, "update `stock` set `fence` = ? where `id` = ? and `fence` <= ?");
        assert_eq!(column.raise_sql().parameters, [Parameter::Fence, Parameter::Key, Parameter::Fence]);
    }

    #[test]
    fn fence_column_check_compares_the_stored_fence() {
        let column = FenceColumn::new(SqlDialect::Sqlite, "stock", "id").unwrap();
        let (old, new) = (Fence::new(0, 33, 1), Fence::new(2, 1, 0));
        let text = |fence: Fence| fence.to_string();
        assert_eq!(column.check(new, Some(&text(new))), Ok(()));
        assert_eq!(
            column.check(old, Some(&text(new))),
            Err(RowRefusal::Stale(Stale { yours: old, seen: new }))
        );
        assert!(matches!(column.check(new, Some(&text(old))), Err(RowRefusal::NotOpened { .. })));
        assert!(matches!(column.check(new, Some("")), Err(RowRefusal::NotOpened { .. })));
        assert_eq!(column.check(new, None), Err(RowRefusal::NoRow));
        assert_eq!(column.check(None, Some("")), Err(RowRefusal::NoFence(NoFence)));
        assert!(matches!(column.check(new, Some("12 apples")), Err(RowRefusal::Damaged { .. })));
        assert_eq!(column.value(None), Err(NoFence));
    }
}
