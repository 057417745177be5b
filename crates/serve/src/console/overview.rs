//! The first page: how many locks there are, and which of them need attention.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use leasehold_monitor::text::unix_ms_now;
use leasehold_monitor::{DeadlockReport, Filter, LockRow, Overview, Sort, SortKey};
use maud::{Markup, html};

use super::Console;
use super::attention::{Concern, Weight, concerns};
use super::layout::{Live, Page, Tab};
use super::parts::{empty, lease, lock_link, reason, waiters, who_short};
use super::plots::{Plot, Tone};
use super::visit::Visit;
use super::words::{age, count, grouped, length, short};
use crate::lately::Bucket;

/// `GET /`
pub(super) async fn get(State(console): State<Arc<Console>>, visit: Visit) -> Response {
    let (overview, number) = console.watcher.picture().await;
    let now = unix_ms_now();
    let found = concerns(&overview.locks, overview.deadlocks.found(), now, |row| console.left(row, now));
    console.watcher.show(found.iter().map(|concern| &concern.row.name));
    let longest = longest_held(&overview);
    let content = html! {
        h1.unseen { "Overview" }
        (facts(&overview, &found, now))
        (attention(&console, &found, now))
        (plots(&console.lately.recent()))
        (held_longest(&console, &longest, now))
    };
    let page = Page {
        visit: &visit,
        shown: console.shown(&overview),
        title: title(&found),
        section: Tab::Overview,
        live: Live::By { events: "/events".to_owned(), picture: number.to_string() },
        news: news(&overview, &found),
        content,
    };
    page.respond()
}

fn title(found: &[Concern<'_>]) -> String {
    match found.len() {
        0 => "Overview".to_owned(),
        many => format!("({many}) Overview"),
    }
}

/// Returns what a screen reader says when it has changed.
fn news(overview: &Overview, found: &[Concern<'_>]) -> String {
    if overview.outage.is_some() {
        return "The store is out of reach.".to_owned();
    }
    let names: Vec<&str> = found.iter().take(3).map(|concern| concern.row.name.as_str()).collect();
    match found.len() {
        0 => "No lock needs attention.".to_owned(),
        1 => format!("{} needs attention.", names[0]),
        many => format!("{many} locks need attention, first {}.", names.join(", ")),
    }
}

/// The numbers at a glance.
fn facts(overview: &Overview, found: &[Concern<'_>], now: u64) -> Markup {
    let sum = |number: fn(&LockRow) -> u32| {
        overview.locks.iter().map(|row| usize::try_from(number(row)).unwrap_or(usize::MAX)).sum::<usize>()
    };
    let held = overview.locks.iter().filter(|row| row.holders > 0).count();
    let waited = overview.locks.iter().filter_map(LockRow::waiting_since_unix_ms).min();
    let longest = overview.locks.iter().map(|row| row.waiting).max().unwrap_or(0);
    let deadlocks = overview.deadlocks.found().len();
    let is_bad =
        found.iter().flat_map(|concern| &concern.reasons).any(|reason| reason.weight() == Weight::Bad);
    let tone = if is_bad { "bad" } else { "warn" };
    html! {
        dl.facts aria-label="Numbers" {
            div.(if found.is_empty() { "" } else { tone }) {
                dt { "Need attention" }
                dd { (grouped(found.len())) }
            }
            div { dt { "Locks held" } dd {
                (grouped(held))
                @if overview.truncated { span.of { " of the first " (grouped(overview.locks.len())) } }
            } }
            div { dt { "Holders" } dd { (grouped(sum(|row| row.holders))) } }
            div { dt { "Waiting" } dd {
                (grouped(sum(|row| row.waiting)))
                @if longest > 0 { span.of { " longest queue " (longest) } }
            } }
            div { dt { "Longest wait" } dd {
                @match waited {
                    Some(since) => { (age(since, now)) },
                    None => { span.of { "nobody waits" } },
                }
            } }
            div.bad[deadlocks > 0] { dt { "Deadlocks" } dd {
                @match &overview.deadlocks {
                    DeadlockReport::Unsupported(_) => { span.of { "not shown by this store" } },
                    _ => { (deadlocks) },
                }
            } }
        }
    }
}

/// The locks that need attention first.
fn attention(console: &Console, found: &[Concern<'_>], now: u64) -> Markup {
    html! {
        section.panel aria-labelledby="attention" {
            header {
                h2 #attention { "Needs attention" }
                @if found.len() > SHOWN {
                    span.muted { "the first " (SHOWN) " of " (grouped(found.len())) }
                    a.aside href="/locks?show=waited" { "All locks with waiters" }
                }
            }
            @if found.is_empty() {
                (empty(
                    "Nothing needs attention",
                    "No lock of this picture is in a deadlock, has a long queue or a long wait, or a lease that its \
                     holder has failed to renew.",
                ))
            } @else {
                table.cards {
                    caption.unseen { "Locks that need attention, the most pressing first" }
                    thead { tr {
                        th scope="col" { "Lock" } th scope="col" { "Why" } th scope="col" { "Held by" }
                        th scope="col" { "For" } th scope="col" { "Lease left" }
                        th.number scope="col" { "Waiting" }
                    } }
                    tbody {
                        @for Concern { row, reasons } in found.iter().take(SHOWN) {
                            tr data-key=(row.name.as_str()) {
                                th scope="row" { (lock_link(row.name.as_str())) }
                                td data-label="Why" { span.why { @for one in reasons { (reason(*one)) } } }
                                (holder_cells(console, row, now))
                                td.number data-label="Waiting" { (waiters(row.waiting)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The cells about the holders of a row: the first of them, since when, and the lease.
pub(super) fn holder_cells(console: &Console, row: &LockRow, now: u64) -> Markup {
    let holders = row.known_holders();
    html! {
        td data-label="Held by" {
            @match holders.first() {
                Some(first) => {
                    span.who { (who_short(first)) }
                    @if holders.len() > 1 {
                        span.muted { " and " (count(holders.len() - 1, "other", "others")) }
                    }
                },
                None if row.holders > 0 => { span.muted { "not looked at yet" } },
                None => { span.muted { "nobody" } },
            }
        }
        td.fit data-label="For" { @if let Some(since) = row.since_unix_ms() { (age(since, now)) } }
        td.fit data-label="Lease left" {
            @if !holders.is_empty() { (lease(row.remaining_at(now), console.left(row, now), now)) }
        }
    }
}

fn longest_held(overview: &Overview) -> Vec<&LockRow> {
    let order = Filter::default().arrange(&overview.locks, Sort::by(SortKey::Held));
    let rows = order.into_iter().map(|at| &overview.locks[at]);
    rows.filter(|row| row.since_unix_ms().is_some()).take(LONGEST_SHOWN).collect()
}

fn held_longest(console: &Console, rows: &[&LockRow], now: u64) -> Markup {
    html! {
        section.panel aria-labelledby="longest" {
            header {
                h2 #longest { "Held longest" }
                a.aside href="/locks?sort=held" { "All locks" }
            }
            @if rows.is_empty() {
                (empty("Nothing is held", "A lock that a program takes is listed here at once."))
            } @else {
                table.cards {
                    caption.unseen { "The locks that are held longest" }
                    thead { tr {
                        th scope="col" { "Lock" } th scope="col" { "Held by" } th scope="col" { "For" }
                        th scope="col" { "Lease left" } th.number scope="col" { "Waiting" }
                    } }
                    tbody {
                        @for row in rows {
                            tr data-key=(row.name.as_str()) {
                                th scope="row" { (lock_link(row.name.as_str())) }
                                (holder_cells(console, row, now))
                                td.number data-label="Waiting" { (waiters(row.waiting)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Waits, holds and losses of the last half hour.
fn plots(buckets: &[Option<Bucket>]) -> Markup {
    let last = |value: fn(&Bucket) -> Option<f64>| buckets.iter().rev().flatten().find_map(value);
    let plot = |title, tone, value: fn(&Bucket) -> Option<f64>, text: fn(f64) -> String| {
        let values: Vec<Option<f64>> = buckets.iter().map(|one| one.as_ref().and_then(value)).collect();
        let most = values.iter().flatten().copied().fold(0.0, f64::max);
        let now = last(value).map_or_else(|| "–".to_owned(), text);
        Plot { title, now, most: text(most), values, tone, begin: "30 min ago" }.draw()
    };
    let number = |value: f64| grouped(value as usize);
    let time = |value: f64| {
        if value < 60.0 {
            short(Duration::from_secs_f64(value))
        } else {
            length(Duration::from_secs_f64(value))
        }
    };
    html! {
        section.panel aria-labelledby="rates" {
            header {
                h2 #rates { "The last half hour" }
                span.muted {
                    "holding and waiting in the whole store; longest wait and losses of the locks taken through this \
                     server"
                }
            }
            div.plots {
                (plot("Holding", Tone::Calm, |one| one.seen.map(|(holding, _)| f64::from(holding)), number))
                (plot("Waiting", Tone::Calm, |one| one.seen.map(|(_, waiting)| f64::from(waiting)), number))
                (plot("Longest wait", Tone::Calm, |one| Some(one.longest_wait.as_secs_f64()), time))
                (plot("Losses", Tone::Bad, |one| Some(f64::from(one.lost)), number))
            }
        }
    }
}

const SHOWN: usize = 20;
const LONGEST_SHOWN: usize = 8;
