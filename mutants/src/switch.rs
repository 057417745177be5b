//! Which mutant is on. The text of this file becomes a module of the crate that is changed.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns `true` if this process runs with this mutant.
///
/// In a process without a mutant, its number is written once into the file that a variable names.
#[must_use]
pub fn on(number: usize) -> bool {
    static CHOSEN: OnceLock<Option<usize>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("LEASEHOLD_MUTANT").ok()?.parse().ok());
    if chosen.is_none() {
        note(number);
    }
    *chosen == Some(number)
}

/// Notes that a mutant is reached. Takes no lock: another thread may have it while the process is forked.
fn note(number: usize) {
    static FILE: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    static SEEN: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
    let Some(file) = FILE.get_or_init(|| std::env::var_os("LEASEHOLD_MUTANTS_REACHED")) else { return };
    if !SEEN[number].swap(true, Ordering::Relaxed)
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(file)
    {
        // Several processes of one test append to it. A line that is lost costs one test that could judge.
        let _ = file.write_all(format!("{number}\n").as_bytes());
    }
}

/// More than there are in any area.
const MOST: usize = 10_000;
