//! A fuzz target: URLs.

use leasehold_fuzz::Target;

use crate::SqliteConfig;

#[test]
fn url() {
    let seeds = ["sqlite:/a/b.db?table=x", "sqlite:///a/b?timeout=3s"];
    let words =
        ["&method=", "advisory", "for-update", "dialect=shedlock", "?password-file=", "@", "%2", "table="];
    Target::new("url", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&words).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
        match SqliteConfig::parse(text) {
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
