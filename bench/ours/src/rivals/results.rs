//! The measurements, as the file that the page is written from.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::report::median;

/// All results, of one run or of several.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) machine: Machine,
    /// The versions of servers and languages.
    pub(super) versions: BTreeMap<String, String>,
    /// By the id of the scenario.
    scenarios: BTreeMap<String, Measured>,
}

/// The machine, and the day.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) date: String,
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) memory_gib: f64,
    pub(super) system: String,
    pub(super) load_before: f64,
    pub(super) load_after: f64,
}

/// One scenario.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) id: String,
    pub(super) quick: bool,
    pub(super) rounds: usize,
    pub(super) millis: u64,
    /// Why nothing was measured at all.
    pub(super) missing: Option<String>,
    pub(super) contestants: Vec<Contested>,
}

/// One contestant of a scenario.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Contested {
    pub(super) name: String,
    /// The version of the library.
    pub(super) version: String,
    pub(super) missing: Option<String>,
    /// By the name of the measure: a value for each round.
    pub(super) values: BTreeMap<String, Vec<f64>>,
}

/// A median with the lowest and the highest round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Spread {
    /// Returns nothing without any finite value.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        Some(Spread { median: median(&values), low, high })
    }
}

impl Results {
    /// Reads earlier results, if there are any.
    pub(super) fn read(file: &Path) -> Outcome<Results> {
        match std::fs::read(file) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Results::default()),
            Err(error) => Err(format!("cannot read {}: {error}", file.display()).into()),
        }
    }

    pub(super) fn write(&self, file: &Path) -> Outcome<()> {
        Ok(std::fs::write(file, serde_json::to_string_pretty(self)? + "\n")?)
    }

    /// Replaces the results of this scenario.
    pub(super) fn keep(&mut self, measured: Measured) {
        self.scenarios.insert(measured.id.clone(), measured);
    }

    pub(super) fn of(&self, id: &str) -> Option<&Measured> {
        self.scenarios.get(id)
    }

    /// Returns `true` if part of it was measured with short rounds.
    pub(super) fn is_quick(&self) -> bool {
        self.scenarios.values().any(|measured| measured.quick)
    }
}

impl Measured {
    /// Returns what could not be measured, and why.
    pub(super) fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        let whole = self.missing.as_deref().map(|why| ("all", why));
        let each =
            self.contestants.iter().filter_map(|one| Some((one.name.as_str(), one.missing.as_deref()?)));
        whole.into_iter().chain(each)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.contestant(name).is_some_and(|one| one.missing.is_none())
    }

    pub(super) fn contestant(&self, name: &str) -> Option<&Contested> {
        self.contestants.iter().find(|one| one.name == name)
    }
}

impl Contested {
    pub(super) fn values(&self, measure: &str) -> &[f64] {
        self.values.get(measure).map_or(&[], Vec::as_slice)
    }

    pub(super) fn spread(&self, measure: &str) -> Option<Spread> {
        Spread::of(self.values(measure).iter().copied())
    }

    /// Divides it by the other, round by round.
    pub(super) fn ratio(&self, other: &Contested, measure: &str) -> Option<Spread> {
        let pairs = self.values(measure).iter().zip(other.values(measure));
        Spread::of(pairs.map(|(own, theirs)| own / theirs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn contested(name: &str, rates: &[f64]) -> Contested {
        let values = BTreeMap::from([("rate".to_owned(), rates.to_vec())]);
        Contested { name: name.to_owned(), values, ..Contested::default() }
    }

    #[test]
    fn ratio_is_taken_round_by_round() {
        // The machine was ten times slower in the second round.
        let (ours, theirs) = (contested("a", &[50.0, 5.0, 60.0]), contested("b", &[100.0, 10.0, 200.0]));
        let ratio = ours.ratio(&theirs, "rate").unwrap();
        assert_eq!(ratio, Spread { median: 0.5, low: 0.3, high: 0.5 });
        assert_eq!(ours.ratio(&theirs, "p50"), None, "not measured");
    }

    #[test]
    fn results_survive_their_file_and_a_scenario_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("results.json");
        assert!(Results::read(&file).unwrap().of("x").is_none());
        let mut results = Results::default();
        for rate in [1.0, 2.0] {
            let contestants = vec![contested("a", &[rate])];
            results.keep(Measured { id: "x".to_owned(), contestants, ..Measured::default() });
        }
        results.write(&file).unwrap();
        let read = Results::read(&file).unwrap();
        assert_eq!(read.of("x").unwrap().contestant("a").unwrap().values("rate"), [2.0]);
        std::fs::write(&file, "{").unwrap();
        assert!(Results::read(&file).is_err());
    }
}
