//! Signing in with the token of the server, and the choice of colours.
//!
//! Ground rules: the token is sent once, in the body of a request. The browser then keeps a proof of it,
//! which no script can read, no other site can use, and which ends after half a day.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use leasehold_monitor::text::unix_ms_now;
use maud::{Markup, html};
use serde::Deserialize;

use super::Console;
use super::layout::{Live, Page, Tab};
use super::paths::own;
use super::visit::{THEME, Theme, Visit};
use crate::guard::{COOKIE, Peer};
use crate::token::COOKIE_LASTS;

/// The query of the login: the page to return to.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Back {
    back: String,
}

/// The form of the login. It has no `Debug`: the token must not get into a log.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct LoginForm {
    token: String,
    back: String,
}

/// The choice of colours.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ThemeChoice {
    to: String,
    back: String,
}

/// `GET /login`
pub(super) async fn get(Query(Back { back }): Query<Back>, visit: Visit) -> Response {
    page(&visit, &back, None).respond()
}

/// `POST /login`
pub(super) async fn post(
    State(console): State<Arc<Console>>,
    peer: Option<Extension<Peer>>,
    visit: Visit,
    Form(form): Form<LoginForm>,
) -> Response {
    if !console.state.token.matches(form.token.trim()) {
        return page(&visit, &form.back, Some("This is not the token."))
            .respond_with(StatusCode::UNAUTHORIZED);
    }
    let secure = if peer.is_some_and(|Extension(peer)| peer.is_tls) { "; Secure" } else { "" };
    let proof = console.state.token.cookie(unix_ms_now() / 1000);
    let lasts = COOKIE_LASTS.as_secs();
    let cookie = format!("{COOKIE}={proof}; Path=/; HttpOnly; SameSite=Strict; Max-Age={lasts}{secure}");
    returning(&form.back, &cookie)
}

/// `POST /logout`
pub(super) async fn out() -> Response {
    returning("/", &format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"))
}

/// `GET /theme`: it changes nothing but the colours of this browser, so it is a plain link.
pub(super) async fn theme(Query(choice): Query<ThemeChoice>) -> Response {
    let (word, lasts) = Theme::named(&choice.to).map_or(("", 0), |theme| (theme.word(), 31_536_000));
    returning(&choice.back, &format!("{THEME}={word}; Path=/; HttpOnly; SameSite=Strict; Max-Age={lasts}"))
}

/// Returns to a page of this server, with a cookie.
fn returning(back: &str, cookie: &str) -> Response {
    let mut response = Redirect::to(own(back).unwrap_or("/")).into_response();
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

fn page<'a>(visit: &'a Visit, back: &str, wrong: Option<&str>) -> Page<'a> {
    Page {
        visit,
        shown: None,
        title: "Sign in".to_owned(),
        section: Tab::None,
        live: Live::Not,
        news: String::new(),
        content: form(back, wrong),
    }
}

fn form(back: &str, wrong: Option<&str>) -> Markup {
    html! {
        div.head { h1 { "Sign in" } }
        section.panel.narrow aria-label="Sign in" {
            form.pad.form method="post" action="/login" {
                p { "Changes need the token of this server, and so does every page that is read from another \
                    machine. The server prints the path of its token file when it starts." }
                input type="hidden" name="back" value=(back);
                div.field {
                    label for="token" { "Token" }
                    input #token type="password" name="token" required autofocus maxlength="256"
                        autocomplete="current-password" aria-invalid=[wrong.map(|_| "true")]
                        aria-describedby=[wrong.map(|_| "wrong")];
                    @if let Some(wrong) = wrong { span.wrong #wrong role="alert" { (wrong) } }
                }
                div.buttons { button.button.first { "Sign in" } a.button href="/" { "Cancel" } }
            }
        }
    }
}
