//! A nightly job that several machines start at the same hour, and one of them does.
//!
//! Each machine starts this from its own clock. Whoever gets the lock does the work; the others find it taken and leave. It is held
//! for a minimum of time, so that a machine whose clock is a little behind finds it taken too.
//!
//! ```console
//! $ cargo run -p leasehold --example nightly_job                          # files: for the processes of this machine
//! $ cargo run -p leasehold --example nightly_job redis://127.0.0.1        # for all machines
//! ```
//!
//! Start it twice at the same time: one writes the report, the other says that it need not.

use std::path::PathBuf;
use std::time::Duration;

use leasehold::fenced::FencedFile;
use leasehold::{Client, FenceGrade};

/// The most by which the clocks of the machines differ. An hour would do no harm to a job that runs once a day.
const SKEW: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join("leasehold-nightly");
    std::fs::create_dir_all(&folder)?;
    let store = format!("file:{}", folder.join("locks").display());
    let locks = Client::open(&std::env::args().nth(1).unwrap_or(store)).await?;

    let nightly = locks.mutex("nightly-report").min_hold(SKEW).require_fencing(FenceGrade::BestEffort)?;
    let Some(guard) = nightly.try_lock().await? else {
        println!("somebody else writes the report tonight");
        return Ok(());
    };
    // Stopped the moment the lock is lost: then somebody else may have begun.
    let report = guard.run(report()).await?;
    // And if this process was stopped in between and does not know it yet, the file does.
    let path: PathBuf = folder.join("report.txt");
    FencedFile::open(&path, guard.fence())?.write(report.as_bytes())?;
    println!("the report is in {}", path.display());
    guard.release().await?;
    Ok(())
}

/// What takes its time at night.
async fn report() -> String {
    let mut sum = 0;
    for day in 1..=31_u32 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        sum += day;
    }
    format!("the days of the month are {sum} in all\n")
}
