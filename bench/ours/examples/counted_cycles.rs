//! The instructions and the allocations of an uncontended lock in memory: acquired and released, by one task.
//!
//! `cargo run --release -p leasehold-bench --example counted_cycles` prints both beside their targets.
//! It needs valgrind, and runs itself under its tools `callgrind` and `dhat`, each with two numbers of
//! cycles: the difference is what the cycles cost, without the beginning and the end of the process. Time says
//! less on a machine that does other work as well.
//!
//! The kernel's part is not counted. Valgrind hides the code that the kernel maps for reading clocks, so each
//! reading counts as a system call here.

use std::error::Error;
use std::process::Command;
use std::sync::Arc;

use leasehold::Client;
use leasehold::local::MemoryBackend;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => count(),
        [cycles] => run(cycles.parse()?),
        _ => Err("usage: counted_cycles [CYCLES]".into()),
    }
}

fn run(cycles: u64) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let locks = Client::builder().over(Arc::new(MemoryBackend::new()))?;
        let mutex = locks.mutex("counted");
        for _ in 0..cycles {
            mutex.lock().await?.release().await?;
        }
        Ok(())
    })
}

fn count() -> Result<(), Box<dyn Error>> {
    let instructions = per_cycle("callgrind", "--callgrind-out-file=/dev/null", "Collected", 0)?;
    let allocations = per_cycle("dhat", "--dhat-out-file=/dev/null", "Total:", 1)?;
    println!("one uncontended acquisition and release in memory:");
    println!("{instructions:8.1} instructions (target {INSTRUCTIONS})");
    println!("{allocations:8.1} allocations (target {ALLOCATIONS})");
    Ok(())
}

/// Returns what a tool of valgrind counts for one cycle.
fn per_cycle(tool: &str, option: &str, line: &str, which: usize) -> Result<f64, Box<dyn Error>> {
    let few = counted(tool, option, line, which, FEW)?;
    let many = counted(tool, option, line, which, MANY)?;
    Ok((many - few) / f64::from(MANY - FEW))
}

/// Returns a number of the line of the tool's report that contains this text.
fn counted(tool: &str, option: &str, line: &str, which: usize, cycles: u32) -> Result<f64, Box<dyn Error>> {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg(format!("--tool={tool}")).arg(option);
    let output = valgrind.arg(std::env::current_exe()?).arg(cycles.to_string()).output()?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind --tool={tool} failed: {report}").into());
    }
    let line = report.lines().find_map(|text| text.split_once(line)).ok_or("the report has no such line")?;
    let digits = |word: &str| word.chars().filter(char::is_ascii_digit).collect::<String>();
    let mut numbers = line.1.split_whitespace().map(digits).filter(|word| !word.is_empty());
    let number = numbers.nth(which).ok_or("the line has no such number")?;
    Ok(number.parse()?)
}

const FEW: u32 = 1_000;
const MANY: u32 = 11_000;
/// The targets: at most so many.
const INSTRUCTIONS: f64 = 10_000.0;
const ALLOCATIONS: f64 = 8.0;
