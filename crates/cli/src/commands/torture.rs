//! `torture`: workers under faults, and the judgement of what they saw.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use leasehold_torture::{Judgement, Program, Progress, Report, RigError, torture_until as run};
use tokio::sync::oneshot;

use crate::exit::{Exit, Problem, even_unread};
use crate::output::counter::{Counter, Output};
use crate::output::json;
use crate::output::text::visible;
use crate::request::args::torture::TortureArgs;
use crate::request::store::StoreUrl;
use crate::system::signals::Signals;

/// Returns `true` if this process was started as a worker.
pub(crate) fn is_worker() -> bool {
    let mut words = std::env::args_os().skip(1);
    words.next().is_some_and(|word| word == WORKER) && words.next().is_none()
}

/// Runs `leasehold torture`.
///
/// # Errors
/// The store cannot be opened; the report cannot be written.
pub(crate) async fn torture(args: TortureArgs) -> Result<Exit, Problem> {
    let cannot_start = |error| Problem::new(Exit::NotStarted, format!("cannot start: {error}"));
    let store = StoreUrl::named(args.store.url.as_deref())?.for_ttl(Some(args.ttl));
    if let Some(folder) = &args.report {
        check_folder(folder)?;
    }
    let mut signals = Signals::listen().map_err(cannot_start)?;
    let program = std::env::current_exe().map_err(cannot_start)?;
    let planned = args.torture(store.for_workers(), Program::new(program, [WORKER]));
    let mut counter = Counter::start(Output::AtTheEnd);
    let seen = |progress: &Progress, _: Duration| {
        counter.show(|| {
            format!("torturing {}: {} grants, {} losses", store.shown(), progress.grants, progress.losses)
        });
    };
    // The first signal ends the run in order, and the second one at once.
    let ((first, stop), (second, given_up)) = (oneshot::channel(), oneshot::channel());
    let heard = async {
        signals.sent().await;
        let _ = first.send(());
        let again = signals.sent().await;
        let _ = second.send(());
        again
    };
    let running = run(
        planned,
        seen,
        async {
            let _ = stop.await;
        },
        async {
            let _ = given_up.await;
        },
    );
    let (ran, again) = {
        let (mut heard, mut running) = (pin!(heard), pin!(running));
        tokio::select! {
            ran = &mut running => (ran, None),
            again = &mut heard => (running.await, Some(again)),
        }
    };
    counter.end().await;
    let report = ran.map_err(|error| match (error, again) {
        (error @ RigError::GivenUp(_), Some(signal)) => {
            Problem::new(Exit::Signal(signal.as_raw()), error.to_string())
        }
        (error, _) => problem(error, &store),
    })?;
    publish(&report, &args)
}

/// Writes the files of a report, and prints it.
fn publish(report: &Report, args: &TortureArgs) -> Result<Exit, Problem> {
    let folder = args.report.as_deref();
    let written = folder.map_or(Ok(Vec::new()), |folder| report.write_to(folder));
    // What hours have shown must not get lost because a disk is full.
    let mut out = std::io::stdout().lock();
    let printed = match args.json {
        true => json::line(&mut out, report),
        false => print(&mut out, report, folder.filter(|_| written.is_ok())),
    };
    even_unread(printed)?;
    match (written, folder) {
        (Err(error), Some(folder)) => {
            let text = format!(
                "the judgement is \"{}\", but the report in {} is not whole, because of {error}",
                judgement_word(report.judgement),
                visible(&folder.display().to_string())
            );
            Err(Problem::new(Exit::Output, text)
                .hint("free some space there, or name another directory with --report"))
        }
        _ => Ok(exit(report.judgement)),
    }
}

fn print(out: &mut impl Write, report: &Report, folder: Option<&Path>) -> std::io::Result<()> {
    for line in report.text().lines() {
        writeln!(out, "{}", visible(line))?;
    }
    match folder {
        Some(folder) => writeln!(out, "\nthe history and its timeline are in {}", folder.display()),
        None => Ok(()),
    }
}

/// Creates the folder of the report before anything else is done. One that has something in it is refused.
fn check_folder(folder: &Path) -> Result<(), Problem> {
    Report::create_folder(folder).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            let text = format!("{} {error}: name another directory, new or empty", folder.display());
            Problem::new(Exit::Usage, text)
        }
        _ => Problem::new(Exit::Output, format!("cannot create {}: {error}", folder.display())),
    })
}

fn problem(error: RigError, store: &StoreUrl) -> Problem {
    let exit = match error {
        RigError::Store(error) => {
            return Problem::from(error).hint(format!("the store is {}", store.shown()));
        }
        RigError::Plan(_) => Exit::Refused,
        RigError::Machine(_) => Exit::NotStarted,
        _ => Exit::Unavailable,
    };
    Problem::new(exit, error.to_string())
}

/// Returns the judgement as the first word of a report.
fn judgement_word(judgement: Judgement) -> &'static str {
    match judgement {
        Judgement::Kept => "kept",
        Judgement::StoreForgot => "kept, but the store forgot grants",
        Judgement::Broken => "BROKEN",
        _ => "not judged",
    }
}

fn exit(judgement: Judgement) -> Exit {
    match judgement {
        Judgement::Kept => Exit::Done,
        Judgement::StoreForgot => Exit::RiskFound,
        Judgement::Broken => Exit::PromiseBroken,
        _ => Exit::Unjudged,
    }
}

/// The word that makes this program a worker.
const WORKER: &str = "torture-worker";
