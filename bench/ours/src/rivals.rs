//! `cargo xtask bench --rivals`: leasehold, other lock libraries and each server's own limit, side by side.
//!
//! Ground rules: every contestant is a program of its own with the same protocol (`bench/peer`). The rounds of
//! all contestants of a scenario are interleaved, and ratios are taken within a round. What was measured goes
//! into a file first; the page and its plots are written from that file alone. A rival that cannot be had, or
//! that fails, is a row with the reason, and ends nothing.

mod facts;
mod own;
mod page;
mod plot;
mod results;
mod running;
mod scenarios;
mod stores;
mod trips;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use crate::Outcome;
use results::{Measured, Results};
use scenarios::{SCENARIOS, Scenario};

pub(crate) use own::run as run_own;

/// Other lock libraries beside leasehold and each server's own limit, in one run
#[derive(Debug, Args)]
pub(crate) struct Rivals {
    /// Shorter and fewer rounds: some five minutes instead of twenty, and less exact
    #[arg(long)]
    quick: bool,

    /// Measure only the scenarios whose id begins with one of these, and keep the other results
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    only: Vec<String>,

    /// Measure nothing: write the page and its plots again from the results
    #[arg(long)]
    page: bool,

    /// The folder of the page `benchmarks.md`; results and plots are in `benchmarks` in it
    #[arg(long, default_value = "docs/book/src")]
    folder: PathBuf,
}

/// The length and the number of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    /// Rounds, and the length of each, where no task waits for another.
    rounds: (usize, Duration),
    /// The same where tasks wait for each other, so that slow pollers get their turns.
    contended: (usize, Duration),
    /// The time for which idle waiters are watched.
    idle: Duration,
}

impl Rivals {
    fn lengths(&self) -> Lengths {
        let millis = Duration::from_millis;
        if self.quick {
            Lengths { rounds: (5, millis(150)), contended: (3, millis(600)), idle: millis(4_000) }
        } else {
            Lengths { rounds: (15, millis(300)), contended: (7, millis(1_500)), idle: millis(12_000) }
        }
    }

    /// Measures, keeps the results, and writes the page.
    pub(crate) fn run(&self) -> Outcome<()> {
        let folder = self.folder.join("benchmarks");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("results.json");
        let mut results = Results::read(&file)?;
        let mut failed = Vec::new();
        if !self.page {
            failed = self.measure(&mut results, &file)?;
        }
        for scenario in SCENARIOS {
            if let Some(svg) = plot::svg(scenario, &results) {
                std::fs::write(folder.join(format!("{}.svg", scenario.id)), svg)?;
            }
        }
        let page = self.folder.join("benchmarks.md");
        std::fs::write(&page, page::markdown(&results)?)?;
        eprintln!("written: {}, {}", page.display(), file.display());
        if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
    }

    /// Measures the scenarios that were asked for, and returns those of ours, and limits, that failed.
    ///
    /// The results are kept after each scenario, so that what ends this run early costs only the rest.
    fn measure(&self, results: &mut Results, file: &Path) -> Outcome<Vec<String>> {
        let asked = |scenario: &&Scenario| {
            self.only.is_empty() || self.only.iter().any(|id| scenario.id.starts_with(id.as_str()))
        };
        let asked: Vec<&Scenario> = SCENARIOS.iter().filter(asked).collect();
        if asked.is_empty() {
            let ids: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.id).collect();
            return Err(format!("no scenario is called so; these are: {}", ids.join(", ")).into());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let (began, mut failed) = (Instant::now(), Vec::new());
        facts::note(results, self.quick);
        for (number, scenario) in asked.iter().enumerate() {
            eprintln!(
                "{:4} s  [{}/{}] {}: {} …",
                began.elapsed().as_secs(),
                number + 1,
                asked.len(),
                scenario.id,
                scenario.title
            );
            let measured = running::measure(scenario, self.lengths(), &runtime);
            for (name, why) in measured.missing() {
                eprintln!("        {name}: {why}");
            }
            failed.extend(
                scenario
                    .indispensable()
                    .filter(|name| !measured.has(name))
                    .map(|name| format!("{} in {}", name, scenario.id)),
            );
            results.keep(Measured { quick: self.quick, ..measured });
            results.machine.load_after = facts::load();
            results.write(file)?;
        }
        eprintln!("{:4} s  measured", began.elapsed().as_secs());
        Ok(failed)
    }
}
