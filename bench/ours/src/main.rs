//! `cargo xtask bench`: ratios of leasehold against what its servers can do at all, side by side in one run.
//!
//! Ground rules: nothing here is a test, and no number passes or fails a build. Each measure and what
//! it is compared with run in turn, in short rounds, and the ratio is taken round by round, because a
//! machine that is shared is slower in one minute than in the next. The meaning of each row is in
//! `docs/book/src/bench.md`.
#![forbid(unsafe_code)]

mod benchmark;
mod captured;
mod consensus;
mod crowd;
mod cycle;
mod dead;
mod effort;
mod files;
mod growth;
mod handover;
mod idle;
mod leases;
mod linger;
mod load;
mod plan;
mod raw;
mod report;
mod rivals;
mod rows;
mod updates;
mod waiter;
mod watched;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use plan::{Group, Plan};
use report::Report;

/// Every error ends the run, with a text for a person.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Ratios of leasehold against the server's own limit, flock and others, side by side in one run.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Args {
    /// Shorter and fewer rounds: two or three minutes, and less exact
    #[arg(long)]
    quick: bool,

    /// Write the rows as JSON to stdout, instead of a table
    #[arg(long)]
    json: bool,

    /// Only these groups, with commas between
    #[arg(long, value_enum, value_delimiter = ',', value_name = "GROUPS")]
    only: Vec<Group>,

    #[command(subcommand)]
    role: Option<Role>,
}

/// The other task of this program: the part of one of several processes, or a page of its own.
#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Waiter(waiter::Waiter),
    #[command(hide = true)]
    Peer(Peer),
    Growth(growth::Growth),
    Rivals(rivals::Rivals),
}

/// The arguments of a contestant, which reads them by itself.
#[derive(Debug, clap::Args)]
struct Peer {
    kind: String,
    at: String,
    tasks: usize,
    locks: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role {
        Some(Role::Waiter(waiter)) => waiter.run(),
        Some(Role::Growth(growth)) => growth.run(),
        Some(Role::Rivals(rivals)) => rivals.run(),
        Some(Role::Peer(Peer { kind, at, tasks, locks })) => {
            rivals::run_own(&leasehold_bench_peer::Arguments { kind, at, tasks, locks })
        }
        None => bench(Plan::new(args.quick, args.only), args.json),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(plan: Plan, json: bool) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::default();
    for group in plan.groups() {
        eprintln!("{}", group.what());
        if let Err(error) = runtime.block_on(measure(*group, &plan, &mut report)) {
            // The others are worth having all the same.
            report.fail(format!("{}: {error}", group.name()));
        }
    }
    print!("{}", if json { report.json()? } else { report.table() });
    if report.is_whole() { Ok(()) } else { Err("a group of measures failed, see above".into()) }
}

async fn measure(group: Group, plan: &Plan, report: &mut Report) -> Outcome<()> {
    match group {
        Group::Cycle => cycle::measure(plan, report).await,
        Group::Files => files::measure(plan, report).await,
        Group::Handover => handover::measure(plan, report).await,
        Group::Crowd => crowd::measure(plan, report).await,
        Group::Linger => linger::measure(plan, report).await,
        Group::Leases => leases::measure(plan, report).await,
        Group::Idle => idle::measure(plan, report).await,
        Group::Watched => watched::measure(plan, report).await,
        Group::Uncontended => consensus::measure_uncontended(plan, report).await,
        Group::Updates => updates::measure(plan, report).await,
        Group::Consensus => consensus::measure(plan, report).await,
        Group::Dead => dead::measure(plan, report).await,
        Group::Rows => rows::measure(plan, report).await,
    }
}
