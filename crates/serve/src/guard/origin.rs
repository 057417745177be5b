//! `Host` and `Origin`: a page of another web site can neither read from this server nor change anything.
//!
//! Ground rules: an address cannot be rebound to another machine, so a host that is an address is accepted.
//! A name is accepted only if it is `localhost`, or was allowed.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};

use crate::problem::{Code, Problem};

/// The names under which the server may be called.
#[derive(Debug)]
pub(super) struct Hosts(Vec<String>);

/// The name and port under which a request called the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site(String);

impl Hosts {
    pub(super) fn new(allowed: &[String]) -> Hosts {
        Hosts(allowed.iter().map(|host| host.trim_end_matches('.').to_ascii_lowercase()).collect())
    }

    /// Returns the name under which this request called the server.
    ///
    /// # Errors
    /// `host_refused` for a name that is not allowed, for none and for several.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<Site, Problem> {
        let mut named = headers.get_all(HOST).iter();
        let (first, second) = (named.next().and_then(|host| host.to_str().ok()), named.next());
        let host = match (uri.authority(), first, second) {
            (_, _, Some(_)) => None,
            // A request in the form for proxies names it twice; both have to be the same.
            (Some(authority), Some(host), None) if authority.as_str().eq_ignore_ascii_case(host) => {
                Some(host)
            }
            (Some(_), _, None) => None,
            (None, host, None) => host,
        };
        let host = host.map(str::to_ascii_lowercase).unwrap_or_default();
        if self.allows(name_of(&host)) {
            return Ok(Site(host));
        }
        let shown: String = host.chars().take(80).collect();
        let text = format!(
            "the server is not called {shown:?}: use its address or localhost, or start it with --allow-host NAME"
        );
        Err(Problem::new(Code::HostRefused, text))
    }

    fn allows(&self, name: &str) -> bool {
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        let name = name.trim_end_matches('.');
        name == "localhost" || bare.parse::<IpAddr>().is_ok() || self.0.iter().any(|allowed| allowed == name)
    }
}

/// Returns a host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

/// Refuses what a page of another site sends.
///
/// # Errors
/// `origin_refused`.
pub(super) fn check(site: &Site, headers: &HeaderMap, is_change: bool, is_tls: bool) -> Result<(), Problem> {
    let refused = |what: &str| {
        let text = format!("{what}: a page of another web site may not use this server");
        Err(Problem::new(Code::OriginRefused, text))
    };
    for origin in headers.get_all(ORIGIN) {
        let scheme = if is_tls { "https" } else { "http" };
        // Behind a proxy that ends TLS, the page came over https although this connection is plain.
        let expected = [format!("{scheme}://{}", site.0), format!("https://{}", site.0)];
        let sent = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        if !expected.contains(&sent) {
            return refused("the Origin header names another site");
        }
    }
    // A browser says so even where it sends no Origin. A link from elsewhere may open a page, and no more.
    let fetch = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_foreign = matches!(fetch("sec-fetch-site"), Some("cross-site" | "same-site"));
    if is_foreign && (is_change || fetch("sec-fetch-mode") != Some("navigate")) {
        return refused("the Sec-Fetch-Site header says so");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn only_addresses_localhost_and_allowed_names_are_hosts() {
        let hosts = Hosts::new(&["locks.example.com".to_owned()]);
        let passes =
            |host: &'static str| hosts.check(&Uri::from_static("/"), &headers(&[("host", host)])).is_ok();
        for good in [
            "127.0.0.1:7878",
            "localhost",
            "LOCALHOST:1",
            "[::1]:7878",
            "[::1]",
            "10.1.2.3",
            "locks.example.com:443",
            "locks.example.com.",
        ] {
            assert!(passes(good), "{good}");
        }
        for bad in [
            "evil.example",
            "127.0.0.1.evil.example:7878",
            "localhost.evil.example",
            "",
            "evil.example:127.0.0.1",
            "xlocks.example.com",
            "::1::",
        ] {
            assert!(!passes(bad), "{bad}");
        }
        let two = headers(&[("host", "localhost"), ("host", "evil.example")]);
        assert!(hosts.check(&Uri::from_static("/"), &two).is_err());
        assert!(hosts.check(&Uri::from_static("/"), &headers(&[])).is_err());
        let split = headers(&[("host", "localhost")]);
        assert!(hosts.check(&Uri::from_static("http://evil.example/"), &split).is_err());
    }

    #[test]
    fn page_of_another_site_is_refused() {
        let site = Site("localhost:7878".to_owned());
        let passes = |pairs: &[(&'static str, &'static str)], is_change| {
            check(&site, &headers(pairs), is_change, false).is_ok()
        };
        assert!(passes(&[], true));
        assert!(passes(&[("origin", "http://localhost:7878")], true));
        for origin in
            ["http://evil.example", "null", "http://localhost:1", "http://localhost:7878.evil.example"]
        {
            assert!(
                !passes(&[("origin", origin)], true) && !passes(&[("origin", origin)], false),
                "{origin}"
            );
        }
        let cross = ("sec-fetch-site", "cross-site");
        assert!(passes(&[cross, ("sec-fetch-mode", "navigate")], false));
        assert!(!passes(&[cross, ("sec-fetch-mode", "navigate")], true));
        assert!(!passes(&[cross, ("sec-fetch-mode", "no-cors")], false));
    }
}
