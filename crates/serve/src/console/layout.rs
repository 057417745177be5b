//! The frame of all pages: head, navigation, state of the picture, foot.
//!
//! Ground rules: a page is whole without script. It has no inline style and no inline script, so that the
//! content security policy can refuse all of them.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold_monitor::Overview;
use leasehold_monitor::text::{unix_ms_now, visible};
use maud::{DOCTYPE, Markup, html};

use super::assets::{ICON, SCRIPT, STYLE};
use super::paths::encoded;
use super::visit::{Theme, Visit};
use super::words::{count, length, moment, short};

/// A page that is not yet in its frame.
pub(super) struct Page<'a> {
    pub(super) visit: &'a Visit,
    /// The picture that its numbers come from, and the store; `None` on pages that show neither.
    pub(super) shown: Option<Shown<'a>>,
    pub(super) title: String,
    pub(super) section: Tab,
    /// Says whether it follows the store, and by which stream.
    pub(super) live: Live,
    /// The announcement of a screen reader after a change.
    pub(super) news: String,
    pub(super) content: Markup,
}

/// The picture and the store of a page.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) overview: &'a Overview,
    /// The store, as people may see it.
    pub(super) store: &'a str,
}

/// The part of the navigation that a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Overview,
    Locks,
    Waits,
    Doctor,
    None,
}

/// The way in which a page stays current.
pub(super) enum Live {
    /// By the stream at this path. The page shows the picture of this name.
    By { events: String, picture: String },
    /// It does not change by itself.
    Not,
}

impl Page<'_> {
    /// Returns the answer of a request that succeeded.
    pub(super) fn respond(self) -> Response {
        self.respond_with(StatusCode::OK)
    }

    /// Returns the answer of a request.
    pub(super) fn respond_with(self, status: StatusCode) -> Response {
        let headers: [(HeaderName, HeaderValue); 2] = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        (status, headers, self.draw().into_string()).into_response()
    }

    fn draw(&self) -> Markup {
        let (events, picture) = match &self.live {
            Live::By { events, picture } => (Some(events), Some(picture)),
            Live::Not => (None, None),
        };
        let is_stale = self.shown.is_some_and(|shown| shown.overview.outage.is_some());
        html! {
            (DOCTYPE)
            html lang="en" data-theme=[self.visit.theme.map(Theme::word)] {
                head {
                    meta charset="utf-8";
                    title { (self.title) " · leasehold" }
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="robots" content="noindex";
                    link rel="icon" type="image/svg+xml" href=(ICON.path());
                    link rel="stylesheet" href=(STYLE.path());
                    @if events.is_some() { script src=(SCRIPT.path()) defer {} }
                }
                body.stale[is_stale] data-now=(unix_ms_now()) data-events=[events] data-picture=[picture] {
                    a.skip href="#main" { "Skip to the content" }
                    (self.top())
                    main.wide #main tabindex="-1" {
                        p.unseen #say role="status" aria-live="polite" {}
                        (cut())
                        div.stack #content data-live {
                            p #news hidden { (self.news) }
                            @if let Some(shown) = self.shown { (outage(shown.overview)) }
                            (self.content)
                        }
                    }
                    (self.foot())
                }
            }
        }
    }

    fn top(&self) -> Markup {
        let deadlocks = self.shown.map_or(0, |shown| shown.overview.deadlocks.found().len());
        html! {
            header.top {
                div.wide {
                    a.brand href="/" { (mark()) "leasehold" }
                    nav.nav #nav data-live aria-label="Pages" {
                        ul {
                            @for (section, path, name) in PAGES {
                                li {
                                    a href=(path) aria-current=[(section == self.section).then_some("page")] {
                                        (name)
                                        @if section == Tab::Waits && deadlocks > 0 {
                                            span.count aria-hidden="true" { (deadlocks) }
                                            span.unseen { (count(deadlocks, "deadlock", "deadlocks")) }
                                        }
                                    }
                                }
                            }
                        }
                    }
                    @if let Some(shown) = self.shown {
                        (find())
                        (self.state(shown.overview))
                    }
                }
            }
        }
    }

    /// Shows how current the page is, with a switch for readers whom changes disturb.
    fn state(&self, overview: &Overview) -> Markup {
        let tone = if overview.outage.is_some() { "bad" } else { "good" };
        html! {
            div.state {
                span #state .state {
                    span.dot.(tone) {}
                    span {
                        @match overview.at_unix_ms {
                            Some(at) => { "Picture of " (moment(at)) },
                            None => { "No picture yet" },
                        }
                    }
                }
                @if matches!(self.live, Live::By { .. }) {
                    button.button.slim.only-script #pause type="button" aria-pressed="false" { "Pause" }
                    a.button.slim.without-script href=(self.visit.here) { "Reload" }
                }
            }
        }
    }

    fn foot(&self) -> Markup {
        html! {
            footer.foot {
                div.wide {
                    @if let Some(Shown { overview, store }) = self.shown {
                        span { "Store " code { (visible(store)) } }
                        span #cost data-live {
                            (count(overview.locks.len(), "lock", "locks")) " listed in "
                            (short(overview.cost.listing))
                            ", again after " (short(overview.cost.pause))
                        }
                        span { "All times are in UTC" }
                    }
                    (self.session())
                    (self.themes())
                }
            }
        }
    }

    fn session(&self) -> Markup {
        html! {
            @if self.visit.has_token {
                form method="post" action="/logout" { button.link { "Sign out" } }
            }
        }
    }

    fn themes(&self) -> Markup {
        let themes = [(None, "System"), (Some(Theme::Light), "Light"), (Some(Theme::Dark), "Dark")];
        html! {
            nav.theme aria-label="Colours" {
                @for (theme, name) in themes {
                    @let word = theme.map_or("system", Theme::word);
                    a href={ "/theme?to=" (word) "&back=" (encoded(&self.visit.here)) }
                        aria-current=[(theme == self.visit.theme).then_some("true")] { (name) }
                }
            }
        }
    }
}

fn find() -> Markup {
    html! {
        form.find role="search" action="/locks" {
            label.unseen for="find" { "Find locks by words of the name or the note" }
            input #find type="search" name="q" placeholder="Find a lock" maxlength="512"
                autocomplete="off" autocapitalize="off" spellcheck="false";
            button.button { "Find" }
        }
    }
}

const PAGES: [(Tab, &str, &str); 4] = [
    (Tab::Overview, "/", "Overview"),
    (Tab::Locks, "/locks", "Locks"),
    (Tab::Waits, "/waits", "Waits"),
    (Tab::Doctor, "/doctor", "Doctor"),
];

/// Says since when the store is out of reach, and how old the picture is.
fn outage(overview: &Overview) -> Markup {
    let Some(outage) = &overview.outage else { return html! {} };
    let silent = Duration::from_millis(unix_ms_now().saturating_sub(outage.since_unix_ms));
    html! {
        div.notice.bad role="alert" {
            div {
                p {
                    strong { "The store is out of reach since " (moment(outage.since_unix_ms)) }
                    " (" time data-since=(outage.since_unix_ms) { (length(silent)) } ")."
                }
                p {
                    (visible(&outage.text)) ". "
                    @match overview.at_unix_ms {
                        Some(at) => {
                            "Below is the last known picture, of " (moment(at)) "; locks may have changed since."
                        },
                        None => { "Nothing is known of its locks yet." },
                    }
                }
            }
        }
    }
}

/// The notice that the script shows when this server does not answer.
fn cut() -> Markup {
    html! {
        div.notice.bad #cut role="alert" hidden {
            p {
                strong { "No connection to this console since " time {} "." }
                " The page shows the last known picture, and tries again by itself."
            }
        }
    }
}

fn mark() -> Markup {
    html! {
        svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true" {
            path d="M6 9V6a4 4 0 0 1 8 0v3" fill="none" stroke="currentColor" stroke-width="2" {}
            rect x="3" y="9" width="14" height="9" rx="2" fill="currentColor" {}
        }
    }
}
