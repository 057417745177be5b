//! A fuzz target: URLs.

use leasehold_fuzz::Target;

use crate::PostgresConfig;

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
        match PostgresConfig::parse(text) {
            Ok(_) => "valid".to_owned(),
            Err(error) => {
                let is_password = text.contains(":s3cretword@") && text.matches("s3cretword").count() == 1;
                let kept = is_password && error.to_string().contains("s3cretword");
                assert!(!kept, "an error repeats a password: {error}");
                format!("{:?}", error.kind)
            }
        }
    });
}
