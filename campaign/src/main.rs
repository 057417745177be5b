//! `campaign`: runs cells of stores and faults, writes their page, and watches a store for hours.

use std::process::ExitCode;

mod arguments;

fn main() -> ExitCode {
    // Before there are threads and a runtime.
    match std::env::args().nth(1).as_deref() {
        Some("torture-worker") => leasehold_torture::worker::run(),
        Some("endure-worker") => leasehold_campaign::endure::work(),
        Some("broken-worker") => {
            leasehold_campaign::broken::work(&std::env::args().nth(2).unwrap_or_default())
        }
        _ => arguments::run(),
    }
}
