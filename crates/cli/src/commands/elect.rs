//! `elect`: campaigns, leads, loses or resigns, and campaigns again.
//!
//! Ground rules: each term is a `run` of its own, with its own connection, so an error of one term does not
//! affect the next. Only an error at the start ends the program: before the store is open, or right after that. A
//! candidate that leads or stands by survives everything that may pass, such as a login that is refused for a while.

use std::time::Duration;

use leasehold::SystemClock;
use leasehold::backend::{Clock, Moment};

use crate::commands::run::{Ended, hold_and_run, sinks};
use crate::exit::{Exit, Problem};
use crate::output::status::{Ender, Event, Status};
use crate::output::stderr::Stderr;
use crate::output::text::{duration, visible_name};
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
    let mut signals = Signals::listen_for_candidate().map_err(cannot_start)?;
    let status = Status::start(&request.name, sinks(&request.report)?)?;
    let (exit, by) = terms(&request, &mut signals, &stderr, &status).await;
    status.report(&Event::Exit { code: exit.code(), by });
    tokio::join!(stderr.flush(), status.flush());
    Ok(exit)
}

/// Runs one term after the other.
async fn terms(request: &Request, signals: &mut Signals, stderr: &Stderr, status: &Status) -> (Exit, Ender) {
    let (mut has_led, mut opened_at) = (false, None::<Moment>);
    loop {
        let opened = || {
            opened_at.get_or_insert_with(|| SystemClock.now());
        };
        let ended = hold_and_run(request, signals, stderr, status, None, opened).await;
        has_led |= matches!(ended, Ok(Ended { was_held: true, .. }));
        let is_start = !has_led && opened_at.is_none_or(|at| SystemClock.now().since(at) < START);
        let asked = match &ended {
            Ok(Ended { exit: Exit::Lost, asked, .. }) => *asked,
            Ok(_) => None,
            Err(_) => signals.ending(request.grace()),
        };
        if let Some(signal) = asked {
            return (Exit::by(signal), Ender::Leasehold);
        }
        match ended {
            Ok(Ended { exit: Exit::Lost, .. }) => {
                stderr.print_line(&format!("campaigning for {} again", visible_name(request.name.as_str())));
            }
            Err(problem) if !is_start => {
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
            signal = signals.sent_to_childless() => return (Exit::by(signal), Ender::Leasehold),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// The pause between two terms: a candidate that has just lost is not the first to lead again, if
/// another can.
const PAUSE: Duration = Duration::from_secs(1);
/// The time after the opening of the store in which the first request shows a wrong configuration.
const START: Duration = Duration::from_secs(2);
