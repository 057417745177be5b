//! Fuzz targets: URLs, and the calls that any client of the database may send.

use leasehold_backend::cell::Call;
use leasehold_core::Resource;
use leasehold_fuzz::{Target, kind_of_url};

use crate::PostgresConfig;
use crate::wait::calls::{decode_call, encode_call};

#[test]
fn url() {
    let seeds = [
        "postgres://u:s3cretword@a:1/db?table=x&timeout=3s",
        "postgres:///db?host=/run&port=7&sslmode=verify-full",
    ];
    let words =
        ["&method=", "advisory", "for-update", "dialect=shedlock", "?password-file=", "@", "%2", "table="];
    Target::new("url", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&words).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
        kind_of_url(text, PostgresConfig::parse(text), |error| format!("{:?}", error.kind))
    });
}

#[test]
fn calls() {
    let at = Resource::new("a b* é").unwrap();
    let these = Call::These(vec![0, 7, u32::MAX]);
    let calls = [Call::All, Call::Freed, these, Call::Answered(9, vec![]), Call::Answered(0, vec![7, 8])];
    let words = ["+", "-", "*", " ", "0000000a", "0000000A", "+000000a", "7", "\u{80}", "\0"];
    let seeds = calls.map(|call| encode_call(&at, &call));
    Target::new("calls", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&words).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
        let Some((resource, call)) = decode_call(text) else { return "refused".to_owned() };
        assert_eq!(encode_call(&resource, &call), text, "written otherwise than it was read");
        match call {
            Call::None => unreachable!("nothing is sent then"),
            Call::All => "all".to_owned(),
            Call::Freed => "freed".to_owned(),
            Call::These(called) => format!("{} called", called.len().min(4)),
            Call::Answered(_, called) => format!("one answered, {} called", called.len().min(4)),
        }
    });
}
