//! `break`: takes a lock away from its holders.
//!
//! Ground rules: it ends the claims that were shown and no others: a holder that acquired the lock between
//! the look and the answer keeps it. If that ends other locks too, it says so before it asks, and names
//! them afterwards.

use std::io::{self, BufRead, IsTerminal, Write};

use leasehold::{ClaimInfo, Client, Note, Resource, Snapshot};
use leasehold_monitor::BrokenShape;
use leasehold_monitor::actions::{break_claims, consequences_of_break};

use crate::commands::show::print;
use crate::exit::{Exit, Problem};
use crate::output::describe::note_or_tag;
use crate::output::json;
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
    let consequences = consequences_of_break(locks.profile());
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
    let broken = break_claims(locks, name, to_break).await;
    match broken.failure {
        None => Ok((broken.claims, broken.also_released)),
        Some(error) => {
            let hint = format!("{} of {} were broken before", broken.claims.len(), to_break.len());
            Err(Problem::from(error).hint(hint))
        }
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
