//! The findings of an examination of the store.
//!
//! Ground rules: an examination takes and releases a lock of its own a few times, so it is a change. It is made
//! when a reader with the token asks for it, and by no look at the page. All readers see the last one.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use leasehold::{Client, Finding, Severity};
use leasehold_monitor::text::{unix_ms_now, visible};
use maud::{Markup, html};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Console;
use super::layout::{Live, Page, Tab};
use super::parts::empty;
use super::visit::Visit;
use super::words::{age, count, length};

/// The examinations of the store.
#[derive(Debug)]
pub(super) struct Doctor {
    client: Client,
    state: watch::Sender<Examination>,
}

/// The last examination, and whether one is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Examination {
    is_running: bool,
    report: Option<Arc<Report>>,
}

#[derive(Debug)]
struct Report {
    at_ms: u64,
    findings: Vec<Finding>,
}

impl Doctor {
    pub(super) fn new(client: Client) -> Doctor {
        Doctor { client, state: watch::Sender::default() }
    }

    /// Starts an examination unless one is under way, or the last one is younger than `least_age`.
    fn examine(&self, least_age: Duration) {
        let is_started = self.state.send_if_modified(|state| {
            let age = state.report.as_ref().map(|report| unix_ms_now().saturating_sub(report.at_ms));
            let is_due = age.is_none_or(|age| Duration::from_millis(age) >= least_age);
            let starts = is_due && !state.is_running;
            state.is_running |= starts;
            starts
        });
        if !is_started {
            return;
        }
        let (client, state) = (self.client.clone(), self.state.clone());
        // Not tied to the request: the next reader finds what this one has begun.
        tokio::spawn(async move {
            let findings = client.diagnose(TTL).await;
            let report = Some(Arc::new(Report { at_ms: unix_ms_now(), findings }));
            state.send_replace(Examination { is_running: false, report });
        });
    }

    /// Returns the findings, after a short wait if the first examination is under way.
    async fn findings(&self) -> Examination {
        let mut state = self.state.subscribe();
        let is_settled = |state: &Examination| state.report.is_some() || !state.is_running;
        let found = timeout(PATIENCE, state.wait_for(is_settled)).await;
        match found {
            Ok(Ok(state)) => state.clone(),
            _ => self.state.borrow().clone(),
        }
    }
}

/// `GET /doctor`
pub(super) async fn get(State(console): State<Arc<Console>>, visit: Visit) -> Response {
    let (overview, _) = console.watcher.picture().await;
    let examination = console.doctor.findings().await;
    let content = html! {
        div.head {
            h1 { "Doctor" }
            @if let Some(report) = &examination.report {
                span.aside {
                    @if examination.is_running { "an examination is under way; " }
                    "examined " (age(report.at_ms, unix_ms_now())) " ago"
                }
            }
        }
        @match &examination.report {
            Some(report) => { (findings(&report.findings)) },
            None if !examination.is_running => {
                section.panel aria-label="Findings" {
                    (empty("Not examined yet", "The findings are shown here to all readers once there are some."))
                }
            },
            None => {
                section.panel aria-label="Findings" {
                    (empty(
                        "The examination is under way",
                        "It takes a few cycles of a lock, or up to a minute if the store does not answer. Load this \
                         page again in a moment.",
                    ))
                }
            },
        }
        (examine(&visit, examination.report.is_some()))
    };
    let page = Page {
        visit: &visit,
        shown: console.shown(&overview),
        title: "Doctor".to_owned(),
        section: Tab::Doctor,
        live: Live::Not,
        news: String::new(),
        content,
    };
    page.respond()
}

/// `POST /doctor`
pub(super) async fn again(State(console): State<Arc<Console>>) -> Response {
    console.doctor.examine(AGAIN_AFTER);
    Redirect::to("/doctor").into_response()
}

fn findings(found: &[Finding]) -> Markup {
    let mut sorted: Vec<&Finding> = found.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let of = |severity| found.iter().filter(|finding| finding.severity == severity).count();
    let sum: Vec<String> = SEVERITIES
        .into_iter()
        .filter(|(severity, ..)| of(*severity) > 0)
        .map(|(severity, one, many)| count(of(severity), one, many))
        .collect();
    let worst = sorted.first().map_or(Severity::Unknown, |finding| finding.severity);
    let (tone, verdict) = match worst {
        Severity::Broken => ("bad", "Locks do not work as they should on this store"),
        Severity::Risk => ("warn", "A fault that is to be expected one day will break a promise"),
        _ => ("good", "This store serves locks well"),
    };
    html! {
        div.notice.(tone) { p { strong { (verdict) ". " } (sum.join(", ")) "." } }
        section.panel aria-labelledby="findings" {
            header {
                h2 #findings { "Findings" }
                span.muted {
                    "for locks with a ttl of " (length(TTL)) "; for another one run leasehold doctor --ttl"
                }
            }
            ul.findings {
                @for finding in sorted {
                    li {
                        span { (severity(finding.severity)) }
                        h3 { (finding.topic) }
                        div {
                            p { (visible(&finding.found)) }
                            @if !finding.meaning.is_empty() { p.muted { (visible(&finding.meaning)) } }
                            @if !finding.advice.is_empty() {
                                p.advice { strong { "Do: " } (visible(&finding.advice)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn severity(severity: Severity) -> Markup {
    let tone = match severity {
        Severity::Good => "good",
        Severity::Broken => "bad",
        Severity::Risk | Severity::Unknown => "warn",
        _ => "",
    };
    html! { span.tag.(tone) { (severity.word()) } }
}

/// Offers an examination to readers who may ask for one.
fn examine(visit: &Visit, is_again: bool) -> Markup {
    html! {
        div.row {
            p.muted.small {
                "An examination acquires and releases the lock " code { "leasehold-doctor" }
                " a few times, and changes nothing else. It needs the token of the server."
            }
            @if visit.has_token {
                form method="post" action="/doctor" {
                    button.button { @if is_again { "Examine again now" } @else { "Examine now" } }
                }
            } @else {
                a.button href="/login?back=%2Fdoctor" { "Sign in to examine" }
            }
        }
    }
}

/// Worst first, as they are summed up.
const SEVERITIES: [(Severity, &str, &str); 5] = [
    (Severity::Broken, "broken", "broken"),
    (Severity::Risk, "risk", "risks"),
    (Severity::Unknown, "unknown", "unknown"),
    (Severity::Notice, "notice", "notices"),
    (Severity::Good, "good", "good"),
];
/// The ttl that is examined: the one that locks have by default.
const TTL: Duration = Duration::from_secs(30);
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The longest time for which a page waits for the first findings.
const PATIENCE: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_finding_is_first_and_gives_the_verdict() {
        let found = [
            Finding::new("a", Severity::Good, "well"),
            Finding::new("b", Severity::Risk, "<b>bad</b>").meaning("hurts").advice("mend it"),
        ];
        let page = findings(&found).into_string();
        assert!(page.find("<h3>b<").unwrap() < page.find("<h3>a<").unwrap());
        assert!(page.contains("notice warn") && page.contains("1 risk, 1 good."), "{page}");
        assert!(page.contains("&lt;b&gt;bad") && page.contains("mend it"));
    }

    #[tokio::test]
    async fn readers_share_an_examination() {
        let doctor = Doctor::new(Client::open("mem:").await.unwrap());
        assert!(doctor.findings().await.report.is_none(), "a look examines nothing");
        doctor.examine(AGAIN_AFTER);
        let first = doctor.findings().await.report.unwrap();
        doctor.examine(AGAIN_AFTER);
        let second = doctor.findings().await.report.unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        doctor.examine(Duration::ZERO);
        let mut state = doctor.state.subscribe();
        let done = state.wait_for(|state| !state.is_running).await.unwrap().report.clone().unwrap();
        assert!(!Arc::ptr_eq(&first, &done));
    }
}
