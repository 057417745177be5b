//! Pieces that several pages have: links to locks, claims, leases, reasons, empty states.

use std::time::Duration;

use leasehold::ClaimInfo;
use leasehold_monitor::text::visible;
use maud::{Markup, html};

use super::attention::{NOT_RENEWED, Reason, Weight};
use super::paths;
use super::words::{clipped, count, length};

/// Returns a link to the page of a lock.
pub(super) fn lock_link(name: &str) -> Markup {
    html! { a.name href=(paths::lock(name)) { (visible(name)) } }
}

/// Returns who a claim is: its note, or a part of its public name.
pub(super) fn who(claim: &ClaimInfo) -> String {
    match claim.note.as_str() {
        "" => format!("no note, tag {}", &claim.id.tag()[..8]),
        note => visible(note),
    }
}

/// Returns the same, short enough for a cell.
pub(super) fn who_short(claim: &ClaimInfo) -> String {
    clipped(&who(claim), 72)
}

/// Returns the time that a lease has left, and a bar if the whole is known.
pub(super) fn lease(remaining: Option<Duration>, part: Option<f64>, now_ms: u64) -> Markup {
    let Some(remaining) = remaining else {
        return html! { span.muted title="A session keeps it: a process or a connection" { "session" } };
    };
    let until = now_ms.saturating_add(u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX));
    let tone = match part {
        Some(part) if part < NOT_RENEWED / 2.0 => "bad",
        Some(part) if part < NOT_RENEWED => "warn",
        _ => "",
    };
    html! {
        span.left.(tone) {
            span data-until=(until) { (length(remaining)) }
            @if let Some(part) = part {
                svg height="4" aria-hidden="true" {
                    rect.track width="100%" height="4" rx="2" {}
                    rect.fill width=(format!("{:.1}%", part.clamp(0.0, 1.0) * 100.0)) height="4" rx="2" {}
                }
            }
        }
    }
}

/// Returns a reason as a short label.
pub(super) fn reason(reason: Reason) -> Markup {
    let tone = match reason.weight() {
        Weight::Bad => "bad",
        Weight::Warn => "warn",
    };
    let text = match reason {
        Reason::Deadlocked => "deadlock".to_owned(),
        Reason::NotRenewed => "lease not renewed".to_owned(),
        Reason::LongWait(waited) => format!("waits {}", length(waited)),
        Reason::LongQueue(waiting) => format!("queue of {waiting}"),
        Reason::NobodyHolds => "free, but waited for".to_owned(),
    };
    html! { span.tag.(tone) { (text) } }
}

/// Returns a number of waiters; zero is less prominent.
pub(super) fn waiters(waiting: u32) -> Markup {
    html! { @if waiting == 0 { span.none { "0" } } @else { (waiting) } }
}

/// Returns the state of a lock as a short label.
pub(super) fn held(holders: usize) -> Markup {
    match holders {
        0 => html! { span.tag.good { "free" } },
        1 => html! { span.tag.accent { "held" } },
        many => html! { span.tag.accent { (count(many, "holder", "holders")) } },
    }
}

/// Returns what is shown in the place of rows that do not exist.
pub(super) fn empty(title: &str, text: &str) -> Markup {
    html! { div.empty { strong { (title) } p { (text) } } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::backend::ClaimId;
    use leasehold::{Note, Share};

    #[test]
    fn script_in_a_name_or_a_note_stays_text() {
        let link = lock_link("<script>alert(1)</script>").into_string();
        assert!(link.contains("&lt;script&gt;") && !link.contains("<script"), "{link}");
        let claim = ClaimInfo::new(ClaimId::from_bytes([1; 16]), Share::MUTEX);
        let note = Note::new("\"><img src=x onerror=alert(1)>\u{202e}").unwrap();
        let page = html! { td title=(who(&claim.clone().note(note.clone()))) { (who(&claim.note(note))) } };
        let page = page.into_string();
        assert!(!page.contains("<img") && !page.contains('\u{202e}'), "{page}");
    }

    #[test]
    fn lease_that_ends_soon_has_another_colour() {
        let draw = |part| lease(Some(Duration::from_secs(5)), Some(part), 0).into_string();
        assert!(draw(0.9).contains("class=\"left \"") && draw(0.3).contains("left warn"));
        assert!(draw(0.1).contains("left bad") && draw(0.1).contains("width=\"10.0%\""));
        assert!(lease(None, None, 0).into_string().contains("session"));
    }
}
