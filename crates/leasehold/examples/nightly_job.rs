//! A nightly job that several machines start at the same hour, and that one of them does.
//!
//! Each machine starts this program by its own clock. The machine that gets the lock does the work; the
//! others find the lock taken and leave. The lock is held for a minimum time, so that a machine whose
//! clock is a little behind finds it taken too.
//!
//! ```console
//! $ cargo run -p leasehold --example nightly_job                          # files: for the processes of this user
//! $ cargo run -p leasehold --example nightly_job redis://127.0.0.1        # for all machines
//! ```
//!
//! Start it twice at the same time: one writes the report, the other says that it need not.

use std::path::PathBuf;
use std::time::Duration;

use leasehold::fenced::FencedFile;
use leasehold::{Client, FenceGrade};

/// The largest difference between the clocks of the machines. An hour would do no harm to a job that
/// runs once a day.
const SKEW: Duration = Duration::from_secs(10);

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
    // Stopped at the moment the lock is lost: another machine may have begun then.
    let report = guard.run(report()).await?;
    // A process that was stopped in between may not know of a loss yet, but the fence in the file shows
    // it.
    let path: PathBuf = folder.join("report.txt");
    FencedFile::open(&path, guard.fence())?.write(report.as_bytes())?;
    println!("the report is in {}", path.display());
    guard.release().await?;
    Ok(())
}

/// Makes the report, which takes some time.
async fn report() -> String {
    let mut sum = 0;
    for day in 1..=31_u32 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        sum += day;
    }
    format!("the days of the month are {sum} in all\n")
}
