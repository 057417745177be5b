//! `redlock rearm`: re-enables the servers of a quorum.
//!
//! Ground rules: it prints the consequences before it asks, and does nothing if it cannot ask.

use std::any::Any;
use std::io::{self, BufRead, IsTerminal, Write};

use leasehold::Note;
use leasehold::backend::FailureKind;
use leasehold::layer::Quorum;

use crate::exit::{Exit, Problem};
use crate::output::stderr::complain;
use crate::request::args::RearmArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold redlock rearm`.
///
/// # Errors
/// Usage, if a confirmation is needed and there is no terminal, and for a store of another kind; a failure
/// of the servers or of stdout.
pub(crate) async fn rearm(args: RearmArgs) -> Result<Exit, Problem> {
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !may_ask {
        let text = "cannot ask for confirmation: stdin or stderr is not a terminal; use --yes";
        return Err(Problem::new(Exit::Usage, text));
    }
    let store = StoreUrl::named(args.store.url.as_deref())?;
    let locks = store.open(Note::default()).await?;
    let backend: &dyn Any = &**locks.backend();
    let Some(quorum) = backend.downcast_ref::<Quorum>() else {
        let text =
            format!("cannot rearm {}: it is not a redlock store; use --store redlock://a,b,c", store.shown());
        return Err(Problem::new(Exit::Usage, text));
    };
    if !args.yes && !is_confirmed()? {
        complain("nothing was done");
        return Ok(Exit::NothingBroken);
    }
    let rearmed = quorum.rearm().await.map_err(|failure| {
        let exit = match failure.kind {
            FailureKind::Unavailable => Exit::Unavailable,
            _ => Exit::Refused,
        };
        Problem::new(exit, format!("rearm: {failure}"))
    })?;
    let mut out = io::stdout().lock();
    writeln!(out, "armed: {}; fences continue in epoch {}", rearmed.armed.join(", "), rearmed.epoch)?;
    for missed in &rearmed.missed {
        writeln!(out, "not armed: {missed}; this server is counted again once it can be reached")?;
    }
    Ok(Exit::Done)
}

fn is_confirmed() -> Result<bool, Problem> {
    let mut err = io::stderr().lock();
    write!(err, "{CONSEQUENCES}\nArm the servers? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

const CONSEQUENCES: &str = "\
A lock that was granted before the servers lost their data may be valid until
its lease ends. If its holder still runs, two clients will hold the lock; only
a resource that checks the fence can distinguish them.";
