//! The page of all series.

use std::fmt::Write;

use super::{Point, Series};
use crate::Outcome;

/// Writes the page.
pub(super) fn markdown(series: &[Series]) -> Outcome<String> {
    let mut page = String::from(HEAD);
    writeln!(page, "It was measured on {}.\n", machine()?)?;
    for series in series {
        writeln!(page, "## {}\n", series.title)?;
        writeln!(page, "![{}](growth/{}.svg)\n", series.title, series.name)?;
        writeln!(page, "| {} | {} |", series.size, series.columns.join(" | "))?;
        writeln!(page, "|---|{}", "---|".repeat(series.columns.len()))?;
        for Point { size, values } in &series.points {
            let values: Vec<String> = values.iter().map(|value| number(*value)).collect();
            writeln!(page, "| {} | {} |", thousands(*size), values.join(" | "))?;
        }
        let growths: Vec<String> = (0..series.columns.len()).map(|column| growth(series, column)).collect();
        writeln!(page, "| **last by first** | {} |", growths.join(" | "))?;
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    Ok(page)
}

/// Returns by how much a column grows from its first value to its last.
fn growth(series: &Series, column: usize) -> String {
    let mut values = series.points.iter().map(|point| point.values[column]).filter(|value| *value > 0.0);
    let first = values.next();
    let last = values.next_back().or(first);
    first.zip(last).map_or(String::new(), |(first, last)| format!("**× {}**", number(last / first)))
}

const HEAD: &str = "\
# Growth

This page shows what a lock on one Redis server costs as there are more of them.
`cargo xtask bench growth` writes it, with its plots, in about five minutes.
`cargo xtask bench growth --quick --folder DIR` takes a minute, and writes elsewhere.

Both axes of a plot are logarithmic.
Each line is divided by its first value, so it shows growth and not size.
A flat line is a cost that does not grow.
The grey line is what a cost would be that grows in proportion.
The last row of a table is the last value divided by the first one.
For a cost that grows with the logarithm it is a small number, and not the factor between the sizes.
Times are medians on a machine with other work, so they are rough; counts are exact.

One cost grows faster than the logarithm, and should not: that of a lock which many *processes* hand to each other.
A message about a release goes to each process that waits for the lock, and each of them wakes up to read it.
So the server's work for a grant grows with the number of processes, from 32 of them on nearly in proportion.
The tasks of one process share its connection and its messages, and do not add to this.
The other costs that grow with the number of things are those of Redlock, which sends each request to each server.

";

/// Returns the size of this machine, and the version of the server.
fn machine() -> Outcome<String> {
    let cores = std::thread::available_parallelism()?;
    let version = std::process::Command::new("redis-server").arg("--version").output()?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let version =
        version.split(" v=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("of some version");
    Ok(format!("{cores} cores, which clients and servers share, with Redis {version}"))
}

/// Writes a value with three digits.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if !value.is_finite() => String::new(),
        value if value >= 100.0 => thousands(value.round() as usize),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Writes a number with a comma between thousands.
pub(crate) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_a_row_for_each_point() {
        let series = Series {
            name: "locks",
            title: "Locks",
            size: "held",
            columns: &["µs", "bytes"],
            points: vec![
                Point { size: 1, values: vec![1.234, f64::NAN] },
                Point { size: 10_000, values: vec![56.78, 1234.5] },
            ],
        };
        let page = markdown(&[series]).unwrap();
        assert!(
            page.contains("| held | µs | bytes |\n|---|---|---|\n| 1 | 1.23 |  |\n| 10,000 | 56.8 | 1,235 |\n| **last by first** | **× 46.0** | **× 1.00** |")
        );
        assert!(page.contains("![Locks](growth/locks.svg)") && page.ends_with("|\n"));
    }
}
