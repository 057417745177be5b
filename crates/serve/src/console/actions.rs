//! The actions of an operator on a lock: ask its holders to release it, or take it away.
//!
//! Ground rules: without `--allow-actions` there is nothing here. A page says first what will happen and to
//! whom, and the form on it names the claims that were shown: a holder that came after the look keeps the
//! lock. The guard has checked the token and the origin of every change before it comes here.

use std::sync::Arc;

use axum::extract::{Form, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use leasehold::{ClaimInfo, Client, Resource, Snapshot};
use leasehold_monitor::actions::{
    Broken, CONSEQUENCES_OF_REVOKE, break_claims as end_claims, consequences_of_break, reason_of_revoke,
};
use leasehold_monitor::text::{unix_ms_now, visible};
use maud::{Markup, html};

use super::Console;
use super::layout::{Live, Page, Tab};
use super::lock::Named;
use super::parts::{empty, lease, lock_link, who};
use super::paths;
use super::refusal;
use super::visit::Visit;
use super::words::{age, count, moment};

/// The fields of a form: a claim for each one that was shown or chosen, and for a revocation the reason.
type Fields = Vec<(String, String)>;

/// `GET /lock/revoke`
pub(super) async fn ask_revoke(
    State(console): State<Arc<Console>>,
    Query(named): Query<Named>,
    visit: Visit,
) -> Response {
    let snapshot = match console.asked(&visit, &named, "revoke").await {
        Ok(snapshot) => snapshot,
        Err(refused) => return refused,
    };
    let name = snapshot.resource.as_str();
    let content = html! {
        div.head { h1 { "Ask to release " span.name { (visible(name)) } "?" } }
        @if snapshot.holders.is_empty() { (nobody(name)) } @else {
            section.panel aria-label="Holders" { (claims(&snapshot.holders, Choice::All)) }
            section.panel.narrow aria-labelledby="what" {
                header { h2 #what { "What will happen" } }
                div.pad.form {
                    p {
                        (one_line(CONSEQUENCES_OF_REVOKE))
                        " The request is for the holders above, not for later ones. " (HANDED_OVER)
                    }
                    form.form method="post" action=(paths::action(name, "revoke")) {
                        @for holder in &snapshot.holders {
                            input type="hidden" name="claim" value=(holder.id.tag());
                        }
                        div.field {
                            label for="reason" { "The reason, which the holder sees" }
                            input #reason type="text" name="reason" maxlength="256" required
                                value="an operator needs this lock" aria-describedby="reason-hint";
                            span.hint #reason-hint {
                                "Up to 256 bytes: 256 plain letters, or 64 characters of any kind"
                            }
                        }
                        div.buttons {
                            button.button.first { "Ask to release" }
                            a.button href=(paths::lock(name)) { "Cancel" }
                        }
                    }
                }
            }
        }
    };
    console.action_page(&visit, "Ask to release", content).await
}

/// `POST /lock/revoke`
pub(super) async fn revoke(
    State(console): State<Arc<Console>>,
    Query(named): Query<Named>,
    visit: Visit,
    Form(fields): Form<Fields>,
) -> Response {
    if let Some(refused) = console.refusal(&visit) {
        return refused;
    }
    let (client, name) = (&console.state.client, &named.name);
    let reason = fields.iter().find(|(key, _)| key == "reason").map_or("", |(_, text)| text.trim());
    let reason = reason_of_revoke(reason);
    let asked = match still_holding(client, name, &fields).await {
        Ok(shown) => client.revoke_claims(name, &shown, reason).await,
        Err(error) => Err(error),
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => {
            return refusal::page(&visit, status_of(&error), "Nobody was asked", &error.to_string());
        }
    };
    tracing::info!(lock = named.name, asked = asked.len(), "an operator asked for a release");
    console.watcher.refresh();
    let content = html! {
        div.head { h1 { @if asked.is_empty() { "Nobody was asked" } @else { "Asked to release" } } }
        @if asked.is_empty() {
            div.notice { p {
                "The holders that were shown hold " (lock_link(name))
                " no more. A holder that came later was not asked."
            } }
        } @else {
            div.notice.good { p {
                strong { (count(asked.len(), "holder", "holders")) " of " (visible(name)) " asked. " }
                "A program that listens releases the lock by itself. If it still holds after a while, it does \
                 not listen."
            } }
            section.panel aria-label="Holders that were asked" { (claims(&asked, Choice::None)) }
        }
        div.buttons { a.button.first href=(paths::lock(name)) { "Back to the lock" } }
    };
    console.action_page(&visit, "Asked to release", content).await
}

/// `GET /lock/break`
pub(super) async fn ask_break(
    State(console): State<Arc<Console>>,
    Query(named): Query<Named>,
    visit: Visit,
) -> Response {
    let snapshot = match console.asked(&visit, &named, "break").await {
        Ok(snapshot) => snapshot,
        Err(refused) => return refused,
    };
    let name = snapshot.resource.as_str();
    let (next, waiting) = (snapshot.waiting.first(), snapshot.waiting.len());
    let consequences = consequences_of_break(console.state.client.profile());
    let content = html! {
        div.head { h1 { "Take " span.name { (visible(name)) } " away?" } }
        @if snapshot.holders.is_empty() { (nobody(name)) } @else {
            form.stack method="post" action=(paths::action(name, "break")) {
                section.panel aria-label="Holders" { (claims(&snapshot.holders, Choice::Some)) }
                section.panel.narrow aria-labelledby="what" {
                    header { h2 #what { "What will happen" } }
                    div.pad.form {
                        ul.form {
                            li {
                                strong { "The store ends the claims that are chosen above, " }
                                "and no others: a holder that came after this page was loaded keeps the lock. "
                                (HANDED_OVER)
                            }
                            li { strong { "What the holder sees. " } (one_line(consequences)) }
                            li { strong { "Then. " }
                                @match next {
                                    Some(next) => {
                                        "The lock goes to the first of " (count(waiting, "waiter", "waiters"))
                                        ": " (who(next)) "."
                                    },
                                    None => { "The lock is free, since nobody waits." },
                                }
                            }
                        }
                        div.buttons {
                            button.button.hurts.first { "Take the lock away" }
                            a.button href=(paths::lock(name)) { "Cancel" }
                        }
                    }
                }
            }
        }
    };
    console.action_page(&visit, "Take away", content).await
}

/// `POST /lock/break`
pub(super) async fn break_claims(
    State(console): State<Arc<Console>>,
    Query(named): Query<Named>,
    visit: Visit,
    Form(fields): Form<Fields>,
) -> Response {
    if let Some(refused) = console.refusal(&visit) {
        return refused;
    }
    let to_end = match still_holding(&console.state.client, &named.name, &fields).await {
        Ok(to_end) => to_end,
        Err(error) => {
            return refusal::page(&visit, status_of(&error), "Nothing was taken away", &error.to_string());
        }
    };
    let broken = end_claims(&console.state.client, &named.name, &to_end).await;
    tracing::info!(lock = named.name, broken = broken.claims.len(), "an operator broke claims");
    console.watcher.refresh();
    console.action_page(&visit, "Taken away", outcome(&named.name, &broken)).await
}

/// Returns the claims of a form that still hold the lock.
///
/// # Errors
/// Of the store.
async fn still_holding(client: &Client, name: &str, fields: &Fields) -> leasehold::Result<Vec<ClaimInfo>> {
    let mut holders = client.inspect(name).await?.holders;
    holders.retain(|holder| {
        let tag = holder.id.tag();
        fields.iter().any(|(key, value)| key == "claim" && *value == tag)
    });
    Ok(holders)
}

/// Says what was broken, what ended with it, and what failed.
fn outcome(name: &str, broken: &Broken) -> Markup {
    html! {
        div.head { h1 { @if broken.claims.is_empty() { "Nothing was taken away" } @else { "Taken away" } } }
        @if let Some(error) = &broken.failure {
            div.notice.bad role="alert" { p {
                strong { "The store failed after " (count(broken.claims.len(), "claim", "claims")) ". " }
                (visible(&error.to_string()))
            } }
        }
        @if broken.claims.is_empty() && broken.failure.is_none() {
            div.notice { p {
                "The claims that were chosen hold " (lock_link(name))
                " no more: they were released in the meantime, or none was chosen."
            } }
        }
        @if !broken.claims.is_empty() {
            div.notice.good { p {
                strong { (count(broken.claims.len(), "claim", "claims")) " of " (visible(name)) " ended. " }
                "A holder that still runs notices it at its next renewal."
            } }
            section.panel aria-label="Claims that were ended" { (claims(&broken.claims, Choice::None)) }
        }
        @if !broken.also_released.is_empty() {
            div.notice.warn { div {
                p { strong { "Other locks ended with the same connection:" } }
                ul { @for other in &broken.also_released { li { (lock_link(other.as_str())) } } }
            } }
        }
        div.buttons { a.button.first href=(paths::lock(name)) { "Back to the lock" } }
    }
}

impl Console {
    /// Returns the lock that an action is asked for.
    ///
    /// # Errors
    /// The page to show instead: actions are not allowed, the reader has to sign in, or the store fails.
    async fn asked(&self, visit: &Visit, named: &Named, action: &str) -> Result<Snapshot, Response> {
        if let Some(refused) = self.refusal(visit) {
            return Err(refused);
        }
        let failed = |status, text: String| refusal::page(visit, status, "This lock cannot be shown", &text);
        if let Err(error) = Resource::new(&named.name) {
            return Err(failed(StatusCode::BAD_REQUEST, error.to_string()));
        }
        tracing::debug!(lock = named.name, action, "an operator considers an action");
        self.state
            .client
            .inspect(&named.name)
            .await
            .map_err(|error| failed(status_of(&error), error.to_string()))
    }

    /// Returns the page to show instead, if the reader may not act.
    fn refusal(&self, visit: &Visit) -> Option<Response> {
        if !self.state.config.allow_actions {
            let text = "This server runs without --allow-actions. Its operator can start it with that option; \
                        the command leasehold does the same with the credentials of the store.";
            return Some(refusal::page(visit, StatusCode::FORBIDDEN, "This console is read-only", text));
        }
        if !visit.has_token {
            return Some(
                Redirect::to(&format!("/login?back={}", paths::encoded(&visit.here))).into_response(),
            );
        }
        None
    }

    async fn action_page(&self, visit: &Visit, title: &str, content: Markup) -> Response {
        let (overview, _) = self.watcher.picture().await;
        let page = Page {
            visit,
            shown: self.shown(&overview),
            title: title.to_owned(),
            section: Tab::Locks,
            live: Live::Not,
            news: String::new(),
            content,
        };
        page.respond()
    }
}

/// Which of the listed claims can be chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// Each.
    Some,
    /// All together.
    All,
    /// None any more.
    None,
}

fn claims(claims: &[ClaimInfo], choice: Choice) -> Markup {
    let now = unix_ms_now();
    html! {
        table.cards {
            caption.unseen { "The claims in question" }
            thead { tr {
                @if choice == Choice::Some { th.fit scope="col" { "End it" } }
                th scope="col" { "Holder" } th scope="col" { "Share" } th scope="col" { "Since" }
                @if choice != Choice::None { th scope="col" { "Lease left" } }
            } }
            tbody {
                @for claim in claims {
                    @let tag = claim.id.tag();
                    tr {
                        @if choice == Choice::Some {
                            td.fit { label {
                                input type="checkbox" name="claim" value=(tag) checked;
                                span.unseen { "End the claim of " (who(claim)) }
                            } }
                        }
                        th scope="row" { div.note { (who(claim)) } div.muted.small { "tag " code { (tag) } } }
                        td data-label="Share" { (claim.share) }
                        td.fit data-label="Since" { @if let Some(since) = claim.since_unix_ms {
                            (age(since, now)) " ago" div.muted.small { (moment(since)) }
                        } }
                        @if choice != Choice::None {
                            td.fit data-label="Lease left" { (lease(claim.remaining, None, now)) }
                        }
                    }
                }
            }
        }
    }
}

fn nobody(name: &str) -> Markup {
    html! {
        section.panel aria-label="Holders" { (empty("Nobody holds this lock", "There is nothing to do.")) }
        div.buttons { a.button.first href=(paths::lock(name)) { "Back to the lock" } }
    }
}

/// The exception to what the pages say of later holders.
const HANDED_OVER: &str = "A claim that its holder hands over meanwhile, by a transfer or within its own program, \
                           stays the same claim.";

/// Returns the status of a page about a store that did not do what was asked: the name may be none of a lock.
fn status_of(error: &leasehold::Error) -> StatusCode {
    match error.kind() {
        leasehold::ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        _ => StatusCode::BAD_GATEWAY,
    }
}

/// Returns a text that was broken into lines for a terminal as one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
