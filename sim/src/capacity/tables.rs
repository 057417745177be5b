//! The tables of `docs/book/src/capacity.md`, as Markdown.
//!
//! The page has each between two comments that name it. A test compares them, and writes them with `UPDATE=1`.

use std::fmt::Write;

use crate::capacity::estimate::{estimate, utilisation};
use crate::capacity::failover::{FailoverRules, Fault};
use crate::capacity::rules::SECOND;
use crate::capacity::stores::{self, StoreModel};
use crate::capacity::workload::Workload;
use crate::capacity::world::simulate;

/// The part of its cores up to which a server is counted on.
const FULL: f64 = 0.8;
/// The numbers of the page's large load: processes, held locks, cycles in a second, waiters.
const LARGE: (u64, u64, f64, u64) = (10_000, 1_000_000, 1_000.0, 10_000);
/// The time for which it is simulated, in seconds.
const LENGTH: u64 = 30;
const SEED: u64 = 1;

/// Returns the tables that follow from formulas, with their names.
pub fn formulas() -> Vec<(&'static str, String)> {
    vec![
        ("constants", constants()),
        ("saturation", saturation()),
        ("large", large()),
        ("memory", memory()),
        ("failovers", failovers()),
        ("ttls", ttls()),
    ]
}

/// Returns the table of the large load as it was simulated, which takes a while.
pub fn simulated() -> (&'static str, String) {
    let mut table = head(&[
        "store",
        "servers and cores of each",
        "requests/s",
        "cores in use",
        "greatest difference of a figure of the closed form",
        "grant of a free lock, median and p99",
        "renewals overdue, locks lost",
    ]);
    for store in stores::all() {
        let load = enough_servers(&store, &large_load());
        let (found, counted) = (estimate(&store, &load), simulate(&store, &load, LENGTH * SECOND, SEED));
        row(
            &mut table,
            &[
                store.name.to_owned(),
                servers(&store, &load),
                number(counted.figures.requests),
                fraction(counted.figures.cores),
                format!("{:.1} %", found.greatest_difference(&counted.figures) * 100.0),
                format!("{}, {}", millis(counted.acquire.0), millis(counted.acquire.1)),
                format!("{}, {}", counted.held.suspects, counted.held.lost),
            ],
        );
    }
    ("simulated", table)
}

/// Returns the large load, on one server.
pub fn large_load() -> Workload {
    let (processes, held, cycles, waiters) = LARGE;
    Workload::of(processes).held(held).cycles(cycles).waiters(waiters, 1)
}

/// Returns this load on servers that are not too busy with it: on one with many cores, or on as few as
/// possible where a server uses one.
pub fn enough_servers(store: &StoreModel, load: &Workload) -> Workload {
    let on = |count: u64| match store.is_single {
        true => load.clone().shards(count),
        false => Workload { cores: count, ..load.clone() },
    };
    let enough = (1..=MANY).map(on).find(|load| utilisation(store, load) <= FULL);
    enough.unwrap_or_else(|| on(MANY))
}

/// Shows the number of servers and the cores of each.
fn servers(store: &StoreModel, load: &Workload) -> String {
    format!("{} × {}", load.shards, store.cores(load.cores))
}

/// The most servers or cores that are tried.
const MANY: u64 = 1_000;

fn constants() -> String {
    let mut table = head(&[
        "store",
        "cycle",
        "request that renews",
        "each claim in it",
        "look for a waiter",
        "hand-over",
        "client: cycle, renewal in a batch",
    ]);
    for store in measured() {
        let costs = &store.costs;
        row(
            &mut table,
            &[
                store.name.to_owned(),
                micros(costs.cycle),
                micros(costs.request),
                micros(costs.renew),
                micros(costs.look),
                micros(costs.hand_over),
                format!("{}, {}", micros(store.client.0), micros(store.client.1)),
            ],
        );
    }
    table
}

/// Returns the stores that have constants of their own.
fn measured() -> impl Iterator<Item = StoreModel> {
    stores::all().into_iter().filter(|store| store.slots.is_none())
}

fn saturation() -> String {
    let mut table = head(&[
        "store",
        "locks held by 100 processes",
        "locks held by 10,000 processes",
        "cycles/s",
        "waiters of 10,000 processes",
    ]);
    let few = |held: f64| Workload::of(100).held(held as u64);
    let many = |held: f64| Workload::of(10_000).held(held as u64);
    let cycles = |cycles: f64| Workload::of(100).cycles(cycles);
    let waiters = |waiters: f64| Workload::of(10_000).waiters(waiters as u64, 1);
    for store in stores::all() {
        row(
            &mut table,
            &[
                store.name.to_owned(),
                most(&store, few),
                most(&store, many),
                most(&store, cycles),
                most(&store, waiters),
            ],
        );
    }
    table
}

/// Returns how much of a load one core can bear, with two digits.
fn most(store: &StoreModel, load: impl Fn(f64) -> Workload) -> String {
    let bears = |amount: f64| utilisation(store, &Workload { cores: 1, ..load(amount) }) <= FULL;
    let (mut low, mut high) = (1.0, 1.0);
    while bears(high) && high < 1e8 {
        (low, high) = (high, high * 2.0);
    }
    while high - low > low / 500.0 {
        let middle = f64::midpoint(low, high);
        if bears(middle) { low = middle } else { high = middle }
    }
    if low >= 1e8 / 2.0 { "no limit".to_owned() } else { number(low) }
}

fn large() -> String {
    let mut table = head(&[
        "store",
        "requests/s",
        "of these, renewals",
        "cores",
        "syncs of the disk/s",
        "servers and cores, at most 80 % busy",
        "with 100 processes: cores",
    ]);
    for store in stores::all() {
        let found = estimate(&store, &large_load());
        let few = estimate(&store, &Workload { processes: 100, ..large_load() });
        row(
            &mut table,
            &[
                store.name.to_owned(),
                number(found.requests),
                number(found.renew_requests),
                fraction(found.cores),
                store.sync.map_or_else(|| "–".to_owned(), |_| number(found.syncs)),
                servers(&store, &enough_servers(&store, &large_load())),
                fraction(few.cores),
            ],
        );
    }
    table
}

fn memory() -> String {
    let mut table = head(&[
        "store",
        "server: held lock",
        "server: waiter",
        "server: client",
        "client: held lock",
        "client: waiter",
        "server: a million held locks of 10,000 clients",
    ]);
    for store in measured() {
        let (server, client) = (store.memory, store.client_memory);
        let all = server.held.zip(server.connection).map(|(held, each)| held * LARGE.1 + each * LARGE.0);
        row(
            &mut table,
            &[
                store.name.to_owned(),
                bytes(server.held),
                bytes(server.waiter),
                bytes(server.connection),
                bytes(client.held),
                bytes(client.waiter),
                all.map_or_else(unmeasured, |all| format!("{:.1} GB", all as f64 / 1e9)),
            ],
        );
    }
    table
}

fn failovers() -> String {
    let mut table = head(&[
        "length of the failover",
        "ttl, if the old server refuses",
        "ttl, if its machine vanishes",
        "the same with `timeout=1s`",
        "`session=` of ZooKeeper",
    ]);
    let rules = FailoverRules::DEFAULT;
    let quick = FailoverRules { timeout: SECOND, ..rules };
    for length in [1, 2, 3, 5, 10, 15, 20, 30, 60] {
        let ttl = |rules: &FailoverRules, fault| rules.shortest_ttl(length * SECOND, fault);
        row(
            &mut table,
            &[
                format!("{length} s"),
                seconds(ttl(&rules, Fault::Refuses)),
                seconds(ttl(&rules, Fault::Vanishes)),
                seconds(ttl(&quick, Fault::Vanishes)),
                // A holder relies on half of it.
                seconds(ttl(&rules, Fault::Refuses).map(|ttl| ttl * 2)),
            ],
        );
    }
    table
}

fn ttls() -> String {
    let mut table =
        head(&["ttl", "the old server refuses", "its machine vanishes", "the same with `timeout=1s`"]);
    let rules = FailoverRules::DEFAULT;
    let quick = FailoverRules { timeout: SECOND, ..rules };
    for ttl in [5, 10, 15, 20, 30, 60, 120, 300] {
        let longest = |rules: &FailoverRules, fault| seconds(rules.longest_failover(ttl * SECOND, fault));
        row(
            &mut table,
            &[
                format!("{ttl} s"),
                longest(&rules, Fault::Refuses),
                longest(&rules, Fault::Vanishes),
                longest(&quick, Fault::Vanishes),
            ],
        );
    }
    table
}

fn head(titles: &[&str]) -> String {
    let lines: Vec<&str> =
        titles.iter().enumerate().map(|(n, _)| if n == 0 { "---" } else { "---:" }).collect();
    format!("| {} |\n|{}|\n", titles.join(" | "), lines.join("|"))
}

fn row(table: &mut String, cells: &[String]) {
    // Writing to a text does not fail.
    let _ = writeln!(table, "| {} |", cells.join(" | "));
}

fn micros(micros: f64) -> String {
    if micros < 10.0 { format!("{micros:.1} µs") } else { format!("{} µs", number(micros)) }
}

fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1_000.0)
}

fn seconds(nanos: Option<u64>) -> String {
    match nanos {
        None => "none".to_owned(),
        Some(nanos) => format!("{:.1} s", nanos as f64 / SECOND as f64),
    }
}

fn fraction(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

fn unmeasured() -> String {
    "not measured".to_owned()
}

fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(unmeasured, |bytes| format!("{} B", number(bytes as f64)))
}

/// Returns a number with two digits that count, and commas.
fn number(value: f64) -> String {
    let scale = 10_f64.powf((value.max(1.0).log10().floor() - 1.0).max(0.0));
    let digits = format!("{:.0}", (value / scale).round() * scale);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_numbers_have_two_digits_and_commas() {
        let shown = [0.0, 7.0, 45.4, 987.0, 1_234.0, 999_999.0].map(number);
        assert_eq!(shown, ["0", "7", "45", "990", "1,200", "1,000,000"]);
    }
}
