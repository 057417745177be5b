//! The cells of the grid on newer servers than those of Debian 12.

use std::fmt::Write;

use super::cells::{Summary, summaries};
use super::explained::below;
use super::{distinct, lists, thousands};
use crate::{Record, Results, Store};

/// The file in the repository with the results of these servers.
pub const FILE: &str = "docs/campaign/newest.jsonl";

/// Returns the section of the page with the grid; nothing before the first result.
pub(super) fn grid(results: &Results) -> String {
    if results.all().is_empty() {
        return String::new();
    }
    let summaries = summaries(results);
    let mut text = format!(
        "\n## The grid on newer servers\n\n\
         ```console\n$ cargo xtask campaign run --newest\n```\n\n\
         The expectations are those of the grid above; files and SQLite have no server.\n\
         With `LEASEHOLD_MARIADB_SERVER=mysql-9.7` the columns of MariaDB are run on MySQL, \
         and both are summed up here.\n\
         Some cells are tests, such as those of F22 and F27: `cargo xtask matrix` runs them on these servers, \
         and they may be empty here.\n\n{}",
        numbers(&summaries, results)
    );
    let servers: Vec<Store> = Store::ALL.into_iter().filter(|store| !store.is_embedded()).collect();
    let (first, second) = servers.split_at(7);
    for (title, stores) in [("memcached, Redis, etcd and ZooKeeper", first), ("Databases", second)] {
        let _ = writeln!(text, "\n### Newer servers: {title}\n");
        text.push_str(&lists::grid(stores, &summaries));
    }
    text.push_str(&unexpected(&summaries));
    text
}

/// Returns the section of the track record; nothing before the first result.
pub(super) fn section(results: &Results) -> String {
    if results.all().is_empty() {
        return String::new();
    }
    let numbers = numbers(&summaries(results), results);
    format!(
        "\n## Faults on newer servers\n\n```console\n$ cargo xtask campaign run --newest\n```\n\n{numbers}\n\
         [Faults](faults.md#the-grid-on-newer-servers) has the grid.\n"
    )
}

fn numbers(summaries: &[Summary], results: &Results) -> String {
    let sum = |of: fn(&Summary) -> u64| summaries.iter().map(of).sum::<u64>();
    let run = summaries.iter().filter(|summary| summary.was_run());
    format!(
        "| | |\n|---|---:|\n| cells that were run | {} |\n| … with another outcome than expected | **{}** |\n\
         | histories | {} |\n| acquisitions | {} |\n| faults in them | {} |\n| losses that holders saw | {} |\n\
         | violations of what a fence protects | **{}** |\n\n- *Machines*: {}.\n- *Servers*: {}.\n- *Days*: {}.\n",
        run.clone().count(),
        run.filter(|summary| !summary.expected).count(),
        thousands(sum(|s| s.histories)),
        thousands(sum(|s| s.seen.grants)),
        thousands(sum(|s| s.faults)),
        thousands(sum(|s| s.seen.losses)),
        sum(|s| s.seen.safety),
        distinct(results, |record| &record.machine),
        distinct(results, Record::server),
        distinct(results, |record| &record.date),
    )
}

fn unexpected(summaries: &[Summary]) -> String {
    let bad = summaries.iter().filter(|summary| summary.was_run() && !summary.expected);
    let mut text = String::from("\nOutcomes that were not expected:\n\n");
    let before = text.len();
    for summary in bad {
        for run in summary.runs.iter().filter(|run| !run.expected) {
            let _ =
                writeln!(text, "- **{} {}**, {}: `{}`", summary.store, summary.fault, run.server(), run.note);
            text.push_str(&below(summary.store, summary.fault, run.outcome));
        }
    }
    if text.len() == before {
        text.push_str("- There are none in these results.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CellOutcome as Found;
    use crate::results::tests::record;

    #[test]
    fn newer_servers_have_a_grid_and_their_failures_a_line() {
        let of = |store, fault, outcome, expected| Record {
            version: "Redis 8.2.3".to_owned(),
            note: "a note".to_owned(),
            ..record(store, fault, outcome, expected)
        };
        let lines = [of(Store::Redis, 1, Found::Held, true), of(Store::Redlock, 8, Found::Late, false)];
        let lines: Vec<_> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        let results = Results::parse(&lines.join("\n")).unwrap();
        let text = grid(&results);
        for part in ["cells that were run | 2 |", "held 2", "- **redlock F8**, Redis 8.2.3: `a note`"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(!text.contains(&format!("| {} |", Store::File.title())), "{text}");
        assert!(section(&results).contains("… with another outcome than expected | **1** |"));
        assert_eq!(grid(&Results::default()) + &section(&Results::default()), "");
    }
}
