//! The list of locks: search, order, pages.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use leasehold::Resource;
use leasehold_monitor::text::{unix_ms_now, visible};
use leasehold_monitor::{Filter, LockRow, Overview, Sort, SortKey};
use maud::{Markup, html};
use serde::Deserialize;

use super::Console;
use super::attention::{deadlocked, reasons};
use super::layout::{Live, Page, Tab};
use super::overview::holder_cells;
use super::parts::{empty, lock_link, reason, waiters};
use super::paths::{encoded, lock};
use super::visit::Visit;
use super::words::{age, count, grouped};

/// The query of the list. What it does not understand it takes for the default, as links get old.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Search {
    q: String,
    show: String,
    sort: String,
    page: String,
}

/// Which locks are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Show {
    All,
    Held,
    Waited,
    Concerning,
}

impl Show {
    const ALL: [(Show, &str, &str); 4] = [
        (Show::All, "all", "All locks"),
        (Show::Held, "held", "Held"),
        (Show::Waited, "waited", "With waiters"),
        (Show::Concerning, "attention", "Needing attention"),
    ];

    fn word(self) -> &'static str {
        Show::ALL.iter().find(|(show, ..)| *show == self).map_or("all", |(_, word, _)| word)
    }
}

impl Search {
    fn show(&self) -> Show {
        Show::ALL.iter().find(|(_, word, _)| *word == self.show).map_or(Show::All, |(show, ..)| *show)
    }

    /// Returns the order; a leading minus turns it round.
    fn order(&self) -> Sort {
        let (word, reversed) = match self.sort.strip_prefix('-') {
            Some(word) => (word, true),
            None => (self.sort.as_str(), false),
        };
        let key = SortKey::named(word);
        Sort { reversed: reversed && key.is_some(), ..Sort::by(key.unwrap_or_default()) }
    }

    fn page(&self) -> usize {
        self.page.parse().unwrap_or(1).max(1)
    }

    /// Returns the path of the list with another order or page.
    fn path(&self, sort: Sort, page: usize) -> String {
        let minus = if sort.reversed { "-" } else { "" };
        let (q, show) = (encoded(&self.q), self.show().word());
        format!("/locks?q={q}&show={show}&sort={minus}{}&page={page}", sort.key)
    }
}

/// `GET /locks`
pub(super) async fn get(
    State(console): State<Arc<Console>>,
    Query(search): Query<Search>,
    visit: Visit,
) -> Response {
    let (overview, number) = console.watcher.picture().await;
    let now = unix_ms_now();
    let found = arranged(&console, &overview, &search, now);
    let pages = found.len().div_ceil(PER_PAGE).max(1);
    let page = search.page().min(pages);
    let first = (page - 1) * PER_PAGE;
    let rows: Vec<&LockRow> = found.iter().skip(first).take(PER_PAGE).copied().collect();
    console.watcher.show(rows.iter().map(|row| &row.name));
    let range = Range { first, shown: rows.len(), of: found.len(), page, pages };
    let content = html! {
        div.head {
            h1 { "Locks" }
            span.muted { (count(found.len(), "lock", "locks")) @if !search.q.is_empty() { " found" } }
        }
        (truncated(&overview))
        section.panel aria-label="Locks" {
            div.pad { (form(&search)) }
            @if rows.is_empty() { (nothing(&overview, &search)) } @else {
                (table(&console, &overview, &search, &rows, now))
            }
            (paging(&search, &range))
        }
    };
    let page = Page {
        visit: &visit,
        shown: console.shown(&overview),
        title: "Locks".to_owned(),
        section: Tab::Locks,
        live: Live::By { events: "/events".to_owned(), picture: number.to_string() },
        news: format!("{} found.", count(found.len(), "lock", "locks")),
        content,
    };
    page.respond()
}

/// Returns the rows that are searched for, in their order.
fn arranged<'a>(console: &Console, overview: &'a Overview, search: &Search, now: u64) -> Vec<&'a LockRow> {
    let stuck = deadlocked(overview.deadlocks.found());
    let is_shown = |row: &LockRow| match search.show() {
        Show::All => true,
        Show::Held => row.holders > 0,
        Show::Waited => row.waiting > 0,
        Show::Concerning => !reasons(row, stuck.contains(&row.name), now, console.left(row, now)).is_empty(),
    };
    let order = Filter::new(&search.q).arrange(&overview.locks, search.order());
    order.into_iter().map(|at| &overview.locks[at]).filter(|row| is_shown(row)).collect()
}

fn truncated(overview: &Overview) -> Markup {
    html! {
        @if overview.truncated {
            div.notice.plain { p {
                "The store has more locks than are listed: these are the first "
                (grouped(overview.locks.len())) " by name. Any other lock is found by its whole name."
            } }
        }
    }
}

fn form(search: &Search) -> Markup {
    html! {
        form.row action="/locks" {
            div.field.grow {
                label for="q" { "Words of the name or the note" }
                input #q type="search" name="q" value=(search.q) maxlength="512" autocomplete="off"
                    autocapitalize="off" spellcheck="false";
            }
            div.field {
                label for="show" { "Show" }
                select #show name="show" data-submit {
                    @for (show, word, text) in Show::ALL {
                        option value=(word) selected[show == search.show()] { (text) }
                    }
                }
            }
            div.field {
                label for="sort" { "Order" }
                select #sort name="sort" data-submit {
                    @for key in SortKey::ALL {
                        option value=(key) selected[key == search.order().key] { (order_text(key)) }
                    }
                }
            }
            button.button.first { "Find" }
        }
    }
}

fn order_text(key: SortKey) -> &'static str {
    match key {
        SortKey::Name => "By name",
        SortKey::Held => "Held longest",
        SortKey::Left => "Shortest lease left",
        SortKey::Queue => "Longest queue",
        SortKey::Waited => "Longest wait",
        _ => key.as_str(),
    }
}

/// Explains an empty list, and how to reach a lock that it lacks.
fn nothing(overview: &Overview, search: &Search) -> Markup {
    let name = search.q.trim();
    if Resource::new(name).is_ok() {
        return html! {
            div.empty {
                strong { "No lock of this picture matches " (visible(name)) }
                p { "A lock that is free and waited for by nobody is not listed. "
                    a href=(lock(name)) { "Open the lock of exactly this name" } }
            }
        };
    }
    match (overview.at_unix_ms, overview.locks.is_empty()) {
        (None, _) => empty(
            "No picture yet",
            "The store has not answered. The page shows its locks as soon as it does.",
        ),
        (Some(_), true) => empty("No locks", "Nothing is held in this store, and nothing is waited for."),
        (Some(_), false) => empty("None of this kind", "Choose another kind under Show."),
    }
}

fn table(console: &Console, overview: &Overview, search: &Search, rows: &[&LockRow], now: u64) -> Markup {
    let stuck = deadlocked(overview.deadlocks.found());
    html! {
        table.cards {
            caption.unseen { "Locks, " (order_text(search.order().key)) }
            thead { tr {
                (column(search, SortKey::Name, "Lock", false))
                th scope="col" { "Held by" }
                (column(search, SortKey::Held, "For", false))
                (column(search, SortKey::Left, "Lease left", false))
                (column(search, SortKey::Queue, "Waiting", true))
                (column(search, SortKey::Waited, "Longest wait", false))
                th scope="col" { span.unseen { "Reasons to look at it" } }
            } }
            tbody {
                @for row in rows {
                    tr data-key=(row.name.as_str()) {
                        th scope="row" { (lock_link(row.name.as_str())) }
                        (holder_cells(console, row, now))
                        td.number data-label="Waiting" { (waiters(row.waiting)) }
                        td.fit data-label="Longest wait" {
                            @if let Some(since) = row.waiting_since_unix_ms() { (age(since, now)) }
                        }
                        (reason_cell(row, stuck.contains(&row.name), console.left(row, now), now))
                    }
                }
            }
        }
    }
}

fn reason_cell(row: &LockRow, is_deadlocked: bool, left: Option<f64>, now: u64) -> Markup {
    let reasons = reasons(row, is_deadlocked, now, left);
    html! {
        td { @if !reasons.is_empty() { span.why { @for one in reasons { (reason(one)) } } } }
    }
}

/// Returns the head of a column by which the list can be sorted.
fn column(search: &Search, key: SortKey, text: &str, is_number: bool) -> Markup {
    let order = search.order();
    let is_current = order.key == key;
    // A second choice of the same column turns it round.
    let next = Sort { reversed: is_current && !order.reversed, ..Sort::by(key) };
    // Names and times that are left rise; the other orders begin with the greatest.
    let rises = matches!(key, SortKey::Name | SortKey::Left) != order.reversed;
    let sorted = is_current.then_some(if rises { "ascending" } else { "descending" });
    html! {
        th.number[is_number] scope="col" aria-sort=[sorted] {
            a href=(search.path(next, 1)) { (text) }
            @if is_current { span aria-hidden="true" { (if rises { " ↑" } else { " ↓" }) } }
        }
    }
}

/// Which rows of how many a page shows.
struct Range {
    first: usize,
    shown: usize,
    of: usize,
    page: usize,
    pages: usize,
}

fn paging(search: &Search, range: &Range) -> Markup {
    if range.pages == 1 {
        return html! {};
    }
    let order = search.order();
    html! {
        nav.pages aria-label="Pages of the list" {
            @let last = range.first + range.shown;
            span { (grouped(range.first + 1)) " to " (grouped(last)) " of " (grouped(range.of)) }
            ul {
                @if range.page > 1 {
                    li { a.button.slim rel="prev" href=(search.path(order, range.page - 1)) { "Previous" } }
                }
                @for page in pages_shown(range.page, range.pages) {
                    li {
                        @match page {
                            Some(page) => {
                                a.button.slim href=(search.path(order, page)) aria-label={ "Page " (page) }
                                    aria-current=[(page == range.page).then_some("page")] { (page) }
                            },
                            None => { span aria-hidden="true" { "…" } },
                        }
                    }
                }
                @if range.page < range.pages {
                    li { a.button.slim rel="next" href=(search.path(order, range.page + 1)) { "Next" } }
                }
            }
        }
    }
}

/// Returns the numbers of the first page, of the last one and of those around the current one; `None` for a
/// gap.
fn pages_shown(current: usize, pages: usize) -> Vec<Option<usize>> {
    let mut shown = Vec::new();
    for page in (1..=pages).filter(|page| *page == 1 || *page == pages || page.abs_diff(current) <= 1) {
        let before = shown.last().copied().flatten().unwrap_or(0);
        if page > before + 1 {
            shown.push(None);
        }
        shown.push(Some(page));
    }
    shown
}

const PER_PAGE: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_around_the_current_one_are_shown() {
        let shown = |current, pages| {
            let text = |page: Option<usize>| page.map_or("…".to_owned(), |page| page.to_string());
            pages_shown(current, pages).into_iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(1, 1), "1");
        assert_eq!(shown(1, 200), "1 2 … 200");
        assert_eq!(shown(3, 5), "1 2 3 4 5");
        assert_eq!(shown(100, 200), "1 … 99 100 101 … 200");
    }

    #[test]
    fn nonsense_in_a_query_is_the_default() {
        let search =
            Search { sort: "-nothing".into(), page: "-4".into(), show: "<b>".into(), q: "a&b".into() };
        assert_eq!(search.order(), Sort::default());
        assert_eq!((search.page(), search.show()), (1, Show::All));
        assert_eq!(search.path(search.order(), 2), "/locks?q=a%26b&show=all&sort=name&page=2");
    }

    #[test]
    fn second_choice_of_a_column_turns_it_round() {
        let search = Search { sort: "held".into(), ..Search::default() };
        let head = column(&search, SortKey::Held, "For", false).into_string();
        assert!(head.contains("sort=-held") && head.contains("aria-sort=\"descending\""), "{head}");
        let head = column(&search, SortKey::Name, "Lock", false).into_string();
        assert!(head.contains("sort=name") && !head.contains("aria-sort"), "{head}");
    }
}
