//! `break`: takes a lock away from its holders.
//!
//! Ground rules: it ends the claims that were shown and no others: a holder that acquired the lock between
//! the look and the answer keeps it. If that ends other locks too, it says so before it asks, and names
//! them afterwards.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use leasehold::{ClaimInfo, Client, Note, Resource, Snapshot};
use leasehold_monitor::BrokenShape;
use leasehold_monitor::actions::{break_claims, consequences_of_break};

use crate::commands::revoke::still_held;
use crate::commands::show::print;
use crate::exit::{Exit, Problem, even_unread};
use crate::output::describe::note_or_tag;
use crate::output::json;
use crate::output::paint::Paint;
use crate::output::stderr::complain;
use crate::output::text::{duration, visible_name};
use crate::request::args::BreakArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold break`.
///
/// # Errors
/// Usage, if a confirmation is needed and there is no terminal; the store failed; stdout cannot be written.
pub(crate) async fn break_claim(args: BreakArgs) -> Result<Exit, Problem> {
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !may_ask {
        let text = "cannot ask for confirmation: stdin or stderr is not a terminal; use --yes";
        return Err(Problem::new(Exit::Usage, text));
    }
    let locks = StoreUrl::named(args.store.url.as_deref())?.read_only().open(Note::default()).await?;
    let snapshot = locks.inspect(args.name.as_str()).await?;
    let to_break = to_break(&snapshot, args.waiting);
    let name = visible_name(args.name.as_str());
    if to_break.is_empty() {
        if args.json {
            let shape = BrokenShape::of(&args.name, &[], &[]);
            even_unread(json::line(&mut io::stdout().lock(), &shape))?;
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
    let broken = match args.after {
        None => break_all(&locks, &args.name, &to_break).await?,
        Some(limit) => ask_and_break(&locks, &args, &snapshot, &to_break, limit).await?,
    };
    report(&args, &broken, consequences)
}

/// The end of the claims that were to be broken.
#[derive(Debug, Default)]
struct Outcome {
    broken: Vec<ClaimInfo>,
    /// The holders that released the lock by themselves, because they were asked; `None` if they were not.
    released: Option<Vec<ClaimInfo>>,
    /// Other locks that ended with the connection of a holder.
    also_ended: Vec<Resource>,
}

/// Asks the holders to release the lock, and breaks what they still hold after a time. Waiters are cancelled before
/// that: the lock that is released must not be granted to one of them.
async fn ask_and_break(
    locks: &Client,
    args: &BreakArgs,
    snapshot: &Snapshot,
    to_break: &[ClaimInfo],
    limit: Duration,
) -> Result<Outcome, Problem> {
    let reason = format!("the lock is taken away in {}", duration(limit));
    // A request to nobody: a store that keeps no requests refuses it before anything is broken.
    locks.revoke_claims(&args.name, &[], &reason).await?;
    let is_waiter = |claim: &&ClaimInfo| !snapshot.holders.iter().any(|holder| holder.id == claim.id);
    let waiters: Vec<_> = to_break.iter().filter(is_waiter).cloned().collect();
    let cancelled = break_all(locks, &args.name, &waiters).await?;
    let asked = locks.revoke_claims(&args.name, &snapshot.holders, &reason).await;
    asked.map_err(|error| {
        Problem::from(error).hint(format!("waiters that were cancelled before: {}", cancelled.broken.len()))
    })?;
    if !args.json {
        complain(&format!("the holders were asked, and have {} to release it", duration(limit)));
    }
    let held = still_held(locks, &args.name, &snapshot.holders, limit).await?;
    let ended = break_all(locks, &args.name, &held).await?;
    let is_released = |claim: &&ClaimInfo| !ended.broken.iter().any(|broken| broken.id == claim.id);
    Ok(Outcome {
        broken: [cancelled.broken, ended.broken.clone()].concat(),
        released: Some(snapshot.holders.iter().filter(is_released).cloned().collect()),
        also_ended: [cancelled.also_ended, ended.also_ended].concat(),
    })
}

fn report(args: &BreakArgs, outcome: &Outcome, consequences: &str) -> Result<Exit, Problem> {
    even_unread(print_outcome(args, outcome, consequences))?;
    // Those that were asked have done what was wanted.
    if !outcome.broken.is_empty() || outcome.released.as_ref().is_some_and(|released| !released.is_empty()) {
        return Ok(Exit::Done);
    }
    let name = visible_name(args.name.as_str());
    complain(&format!("{name} was released in the meantime: nothing was broken"));
    Ok(Exit::NothingBroken)
}

fn print_outcome(args: &BreakArgs, outcome: &Outcome, consequences: &str) -> io::Result<()> {
    let Outcome { broken, released, also_ended } = outcome;
    let mut out = io::stdout().lock();
    if args.json {
        let shape = BrokenShape::of(&args.name, broken, also_ended).released(released.as_deref());
        return json::line(&mut out, &shape);
    }
    let name = visible_name(args.name.as_str());
    for info in released.iter().flatten() {
        writeln!(out, "{name}: released: {}", note_or_tag(info))?;
    }
    for info in broken {
        writeln!(out, "{name}: broken: {}", note_or_tag(info))?;
    }
    for other in also_ended {
        writeln!(out, "{}: ended with the connection", visible_name(other.as_str()))?;
    }
    // Without --yes, the question has shown it already.
    if args.yes && !broken.is_empty() {
        writeln!(out, "{consequences}")?;
    }
    Ok(())
}

fn to_break(snapshot: &Snapshot, with_waiting: bool) -> Vec<ClaimInfo> {
    // Waiters are ended first, from the back of the queue: otherwise the end of a holder would grant the
    // lock to a waiter that is about to be ended.
    let waiting = snapshot.waiting.iter().rev().filter(|_| with_waiting);
    waiting.chain(&snapshot.holders).cloned().collect()
}

/// Breaks all claims.
async fn break_all(locks: &Client, name: &Resource, to_break: &[ClaimInfo]) -> Result<Outcome, Problem> {
    let done = break_claims(locks, name.as_str(), to_break).await;
    match done.failure {
        None => Ok(Outcome { broken: done.claims, released: None, also_ended: done.also_released }),
        Some(error) => {
            let hint = format!("{} of {} were broken before", done.claims.len(), to_break.len());
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
