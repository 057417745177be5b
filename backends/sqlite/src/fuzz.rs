//! A fuzz target: URLs.

use leasehold_fuzz::{Target, kind_of_url};

use crate::SqliteConfig;

#[test]
fn url() {
    let seeds = ["sqlite:/a/b.db?table=x", "sqlite:///a/b?timeout=3s"];
    let words =
        ["&method=", "advisory", "for-update", "dialect=shedlock", "?password-file=", "@", "%2", "table="];
    Target::new("url", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&words).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
        kind_of_url(text, SqliteConfig::parse(text), |error| format!("{:?}", error.kind))
    });
}
