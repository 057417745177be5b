//! Refusals as pages: what the API says as an object, a person at a browser reads as a page.

use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use leasehold_monitor::text::visible;
use maud::html;

use super::layout::{Live, Page, Tab};
use super::paths::encoded;
use super::visit::Visit;
use crate::guard::is_page;
use crate::problem::{Code, Problem};

/// Turns a problem into a page if a browser asked for one. Who lacks the token is asked for it.
pub(crate) async fn as_page(request: Request, next: Next) -> Response {
    let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let wants_page = accept.is_some_and(|accept| accept.contains("text/html"));
    if !wants_page || !is_page(request.uri().path()) {
        return next.run(request).await;
    }
    let reads = request.method() == Method::GET;
    let (parts, body) = request.into_parts();
    let visit = Visit::of(&parts);
    let mut response = next.run(Request::from_parts(parts, body)).await;
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let mut drawn = match problem.code {
        Code::TokenRequired if reads => {
            Redirect::to(&format!("/login?back={}", encoded(&visit.here))).into_response()
        }
        code => page(&visit, response.status(), code.parts().2, &problem.detail),
    };
    // The guard has set the headers that protect every answer. Those of the object do not describe a page or a redirect.
    let of_object = [header::CONTENT_LENGTH, header::CONTENT_TYPE];
    for (name, value) in response.headers() {
        if !drawn.headers().contains_key(name) && !of_object.contains(name) {
            drawn.headers_mut().insert(name.clone(), value.clone());
        }
    }
    drawn.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    drawn
}

/// Returns a page that says why something is not shown or not done.
pub(super) fn page(visit: &Visit, status: StatusCode, title: &str, text: &str) -> Response {
    let content = html! {
        div.head { h1 { (title) } }
        div.notice.bad { p { (visible(text)) } }
        div.buttons { a.button.first href="/" { "Go to the overview" } }
    };
    let page = Page {
        visit,
        shown: None,
        title: title.to_owned(),
        section: Tab::None,
        live: Live::Not,
        news: String::new(),
        content,
    };
    page.respond_with(status)
}
