//! The page of the grid is what the results in the repository say.

#![allow(clippy::unwrap_used, reason = "a test panics on an unexpected error")]

use std::path::Path;

use leasehold_campaign::page;

#[test]
fn page_and_track_record_are_current() {
    page::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
}
