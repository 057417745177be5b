//! The parts of the page below its numbers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::cells::Summary;
use super::explained::below;
use super::thousands;
use crate::judge::bounds::{ASKED_LATENESS, ASKED_OVERSTAY, ASKED_RECOVERY, LATENESS, OVERSTAY};
use crate::{Fault, Record, Store, existing, expected};

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
        let why = summary.outcome.map(|outcome| below(summary.store, summary.fault, outcome));
        text.push_str(&why.unwrap_or_default());
    }
    text
}

/// Returns the outcomes that were not expected, of cells that newer code has run since.
pub(super) fn superseded(summaries: &[Summary]) -> String {
    let mut text = String::from(
        "\n## Failures that a later run superseded\n\n\
         Results are only added, and each line names its code.\n\
         The worst outcome of a cell counts until the cell is run again with newer code.\n\n",
    );
    if summaries.iter().all(|summary| summary.superseded.is_empty()) {
        text.push_str("There are none in these results.\n");
    }
    for summary in summaries {
        for run in &summary.superseded {
            let since = summary.runs.last().map_or("", |run| run.code.as_str());
            let code = if run.code.is_empty() { "before codes were recorded" } else { run.code.as_str() };
            let _ = writeln!(
                text,
                "- **{} {}**, {}, {code}: {}, `{}`; since `{since}`: {}.",
                summary.store,
                summary.fault,
                run.date,
                run.outcome,
                run.note,
                summary.word()
            );
            text.push_str(&below(summary.store, summary.fault, run.outcome));
        }
    }
    text
}

/// Returns the bounds of the judgement, beside those of the catalogue.
pub(super) fn bounds() -> String {
    let mut text = format!(
        "\n## The bounds of the judgement\n\n\
         The catalogue of faults asks for narrower bounds than those that these cells were judged by:\n\n\
         | invariant | asked for | judged by |\n|---|---|---|\n\
         | I4: no two holders are valid at one time | 0 | 0 |\n\
         | I5: a lock can be acquired again after the last fault | the ttl and {} | see below |\n\
         | I5: a lock that was released goes to one who waits, three times of four | at once | see below |\n\
         | I5: a client is granted something again after the last fault on it | the ttl and {} | see below |\n\
         | I6: a wait returns by its limit | {} | {} |\n\
         | I6: nobody is passed over by those that asked later, where the store has an order | 0 | 100, for as long as I5 has |\n\
         | I10: a lock goes to one who waits also after a dropped acquisition, three times of four | at once | see below |\n\
         | I11: no release succeeds after the validity | {} | {} |\n\
         | I12: a loss is seen when the validity ends | {} | {} |\n\
         | I13: no loss is seen before | {} | {} |\n\n",
        shown(ASKED_RECOVERY),
        shown(ASKED_RECOVERY),
        shown(ASKED_OVERSTAY),
        shown(OVERSTAY),
        shown(ASKED_LATENESS),
        shown(LATENESS),
        shown(ASKED_LATENESS),
        shown(LATENESS),
        shown(ASKED_LATENESS),
        shown(LATENESS),
    );
    text.push_str(
        "So a wait that returns a second late, or a loss that is seen a quarter of a second late, is *held* here.\n\
         - *The machine*: clients, servers, proxies and the builds of others share its two cores.\n\
         \x20 A task waits for a core, so I11 to I13 have half a second.\n\
         - *Jumps of a clock* (F15): the engine reads the clock once a second, as its timers stand still in a suspend.\n\
         \x20 So I11 to I13 have a second more there.\n\
         - *I6*: a wait whose limit is over asks the store a last time.\n\
         \x20 It waits two seconds for that answer if the store hangs (`LAST_ANSWER_LIMIT` of the engine).\n\
         \x20 A caller whose store hangs can see this lateness on any machine.\n\
         - *I5*: a store that elects a leader, counts a lease anew after a failover, or waits for the silence of a session\n\
         \x20 needs longer than its ttl.\n\
         \x20 Each history ends with four seconds more than that without a fault, so that it is judged.\n\
         - *A hand-over* is late if the lease that a release did not end would be over first.\n\
         \x20 One of four may be late, because a core that is shared delays some of them.\n\
         - *Waits* are woken: most waits without a fault that end with a grant have it before the last tenth of their limit (I6).\n\n\
         | store | ttl here | I5 judged by | a hand-over is late after |\n|---|---:|---:|---:|\n",
    );
    for store in Store::ALL {
        let (ttl, recovery, handover) = (store.ttl(), store.recovery(), store.handover());
        let _ = writeln!(text, "| `{store}` | {} | {} | {} |", shown(ttl), shown(recovery), shown(handover));
    }
    text.push_str(OLDER_RULES);
    text
}

const OLDER_RULES: &str = "\
\n### Older rules\n\n\
A run with *(older rule)* at its renewals was judged by older rules, and its histories were not kept to be judged again.\n\
- A renewal counted as hit if any fault was at work since the confirmation before it, on whomever it was.\n\
\x20 So did those of bystanders: in F4 a killed worker renews nothing, and in F23 there is nothing but a crowd.\n\
\x20 Such a cell is *hits by the older rule* in the grid, unless a holder lost its lock or the register refused it.\n\
- A fault of the network counted as one with an effect if there were connections, also if nothing passed over them.\n\
\x20 What was dropped, kept or lost was not counted.\n\
- All locks were mutexes, so nothing is shown about readers, writers and permits.\n\
\x20 *Locks* says it of each run.\n\
- One client that was never granted a lock which others were granted broke no promise.\n\
\x20 Acquisitions that failed without a fault were not counted.\n\n\
A run with a question mark for *not judged* was judged by older rules, and its histories were not kept to be judged again.\n\
- I5 had 15 s, of files 5 s, and of etcd, ZooKeeper, Sentinel and Redis Cluster 20 s.\n\
\x20 No history had so long a time without a fault, so I5 was judged in none of them.\n\
- Hand-overs and wake-ups were not judged, so clients that never release a lock would have *held*.\n\
- Where two holders at one time are expected, they were expected without a fault between their grants as well.\n\
- A loss of which the client says that the store no longer knew the claim was never a false one (I13).\n\
- After F6 and F7 of a database nobody was asked what was left (I7): the question went to the server that was dead.\n\
- F6 of PostgreSQL lost no write: its standby read later what the primary had sent.\n\
\x20 In F6 hardly any lock was held past its lease.\n\
- Runs until 2026-11-28, those on newer servers among them, had milder faults.\n\
\x20 F3 slowed no disk down, F15 stepped the wall clock of clients and no other clock, and F20 dropped acquisitions within 20 ms.\n\
\x20 F24 replaced no member of etcd, and in F30 no certificate had expired.\n\
- Until 2026-11-29, F24 restarted no server of Sentinel and of Redis Cluster, where only the primary handed over.\n\
\x20 F7 of Sentinel cut the old primary off from all clients.\n\
\x20 Steps of the wall clock in F15 were counted for every client behind the library, without a look at its clock.\n\
\x20 A fault on some clients excused two holders of which it was on neither.\n\
\x20 A release that fails without a fault (I5), and a loss for a reason that nobody gave (I13), were no violations.\n\n\
Runs until 2026-11-27 were judged without these rules.\n\
- Of two holders at one time, the first is not renewed any more when the fault is over and the second has its grant (I4).\n\
- That the store no longer knew the claim is a false loss also if only the answer to a release says it (I13).\n\n\
Runs that name I8 as not judged had no holder that acquired again what it held.\n\
What a dropped acquisition leaves (I10) was not judged in them either.\n";

fn shown(time: Duration) -> String {
    humantime::format_duration(time).to_string()
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

/// Returns the numbers of a run, as columns.
fn row(run: &Record) -> String {
    let known = |number: Option<u64>| number.map_or("?".to_owned(), thousands);
    let did = run.did.clone().unwrap_or_default();
    [
        run.outcome.to_string(),
        run.seed.to_string(),
        run.histories.to_string(),
        run.seconds.to_string() + if run.dense { ", dense" } else { "" },
        thousands(run.faults) + &none_of(run.without_effect),
        did.first,
        if did.things == 0 { String::new() } else { thousands(did.things) },
        run.unjudged.as_ref().map_or("?".to_owned(), |unjudged| unjudged.join(" ")),
        thousands(run.seen.grants),
        known(run.seen.handed_on),
        thousands(run.seen.losses),
        thousands(run.seen.refusals),
        known(run.seen.renewals),
        run.seen.hits.map_or_else(|| by_older_rule(run), |hits| thousands(hits.renewals)),
        known(run.seen.hits.map(|hits| hits.killed)),
        known(run.seen.failures_without_fault),
        run.locks.as_ref().map_or("mutex".to_owned(), |locks| locks.join(" ")),
        run.server().to_owned(),
        run.date.clone(),
        run.code.clone(),
    ]
    .join(" | ")
}

/// Returns the renewals under a fault as the older rule counted them.
fn by_older_rule(run: &Record) -> String {
    run.seen
        .renewals_under_fault
        .map_or("?".to_owned(), |renewals| format!("{} (older rule)", thousands(renewals)))
}

/// Returns how many faults besides had no effect.
fn none_of(without_effect: u64) -> String {
    if without_effect == 0 {
        String::new()
    } else {
        format!(" and {} without effect", thousands(without_effect))
    }
}

/// Returns what is behind each cell that was run.
pub(super) fn evidence(summaries: &[Summary]) -> String {
    let mut text = String::from(
        "\n## What is behind each cell\n\n\
         A question mark is a number that was not recorded yet.\n\
         A run has as many histories as the table says; their seeds follow the first one.\n\
         `cargo xtask campaign run --store S --fault F --seed N --histories H --seconds T` repeats it,\n\
         with `--dense` where the seconds say so.\n",
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
             | fault | expected | outcome | first seed | histories | seconds each | faults | what the first did | to how many | not judged | \
             acquisitions | … handed off | losses | refused by the register | renewals | … hit by a fault | killed while held | \
             failed without a fault | locks | server | day | code |\n\
             |---|---|---|---:|---:|---:|---:|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---|---|---|"
        );
        for summary in of_store {
            for run in &summary.runs {
                if let Some(test) = existing(store, summary.fault) {
                    let _ = writeln!(
                        text,
                        "| {} | {} | {} | | | | | | | | | | | | | | | | | `{}` | {} | {} |",
                        summary.fault,
                        summary.promise.word(),
                        summary.word(),
                        test.command(),
                        run.date,
                        run.code
                    );
                    continue;
                }
                let _ = writeln!(text, "| {} | {} | {} |", summary.fault, summary.promise.word(), row(run));
            }
        }
    }
    text
}
