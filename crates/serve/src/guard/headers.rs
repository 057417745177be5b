//! The headers that every response carries.

use axum::http::HeaderMap;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};

/// Adds them. A handler may have set a policy or a time to cache of its own.
pub(super) fn add(path: &str, headers: &mut HeaderMap) {
    let policy = if path.starts_with("/v1/") { FOR_DATA } else { FOR_PAGES };
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, policy),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        // With `no-referrer` browsers hide the origin of a form of our own as well.
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "interest-cohort=()"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// Pages load what the binary holds, and nothing else. There is no inline script and no inline style, and no
/// script turns text into markup.
const FOR_PAGES: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                         connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                         require-trusted-types-for 'script'; trusted-types 'none'";
/// Data is not a page, even if somebody opens it as one.
const FOR_DATA: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";
