//! The results of endurance runs: one line of JSON for each, in one file of the repository, and their pictures.
//!
//! Ground rules: lines are added to the file, and none is ever changed or removed.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Endurance, Judgement, Verdict};
use crate::{Machine, Outcome, json_lines};

/// One run that was published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endured {
    /// The word of the store.
    pub store: String,
    /// The time in seconds.
    pub seconds: u64,
    /// The processes.
    pub processes: u32,
    /// The names of locks.
    pub names: u32,
    /// The seed.
    pub seed: u64,
    /// The acquisitions.
    pub acquired: u64,
    /// The attempts that failed, because of faults.
    pub failed: u64,
    /// The course of each quantity.
    pub judgements: Vec<Judgement>,
    /// Why these say nothing, if they do not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objections: Vec<String>,
    /// The version of the server.
    pub version: String,
    /// The machine.
    pub machine: String,
    /// The day.
    pub date: String,
    /// The code of leasehold.
    pub code: String,
}

impl Endured {
    /// The file in the repository.
    pub const FILE: &str = "docs/campaign/endurance.jsonl";
    /// The folder of the pictures in the repository.
    pub const PICTURES: &str = "docs/book/src/images";

    /// Describes a run that has just ended.
    pub(super) fn of(endurance: &Endurance, verdict: &Verdict, version: String, machine: Machine) -> Endured {
        let Machine { name: machine, date, code } = machine;
        Endured {
            store: endurance.store.word().to_owned(),
            seconds: endurance.length.as_secs(),
            processes: endurance.processes,
            names: endurance.names,
            seed: endurance.seed,
            acquired: verdict.acquired(),
            failed: verdict.failed(),
            judgements: verdict.judgements().to_vec(),
            objections: verdict.objections().to_vec(),
            version,
            machine,
            date,
            code,
        }
    }

    /// Returns `true` if nothing grew, and all processes acquired locks until the end.
    pub fn is_flat(&self) -> bool {
        self.acquired > 0 && self.objections.is_empty() && self.judgements.iter().all(Judgement::is_flat)
    }

    /// Returns the name of the picture of a store.
    pub fn picture(store: &str) -> String {
        format!("endurance-{store}.svg")
    }

    /// Adds a run and its picture to the repository at `root`.
    ///
    /// # Errors
    /// If one of the files cannot be written, or a quantity has too few samples for a judgement.
    pub(super) fn publish(&self, root: &Path, picture: &str) -> Outcome {
        if let Some(one) = self.judgements.iter().find(|one| !one.growth.is_finite()) {
            return Err(format!("not published: there are too few samples of the {}", one.quantity).into());
        }
        json_lines::append(&root.join(Endured::FILE), self)?;
        let folder = root.join(Endured::PICTURES);
        std::fs::create_dir_all(&folder)?;
        Ok(std::fs::write(folder.join(Endured::picture(&self.store)), picture)?)
    }

    /// Reads all runs below the root of the repository; none if there is no file.
    ///
    /// # Errors
    /// If a line is not a run, with its number.
    pub fn read(root: &Path) -> Outcome<Vec<Endured>> {
        json_lines::read(&root.join(Endured::FILE))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn endured(store: &str, growth: f64) -> Endured {
        let judgement = Judgement { quantity: "tasks".to_owned(), median: 9.0, growth, allowed: 2.0 };
        Endured {
            store: store.to_owned(),
            seconds: 1_200,
            processes: 100,
            names: 10_000,
            seed: 1,
            acquired: 480_000,
            failed: 7,
            judgements: vec![judgement],
            objections: Vec::new(),
            version: "Redis 7.0.15".to_owned(),
            machine: "2 cores, Debian".to_owned(),
            date: "2026-01-31".to_owned(),
            code: "0123456789ab".to_owned(),
        }
    }

    #[test]
    fn published_runs_are_read_again_with_their_pictures() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Endured::read(root.path()).unwrap(), []);
        let runs = [endured("redis", 0.5), endured("etcd", 3.0)];
        for run in &runs {
            run.publish(root.path(), "<svg/>").unwrap();
        }
        assert_eq!(Endured::read(root.path()).unwrap(), runs);
        assert_eq!(runs.map(|run| run.is_flat()), [true, false]);
        let unknown = endured("redis", f64::INFINITY).publish(root.path(), "<svg/>").unwrap_err();
        assert!(unknown.to_string().contains("too few samples of the tasks"), "{unknown}");
        assert_eq!(Endured::read(root.path()).unwrap().len(), 2);
        let picture = root.path().join(Endured::PICTURES).join("endurance-etcd.svg");
        assert_eq!(std::fs::read_to_string(picture).unwrap(), "<svg/>");
    }
}
