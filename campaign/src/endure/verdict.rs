//! The verdict over the use of processes and store: it stays flat, or it grows.
//!
//! The rule: after the first fifth of the time, the median of the slopes between all pairs of samples (Theil and
//! Sen), times the rest of the time, is at most a tenth of the median value, or at most what is written here for
//! the quantity. The median of slopes does not follow single outliers, such as a process that was just replaced.
//!
//! An average over the processes that are left says nothing about those that are gone, and an idle process uses nothing.
//! So all processes have to be there until the end, and each of them to acquire locks until then.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Endurance, Sample};
use crate::Store;
use crate::plot::Panel;

/// The verdict over the samples of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    store: Store,
    length: Duration,
    processes: u32,
    names: u32,
    acquired: u64,
    failed: u64,
    judgements: Vec<Judgement>,
    objections: Vec<String>,
}

/// The judgement of one quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judgement {
    /// Its name.
    pub quantity: String,
    /// Its median after the warm-up.
    pub median: f64,
    /// By how much it grows in the time after the warm-up.
    pub growth: f64,
    /// By how much it may.
    pub allowed: f64,
}

impl Judgement {
    /// Returns `true` if it stays flat.
    pub fn is_flat(&self) -> bool {
        self.growth <= self.allowed
    }
}

/// The processes that did not do their part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    /// Those that ended by themselves, or did not end well.
    pub(super) ended: u32,
    /// Those that lived, and had acquired nothing for long when they were replaced or asked to end.
    pub(super) silent: u32,
}

/// The part of the time that is not judged.
const WARM_UP: f64 = 0.2;
/// The part of the median by which a quantity may grow.
const TENTH: f64 = 0.1;
/// The fewest samples that say something.
const FEWEST: usize = 5;
/// The part of the acquisitions a second of the second fifth that the last fifth has to have. Faults and a busy machine
/// delay some; processes that hang or fail acquire hardly any.
const STILL: f64 = 1.0 / 3.0;

/// The longest time without an acquisition of a process that does its part. Each acquires several locks a second, and
/// one that has just begun may wait for its connection while many others begin.
const SILENCE: Duration = Duration::from_secs(60);

/// Returns the time without an acquisition after which a process counts as one that does nothing.
pub(super) fn silence(length: Duration) -> Duration {
    SILENCE.min(length / 5)
}

/// A quantity: its name, the way to read it, and a growth that counts as none.
struct Quantity {
    name: &'static str,
    read: fn(&Sample) -> Option<f64>,
    floor: f64,
}

const QUANTITIES: [Quantity; 5] = [
    Quantity { name: "memory of a process, KiB", read: |sample| Some(sample.memory_kib), floor: 1_024.0 },
    Quantity { name: "descriptors of a process", read: |sample| Some(sample.descriptors), floor: 1.0 },
    // Blocking calls have threads of their own, which end ten seconds after the last one.
    Quantity { name: "threads of a process", read: |sample| Some(sample.threads), floor: 2.0 },
    Quantity { name: "tasks of a process", read: |sample| Some(sample.tasks), floor: 2.0 },
    Quantity {
        name: "keys, rows, nodes or files of the store",
        read: |sample| sample.residents.map(|count| count as f64),
        floor: 16.0,
    },
];

impl Verdict {
    /// Judges samples of processes, so many of which did not do their part.
    pub(super) fn of(endurance: &Endurance, samples: &[Sample], ends: Ends) -> Verdict {
        let last = samples.last().copied().unwrap_or_default();
        let warm = endurance.length.as_secs_f64() * WARM_UP;
        let judge = |quantity: &Quantity| {
            let points: Vec<(f64, f64)> = samples
                .iter()
                .filter(|sample| sample.seconds >= warm)
                .filter_map(|sample| Some((sample.seconds, (quantity.read)(sample)?)))
                .collect();
            judgement(quantity, &points)
        };
        Verdict {
            store: endurance.store,
            length: endurance.length,
            processes: endurance.processes,
            names: endurance.names,
            acquired: last.acquired,
            failed: last.failed,
            judgements: QUANTITIES.iter().map(judge).collect(),
            objections: objections(endurance, samples, ends),
        }
    }

    /// Returns `true` if every quantity stays flat, and all processes did something until the end.
    pub fn is_flat(&self) -> bool {
        self.acquired > 0 && self.objections.is_empty() && self.judgements.iter().all(Judgement::is_flat)
    }

    /// Returns the reasons why the quantities say nothing: processes are gone, or do nothing.
    pub fn objections(&self) -> &[String] {
        &self.objections
    }

    /// Returns the acquisitions.
    pub fn acquired(&self) -> u64 {
        self.acquired
    }

    /// Returns the attempts that failed.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Returns the judgement of each quantity.
    pub fn judgements(&self) -> &[Judgement] {
        &self.judgements
    }

    /// Returns the time that is not judged.
    pub fn warm(&self) -> Duration {
        self.length.mul_f64(WARM_UP)
    }

    /// Returns a panel for each quantity.
    pub(super) fn panels(&self, samples: &[Sample]) -> Vec<Panel> {
        let panel = |quantity: &Quantity| Panel {
            title: quantity.name.to_owned(),
            points: samples
                .iter()
                .filter_map(|sample| Some((sample.seconds, (quantity.read)(sample)?)))
                .collect(),
        };
        QUANTITIES.iter().map(panel).collect()
    }
}

fn objections(endurance: &Endurance, samples: &[Sample], ends: Ends) -> Vec<String> {
    let mut objections = Vec::new();
    if ends.ended > 0 {
        objections.push(format!("{} processes ended by themselves, or not well", ends.ended));
    }
    if ends.silent > 0 {
        let silence = silence(endurance.length).as_secs_f64();
        objections.push(format!("{} processes acquired nothing for {silence:.1} s", ends.silent));
    }
    // One that is replaced just now may be missing in one sample.
    let lacks = |sample: &Sample| sample.processes < endurance.processes;
    if let Some(pair) = samples.windows(2).find(|pair| pair.iter().all(lacks)) {
        let (there, since) = (pair[1].processes, pair[0].seconds);
        objections.push(format!("{there} of {} processes are there after {since:.0} s", endurance.processes));
    }
    let fifth = endurance.length.as_secs_f64() / 5.0;
    let (early, late) = (rate(samples, fifth, fifth * 2.0), rate(samples, fifth * 4.0, f64::INFINITY));
    if late <= early * STILL {
        objections
            .push(format!("{late:.1} acquisitions a second in the last fifth, and {early:.1} in the second"));
    }
    objections
}

/// Returns the acquisitions a second between two times.
fn rate(samples: &[Sample], from: f64, to: f64) -> f64 {
    let mut within = samples.iter().filter(|sample| sample.seconds >= from && sample.seconds <= to);
    let Some(first) = within.next() else { return 0.0 };
    let last = within.next_back().unwrap_or(first);
    let time = last.seconds - first.seconds;
    if time > 0.0 { last.acquired.saturating_sub(first.acquired) as f64 / time } else { 0.0 }
}

fn judgement(quantity: &Quantity, points: &[(f64, f64)]) -> Judgement {
    let median = median(points.iter().map(|(_, value)| *value).collect());
    let time = points.last().map_or(0.0, |last| last.0) - points.first().map_or(0.0, |first| first.0);
    // Too few samples are not flat: nothing was shown.
    let growth = if points.len() < FEWEST { f64::INFINITY } else { slope(points) * time };
    Judgement {
        quantity: quantity.name.to_owned(),
        median,
        growth,
        allowed: (median * TENTH).max(quantity.floor),
    }
}

fn slope(points: &[(f64, f64)]) -> f64 {
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (place, first) in points.iter().enumerate() {
        for second in &points[place + 1..] {
            if second.0 > first.0 {
                slopes.push((second.1 - first.1) / (second.0 - first.0));
            }
        }
    }
    median(slopes)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} processes, {} names, {:.2} hours, {} acquisitions, {} failed attempts: {}\n",
            self.store,
            self.processes,
            self.names,
            self.length.as_secs_f64() / 3_600.0,
            self.acquired,
            self.failed,
            if self.is_flat() { "flat" } else { "NOT FLAT" }
        )?;
        writeln!(
            f,
            "| quantity | median | growth after the warm-up | allowed | |\n|---|---:|---:|---:|---|"
        )?;
        for one in &self.judgements {
            let word = if one.is_flat() { "flat" } else { "**grows**" };
            writeln!(
                f,
                "| {} | {:.1} | {:.1} | {:.1} | {word} |",
                one.quantity, one.median, one.growth, one.allowed
            )?;
        }
        self.objections.iter().try_for_each(|one| writeln!(f, "\n**{one}**"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Ends = Ends { ended: 0, silent: 0 };

    fn endurance() -> Endurance {
        Endurance {
            store: Store::Redis,
            length: Duration::from_secs(100),
            processes: 2,
            names: 10,
            seed: 1,
            folder: "unused".into(),
            publish: None,
            program: None,
        }
    }

    fn samples(memory: impl Fn(f64) -> f64) -> Vec<Sample> {
        let one = |n: u32| {
            let seconds = f64::from(n);
            let (descriptors, threads, tasks) = (12.0, 2.0, 9.0);
            let memory_kib = memory(seconds);
            let residents = Some(20);
            Sample {
                seconds,
                processes: 2,
                acquired: u64::from(n) * 5,
                failed: 0,
                memory_kib,
                descriptors,
                threads,
                tasks,
                residents,
            }
        };
        (0..100).map(one).collect()
    }

    #[test]
    fn noise_and_warm_up_are_flat_and_growth_is_not() {
        let noisy = samples(|time| 20_000.0 + 500.0 * (time * 1.7).sin());
        assert!(Verdict::of(&endurance(), &noisy, WELL).is_flat());
        let warming = samples(|time| if time < 15.0 { 1_000.0 * time } else { 15_000.0 });
        assert!(Verdict::of(&endurance(), &warming, WELL).is_flat());
        let leaking = Verdict::of(&endurance(), &samples(|time| 20_000.0 + 60.0 * time), WELL);
        assert!(!leaking.is_flat(), "{leaking}");
        assert!(leaking.to_string().contains("memory of a process, KiB | 2"), "{leaking}");
    }

    #[test]
    fn outliers_do_not_count_and_missing_samples_do() {
        let outlier = samples(|time| if time == 70.0 { 900_000.0 } else { 20_000.0 });
        assert!(Verdict::of(&endurance(), &outlier, WELL).is_flat());
        assert!(!Verdict::of(&endurance(), &outlier[..10], WELL).is_flat(), "nothing was shown");
    }

    #[track_caller]
    fn is_refused(samples: &[Sample], ends: Ends, why: &str) {
        let verdict = Verdict::of(&endurance(), samples, ends);
        assert!(!verdict.is_flat() && verdict.to_string().contains(why), "{verdict}");
    }

    #[test]
    fn processes_that_are_gone_are_not_flat() {
        let mut samples = samples(|_| 20_000.0);
        is_refused(&samples, Ends { ended: 1, ..WELL }, "1 processes ended by themselves");
        samples[60].processes = 1;
        assert!(
            Verdict::of(&endurance(), &samples, WELL).is_flat(),
            "one that is replaced is missing for a moment"
        );
        samples[60..].iter_mut().for_each(|sample| sample.processes = 1);
        is_refused(&samples, WELL, "1 of 2 processes are there after 60 s");
    }

    #[test]
    fn processes_that_do_nothing_are_not_flat() {
        let silent = Ends { silent: 1, ..WELL };
        is_refused(&samples(|_| 20_000.0), silent, "1 processes acquired nothing for 20.0 s");
        let mut slower = samples(|_| 20_000.0);
        slower[50..].iter_mut().for_each(|sample| sample.acquired = 250 + (sample.acquired - 250) / 2);
        assert!(Verdict::of(&endurance(), &slower, WELL).is_flat(), "the machine is busy");
        let mut standing = samples(|_| 20_000.0);
        standing[50..].iter_mut().for_each(|sample| sample.acquired = 250);
        is_refused(&standing, WELL, "0.0 acquisitions a second in the last fifth, and 5.0 in the second");
        standing.iter_mut().for_each(|sample| sample.acquired = 5);
        is_refused(&standing, WELL, "and 0.0 in the second");
    }
}
