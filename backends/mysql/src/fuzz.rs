//! A fuzz target: URLs.

use leasehold_fuzz::{Target, kind_of_url};

use crate::MySqlConfig;

#[test]
fn url() {
    let seeds =
        ["mysql://u:s3cretword@a:1/db?table=x&timeout=3s", "mysql:///db?socket=/run/s&method=get-lock"];
    let words =
        ["&method=", "advisory", "for-update", "dialect=shedlock", "?password-file=", "@", "%2", "table="];
    Target::new("url", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&words).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
        kind_of_url(text, MySqlConfig::parse(text), |error| format!("{:?}", error.kind))
    });
}
