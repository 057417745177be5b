//! The file store, uncontended: in one process beside `flock`, and as a command beside `flock(1)`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use leasehold_testkit::require;
use rustix::fs::{FlockOperation, flock};

use crate::Outcome;
use crate::cycle::Ours;
use crate::load::Load;
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Unit};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    in_process(plan, report, directory.path()).await?;
    let (path, plan) = (directory.path().to_owned(), Processes { pairs: plan.processes });
    match plan.run(path).await? {
        Ok(times) => times.add_to_report(report),
        Err(why) => report.skip(format!("the command beside flock(1): {why}")),
    }
    Ok(())
}

const TASKS: usize = 64;
const GROUP: &str = "files: the file store, uncontended";

async fn in_process(plan: &Plan, report: &mut Report, directory: &Path) -> Outcome<()> {
    let url = format!("file://{}", directory.join("store").display());
    let ours = Ours::open(&url, 1, |_| "alone".to_owned()).await?;
    let plain = directory.join("plain.lock");
    ours.run(plan.round / 5).await?;
    let (mut held, mut direct, mut aside) = (Series::default(), Series::default(), Series::default());
    for _ in 0..plan.rounds {
        held.push(ours.run(plan.round).await?.latency());
        let path = plain.clone();
        let cycle = move |_| std::future::ready(lock_plainly(&path));
        direct.push(Load::run(1, plan.round / 2, cycle).await?.latency());
        let path = plain.clone();
        let cycle = move |_| {
            let path = path.clone();
            async move {
                let file = tokio::task::spawn_blocking(move || locked(&path)).await??;
                Ok(tokio::task::spawn_blocking(move || drop(file)).await?)
            }
        };
        aside.push(Load::run(1, plan.round / 2, cycle).await?.latency());
    }
    let measure = Measure { group: GROUP, what: "latency of a cycle, 1 task", unit: Unit::Micros };
    report.compare(measure, &held, "open + flock + close", &direct, None);
    report.compare(measure, &held, "the same on tokio's blocking threads", &aside, None);
    many(plan, report, directory, &url).await
}

/// Each task uses a lock of its own.
async fn many(plan: &Plan, report: &mut Report, directory: &Path, url: &str) -> Outcome<()> {
    let ours = Ours::open(url, TASKS, |task| format!("lock-{task}")).await?;
    ours.run(plan.round / 5).await?;
    let (mut held, mut direct) = (Series::default(), Series::default());
    let paths: std::sync::Arc<[PathBuf]> =
        (0..TASKS).map(|task| directory.join(format!("plain-{task}.lock"))).collect();
    for _ in 0..plan.rounds {
        held.push(ours.run(plan.round).await?.rate());
        let paths = paths.clone();
        let cycle = move |task: usize| std::future::ready(lock_plainly(&paths[task]));
        direct.push(Load::run(TASKS, plan.round / 2, cycle).await?.rate());
    }
    let measure =
        Measure { group: GROUP, what: "cycles a second, 64 tasks on 64 locks", unit: Unit::PerSecond };
    report.compare(measure, &held, "open + flock + close", &direct, None);
    Ok(())
}

fn lock_plainly(path: &Path) -> Outcome<()> {
    locked(path).map(drop)
}

fn locked(path: &Path) -> Outcome<File> {
    let file = File::options().create(true).append(true).open(path)?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Commands that are started in turn.
struct Processes {
    pairs: usize,
}

/// The time that each took, in microseconds.
#[derive(Default)]
struct Times {
    ours: Series,
    flock: Series,
    bare: Series,
}

impl Processes {
    /// Starts all, one after the other; or says why there is nothing to start.
    async fn run(self, directory: PathBuf) -> Outcome<Result<Times, String>> {
        tokio::task::spawn_blocking(move || self.run_here(&directory)).await?
    }

    fn run_here(&self, directory: &Path) -> Outcome<Result<Times, String>> {
        let ours = std::env::current_exe()?.with_file_name("leasehold");
        if !ours.is_file() {
            return Ok(Err("`leasehold` was not built: `cargo xtask bench` does".to_owned()));
        }
        let flock = require::program("flock", "util-linux")?;
        let url = format!("file://{}", directory.join("store").display());
        let file = directory.join("plain.lock").display().to_string();
        let run = |times: Option<&mut Series>, program: &Path, args: &[&str]| {
            let mut command = Command::new(program);
            command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
            let began = Instant::now();
            let status = command.status()?;
            if let Some(times) = times {
                times.push(began.elapsed().as_secs_f64() * 1e6);
            }
            Outcome::Ok(status.success())
        };
        let (ours_args, flock_args) =
            (["run", "--store", &url, "command", "--", "true"], [file.as_str(), "true"]);
        if !run(None, &ours, &ours_args)? {
            return Ok(Err("`leasehold run` failed".to_owned()));
        }
        let mut times = Times::default();
        for _ in 0..self.pairs {
            let all = run(Some(&mut times.ours), &ours, &ours_args)?
                && run(Some(&mut times.flock), &flock, &flock_args)?
                && run(Some(&mut times.bare), Path::new("true"), &[])?;
            if !all {
                return Err("one of the commands failed".into());
            }
        }
        Ok(Ok(times))
    }
}

impl Times {
    fn add_to_report(&self, report: &mut Report) {
        let measure =
            Measure { group: GROUP, what: "`leasehold run NAME -- true` as a process", unit: Unit::Micros };
        report.compare(measure, &self.ours, "`flock FILE true` as a process", &self.flock, None);
        report.compare(measure, &self.ours, "`true` without any lock", &self.bare, None);
    }
}
