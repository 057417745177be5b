//! The page of the grid, and its section of the track record, made of the results and of the expectations alone.

mod cells;
mod endurance;
mod explained;
mod lists;
pub mod newest;

use std::fmt::Write;
use std::path::Path;

use crate::endure::Endured;
use crate::{CellOutcome, Outcome, Record, Results, Store};

use cells::{Hit, Summary, summaries};

/// The page in the repository.
pub const PAGE: &str = "docs/book/src/faults.md";
/// The page whose section is written.
pub const TRACK_RECORD: &str = "docs/book/src/track-record.md";

const BEGIN: &str = "<!-- campaign:begin (written by `cargo xtask campaign grid`) -->";
const END: &str = "<!-- campaign:end -->";

/// Writes both pages below the root of the repository.
///
/// # Errors
/// If a page cannot be read or written.
pub fn write(root: &Path) -> Outcome {
    for (path, text) in pages(root)? {
        std::fs::write(root.join(path), text)?;
    }
    Ok(())
}

/// Checks that both pages are what the results say.
///
/// # Errors
/// If one is not, with what to do.
pub fn check(root: &Path) -> Outcome {
    for (path, text) in pages(root)? {
        if std::fs::read_to_string(root.join(path)).unwrap_or_default() != text {
            return Err(format!("{path} is not what the results say; run `cargo xtask campaign grid`").into());
        }
    }
    Ok(())
}

fn pages(root: &Path) -> Outcome<[(&'static str, String); 2]> {
    let results = Results::read(&root.join(Results::FILE))?;
    let record = std::fs::read_to_string(root.join(TRACK_RECORD))?;
    let newest = Results::read(&root.join(newest::FILE))?;
    let section = section(&results) + &newest::section(&newest) + &endurance::section(&Endured::read(root)?);
    Ok([(PAGE, markdown(&results, &newest)), (TRACK_RECORD, with_section(&record, &section)?)])
}

/// Returns the page of the grid, from the results on the servers of Debian and on the newest ones.
pub fn markdown(results: &Results, newest: &Results) -> String {
    let summaries = summaries(results);
    let mut page = String::from(HEAD);
    page.push_str(&numbers(&summaries, results));
    page.push_str(LEGEND);
    let (first, second) = Store::ALL.split_at(7);
    for (title, stores) in [("Files and memory servers", first), ("Quorums and databases", second)] {
        let _ = writeln!(page, "\n### {title}\n");
        page.push_str(&lists::grid(stores, &summaries));
    }
    page.push_str(&lists::unexpected(&summaries));
    page.push_str(&lists::superseded(&summaries));
    page.push_str(&newest::grid(newest));
    page.push_str(&lists::bounds());
    page.push_str(&lists::faults());
    page.push_str(&lists::reasons());
    page.push_str(&lists::evidence(&summaries));
    page
}

fn section(results: &Results) -> String {
    let summaries = summaries(results);
    let mut section = String::from(
        "## Thirty faults on every store\n\n```console\n$ cargo xtask campaign run\n$ cargo xtask campaign grid\n```\n\n",
    );
    section.push_str(&numbers(&summaries, results));
    section.push_str("[Faults](faults.md) has the grid of stores and faults, what was expected, and the seed of each cell.\n");
    section
}

/// Puts the section between its two lines, before the first section if they do not exist yet.
fn with_section(page: &str, section: &str) -> Outcome<String> {
    let whole = format!("{BEGIN}\n{section}{END}\n");
    if let Some((before, rest)) = page.split_once(BEGIN) {
        let (_, after) =
            rest.split_once(&format!("{END}\n")).ok_or("the end of the campaign's section is missing")?;
        return Ok(format!("{before}{whole}{after}"));
    }
    let place = page.find("\n## ").map_or(page.len(), |at| at + 1);
    Ok(format!("{}{whole}\n{}", &page[..place], &page[place..]))
}

/// Returns the sums over all cells, and where they were run.
fn numbers(summaries: &[Summary], results: &Results) -> String {
    let sum = |of: fn(&Summary) -> u64| summaries.iter().map(of).sum::<u64>();
    let run = summaries.iter().filter(|summary| summary.was_run()).count();
    let unexpected = summaries.iter().filter(|summary| summary.was_run() && !summary.expected).count();
    let held = |hit: Hit| {
        let is_it = |s: &&Summary| s.outcome == Some(CellOutcome::Held) && s.hit() == hit;
        summaries.iter().filter(is_it).count()
    };
    let superseded = sum(|s| s.superseded.len() as u64);
    let mut text = format!(
        "| | |\n|---|---:|\n| cells of {} that were run | {run} |\n| … with another outcome than expected | **{unexpected}** |\n\
         | … that held while a holder was hit | {} |\n\
         | … that held, hits counted by the older rule alone | {} |\n\
         | … that held, and nothing was hit | {} |\n\
         | … that held, and nothing was hit by the older rule | {} |\n\
         | … that held, from before renewals were counted, without a loss or a refusal | {} |\n\
         | failures that a later run with newer code superseded | {superseded} |\n\
         | histories | {} |\n| … of them on servers; the others are on files and SQLite | {} |\n\
         | acquisitions | {} |\n| … of them handed off inside a process, where that was counted | {} |\n\
         | faults in them | {} |\n\
         | writes that the protected register accepted | {} |\n| requests that it refused | {} |\n\
         | histories judged by the older rules below | {} |\n\
         | … with a question mark for *not judged* | {} |\n\
         | histories of mutexes alone, without readers and permits | {} |\n\
         | losses that holders saw | {} |\n| violations of what a fence protects | **{}** |\n\
         | histories of older code beside these, whose cells newer code has run since | {} |\n\
         | … acquisitions in them | {} |\n\n",
        thousands(summaries.len() as u64),
        held(Hit::Something),
        held(Hit::ByOlderRule),
        held(Hit::Nothing),
        held(Hit::NothingByOlderRule),
        held(Hit::Unknown),
        thousands(sum(|s| s.histories)),
        thousands(sum(|s| if s.store.is_embedded() { 0 } else { s.histories })),
        thousands(sum(|s| s.seen.grants)),
        thousands(sum(|s| s.seen.handed_on.unwrap_or(0))),
        thousands(sum(|s| s.faults)),
        thousands(sum(|s| s.seen.writes)),
        thousands(sum(|s| s.seen.refusals)),
        thousands(sum(Summary::histories_by_older_rules)),
        thousands(sum(Summary::histories_by_oldest_rules)),
        thousands(sum(Summary::histories_of_mutexes)),
        thousands(sum(|s| s.seen.losses)),
        sum(|s| s.seen.safety),
        thousands(sum(|s| s.older_histories)),
        thousands(sum(|s| s.older_grants)),
    );
    if !results.all().is_empty() {
        let _ = writeln!(
            text,
            "- *Machines*: {}, shared by clients and servers.\n- *Servers*: {}.\n- *Days*: {}.\n",
            distinct(results, |record| &record.machine),
            distinct(results, Record::server),
            distinct(results, |record| &record.date)
        );
    }
    text
}

/// Returns what the results have there, each text once.
fn distinct(results: &Results, of: fn(&Record) -> &str) -> String {
    let mut all: Vec<&str> = results.all().iter().map(of).filter(|one| !one.is_empty()).collect();
    all.sort_unstable();
    all.dedup();
    all.join("; ")
}

/// Writes a number with a comma between thousands.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const HEAD: &str = "\
<!-- Written by `cargo xtask campaign grid` from the results and the expectations. Do not edit. -->

# Faults

This page shows what each store does under each of thirty faults.
For each cell the expected outcome was written before the first run.
Then worker processes took locks on servers, files and SQLite while the fault happened again and again.
Each of them raised a protected counter behind its fence.
What they saw is a history, and a checker that knows nothing of leasehold judged it.
[ADR 52](../../adr/0052-campaigns-of-faults.md) says how.

Repeat a cell, or all of them, on your machine:

```console
$ cargo xtask campaign run --store redis --fault F8 --seed 1
$ cargo xtask campaign run --histories 10
```

A seed repeats the schedule of the faults: when they happen, to whom, and for how long.
It does not repeat the timing of the machine.
In F1, F2, F3, F5, F6, F8, F12, F15, F21 and F29 locks are held for up to twice the ttl, so that renewals are under way.
Elsewhere one hold of 128 is that long.
Beside mutexes, workers take a read-write lock and a semaphore of two permits, where the store has these.
Results of which *locks* says `mutex` are of mutexes alone.
In *dense* histories (`--dense`) four tasks more of each worker take a dozen other locks, for a millisecond at most.
They show thousands of grants in seconds; the renewals are those of the other locks.
An acquisition is *handed off locally* if a task gets the lock from another task of its process, without a request to the store.
To try your own servers, use [`leasehold torture`](cli.md).

";

const LEGEND: &str = "\
## The grid

- *held*: nothing was violated, in so many histories, and at least one holder was hit:
  it lost its lock, the register refused it, it was killed,
  or a fault on it or on the store was in the way of its renewal, between the time at which that was due and its answer.
  In F20 an acquisition was dropped instead.
- *held, hits by the older rule*: nothing was violated, no holder lost its lock, and the register refused nothing.
  Locks were renewed while there was a fault, but on whom the fault was did not count: see [older rules](#older-rules).
- *held, nothing hit*: nothing was violated, and no holder was hit, so the cell says little about holders.
  F23 does nothing to holders.
- *held, nothing hit by the older rule*: the same, where killed holders and dropped acquisitions were not counted.
- *held, hits unknown*: nothing was violated, no holder lost its lock, and the register refused nothing.
  Renewals were not counted yet.
- *not judged*: the history shows nothing: no lock was granted, a worker ended by itself,
  one that took the place of another could not open the store, no fault had an effect,
  nobody could ask what was left (I7), or one of I1 to I5 could not be judged. It is a failure of the run.
  So is a recording that is not well formed, such as one in which a killed process still acts.
- *timing broken*: two holders were valid by their own clocks at one time, in some of the histories.
  It is expected in this cell, because an assumption of the store's page is broken,
  and only if a fault was at work between the two grants.
  The first of the two is not renewed any more when the fault is over and the second one has its grant.
  The fence kept every acknowledged update.
- *allowed*: timing may break in this cell, and did not in these histories.
- *fences fell*: besides, a later grant had a lower fence, which the protected counter refused where it had to.
- *refused*: the store refuses to lock in these surroundings, with the reason.
- *passed*: tests make the fault happen on this store, without a history; they are named below.
- An empty cell was not run yet.
- *n/a*: the fault cannot happen to this store.
- *not run*: it could happen, and is not tried here.
- **Bold**: another outcome than expected, in the worst run of the newest code; the reasons are below the grid.
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CellOutcome as Found;
    use crate::results::tests::record;

    fn results() -> Results {
        let lines = [
            record(Store::Redis, 1, Found::Held, true),
            record(Store::Etcd, 3, Found::Timing, true),
            record(Store::Postgres, 8, Found::Late, false),
        ];
        let lines: Vec<_> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        Results::parse(&lines.join("\n")).unwrap()
    }

    #[test]
    fn page_has_sums_words_and_seeds() {
        let page = markdown(&results(), &Results::default());
        for part in [
            "| acquisitions | 3,000 |",
            "held 2",
            "by its limit | 100ms | 3s |",
            "timing broken",
            "**LATE",
            "| Redis 7.0.15 |",
            "n/a",
        ] {
            assert!(page.contains(part), "{part:?} is not in {page}");
        }
        assert!(page.lines().all(|line| !line.ends_with(' ')), "{page}");
    }

    #[test]
    fn section_goes_before_the_first_and_is_replaced_later() {
        let page = "# Track record\n\nText.\n\n## Older\n\nMore.\n";
        let once = with_section(page, "## New\n").unwrap();
        assert!(once.find("## New").unwrap() < once.find("## Older").unwrap(), "{once}");
        let twice = with_section(&once, "## Newer\n").unwrap();
        assert!(!twice.contains("## New\n") && twice.contains("## Newer\n"), "{twice}");
        assert_eq!(with_section(&twice, "## Newer\n").unwrap(), twice);
    }
}
