//! One lock: who holds it, who waits, who held it before, and what to do about it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use leasehold::{ClaimInfo, Resource, Snapshot};
use leasehold_monitor::text::{unix_ms_now, visible};
use leasehold_monitor::{FollowedLock, LockDetail, LockRow, Overview};
use maud::{Markup, html};
use serde::Deserialize;

use super::Console;
use super::advice::Facts;
use super::aside::{about, steps};
use super::attention::{Reason, deadlocked, reasons};
use super::layout::{Live, Page, Tab};
use super::parts::{empty, held, lease, reason, who};
use super::paths;
use super::timeline::{Lane, draw};
use super::visit::Visit;
use super::words::{age, count, moment_near, short, time_of_day};

/// The query of the page of a lock.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub(super) name: String,
}

/// A lock as its page shows it.
struct View<'a> {
    console: &'a Console,
    visit: &'a Visit,
    lock: &'a FollowedLock,
    snapshot: &'a Snapshot,
    reasons: Vec<Reason>,
    looked_ms: u64,
    now_ms: u64,
}

/// `GET /lock`
pub(super) async fn get(
    State(console): State<Arc<Console>>,
    Query(named): Query<Named>,
    visit: Visit,
) -> Response {
    let name = match Resource::new(&named.name) {
        Ok(name) => name,
        Err(_) if named.name.is_empty() => return Redirect::to("/locks").into_response(),
        Err(error) => {
            return super::refusal::page(
                &visit,
                StatusCode::BAD_REQUEST,
                "No lock has this name",
                &error.to_string(),
            );
        }
    };
    let (overview, _) = console.watcher.picture().await;
    console.watcher.show([&name]);
    let lock = console.follows.look(&name).await;
    let content = match (&lock.snapshot, lock.at_unix_ms) {
        (Some(snapshot), Some(looked_ms)) => {
            let now_ms = unix_ms_now();
            let reasons = reasons_of(&console, &overview, snapshot, looked_ms, now_ms);
            View { console: &console, visit: &visit, lock: &lock, snapshot, reasons, looked_ms, now_ms }
                .draw()
        }
        _ => unknown(&lock),
    };
    let stale = stale(&overview, &lock);
    let page = Page {
        visit: &visit,
        shown: console.shown(stale.as_ref().unwrap_or(&overview)),
        title: visible(name.as_str()),
        section: Tab::Locks,
        live: Live::By {
            events: format!("/events?name={}", paths::encoded(name.as_str())),
            picture: picture(&lock, &overview),
        },
        news: news(&lock),
        content,
    };
    page.respond()
}

/// Returns the picture with the outage that the lock's own look has seen, if the picture has none yet.
fn stale(overview: &Overview, lock: &FollowedLock) -> Option<Overview> {
    let outage = lock.outage.clone().filter(|_| overview.outage.is_none())?;
    let mut picture = overview.clone();
    (picture.outage, picture.at_unix_ms) = (Some(outage), lock.at_unix_ms);
    Some(picture)
}

/// Returns a name of what the page shows, so that its stream can say whether there is something else to show.
pub(super) fn picture(lock: &FollowedLock, overview: &Overview) -> String {
    let mut hasher = DefaultHasher::new();
    lock.snapshot.as_ref().map(|snapshot| &snapshot.version).hash(&mut hasher);
    lock.outage.as_ref().map(|outage| outage.since_unix_ms).hash(&mut hasher);
    overview.outage.as_ref().map(|outage| outage.since_unix_ms).hash(&mut hasher);
    deadlocked(overview.deadlocks.found()).contains(&lock.name).hash(&mut hasher);
    // The end of a lease moves without a change.
    lock.at_unix_ms.map(|at| at / RENEWED_EVERY_MS).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn news(lock: &FollowedLock) -> String {
    match (&lock.outage, &lock.snapshot) {
        (Some(_), _) => "The store is out of reach.".to_owned(),
        (None, None) => "Nothing is known of the lock yet.".to_owned(),
        (None, Some(snapshot)) => {
            let facts = Facts {
                name: lock.name.as_str(),
                holders: snapshot.holders.len(),
                waiting: snapshot.waiting.len(),
                reasons: &[],
                remaining: None,
            };
            facts.news(snapshot.holders.first().map(who).as_deref())
        }
    }
}

fn reasons_of(
    console: &Console,
    overview: &Overview,
    snapshot: &Arc<Snapshot>,
    looked: u64,
    now: u64,
) -> Vec<Reason> {
    let summary = leasehold::ResourceSummary::new(
        snapshot.resource.clone(),
        u32::try_from(snapshot.holders.len()).unwrap_or(u32::MAX),
        u32::try_from(snapshot.waiting.len()).unwrap_or(u32::MAX),
    );
    let row = LockRow::new(summary).detail(Some(LockDetail::new(snapshot.clone(), looked)));
    let is_deadlocked = deadlocked(overview.deadlocks.found()).contains(&snapshot.resource);
    reasons(&row, is_deadlocked, now, console.left(&row, now))
}

fn unknown(lock: &FollowedLock) -> Markup {
    html! {
        div.head { h1.name { (visible(lock.name.as_str())) } }
        section.panel aria-label="State" {
            (empty(
                "Nothing is known of this lock yet",
                "The store has not answered. The page shows the lock as soon as it does.",
            ))
        }
    }
}

impl View<'_> {
    fn draw(&self) -> Markup {
        html! {
            (self.head())
            (self.verdict())
            div.split {
                div.stack {
                    (self.holders())
                    (self.queue())
                    (self.history())
                }
                div.stack {
                    (steps(self.console, &self.facts()))
                    (about(self.console, self.visit, self.snapshot.fence))
                }
            }
        }
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            name: self.snapshot.resource.as_str(),
            holders: self.snapshot.holders.len(),
            waiting: self.snapshot.waiting.len(),
            reasons: &self.reasons,
            remaining: self.snapshot.holders.iter().filter_map(|holder| holder.remaining).min(),
        }
    }

    fn head(&self) -> Markup {
        let waiting = self.snapshot.waiting.len();
        html! {
            div.head {
                h1.name { (visible(self.snapshot.resource.as_str())) }
                span.why {
                    (held(self.snapshot.holders.len()))
                    @if waiting > 0 { span.tag { (count(waiting, "waiter", "waiters")) } }
                    @for one in &self.reasons { (reason(*one)) }
                }
                span.aside { "seen " (age(self.looked_ms, self.now_ms)) " ago" }
            }
        }
    }

    fn verdict(&self) -> Markup {
        let verdict = self.facts().verdict();
        html! {
            div.notice.(verdict.tone) { p { strong { (verdict.title) ". " } (verdict.text) } }
        }
    }

    fn holders(&self) -> Markup {
        let holders = &self.snapshot.holders;
        html! {
            section.panel aria-labelledby="holders" {
                header { h2 #holders { (if holders.len() == 1 { "Holder" } else { "Holders" }) } }
                @if holders.is_empty() {
                    (empty(
                        "Nobody holds this lock",
                        "The next claim is granted it at once, unless a queue is ahead of it.",
                    ))
                } @else {
                    table.cards {
                        caption.unseen { "Holders, in the order of their grants" }
                        thead { tr {
                            th scope="col" { "Note" } th scope="col" { "Share" } th scope="col" { "For" }
                            th scope="col" { "Lease left" } th scope="col" { "Fence" }
                        } }
                        tbody { @for holder in holders.iter().take(SHOWN) { (self.holder(holder)) } }
                    }
                    (more(holders.len()))
                }
            }
        }
    }

    fn holder(&self, holder: &ClaimInfo) -> Markup {
        let since = std::time::Duration::from_millis(self.now_ms.saturating_sub(self.looked_ms));
        let remaining = holder.remaining.map(|left| left.saturating_sub(since));
        let part = self.console.watcher.left(holder, self.looked_ms, self.now_ms);
        html! {
            tr data-key=(holder.id.tag()) {
                th scope="row" {
                    div.note { (who(holder)) }
                    div.muted.small { "tag " code { (holder.id.tag()) } }
                }
                td.fit data-label="Share" { (holder.share) }
                td.fit data-label="For" { @if let Some(since) = holder.since_unix_ms {
                    (age(since, self.now_ms)) div.muted.small { "since " (moment_near(since, self.now_ms)) }
                } }
                td.fit data-label="Lease left" { (lease(remaining, part, self.now_ms)) }
                td.fit data-label="Fence" { @if let Some(fence) = holder.fence { code { (fence) } } }
            }
        }
    }

    fn queue(&self) -> Markup {
        let (waiting, now) = (&self.snapshot.waiting, self.now_ms);
        html! {
            section.panel aria-labelledby="queue" {
                header {
                    h2 #queue { "Queue" }
                    span.muted { (self.console.state.client.profile().order.to_string()) }
                }
                @if waiting.is_empty() {
                    (empty("Nobody waits", "A claim that has to wait is listed here, in its place of the queue."))
                } @else {
                    table.cards {
                        caption.unseen { "Waiters, the next one first" }
                        thead { tr {
                            th.number.fit scope="col" { "Place" } th scope="col" { "Note" }
                            th scope="col" { "Share" } th scope="col" { "Waits for" }
                        } }
                        tbody {
                            @for (at, waiter) in waiting.iter().take(SHOWN).enumerate() {
                                tr data-key=(waiter.id.tag()) {
                                    td.number data-label="Place" { (at + 1) }
                                    th scope="row" { div.note { (who(waiter)) } }
                                    td.fit data-label="Share" { (waiter.share) }
                                    td.fit data-label="Waits for" {
                                        @if let Some(since) = waiter.since_unix_ms { (age(since, now)) }
                                    }
                                }
                            }
                        }
                    }
                    (more(waiting.len()))
                }
            }
        }
    }

    fn history(&self) -> Markup {
        let holdings = || self.lock.history.holdings();
        let lanes: Vec<Lane> = holdings().map(Lane::of).collect();
        let from = holdings().map(|holding| holding.seen_unix_ms).min().unwrap_or(self.now_ms);
        html! {
            section.panel aria-labelledby="timeline" {
                header {
                    h2 #timeline { "Timeline of holders" }
                    span.muted { "as far as this server has watched" }
                }
                @if lanes.is_empty() {
                    (empty(
                        "Nobody has held it yet",
                        "The timeline begins when the page of a lock is opened, and continues for ten minutes after it \
                         was looked at last.",
                    ))
                } @else {
                    div.pad { (draw(&lanes, from, self.now_ms)) }
                    details.pad {
                        summary { "The same as a table" }
                        (history_table(&lanes, self.now_ms))
                    }
                }
            }
        }
    }
}

fn more(all: usize) -> Markup {
    html! { @if all > SHOWN { p.pad.muted { "And " (all - SHOWN) " more." } } }
}

fn history_table(lanes: &[Lane], now_ms: u64) -> Markup {
    html! {
        table.cards {
            caption.unseen { "Holds, the latest first" }
            thead { tr {
                th scope="col" { "Holder" } th scope="col" { "From" } th scope="col" { "To" }
                th scope="col" { "For" } th scope="col" { "Fence" }
            } }
            tbody { @for lane in lanes.iter().rev() {
                tr {
                    th scope="row" { (lane.who) }
                    td.fit data-label="From" { (time_of_day(lane.begin_ms)) }
                    td.fit data-label="To" { (lane.end_ms.map_or_else(|| "now".to_owned(), time_of_day)) }
                    td.fit data-label="For" { (short(lane.held(now_ms))) }
                    td data-label="Fence" { @if let Some(fence) = lane.fence { code { (fence) } } }
                }
            } }
        }
    }
}

const SHOWN: usize = 100;
const RENEWED_EVERY_MS: u64 = 10_000;
