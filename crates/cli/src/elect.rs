//! `elect`: campaign, lead, lose or resign, and campaign again.
//!
//! Ground rules: each term is a `run` of its own, with a connection of its own, so whatever went wrong in one term is gone in
//! the next. Only what goes wrong before the first term ends the program.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use crate::args::ElectArgs;
use crate::exit::{Exit, Problem};
use crate::request::{After, Request};
use crate::run::{Ended, hold_and_run};
use crate::signals::Signals;
use crate::store::SECRET_VARIABLES;
use crate::text::{duration, visible};
use crate::voice::Voice;

/// # Errors
/// Each of the table in `exit.rs`.
pub(crate) async fn elect(args: ElectArgs) -> Result<Exit, Problem> {
    let (command, after) = match &args.on_elected {
        Some(script) => (shell(script), After::Stay),
        None => (args.command.clone(), After::Release),
    };
    let request = Request::of_candidate(&args, command, after)?;
    let cannot_start = |error| Problem::new(Exit::NotStarted, format!("cannot start: {error}"));
    let voice = Voice::start().map_err(cannot_start)?;
    let mut signals = Signals::listen().map_err(cannot_start)?;
    let exit = terms(&args, &request, &mut signals, &voice).await;
    voice.settle().await;
    Ok(exit)
}

/// One term after the other.
async fn terms(args: &ElectArgs, request: &Request, signals: &mut Signals, voice: &Voice) -> Exit {
    let mut is_first = true;
    loop {
        let ended = hold_and_run(request, signals, voice).await;
        if matches!(ended, Ok(Ended { was_held: true, .. })) {
            is_first = false;
            tell_of_the_end(args, voice).await;
        }
        if let Some(signal) = signals.ending()
            && let Ok(Ended { exit: Exit::Lost, .. }) | Err(_) = ended
        {
            return Exit::by(signal);
        }
        match ended {
            Ok(Ended { exit: Exit::Lost, .. }) => {
                voice.say(&format!("{} is campaigned for again", visible(request.name.as_str())));
            }
            Err(problem) if problem.exit == Exit::Unavailable && !is_first => {
                voice.say(&format!("{problem}; trying again in {}", duration(PAUSE)));
            }
            Ok(Ended { exit, .. }) => return exit,
            Err(problem) => {
                voice.say(&problem.to_string());
                return problem.exit;
            }
        }
        tokio::select! {
            biased;
            signal = signals.sent() => return Exit::by(signal),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// Runs `--on-lost`. Nobody is kept from leading meanwhile: what it has to undo must not harm the next leader.
async fn tell_of_the_end(args: &ElectArgs, voice: &Voice) {
    let Some(script) = &args.on_lost else { return };
    let mut command = std::process::Command::new("/bin/sh");
    command.args(&shell(script)[1..]).stdin(Stdio::null()).env("LEASEHOLD_NAME", args.name.as_str());
    for name in SECRET_VARIABLES {
        command.env_remove(name);
    }
    let ended = tokio::task::spawn_blocking(move || command.status()).await;
    let complaint = match ended.map_err(std::io::Error::other).and_then(|ended| ended) {
        Ok(status) if status.success() => return,
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    voice.say(&format!("--on-lost failed: {complaint}"));
}

fn shell(script: &OsString) -> Vec<OsString> {
    vec!["/bin/sh".into(), "-c".into(), script.clone()]
}

/// Between two terms: whoever has just lost is not the first to lead again, if somebody else can.
const PAUSE: Duration = Duration::from_secs(1);
