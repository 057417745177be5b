//! `elect`: campaigns, leads, loses or resigns, and campaigns again.
//!
//! Ground rules: each term is a `run` of its own, with its own connection, so an error of one term does not
//! affect the next. Only an error before the first term ends the program.

use std::time::Duration;

use crate::commands::run::{Ended, hold_and_run, sinks};
use crate::exit::{Exit, Problem};
use crate::output::status::{Ender, Event, Status};
use crate::output::stderr::Stderr;
use crate::output::text::{duration, visible};
use crate::request::Request;
use crate::request::args::ElectArgs;
use crate::system::signals::Signals;

/// Runs `leasehold elect`.
///
/// # Errors
/// Each of the table in `exit.rs`.
pub(crate) async fn elect(args: ElectArgs) -> Result<Exit, Problem> {
    let request = Request::of_candidate(args)?;
    let cannot_start = |error| Problem::new(Exit::NotStarted, format!("cannot start: {error}"));
    let stderr = Stderr::start().map_err(cannot_start)?;
    let mut signals = Signals::listen().map_err(cannot_start)?;
    let status = Status::start(&request.name, sinks(&request.report)?)?;
    let (exit, by) = terms(&request, &mut signals, &stderr, &status).await;
    status.report(&Event::Exit { code: exit.code(), by });
    tokio::join!(stderr.flush(), status.flush());
    Ok(exit)
}

/// Runs one term after the other.
async fn terms(request: &Request, signals: &mut Signals, stderr: &Stderr, status: &Status) -> (Exit, Ender) {
    let mut is_first = true;
    loop {
        let ended = hold_and_run(request, signals, stderr, status).await;
        if matches!(ended, Ok(Ended { was_held: true, .. })) {
            is_first = false;
        }
        if let Some(signal) = signals.ending(request.grace())
            && let Ok(Ended { exit: Exit::Lost, .. }) | Err(_) = ended
        {
            return (Exit::by(signal), Ender::Leasehold);
        }
        match ended {
            Ok(Ended { exit: Exit::Lost, .. }) => {
                stderr.print_line(&format!("campaigning for {} again", visible(request.name.as_str())));
            }
            Err(problem) if problem.exit == Exit::Unavailable && !is_first => {
                stderr.print_line(&format!("{problem}; trying again in {}", duration(PAUSE)));
            }
            Ok(Ended { exit, by, .. }) => return (exit, by),
            Err(problem) => {
                stderr.print_line(&problem.to_string());
                return (problem.exit, Ender::Leasehold);
            }
        }
        tokio::select! {
            biased;
            signal = signals.sent() => return (Exit::by(signal), Ender::Leasehold),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// The pause between two terms: a candidate that has just lost is not the first to lead again, if
/// another can.
const PAUSE: Duration = Duration::from_secs(1);
