//! The parts of the page below its numbers.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::cells::Summary;
use super::thousands;
use crate::{Fault, Store, existing, expected};

/// Returns the grid of these stores.
pub(super) fn grid(stores: &[Store], summaries: &[Summary]) -> String {
    let heads: Vec<&str> = stores.iter().map(|store| store.title()).collect();
    let mut text = format!("| fault | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(stores.len()));
    for fault in Fault::all() {
        let cell = |store: &Store| {
            let summary = summaries.iter().find(|one| one.store == *store && one.fault == fault);
            summary.map(Summary::word).unwrap_or_default()
        };
        let cells: Vec<String> = stores.iter().map(cell).collect();
        let _ = writeln!(text, "| {fault} {} | {} |", fault.title(), cells.join(" | "));
    }
    text
}

/// Returns the cells whose outcome was not expected.
pub(super) fn unexpected(summaries: &[Summary]) -> String {
    let mut text = String::from("\n## Outcomes that were not expected\n\n");
    let bad: Vec<&Summary> =
        summaries.iter().filter(|summary| summary.was_run() && !summary.expected).collect();
    if bad.is_empty() {
        text.push_str("There are none in these results.\n");
    }
    for summary in bad {
        let note = summary.runs.iter().find(|run| !run.expected).map_or("", |run| run.note.as_str());
        let _ = writeln!(text, "- **{} {}**: `{note}`", summary.store, summary.fault);
    }
    text
}

/// Returns the list of the faults.
pub(super) fn faults() -> String {
    let mut text = String::from("\n## The faults\n\n");
    for fault in Fault::all() {
        let _ = writeln!(text, "- **{fault} {}**: {}.", fault.title(), fault.how());
    }
    text
}

/// Returns why cells have other expectations than that everything holds.
pub(super) fn reasons() -> String {
    let mut text = String::from("\n## Why a cell is expected not to hold, or not run\n");
    for fault in Fault::all() {
        let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for store in Store::ALL {
            let expected = expected(store, fault);
            if let Some(why) = expected.reason() {
                reasons.entry((expected.word(), why)).or_default().push(store.word());
            }
        }
        if reasons.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n**{fault} {}**\n", fault.title());
        for ((word, why), stores) in reasons {
            let stores: Vec<String> = stores.iter().map(|store| format!("`{store}`")).collect();
            let _ = writeln!(text, "- *{word}* ({}): {why}.", stores.join(", "));
        }
    }
    text
}

/// Returns what is behind each cell that was run.
pub(super) fn evidence(summaries: &[Summary]) -> String {
    let mut text = String::from(
        "\n## What is behind each cell\n\n\
         A run has as many histories as the table says; their seeds follow the first one.\n\
         `cargo xtask campaign run --store S --fault F --seed N --histories H --seconds T` repeats it.\n",
    );
    for store in Store::ALL {
        let of_store: Vec<&Summary> =
            summaries.iter().filter(|summary| summary.store == store && summary.was_run()).collect();
        if of_store.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "\n### `{store}`\n\n\
             | fault | expected | outcome | first seed | histories | seconds each | faults | acquisitions | losses | \
             refused by the register | server | day |\n|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|"
        );
        for summary in of_store {
            for run in &summary.runs {
                if let Some(test) = existing(store, summary.fault) {
                    let _ = writeln!(
                        text,
                        "| {} | {} | {} | | | | | | | | `{}` | {} |",
                        summary.fault,
                        summary.promise.word(),
                        run.outcome,
                        test.command(),
                        run.date
                    );
                    continue;
                }
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                    summary.fault,
                    summary.promise.word(),
                    run.outcome,
                    run.seed,
                    run.histories,
                    run.seconds,
                    thousands(run.faults),
                    thousands(run.seen.grants),
                    thousands(run.seen.losses),
                    thousands(run.seen.refusals),
                    run.version,
                    run.date
                );
            }
        }
    }
    text
}
