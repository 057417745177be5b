//! Endurance: many processes on one store for hours, with a fault now and then, and whether what they use stays flat.

mod crowd;
mod results;
mod sample;
mod verdict;
mod worker;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use results::Endured;
#[cfg(test)]
pub(crate) use results::tests;
pub use sample::Sample;
pub use verdict::{Judgement, Verdict};
pub use worker::work;

use crate::plot::{self, Panel};
use crate::world::{Needs, Network, World};
use crate::{Chance, Machine, Outcome, Store};

use crowd::Crowd;

/// A run that is watched.
#[derive(Clone, Debug)]
pub struct Endurance {
    /// The store.
    pub store: Store,
    /// The time.
    pub length: Duration,
    /// The processes.
    pub processes: u32,
    /// The names of locks that they take.
    pub names: u32,
    /// The seed of the names and of the faults.
    pub seed: u64,
    /// The folder for samples and plots.
    pub folder: PathBuf,
    /// The repository whose book gets the result and its picture, if any.
    pub publish: Option<PathBuf>,
    /// The program of the workers with its arguments; this program with `endure-worker` if there is none.
    pub program: Option<(PathBuf, Vec<String>)>,
}

/// The most samples of a run, which bounds the cost of its verdict.
const SAMPLES: u32 = 720;
/// The faults of a run.
const FAULTS: u32 = 24;

/// Runs the processes, writes samples and plots, and judges them.
///
/// # Errors
/// If the store or the processes cannot be started, or the folder cannot be written.
pub async fn run(endurance: &Endurance) -> Outcome<Verdict> {
    std::fs::create_dir_all(&endurance.folder)?;
    let mut world = Box::pin(World::start(endurance.store, Needs::default())).await?;
    let version = world.version().await;
    let machine = Machine::here();
    let mut crowd = Crowd::start(endurance, &world).await?;
    let file = endurance.folder.join(format!("{}.jsonl", endurance.store));
    let mut output = File::create(file)?;
    let interval = (endurance.length / SAMPLES).max(Duration::from_millis(250));
    let mut faults = Faults::new(endurance);
    let (began, mut samples) = (Instant::now(), Vec::new());
    while began.elapsed() < endurance.length {
        tokio::time::sleep(interval).await;
        faults.happen(began.elapsed(), &mut world, &mut crowd).await?;
        let mut sample = crowd.sample(began.elapsed());
        // A server that a fault has just hit gives no number.
        sample.residents = world.residents().await.ok();
        writeln!(output, "{}", serde_json::to_string(&sample)?)?;
        samples.push(sample);
    }
    world.heal_networks()?;
    let ends = crowd.end().await;
    let verdict = Verdict::of(endurance, &samples, ends);
    let panels: Vec<Panel> = verdict.panels(&samples);
    let title = format!("{}: {} processes, {} names", endurance.store, endurance.processes, endurance.names);
    let picture = plot::svg(&title, &panels, verdict.warm().as_secs_f64());
    std::fs::write(endurance.folder.join(format!("{}.svg", endurance.store)), &picture)?;
    std::fs::write(endurance.folder.join(format!("{}.md", endurance.store)), verdict.to_string())?;
    if let Some(root) = &endurance.publish {
        Endured::of(endurance, &verdict, version, machine).publish(root, &picture)?;
    }
    Ok(verdict)
}

/// The faults of a run: connections that are reset, processes that are stopped, and such that are killed.
struct Faults {
    chance: Chance,
    every: Duration,
    next: Duration,
    number: u32,
    ttl: Duration,
}

impl Faults {
    fn new(endurance: &Endurance) -> Faults {
        // What a fault leaves is cleaned up in moments, which a short run has to give it.
        let every = (endurance.length / FAULTS).max(Duration::from_secs(3));
        Faults {
            chance: Chance::seeded(endurance.seed, "endurance"),
            every,
            next: every,
            number: 0,
            ttl: endurance.store.ttl(),
        }
    }

    async fn happen(&mut self, now: Duration, world: &mut World, crowd: &mut Crowd) -> Outcome {
        if now < self.next {
            return Ok(());
        }
        self.next = now + self.every;
        self.number += 1;
        let pick = self.chance.draw();
        match self.number % 3 {
            0 => {
                world.reset(Network::pick(pick))?;
                world.heal_networks()?;
            }
            1 => crowd.pause_one(pick, self.ttl * 3 / 2).await?,
            _ => crowd.replace_one(pick, world).await?,
        }
        Ok(())
    }
}
