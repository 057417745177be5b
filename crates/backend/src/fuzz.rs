//! Fuzz targets: URLs, and the cells that other clients write.

use leasehold_fuzz::Target;

use crate::url::{Parts, meant, reveal};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn parts() {
    let seeds = ["x://u:s3cretword@a:1,[::1]:2/path?a=1&b=%20", "x://:s3cretword@h?timeout=3s", "x://h/"];
    Target::new("parts", HERE).seeds(seeds).words(&["://", "@", "?", "&", "%", "[", "]"]).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text" };
        match Parts::split(text, "x://HOST") {
            Ok(parts) => {
                // The password is kept from what is printed, and read back whole.
                let shown = format!("{parts:?}");
                let password = parts.password.as_ref().map(reveal).unwrap_or_default();
                let only_there = text.matches("s3cretword").count() == 1;
                assert!(!only_there || password != "s3cretword" || !shown.contains(password), "{shown}");
                "parts"
            }
            Err(failure) => {
                assert!(!failure.to_string().contains("s3cretword"), "{failure}");
                "refused"
            }
        }
    });
}

#[test]
fn typo() {
    let known = ["timeout", "password-file", "order"];
    Target::new("typo", HERE).seeds(known).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text" };
        match meant(text, known.iter().copied()) {
            Some(found) => {
                assert!(known.contains(&found));
                "meant"
            }
            None => "unknown",
        }
    });
}
