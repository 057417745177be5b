//! Judges a history again: `cargo run --release -p leasehold-history --example check -- history.jsonl`.
//!
//! With a second word (`edn`, `mutex.edn`, `log` or `porcupine.json`) it prints the history in that format instead,
//! and a third one names the lock.

use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;
use std::time::Instant;

use leasehold_history::{Checker, Format, History};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = words.first() else {
        return Err("name the file of a history, and a format to print it in another one".into());
    };
    let history = History::read(BufReader::new(File::open(path)?))?;
    if let Some(suffix) = words.get(1) {
        let format = Format::ALL.iter().find(|format| format.suffix() == suffix);
        let format = format.ok_or("the formats are edn, mutex.edn, log and porcupine.json")?;
        print!("{}", history.export(*format, words.get(2).map(String::as_str)));
        return Ok(ExitCode::SUCCESS);
    }
    let begun = Instant::now();
    let verdict = Checker::new().check(&history);
    println!("{:#?}", verdict.counts);
    for unjudged in &verdict.unjudged {
        println!("{} is not judged: {}", unjudged.invariant, unjudged.why);
    }
    for violation in &verdict.violations {
        println!("{} ({}): {}", violation.invariant, violation.class, violation.what);
    }
    println!("{} events judged in {:.1?}", history.events().len(), begun.elapsed());
    Ok(if verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
