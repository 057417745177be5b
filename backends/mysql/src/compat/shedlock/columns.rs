//! The facts about the table's columns, and the expressions that follow from them.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_backend::cell::Widths;
use leasehold_backend::sql::micros;
use leasehold_core::{Effect, Failure, FailureKind, Finding, Severity};

use super::text;
use crate::config::Create;
use crate::error::Refusal;
use crate::net::dial::read;
use crate::net::pool::Pool;
use crate::sql::schema::shedlock_table;

/// The columns of one table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Columns {
    pub(super) widths: Widths,
    /// The collation by which `name` compares; `None` by bytes.
    names: Option<String>,
    /// The characters that `locked_by` has.
    holders: Holders,
    /// Digits of a second's fraction that both dates have.
    digits: usize,
    /// `true` if a session's time zone moves the dates.
    is_zoned: bool,
}

/// The characters that can be written into `locked_by`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Holders {
    Any,
    Narrow,
}

impl Columns {
    /// Reads the columns of the table, which is created where it is missing and may be.
    pub(super) async fn ensure(pool: &Pool) -> Result<Columns, Failure> {
        match Columns::read(pool).await {
            Err(Refusal::NoTable(failure)) if pool.config.sql.create == Create::No => return Err(failure),
            Err(Refusal::NoTable(_)) => {
                pool.run(&shedlock_table(&pool.config)).await.map_err(Refusal::into_failure)?;
            }
            found => return found.map_err(Refusal::into_failure),
        }
        Columns::read(pool).await.map_err(Refusal::into_failure)
    }

    async fn read(pool: &Pool) -> Result<Columns, Refusal> {
        let table = pool.config.names.table("");
        let rows = pool.run(&format!("SHOW FULL COLUMNS FROM {table}")).await?;
        let column = |row: &mysql_async::Row| {
            let kind: String = read(row, 1)?;
            Ok((read::<String>(row, 0)?.to_lowercase(), (kind.to_lowercase(), read(row, 2)?)))
        };
        let found: Result<HashMap<_, _>, Failure> = rows.iter().map(column).collect();
        Columns::of(&found.map_err(Refusal::Failed)?).map_err(|why| {
            let text = format!("{table} cannot be used as ShedLock's table: {why}");
            Refusal::Failed(Failure::new(FailureKind::Unsupported, Effect::None, text))
        })
    }

    /// Reads types and collations by the columns' names.
    fn of(found: &HashMap<String, (String, Option<String>)>) -> Result<Columns, String> {
        let column = |name: &str| found.get(name).ok_or_else(|| format!("it has no column {name}"));
        let width = |name: &str, min: usize| {
            let (kind, _) = column(name)?;
            match text_width(kind) {
                None => Err(format!("its column {name} is {kind}: make it varchar")),
                Some(width) if width < min => {
                    Err(format!("its column {name} has room for {width} characters: make it {min} or more"))
                }
                Some(width) => Ok(width),
            }
        };
        let widths = Widths {
            name: width("name", Widths::MIN.name)?,
            locked_by: width("locked_by", Widths::MIN.locked_by)?,
        };
        let (until, at) = (column("lock_until")?, column("locked_at")?);
        let (Some((until_is_zoned, until_digits)), Some((at_is_zoned, at_digits))) =
            (date(&until.0), date(&at.0))
        else {
            return Err(format!("lock_until is {} and locked_at {}: make both timestamp(3)", until.0, at.0));
        };
        if until_is_zoned != at_is_zoned || until_digits.min(at_digits) < MIN_DIGITS {
            return Err(format!("lock_until is {} and locked_at {}: make both timestamp(3)", until.0, at.0));
        }
        let holders = match &column("locked_by")?.1 {
            Some(collation) if !has_every_character(collation) => Holders::Narrow,
            _ => Holders::Any,
        };
        Ok(Columns {
            widths,
            names: column("name")?.1.clone(),
            holders,
            digits: until_digits.min(at_digits),
            is_zoned: until_is_zoned,
        })
    }

    /// Returns the present, in whole units of both columns.
    pub(super) fn now(&self) -> String {
        format!("UTC_TIMESTAMP({})", self.digits)
    }

    /// Returns the expression for when this span will be over, at the earliest: the present is a cut one.
    pub(super) fn after(&self, span: Duration) -> String {
        let unit = 10_i64.pow(u32::try_from(6 - self.digits).unwrap_or_default());
        let micros = micros(span).saturating_add(unit - 1) / unit * unit + unit;
        format!("TIMESTAMPADD(MICROSECOND, {micros}, {})", self.now())
    }

    /// Returns a date in microseconds since 1970.
    pub(super) fn micros(&self, date: &str) -> String {
        format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {date})")
    }

    /// Returns the condition that a row is held at this microsecond.
    pub(super) fn is_held_at(&self, micros: &str) -> String {
        format!("{} > {micros}", self.micros("lock_until"))
    }

    /// Returns the condition that a row has this name and this holder, and, where it was seen, this
    /// beginning.
    pub(super) fn is_of(&self, name: &str, by: &str, since: Option<i64>) -> String {
        let name = text(name);
        match since {
            // What was read is compared as it was.
            Some(since) => {
                let (by, began) = (text(by), self.micros("locked_at"));
                format!("name = {name} AND locked_by = {by} AND {began} = {since}")
            }
            None => format!("name = {name} AND locked_by = {}", self.holder(by)),
        }
    }

    /// Returns the expressions for name, holder, beginning and what is left.
    pub(super) fn row(&self) -> String {
        format!(
            "name, locked_by, {}, GREATEST(TIMESTAMPDIFF(MICROSECOND, {}, lock_until), 0)",
            self.micros("locked_at"),
            self.now()
        )
    }

    /// Returns a holder of ours, as its column carries it. In one that has not every character, those of a
    /// note that are not plain are question marks.
    pub(super) fn holder(&self, by: &str) -> String {
        match self.holders {
            Holders::Any => text(by),
            Holders::Narrow => text(&by.replace(|c: char| !c.is_ascii(), "?")),
        }
    }

    /// Examines which names are one.
    pub(super) fn names(&self) -> Finding {
        let topic = "names";
        match &self.names {
            None => Finding::new(topic, Severity::Good, "names are compared by their bytes")
                .meaning("names that differ are different locks"),
            Some(collation) => {
                let found = format!("names are compared by {collation}");
                let characters = match has_every_character(collation) {
                    true => "",
                    false => ", and one with a character that the column has not is refused",
                };
                let meaning = format!(
                    "names that this holds for equal are one lock, for ShedLock too: often those that differ in large \
                     and small letters, in accents or in spaces at the end{characters}"
                );
                Finding::new(topic, Severity::Notice, found)
                    .meaning(meaning)
                    .advice("choose names that differ in more than that, or make the column name VARBINARY")
            }
        }
    }

    /// Examines whether sessions in other time zones read the same dates.
    pub(super) fn zone(&self, session: &str, system: &str) -> Finding {
        let topic = "zone";
        if !self.is_zoned {
            return Finding::new(topic, Severity::Good, "dates are DATETIME")
                .meaning("no time zone moves them");
        }
        let zone = if session.eq_ignore_ascii_case("system") { system } else { session };
        let found = format!("dates are TIMESTAMP, and sessions begin in {zone}");
        if ["utc", "+00:00", "etc/utc"].contains(&zone.to_lowercase().as_str()) {
            return Finding::new(topic, Severity::Good, found)
                .meaning("sessions that stay in that zone read the same dates");
        }
        Finding::new(topic, Severity::Risk, found)
            .meaning(
                "ShedLock writes UTC into them as if it were the session's own time: sessions in another zone read other \
                 dates, and hours that summer time skips or repeats cannot be written",
            )
            .advice("set default-time-zone = '+00:00' on the server, or make both columns DATETIME(6)")
    }
}

/// Returns how many characters a column of texts carries. Each name of leasehold fits into 512 bytes.
fn text_width(kind: &str) -> Option<usize> {
    if matches!(kind, "text" | "mediumtext" | "longtext") {
        return Some(usize::MAX);
    }
    let (kind, width) = kind.strip_suffix(')')?.split_once('(')?;
    let width: usize = width.parse().ok()?;
    match kind {
        "varchar" => Some(width),
        "varbinary" if width >= MAX_NAME => Some(width),
        // Of the longest characters.
        "varbinary" => Some(width / 4),
        _ => None,
    }
}

/// Returns the form of a column of dates: whether it follows the session's time zone, and how many digits
/// of a second's fraction it has.
fn date(kind: &str) -> Option<(bool, usize)> {
    let (kind, digits) = match kind.strip_suffix(')').and_then(|kind| kind.split_once('(')) {
        Some((kind, digits)) => (kind, digits.parse().ok().filter(|digits| *digits <= 6)?),
        None => (kind, 0),
    };
    match kind {
        "timestamp" => Some((true, digits)),
        "datetime" => Some((false, digits)),
        _ => None,
    }
}

/// Returns the character set of a collation, with which its name begins.
fn charset(collation: &str) -> &str {
    collation.split_once('_').map_or(collation, |(charset, _)| charset)
}

fn has_every_character(collation: &str) -> bool {
    matches!(charset(collation), "utf8mb4" | "binary")
}

/// Bytes of the longest name.
const MAX_NAME: usize = 512;
/// The digits that ShedLock's own statements write.
const MIN_DIGITS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(name: (&str, Option<&str>), date: &str, by: (&str, Option<&str>)) -> Result<Columns, String> {
        let column = |at: &str, (kind, collation): (&str, Option<&str>)| {
            (at.to_owned(), (kind.to_owned(), collation.map(str::to_owned)))
        };
        let found = [
            column("name", name),
            column("lock_until", (date, None)),
            column("locked_at", (date, None)),
            column("locked_by", by),
        ];
        Columns::of(&found.into())
    }

    fn text_of(plain: &str) -> String {
        super::text(plain)
    }

    #[test]
    fn tables_that_are_in_use_are_understood() {
        let text = |kind: &'static str| (kind, Some("utf8mb4_general_ci"));
        let documented = columns(text("varchar(64)"), "timestamp(3)", text("varchar(255)")).unwrap();
        assert_eq!(documented.widths, Widths { name: 64, locked_by: 255 });
        assert_eq!(documented.now(), "UTC_TIMESTAMP(3)");
        assert_eq!(documented.names().severity, Severity::Notice);
        assert_eq!(documented.zone("SYSTEM", "CET").severity, Severity::Risk);
        assert_eq!(documented.zone("SYSTEM", "UTC").severity, Severity::Good);
        let ours = columns(("varbinary(512)", None), "datetime(6)", text("varchar(2048)")).unwrap();
        assert!(ours.widths.name >= 512, "{ours:?}");
        assert_eq!(ours.names().severity, Severity::Good);
        assert_eq!(ours.zone("SYSTEM", "CET").severity, Severity::Good);
        let old = ("varchar(255)", Some("latin1_swedish_ci"));
        let old = columns(("varchar(64)", old.1), "datetime(3)", old).unwrap();
        assert_eq!((old.holder("aé"), documented.holder("é")), (text_of("a?"), text_of("é")));
        for (bad, hint) in [
            (columns(text("varchar(20)"), "datetime(6)", text("text")), "make it 64"),
            (columns(text("int(11)"), "datetime(6)", text("text")), "make it varchar"),
            (columns(text("varchar(64)"), "datetime", text("text")), "make both timestamp(3)"),
            (columns(text("varchar(64)"), "date", text("text")), "make both timestamp(3)"),
            (Columns::of(&HashMap::new()), "no column"),
        ] {
            let why = bad.unwrap_err();
            assert!(why.contains(hint), "{why}");
        }
    }

    #[test]
    fn an_end_is_never_written_too_early() {
        let text = ("varchar(255)", Some("utf8mb4_bin"));
        let documented = columns(text, "timestamp(3)", text).unwrap();
        let written = |columns: &Columns, span| columns.after(Duration::from_micros(span));
        // The present may be cut by almost a unit, and what is written has whole units.
        assert!(written(&documented, 200_000).contains(" 201000,"));
        assert!(written(&documented, 200_001).contains(" 202000,"));
        let fine = columns(text, "datetime(6)", text).unwrap();
        assert!(written(&fine, 200_001).contains(" 200002,"));
    }
}
