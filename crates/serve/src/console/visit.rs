//! The reader of one request: the theme, the page to return to, and the rights.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};

use super::paths::own;
use crate::guard::Access;

/// The reader of one page.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    /// The theme that the reader has chosen; `None` for that of the system.
    pub(super) theme: Option<Theme>,
    /// The path and the query of the page, for links back to it.
    pub(super) here: String,
    /// `true` if the reader has signed in.
    pub(super) has_token: bool,
}

/// A choice of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    Light,
    Dark,
}

impl Theme {
    pub(super) fn word(self) -> &'static str {
        match self {
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }

    pub(super) fn named(word: &str) -> Option<Theme> {
        [Theme::Light, Theme::Dark].into_iter().find(|theme| theme.word() == word)
    }
}

impl Visit {
    pub(super) fn of(parts: &Parts) -> Visit {
        let here = parts.uri.path_and_query().map(|path| path.as_str()).and_then(own);
        let theme = cookie(&parts.headers, THEME).and_then(Theme::named);
        let has_token = parts.extensions.get::<Access>().is_some_and(|access| access.has_token);
        Visit { theme, here: here.unwrap_or("/").to_owned(), has_token }
    }
}

impl<S: Sync> FromRequestParts<S> for Visit {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Visit, Infallible> {
        Ok(Visit::of(parts))
    }
}

/// Returns the value of a cookie.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let sent = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = sent.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// The cookie that keeps the theme.
pub(super) const THEME: &str = "leasehold_theme";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn theme_comes_from_its_cookie_alone() {
        let theme = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, text.parse().unwrap());
            cookie(&headers, THEME).and_then(Theme::named)
        };
        assert_eq!(theme("leasehold_theme=dark"), Some(Theme::Dark));
        assert_eq!(theme("a=b; leasehold_theme=light; c=d"), Some(Theme::Light));
        assert_eq!(theme("not_leasehold_theme=dark"), None);
        assert_eq!(theme("leasehold_theme=\"><script>"), None);
    }
}
