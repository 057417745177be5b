//! The page, from the results alone.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::results::{Contested, Measured, Results, Spread};
use super::scenarios::{BESIDE, Load, Measure, SCENARIOS, Scenario, Side};
use crate::Outcome;
use crate::growth::page::{number, thousands};

/// Writes the page.
pub(super) fn markdown(results: &Results) -> Outcome<String> {
    let mut page = String::from(HEAD);
    machine(&mut page, results)?;
    let duels = duels(results);
    page.push_str(LOSSES);
    table(&mut page, duels.iter().filter(|duel| duel.is_lost()))?;
    page.push_str(FLOORS);
    floors(&mut page, results)?;
    page.push_str(UNFAIR);
    for scenario in SCENARIOS {
        section(&mut page, scenario, results.of(scenario.id))?;
    }
    missing(&mut page, results)?;
    versions(&mut page, results)?;
    page.truncate(page.trim_end().len());
    page.push('\n');
    Ok(page)
}

const HEAD: &str = "\
# Comparison with other libraries

`cargo xtask bench --rivals` writes this page, its plots and the file with all results.
It installs the libraries from crates.io, PyPI, npm and Debian, by the names of their packages.
`--quick` takes some five minutes instead of twenty, and `--page` writes the page again without measuring.
[Benchmark](bench.md) has the comparisons of leasehold with the servers themselves.

Each contestant is a program of its own, and all of a scenario run in turn, in short rounds.
A ratio is taken within each round.
The tables show its median, with the lowest and the highest round in brackets.
A cycle is one acquisition and its release.
The *limit* is the least that the server can do for a lock: it is not a lock that one could use.
The *floor* is the least for a lock with a fence: what leasehold sends, or the fewest statements, by hand.
It knows that the lock is free, renews nothing, and notices no loss.
`client CPU` is the processor time of the contestant's program, `server CPU` that of the servers.

";

const LOSSES: &str = "
## Where leasehold loses

These rivals are better in the median of the rounds, the largest difference first.
The ratio is leasehold's value divided by the rival's; an arrow says which way is better.
If the brackets include 1, the rounds disagree.

";

const FLOORS: &str = "
## How far leasehold is above the floor

The ratio is leasehold's value divided by the floor's; for the commands it is that of starting the program.
What is left of it is the price of the engine: waiting, renewal, and the detection of losses.

";

const UNFAIR: &str = "
## What is unfair

- A rival in Python, Node.js or Java is slowed down by its language, and not only by its lock.
  A Python program uses one processor at a time, whatever the number of its threads.
- Client and server share the processors.
  A contestant that needs little processor time leaves more of it to its server.
- All is on one machine, so a round trip costs some twenty microseconds.
  Over a network the number of round trips matters more, and processor time less.
- leasehold has fences, queues, renewal, notes and loss detection in all these numbers.
  A rival without them does less, which is a reason to be faster and not an excuse to be slower.
- The authors of leasehold wrote the programs of the rivals, with the settings that each library has by default.
  The exception is that none of them gives up waiting.
- Notes below each table say what is unfair there.

";

fn machine(page: &mut String, results: &Results) -> Outcome<()> {
    let machine = &results.machine;
    if machine.date.is_empty() {
        writeln!(page, "Nothing was measured yet.")?;
        return Ok(());
    }
    writeln!(
        page,
        "The last run was on {}, on {} cores ({}) with {} GiB of memory, {}.",
        machine.date, machine.cores, machine.processor, machine.memory_gib, machine.system
    )?;
    writeln!(
        page,
        "The load of the machine was {:.1} before the run and {:.1} at its end.",
        machine.load_before, machine.load_after
    )?;
    if results.is_quick() {
        writeln!(page, "Short rounds (`--quick`) were used, so the numbers are rough.")?;
    }
    Ok(())
}

/// One of ours beside one rival, in one measure of one scenario.
struct Duel<'a> {
    scenario: &'a Scenario,
    measure: Measure,
    ours: &'a Contested,
    rival: &'a Contested,
    ratio: Spread,
}

impl Duel<'_> {
    /// The ratio, turned so that more is better for leasehold.
    fn turned(&self) -> Spread {
        let Spread { median, low, high } = self.ratio;
        if self.measure.more_is_better {
            return self.ratio;
        }
        Spread { median: 1.0 / median, low: 1.0 / high, high: 1.0 / low }
    }

    fn is_lost(&self) -> bool {
        self.turned().median < 1.0
    }
}

/// Returns all duels, those that are lost by most in front.
fn duels(results: &Results) -> Vec<Duel<'_>> {
    let mut duels = Vec::new();
    for scenario in SCENARIOS {
        let Some(measured) = results.of(scenario.id) else { continue };
        let on = |side: Side| {
            let names = scenario.contestants.iter().filter(move |one| one.side == side);
            names.filter_map(|one| measured.contestant(one.name))
        };
        for ours in on(Side::Ours) {
            for rival in on(Side::Rival) {
                for measure in scenario.load.measures() {
                    // Commands of no server, and the like, are equal and say nothing.
                    if let Some(ratio) = ours.ratio(rival, measure.name).filter(|ratio| ratio.median > 0.0) {
                        duels.push(Duel { scenario, measure: *measure, ours, rival, ratio });
                    }
                }
            }
        }
    }
    duels.sort_by(|a, b| a.turned().median.total_cmp(&b.turned().median));
    duels
}

/// Writes how near ours are to the floor of each scenario, in its first measure.
fn floors(page: &mut String, results: &Results) -> Outcome<()> {
    page.push_str(
        "| scenario | measure | ratio | leasehold | floor | floor by limit |\n|---|---|---|---|---|---|\n",
    );
    for scenario in SCENARIOS {
        let Some(measured) = results.of(scenario.id) else { continue };
        let on = |side: Side| scenario.contestants.iter().filter(move |one| one.side == side);
        let floor = on(Side::Floor).find_map(|one| measured.contestant(one.name));
        // Another way to lock has another floor: the limit itself, or less.
        let ours = on(Side::Ours).next().and_then(|one| measured.contestant(one.name));
        let (Some(floor), Some(ours), [measure, ..]) = (floor, ours, scenario.load.measures()) else {
            continue;
        };
        let Some(ratio) = ours.ratio(floor, measure.name) else { continue };
        let limit = scenario.limit().and_then(|name| measured.contestant(name));
        let by_limit = limit.and_then(|limit| floor.ratio(limit, measure.name));
        writeln!(
            page,
            "| [{}](#{}) | {} {} | {} | {} | {} `{}` | {} |",
            scenario.title,
            anchor(scenario.title),
            measure.title,
            arrow(*measure),
            ratio_text(ratio),
            value(ours, *measure),
            value(floor, *measure),
            floor.name,
            by_limit.map_or(String::new(), ratio_text),
        )?;
    }
    Ok(())
}

/// Returns the median of a measure as text.
fn value(one: &Contested, measure: Measure) -> String {
    one.spread(measure.name).map_or(String::new(), |value| number(value.median))
}

fn table<'a>(page: &mut String, duels: impl Iterator<Item = &'a Duel<'a>>) -> Outcome<()> {
    let mut any = false;
    for Duel { scenario, measure, ours, rival, ratio } in duels {
        if !any {
            page.push_str("| scenario | measure | ratio | leasehold | rival |\n|---|---|---|---|---|\n");
            any = true;
        }
        writeln!(
            page,
            "| [{}](#{}) | {} {} | {} | {} `{}` | {} `{}` |",
            scenario.title,
            anchor(scenario.title),
            measure.title,
            arrow(*measure),
            ratio_text(*ratio),
            value(ours, *measure),
            ours.name,
            value(rival, *measure),
            rival.name,
        )?;
    }
    if !any {
        page.push_str("None.\n");
    }
    Ok(())
}

fn section(page: &mut String, scenario: &Scenario, measured: Option<&Measured>) -> Outcome<()> {
    writeln!(page, "## {}\n", scenario.title)?;
    let Some(measured) = measured else {
        page.push_str("Not measured yet.\n\n");
        return Ok(());
    };
    if let Some(why) = &measured.missing {
        writeln!(page, "Not measured: {why}.\n")?;
        return Ok(());
    }
    if super::plot::is_drawn(scenario, measured) {
        writeln!(page, "![{}](benchmarks/{}.svg)\n", scenario.title, scenario.id)?;
    }
    writeln!(page, "{}\n", rounds(scenario.load, measured))?;
    let shown =
        |measure: &Measure| measured.contestants.iter().any(|one| !one.values(measure.name).is_empty());
    let compared: Vec<Measure> = scenario.load.measures().iter().copied().filter(|one| shown(one)).collect();
    let beside: Vec<Measure> = BESIDE.into_iter().filter(shown).collect();
    let limit =
        scenario.limit().and_then(|name| measured.contestant(name)).filter(|one| one.missing.is_none());
    let (first, rest) = compared.split_at(compared.len().min(if limit.is_some() { 1 } else { 0 }));
    let mut heads = vec!["contestant".to_owned()];
    heads.extend(first.iter().flat_map(|one| [head(*one), format!("by the limit's {}", arrow(*one))]));
    heads.extend(rest.iter().chain(&beside).map(|one| head(*one)));
    if compared.is_empty() {
        heads.push("result".to_owned());
    }
    writeln!(page, "| {} |", heads.join(" | "))?;
    writeln!(page, "|{}", "---|".repeat(heads.len()))?;
    for one in &measured.contestants {
        let mut cells = vec![named(scenario, one)];
        if let Some(why) = &one.missing {
            cells.push(format!("not measured: {}", why.replace('|', "\\|")));
            cells.resize(heads.len(), String::new());
        } else {
            for measure in first {
                let ratio = limit.and_then(|limit| one.ratio(limit, measure.name));
                cells.extend([value(one, *measure), ratio.map_or(String::new(), ratio_text)]);
            }
            cells.extend(rest.iter().chain(&beside).map(|measure| value(one, *measure)));
        }
        writeln!(page, "| {} |", cells.join(" | "))?;
    }
    page.push('\n');
    for note in scenario.notes {
        writeln!(page, "- {note}")?;
    }
    page.push('\n');
    Ok(())
}

fn rounds(load: Load, measured: &Measured) -> String {
    match load {
        Load::Idle { .. } => format!("Counted for {} s.", number(measured.millis as f64 / 1e3)),
        Load::Trips => format!("Counted {} times.", measured.rounds),
        Load::Cycles { .. } | Load::HandOver { .. } => {
            format!("{} rounds of {} ms.", measured.rounds, thousands(measured.millis as usize))
        }
    }
}

fn named(scenario: &Scenario, one: &Contested) -> String {
    let side = scenario.contestants.iter().find(|contestant| contestant.name == one.name).map(|it| it.side);
    let version = if one.version.is_empty() { String::new() } else { format!(" {}", one.version) };
    match side {
        Some(Side::Limit) => format!("limit: {}", one.name),
        Some(Side::Floor) => format!("floor: {}", one.name),
        Some(Side::Ours) => format!("**{}**", one.name),
        _ => format!("{}{version}", one.name),
    }
}

fn missing(page: &mut String, results: &Results) -> Outcome<()> {
    // The same reason in several scenarios is one line.
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for scenario in SCENARIOS {
        for (name, why) in results.of(scenario.id).into_iter().flat_map(Measured::missing) {
            reasons.entry((name, why)).or_default().push(scenario.id);
        }
    }
    page.push_str("## What could not be measured\n\n");
    for ((name, why), scenarios) in &reasons {
        writeln!(page, "- `{name}` in {}: {why}.", scenarios.join(", "))?;
    }
    page.push_str(if reasons.is_empty() { "All was measured.\n\n" } else { "\n" });
    Ok(())
}

fn versions(page: &mut String, results: &Results) -> Outcome<()> {
    let mut versions: BTreeMap<&str, &str> =
        results.versions.iter().map(|(name, version)| (name.as_str(), version.as_str())).collect();
    for scenario in SCENARIOS {
        for one in results.of(scenario.id).map_or(&[][..], |measured| &measured.contestants) {
            let is_rival =
                scenario.contestants.iter().any(|it| it.name == one.name && it.side == Side::Rival);
            if is_rival && !one.version.is_empty() {
                versions.insert(&one.name, &one.version);
            }
        }
    }
    page.push_str("## Versions\n\n| what | version |\n|---|---|\n");
    for (name, version) in versions {
        writeln!(page, "| {name} | {} |", version.replace('|', "\\|"))?;
    }
    Ok(())
}

fn head(measure: Measure) -> String {
    measure.title.to_owned()
}

fn arrow(measure: Measure) -> &'static str {
    if measure.more_is_better { "↑" } else { "↓" }
}

pub(super) fn ratio_text(Spread { median, low, high }: Spread) -> String {
    format!("{} ({} to {})", digits(median), digits(low), digits(high))
}

/// Writes two or three digits.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => thousands(value.round() as usize),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Returns the anchor of a heading, as the book writes it.
fn anchor(heading: &str) -> String {
    let plain = heading.to_lowercase().replace(' ', "-");
    plain.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::results::Machine;
    use super::*;

    fn results() -> Results {
        let mut results = Results::default();
        results.machine = Machine { date: "2020-02-02".to_owned(), ..Machine::default() };
        let contested = |name: &str, rate: f64| Contested {
            name: name.to_owned(),
            values: BTreeMap::from([("rate".to_owned(), vec![rate, rate * 1.1])]),
            ..Contested::default()
        };
        let mut contestants = vec![
            contested("open, flock, close", 100.0),
            contested("leasehold", 20.0),
            contested("tooz", 10.0),
        ];
        contestants.push(contested("distributed-lock", 40.0));
        results.keep(Measured { id: "files-1".to_owned(), rounds: 2, contestants, ..Measured::default() });
        let contestants = vec![Contested {
            name: "rslock".to_owned(),
            missing: Some("it was not built".to_owned()),
            ..Contested::default()
        }];
        results.keep(Measured { id: "redis-1".to_owned(), contestants, ..Measured::default() });
        results
    }

    #[test]
    fn losses_come_before_everything_else() {
        let page = markdown(&results()).unwrap();
        let lost = page.split("## What is unfair").next().unwrap();
        let row = "| [Files, 1 task](#files-1-task) | cycles/s ↑ | 0.50 (0.50 to 0.50) | 21.0 `leasehold` | 42.0 `distributed-lock` |";
        assert!(lost.contains(row) && !lost.contains("tooz"), "{lost}");
    }

    #[test]
    fn missing_rival_is_a_row_with_its_reason() {
        let page = markdown(&results()).unwrap();
        assert!(page.contains("| rslock | not measured: it was not built |"), "{page}");
        assert!(page.contains("- `rslock` in redis-1: it was not built."), "{page}");
    }

    #[test]
    fn page_depends_on_the_results_alone() {
        assert_eq!(markdown(&results()).unwrap(), markdown(&results()).unwrap());
        assert!(markdown(&Results::default()).unwrap().contains("Nothing was measured yet."));
    }
}
