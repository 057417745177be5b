//! `break`: takes a lock away from its holders.
//!
//! Ground rules: it ends the claims that were shown and no others: a holder that acquired the lock between
//! the look and the answer keeps it. If that ends other locks too, it says so before it asks, and names
//! them afterwards.

use std::io::{self, BufRead, IsTerminal, Write};

use leasehold::backend::Liveness;
use leasehold::{BreakOutcome, ClaimInfo, Client, Note, Resource, Snapshot};

use crate::commands::show::print;
use crate::exit::{Exit, Problem};
use crate::output::describe::note_or_tag;
use crate::output::json::{self, BrokenShape};
use crate::output::paint::Paint;
use crate::output::stderr::complain;
use crate::output::text::visible;
use crate::request::args::BreakArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold break`.
///
/// # Errors
/// Usage, if a confirmation is needed and there is no terminal; the store failed; stdout cannot be written.
pub(crate) async fn break_lock(args: BreakArgs) -> Result<Exit, Problem> {
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !may_ask {
        let text = "cannot ask for confirmation: stdin or stderr is not a terminal; use --yes";
        return Err(Problem::new(Exit::Usage, text));
    }
    let locks = StoreUrl::named(args.store.url.as_deref())?.read_only().open(Note::default()).await?;
    let snapshot = locks.inspect(args.name.as_str()).await?;
    let to_break = to_break(&snapshot, args.waiting);
    let name = visible(args.name.as_str());
    if to_break.is_empty() {
        if args.json {
            json::line(&mut io::stdout().lock(), &BrokenShape::of(&args.name, &[], &[]))?;
        } else {
            complain(&format!("{name} is free: there is nothing to break"));
        }
        return Ok(Exit::NothingBroken);
    }
    let consequences = consequences(&locks);
    if !args.yes && !is_confirmed(&snapshot, to_break.len(), consequences)? {
        complain("nothing was broken");
        return Ok(Exit::NothingBroken);
    }
    let (broken, also_ended) = break_all(&locks, args.name.as_str(), &to_break).await?;
    let mut out = io::stdout().lock();
    if args.json {
        json::line(&mut out, &BrokenShape::of(&args.name, &broken, &also_ended))?;
    } else {
        for info in &broken {
            writeln!(out, "{name}: broken: {}", note_or_tag(info))?;
        }
        for other in &also_ended {
            writeln!(out, "{}: ended with the connection", visible(other.as_str()))?;
        }
    }
    if broken.is_empty() {
        complain(&format!("{name} was released in the meantime: nothing was broken"));
        return Ok(Exit::NothingBroken);
    }
    // Without --yes, the question has shown it already.
    if args.yes && !args.json {
        writeln!(out, "{consequences}")?;
    }
    Ok(Exit::Done)
}

fn to_break(snapshot: &Snapshot, with_waiting: bool) -> Vec<ClaimInfo> {
    // Waiters are ended first, from the back of the queue: otherwise the end of a holder would grant the
    // lock to a waiter that is about to be ended.
    let waiting = snapshot.waiting.iter().rev().filter(|_| with_waiting);
    waiting.chain(&snapshot.holders).cloned().collect()
}

/// Breaks all claims; returns the holders that were broken, and what ended with them.
async fn break_all(
    locks: &Client,
    name: &str,
    to_break: &[ClaimInfo],
) -> Result<(Vec<ClaimInfo>, Vec<Resource>), Problem> {
    let (mut broken, mut others) = (Vec::new(), Vec::new());
    for info in to_break {
        let done = locks.break_claim(name, info).await;
        let done = done.map_err(|error| {
            let hint = format!("{} of {} were broken before", broken.len(), to_break.len());
            Problem::from(error).hint(hint)
        })?;
        if let BreakOutcome::Ended { also_released: also_ended } = done {
            broken.push(info.clone());
            // Other readers of the same lock may be among them.
            others.extend(also_ended);
        }
    }
    Ok((broken, others))
}

/// Returns the consequences that a person should know before the break.
fn consequences(locks: &Client) -> &'static str {
    match locks.profile().liveness {
        Liveness::Heartbeat { .. } => OF_A_CONNECTION,
        _ => CONSEQUENCES,
    }
}

fn is_confirmed(snapshot: &Snapshot, count: usize, consequences: &str) -> Result<bool, Problem> {
    let mut err = io::stderr().lock();
    print(&mut err, snapshot, Paint::Plain)?;
    write!(
        err,
        "{consequences}\nBreak {} [y/N] ",
        if count == 1 { "it?".to_owned() } else { format!("all {count}?") }
    )?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

const CONSEQUENCES: &str = "\
A holder notices the loss at its next renewal, at most a third of its ttl
later. Until then the old holder and the next one both act; only a resource
that checks the fence can distinguish them.";

const OF_A_CONNECTION: &str = "\
This ends the holder's connection to the server, and with it all other locks
that are held on the same connection. The holder notices the loss at once, or
at its next sign of life; until then the old holder and the next one both act.";
