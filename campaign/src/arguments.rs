//! The command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::ArgPredicate;
use clap::{Args, Parser, Subcommand};
use leasehold_campaign::endure::{self, Endurance};
use leasehold_campaign::{Cell, Fault, Outcome, Results, Run, Store, page};

/// Thirty faults on every store, judged from recorded histories, and endurance runs.
#[derive(Debug, Parser)]
#[command(name = "campaign")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run cells, and add their results to the results of the repository
    Run(RunArguments),
    /// Write the page of the grid, and its section of the track record
    Grid {
        /// Write nothing, and fail if a page is not what the results say
        #[arg(long)]
        check: bool,
    },
    /// Watch what many processes on one store use, over hours
    Endure(EndureArguments),
}

#[derive(Debug, Args)]
struct RunArguments {
    /// Run only this store; may be given again
    #[arg(long, value_name = "STORE")]
    store: Vec<Store>,
    /// Run only this fault; may be given again
    #[arg(long, value_name = "FAULT")]
    fault: Vec<Fault>,
    /// The time for which faults happen in one history
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// The seed of the first history of each cell
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The histories of each cell, with seeds that follow each other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    histories: u64,
    /// Take a dozen locks beside the others, which change hands quickly: thousands of acquisitions in a history
    #[arg(long)]
    dense: bool,
    /// Run one history of each cell, of three seconds
    #[arg(long, conflicts_with_all = ["seconds", "histories"])]
    quick: bool,
    /// Run the stores with servers only, and add to the results of the newest servers, which
    /// `cargo xtask campaign` fetches
    #[arg(long)]
    newest: bool,
    /// The file that results are added to
    #[arg(long, value_name = "FILE", default_value = Results::FILE)]
    #[arg(default_value_if("newest", ArgPredicate::IsPresent, page::newest::FILE))]
    results: PathBuf,
    /// The folder for histories
    #[arg(long, value_name = "DIR", default_value = "target/campaign")]
    folder: PathBuf,
}

#[derive(Debug, Args)]
struct EndureArguments {
    /// The store
    #[arg(long, value_name = "STORE")]
    store: Store,
    /// The time in hours, such as 0.5
    #[arg(long, value_name = "H", default_value_t = 1.0, value_parser = hours)]
    hours: f64,
    /// The processes
    #[arg(long, value_name = "P", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    processes: u32,
    /// The names of locks
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    names: u32,
    /// The seed of the faults and of the names
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The folder for samples and plots
    #[arg(long, value_name = "DIR", default_value = "target/endurance")]
    folder: PathBuf,
    /// Add the result to those of the repository, and its picture to the book
    #[arg(long)]
    publish: bool,
}

fn hours(text: &str) -> Result<f64, String> {
    let hours: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of hours"))?;
    if (0.001..=1_000.0).contains(&hours) { Ok(hours) } else { Err("write 0.001 to 1000 hours".to_owned()) }
}

/// Runs the command line.
pub(crate) fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(follow(arguments.verb)),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("campaign: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns `true` if everything was as expected.
async fn follow(verb: Verb) -> Outcome<bool> {
    match verb {
        Verb::Run(arguments) => run_cells(arguments).await,
        Verb::Grid { check: true } => page::check(Path::new(".")).map(|()| true),
        Verb::Grid { check: false } => page::write(Path::new(".")).map(|()| true),
        Verb::Endure(arguments) => {
            let endurance = Endurance {
                store: arguments.store,
                length: Duration::from_secs_f64(arguments.hours * 3_600.0),
                processes: arguments.processes,
                names: arguments.names,
                seed: arguments.seed,
                folder: arguments.folder,
                publish: arguments.publish.then(|| ".".into()),
                program: None,
            };
            let verdict = endure::run(&endurance).await?;
            print!("{verdict}");
            Ok(verdict.is_flat())
        }
    }
}

async fn run_cells(arguments: RunArguments) -> Outcome<bool> {
    let mut stores = if arguments.store.is_empty() { Store::ALL.to_vec() } else { arguments.store };
    if arguments.newest {
        stores.retain(|store| !store.is_embedded());
        if stores.is_empty() {
            return Err("no store of these has a server: leave --newest out".into());
        }
    }
    let faults = if arguments.fault.is_empty() { Fault::all().collect() } else { arguments.fault };
    let mut run = Run::of(arguments.seed, Duration::from_secs(arguments.seconds));
    (run.histories, run.is_dense) = (arguments.histories, arguments.dense);
    if arguments.quick {
        run.length = Duration::from_secs(3);
    }
    run.folder = Some(arguments.folder);
    let mut all_expected = true;
    for cell in Cell::all(&stores, &faults).iter().filter(|cell| cell.expected().is_run()) {
        let record = cell.run(&run).await;
        let mark = if record.expected { "" } else { "  <-- not expected" };
        println!(
            "{} {}: {} in {} histories, {} acquisitions, {} hits, {} faults{mark} {}",
            cell.store,
            cell.fault,
            record.outcome,
            record.histories,
            record.seen.grants,
            record.seen.all_hits(),
            record.faults,
            record.note
        );
        all_expected &= record.expected;
        Results::append(&arguments.results, &record)?;
    }
    Ok(all_expected)
}
