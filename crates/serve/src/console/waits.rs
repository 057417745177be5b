//! The waits that wait for each other: a picture and a table of each deadlock.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use leasehold::Deadlock;
use leasehold_monitor::text::{unix_ms_now, visible};
use leasehold_monitor::{DeadlockReport, Filter, LockRow, Overview, Sort, SortKey, WaitGraph};
use maud::{Markup, html};

use super::Console;
use super::graph::draw;
use super::layout::{Live, Page, Tab};
use super::overview::holder_cells;
use super::parts::{empty, lock_link, waiters};
use super::visit::Visit;
use super::words::{age, count};

/// `GET /waits`
pub(super) async fn get(State(console): State<Arc<Console>>, visit: Visit) -> Response {
    let (overview, number) = console.watcher.picture().await;
    let deadlocks = overview.deadlocks.found();
    let content = html! {
        div.head {
            h1 { "Waits" }
            span.aside { (searched(&overview.deadlocks)) }
        }
        @for (at, deadlock) in deadlocks.iter().enumerate() { (panel(deadlock, at + 1)) }
        @if deadlocks.is_empty() { section.panel aria-label="Deadlocks" { (none(&overview.deadlocks)) } }
        (queues(&console, &overview, unix_ms_now()))
    };
    let news = match deadlocks.len() {
        0 => "No deadlock is known.".to_owned(),
        many => format!("{} found.", count(many, "deadlock", "deadlocks")),
    };
    let page = Page {
        visit: &visit,
        shown: console.shown(&overview),
        title: if deadlocks.is_empty() { "Waits".to_owned() } else { format!("({}) Waits", deadlocks.len()) },
        section: Tab::Waits,
        live: Live::By { events: "/events".to_owned(), picture: number.to_string() },
        news,
        content,
    };
    page.respond()
}

fn searched(report: &DeadlockReport) -> Markup {
    html! {
        @if let DeadlockReport::Found { at_unix_ms, .. } = report {
            "deadlocks searched " (age(*at_unix_ms, unix_ms_now())) " ago"
        }
    }
}

fn none(report: &DeadlockReport) -> Markup {
    match report {
        DeadlockReport::NotYet => {
            empty("Not searched yet", "The store is searched for deadlocks after its locks are listed.")
        }
        DeadlockReport::Unsupported(reason) => empty("This store does not show deadlocks", &visible(reason)),
        _ => empty(
            "No deadlock",
            "No announced waits wait for each other. Only waits that are announced can be seen: programs \
             announce them with detect_deadlocks or announce_wait.",
        ),
    }
}

/// One deadlock: who waits for whom, and how to end it.
fn panel(deadlock: &Deadlock, number: usize) -> Markup {
    let id = format!("deadlock-{number}");
    let graph = WaitGraph::of_deadlocks(std::slice::from_ref(deadlock));
    html! {
        section.panel aria-labelledby=(id) {
            header {
                h2 id=(id) { "Deadlock of " (deadlock.waits.len()) }
                span.muted { "none of these waits can end by itself" }
            }
            @if deadlock.waits.len() <= DRAWN {
                div.pad { figure { (draw(&graph, &id)) figcaption { (legend(&id)) } } }
            }
            table.cards {
                caption.unseen { "The waits of this deadlock" }
                thead { tr {
                    th scope="col" { "Waiter" } th scope="col" { "Waits for" } th scope="col" { "Share" }
                    th scope="col" { "Holds" }
                } }
                tbody {
                    @for wait in &deadlock.waits {
                        tr {
                            th scope="row" { (visible(&wait.note)) }
                            td data-label="Waits for" { (lock_link(wait.resource.as_str())) }
                            td data-label="Share" { (wait.share) }
                            td data-label="Holds" {
                                @for (at, lock) in wait.holds.iter().enumerate() {
                                    @if at > 0 { ", " }
                                    (lock_link(lock.as_str()))
                                }
                            }
                        }
                    }
                }
            }
            p.pad {
                strong { "To end it, " }
                "one of them has to give up. A program that detects deadlocks does so by itself within seconds. \
                 Otherwise stop one of the waiters, or open one of these locks and ask its holder to release it."
            }
        }
    }
}

fn legend(id: &str) -> Markup {
    html! {
        p.legend {
            @for (kind, text) in [("waits", "waits for"), ("holds", "is held by")] {
                span { svg.graph aria-hidden="true" {
                    line.(kind) x1="0" x2="26" y1="5" y2="5" marker-end={ "url(#" (id) "-" (kind) ")" } {}
                } (text) }
            }
        }
    }
}

/// The longest queues, which are waits that may be about to end.
fn queues(console: &Console, overview: &Overview, now: u64) -> Markup {
    let order = Filter::default().arrange(&overview.locks, Sort::by(SortKey::Waited));
    let rows: Vec<&LockRow> =
        order.into_iter().map(|at| &overview.locks[at]).filter(|row| row.waiting > 0).take(SHOWN).collect();
    console.watcher.show(rows.iter().map(|row| &row.name));
    html! {
        section.panel aria-labelledby="queues" {
            header {
                h2 #queues { "Longest waits" }
                a.aside href="/locks?show=waited&sort=waited" { "All of them" }
            }
            @if rows.is_empty() {
                (empty("Nobody waits", "Every request for a lock of this store has been answered."))
            } @else {
                table.cards {
                    caption.unseen { "The locks that are waited for longest" }
                    thead { tr {
                        th scope="col" { "Lock" } th scope="col" { "Held by" } th scope="col" { "For" }
                        th scope="col" { "Lease left" } th.number scope="col" { "Waiting" }
                        th scope="col" { "Longest wait" }
                    } }
                    tbody { @for row in rows {
                        tr data-key=(row.name.as_str()) {
                            th scope="row" { (lock_link(row.name.as_str())) }
                            (holder_cells(console, row, now))
                            td.number data-label="Waiting" { (waiters(row.waiting)) }
                            td.fit data-label="Longest wait" {
                                @if let Some(since) = row.waiting_since_unix_ms() { (age(since, now)) }
                            }
                        }
                    } }
                }
            }
        }
    }
}

/// A picture of more is a tangle; the table has all of them.
const DRAWN: usize = 12;
const SHOWN: usize = 15;
