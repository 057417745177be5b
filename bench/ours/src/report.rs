//! The rows that a run ends with: the ratio first, then what it is made of.

use std::fmt::Write;

use serde::Serialize;

use crate::Outcome;

/// All rows of a run, in the order of measuring.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    rows: Vec<Row>,
    /// The measures that could not be taken, and why.
    skipped: Vec<String>,
    /// Groups that ended with an error.
    failed: Vec<String>,
}

/// Values of one measure, one a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(Vec<f64>);

/// The quantity that is measured, and its unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    pub(crate) group: &'static str,
    pub(crate) what: &'static str,
    pub(crate) unit: Unit,
}

/// The unit of both numbers of a row. For the first more is better, for all others less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    PerSecond,
    /// Traffic: a rate of which less is better.
    CountPerSecond,
    Micros,
    Seconds,
    Count,
}

/// The range in which the ratio should lie.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Debug, Serialize)]
struct Row {
    group: &'static str,
    what: &'static str,
    unit: Unit,
    reference: String,
    /// The median over the rounds of ours by the reference's, with the lowest and the highest.
    ratio: f64,
    ratio_low: f64,
    ratio_high: f64,
    target: Option<Target>,
    met: Option<bool>,
    /// Medians over the rounds.
    ours_median: f64,
    reference_median: f64,
}

impl Series {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn median(&self) -> f64 {
        median(&self.0)
    }

    /// Returns a value that needs no rounds, because it is counted and not timed.
    pub(crate) fn once(value: f64) -> Series {
        Series(vec![value])
    }
}

impl Report {
    /// Adds a row: the ratio of `ours` by `theirs`, round by round.
    pub(crate) fn compare(
        &mut self,
        measure: Measure,
        ours: &Series,
        reference: impl Into<String>,
        theirs: &Series,
        target: Option<Target>,
    ) {
        let mut ratios: Vec<f64> = ours.0.iter().zip(&theirs.0).map(|(ours, theirs)| ours / theirs).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = median(&ratios);
        self.rows.push(Row {
            group: measure.group,
            what: measure.what,
            unit: measure.unit,
            reference: reference.into(),
            ratio,
            ratio_low: ratios.first().copied().unwrap_or(f64::NAN),
            ratio_high: ratios.last().copied().unwrap_or(f64::NAN),
            target,
            met: target.map(|target| target.is_met(ratio)),
            ours_median: ours.median(),
            reference_median: theirs.median(),
        });
    }

    /// Says what is missing.
    pub(crate) fn skip(&mut self, what: impl Into<String>) {
        self.skipped.push(what.into());
    }

    /// Says which group ended early, and why.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failed.push(what.into());
    }

    /// Returns `true` if no group failed.
    pub(crate) fn is_whole(&self) -> bool {
        self.failed.is_empty()
    }

    /// Writes the report for programs.
    pub(crate) fn json(&self) -> Outcome<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes the report for people.
    pub(crate) fn table(&self) -> String {
        let mut table = String::from(
            "ratio = ours / reference, median of the rounds (lowest to highest); ↑ more is better, ↓ less is better\n",
        );
        let mut group = "";
        for row in &self.rows {
            if row.group != group {
                group = row.group;
                let _ = writeln!(table, "\n{group}");
            }
            let target = row.target.map(Target::text).unwrap_or_default();
            let verdict = row.met.map_or("", |met| if met { "met" } else { "MISSED" });
            let range = match row.ratio_low < row.ratio_high {
                true => format!("({} to {})", ratio_text(row.ratio_low), ratio_text(row.ratio_high)),
                false => String::new(),
            };
            let _ = writeln!(
                table,
                "{:>8} {:<18} {} {:<10} {:<6} | {:>11} ours, {:>11} {} | {}",
                ratio_text(row.ratio),
                range,
                row.unit.arrow(),
                target,
                verdict,
                row.unit.text(row.ours_median),
                row.unit.text(row.reference_median),
                row.reference,
                row.what,
            );
        }
        for skipped in &self.skipped {
            let _ = writeln!(table, "\nnot measured: {skipped}");
        }
        for failed in &self.failed {
            let _ = writeln!(table, "\nFAILED: {failed}");
        }
        table
    }
}

impl Target {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Target::AtLeast(least) => format!("want ≥{}", ratio_text(least)),
            Target::AtMost(most) => format!("want ≤{}", ratio_text(most)),
        }
    }
}

impl Unit {
    fn arrow(self) -> &'static str {
        if self == Unit::PerSecond { "↑" } else { "↓" }
    }

    fn text(self, value: f64) -> String {
        match self {
            Unit::PerSecond | Unit::CountPerSecond => format!("{}/s", number_text(value)),
            Unit::Micros => format!("{} µs", number_text(value)),
            Unit::Seconds => format!("{value:.3} s"),
            Unit::Count => number_text(value),
        }
    }
}

/// Returns the middle value, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Returns the value below which the part `part` of all values lies, interpolated between two of them.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = part * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

fn ratio_text(ratio: f64) -> String {
    if ratio == 0.0 || !ratio.is_finite() {
        return format!("{ratio:.0}");
    }
    match ratio.abs() {
        ratio if ratio < 0.1 => format!("{ratio:.4}"),
        ratio if ratio < 10.0 => format!("{ratio:.2}"),
        ratio => format!("{ratio:.1}"),
    }
}

fn number_text(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => format!("{:.1}k", value / 1000.0),
        size if size >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURE: Measure = Measure { group: "g", what: "w", unit: Unit::PerSecond };

    #[test]
    fn quantiles_lie_between_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[0.0, 10.0], 0.99), 9.9);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_ratio_is_taken_round_by_round() {
        // The machine was ten times slower in the second round: the ratio of medians would not be 0.5.
        let (ours, theirs) = (Series(vec![50.0, 5.0, 60.0]), Series(vec![100.0, 10.0, 200.0]));
        let mut report = Report::default();
        report.compare(MEASURE, &ours, "r", &theirs, Some(Target::AtLeast(0.8)));
        assert_eq!((report.rows[0].ratio, report.rows[0].met), (0.5, Some(false)));
        assert_eq!((report.rows[0].ratio_low, report.rows[0].ratio_high), (0.3, 0.5));
        assert!(report.table().contains("MISSED"));
    }

    #[test]
    fn skipped_measurement_is_reported() {
        let mut report = Report::default();
        report.skip("the rival: not built");
        assert!(report.table().contains("not measured: the rival"));
        assert!(report.json().unwrap().contains("not built"));
    }
}
