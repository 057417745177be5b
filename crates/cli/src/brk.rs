//! `break`: takes a lock away from those who hold it.
//!
//! Ground rules: it ends the claims that were shown and no others: who took the lock between the look and the answer
//! keeps it.

use std::io::{self, BufRead, IsTerminal, Write};

use leasehold::{Leasehold, Note, Snapshot, Standing};

use crate::args::BreakArgs;
use crate::describe::who;
use crate::exit::{Exit, Problem};
use crate::json::{self, BrokenShape};
use crate::paint::Paint;
use crate::show::print;
use crate::store::Store;
use crate::text::visible;
use crate::voice::complain;

/// # Errors
/// Usage, where it would have to ask and cannot; as the store fails; of stdout.
pub(crate) async fn break_lock(args: BreakArgs) -> Result<Exit, Problem> {
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !may_ask {
        let text = "there is no terminal to ask on: say --yes if you are sure";
        return Err(Problem::new(Exit::Usage, text));
    }
    let locks = Store::named(args.store.on.as_deref())?.open(Note::default()).await?;
    let snapshot = locks.inspect(args.name.as_str()).await?;
    let condemned = condemned(&snapshot, args.waiting);
    let name = visible(args.name.as_str());
    if condemned.is_empty() {
        if args.json {
            json::line(&mut io::stdout().lock(), &BrokenShape::of(&args.name, &[]))?;
        } else {
            complain(&format!("{name} is free: there is nothing to break"));
        }
        return Ok(Exit::NothingBroken);
    }
    if !args.yes && !is_confirmed(&snapshot, condemned.len())? {
        complain("nothing was broken");
        return Ok(Exit::NothingBroken);
    }
    let broken = break_all(&locks, args.name.as_str(), &condemned).await?;
    let mut out = io::stdout().lock();
    if args.json {
        json::line(&mut out, &BrokenShape::of(&args.name, &broken))?;
    } else {
        for standing in &broken {
            writeln!(out, "{name}: broken: {}", who(standing))?;
        }
    }
    if broken.is_empty() {
        complain(&format!("{name} was given back meanwhile: nothing was broken"));
        return Ok(Exit::NothingBroken);
    }
    // Who was asked has read it already.
    if args.yes && !args.json {
        writeln!(out, "{CONSEQUENCES}")?;
    }
    Ok(Exit::Done)
}

fn condemned(snapshot: &Snapshot, with_waiting: bool) -> Vec<Standing> {
    // Those who wait go first, last in line first: otherwise the end of a holder would let one of them in before its turn
    // to go comes.
    let waiting = snapshot.waiting.iter().rev().filter(|_| with_waiting);
    waiting.chain(&snapshot.holders).cloned().collect()
}

async fn break_all(locks: &Leasehold, name: &str, condemned: &[Standing]) -> Result<Vec<Standing>, Problem> {
    let mut broken = Vec::new();
    for standing in condemned {
        let done = locks.break_claim(name, standing).await;
        let is_broken = done.map_err(|error| {
            let hint = format!("{} of {} were broken before", broken.len(), condemned.len());
            Problem::from(error).hint(hint)
        })?;
        if is_broken {
            broken.push(standing.clone());
        }
    }
    Ok(broken)
}

fn is_confirmed(snapshot: &Snapshot, count: usize) -> Result<bool, Problem> {
    let mut err = io::stderr().lock();
    print(&mut err, snapshot, Paint::Plain)?;
    write!(
        err,
        "{CONSEQUENCES}\nBreak {} [y/N] ",
        if count == 1 { "it?".to_owned() } else { format!("all {count}?") }
    )?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

const CONSEQUENCES: &str = "\
A holder learns of it at its next renewal, a third of its ttl later at most.
Until then it and the next holder both act; only what checks the fence can
tell them apart.";
