//! The section of endurance runs: a table and a picture of the newest run on each store.

use std::fmt::Write;

use super::thousands;
use crate::Store;
use crate::endure::Endured;

/// Returns the section, empty where no run was published.
pub(super) fn section(runs: &[Endured]) -> String {
    let newest = |store: &Store| runs.iter().rev().find(|run| run.store == store.word());
    let newest: Vec<(&Store, &Endured)> =
        Store::ALL.iter().filter_map(|store| Some((store, newest(store)?))).collect();
    let Some((_, first)) = newest.first() else { return String::new() };
    let mut text = String::from(HEAD);
    let quantities: Vec<&str> = first.judgements.iter().map(|one| one.quantity.as_str()).collect();
    let _ = writeln!(
        text,
        "| store | minutes | processes | names | acquisitions | failed attempts | {} |\n|---|{}",
        quantities.join(" | "),
        "---:|".repeat(5 + quantities.len())
    );
    for (store, run) in &newest {
        let _ = writeln!(
            text,
            "| {} | {:.0} | {} | {} | {} | {} | {} |",
            store.title(),
            run.seconds as f64 / 60.0,
            thousands(run.processes.into()),
            thousands(run.names.into()),
            thousands(run.acquired),
            thousands(run.failed),
            cells(run)
        );
    }
    let machine = |run: &Endured| {
        let server = run.version.lines().next().unwrap_or_default();
        format!("{}, seed {}, {server}, code {}, {}", run.date, run.seed, run.code, run.machine)
    };
    text.push('\n');
    for (store, run) in &newest {
        let _ = writeln!(text, "- *{}*: {}.", store.title(), machine(run));
        for one in &run.objections {
            let _ = writeln!(text, "  **Not flat**: {one}.");
        }
    }
    if newest.iter().any(|(store, _)| store.is_redis()) {
        text.push_str(TASKS);
    }
    for (store, run) in &newest {
        let _ = writeln!(
            text,
            "\n![What processes and store use over time, on {}](images/{})",
            store.title(),
            Endured::picture(&run.store)
        );
    }
    text
}

/// Returns the median of each quantity, with its growth; bold where it grew by more than it may.
fn cells(run: &Endured) -> String {
    let cell = |one: &crate::endure::Judgement| {
        let text = format!("{:.0} ({:+.1})", one.median, one.growth);
        if one.is_flat() { text } else { format!("**{text}**") }
    };
    run.judgements.iter().map(cell).collect::<Vec<_>>().join(" | ")
}

const HEAD: &str = "
## Endurance

```console
$ cargo xtask campaign endure --store redis --hours 2 --publish
```

Many processes take locks of many names, about 400 a second in all.
Now and then a process is stopped for longer than its lease, a process is killed and replaced, or connections are reset.
Each cell has the median after the first fifth of the time, and in brackets by how much it grew from then to the end.
Growth is the median of the slopes between all pairs of samples, times that time.
It may be a tenth of the median, or 1 MiB, one descriptor, two threads, two tasks or 16 keys; **bold** is more.
No process may end by itself.
Nor may one acquire nothing in its last minute, or in the last fifth of a short run; runs before 2026-11-28 were not
asked for that.
The last fifth has at least a third of the acquisitions a second of the second fifth.

";

const TASKS: &str = "
The mean of tasks rises on Redis for as long as there are processes that have not waited yet, and then no more.
A process has four tasks of the load, and three of its client: they renew, release, and drive the connection.
Its first wait for a held lock starts two more, which stay: one for notifications, one that looks after places in queues.
The connection for notifications closes five seconds after the last wait, so descriptors do not rise with them.
With 10,000 names a wait is rare, and each process has its first one at another time.
Two runs of 20 processes for 72 s show both ends: with 1,000,000 names nobody waited, and there were 7.0 tasks from the
first seconds to the last.
With 5 names all had waited within a second, and there were 10.7 from then to the last, waits under way included.
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endure::tests::endured;

    #[test]
    fn newest_run_of_each_store_is_shown_and_growth_is_bold() {
        assert_eq!(section(&[]), "");
        let old = endured("redis", 5.0);
        let text = section(&[old, endured("etcd", 3.0), endured("redis", 0.5)]);
        assert!(text.contains("| Redis | 20 | 100 | 10,000 | 480,000 | 7 | 9 (+0.5) |"), "{text}");
        assert!(text.contains("**9 (+3.0)**") && !text.contains("+5.0"), "{text}");
        assert!(text.contains("(images/endurance-etcd.svg)"), "{text}");
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
    }
}
