//! `watch`: a line for every change of a lock.

use std::io::{self, Write};
use std::time::Duration;

use leasehold::{Client, Note, Snapshot, SnapshotVersion, SystemClock, backend::Clock};
use leasehold_monitor::LockShape;

use crate::commands::show::summary;
use crate::exit::{Exit, Problem};
use crate::output::json;
use crate::output::text::now;
use crate::request::args::LookArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold watch`. Signals keep their defaults: they end the command at once, even without a reader of its
/// output.
///
/// # Errors
/// The store failed for longer than is tolerated; stdout cannot be written.
pub(crate) async fn watch(args: LookArgs) -> Result<Exit, Problem> {
    let locks = StoreUrl::named(args.store.url.as_deref())?.read_only().open(Note::default()).await?;
    let mut snapshot = locks.inspect(args.name.as_str()).await?;
    loop {
        print(&snapshot, args.json)?;
        snapshot = next(&locks, args.name.as_str(), &snapshot.version).await?;
    }
}

/// Waits for another version. Retries while the store is briefly unreachable.
async fn next(locks: &Client, name: &str, seen: &SnapshotVersion) -> Result<Snapshot, Problem> {
    let mut failing_since = None;
    loop {
        match locks.changed(name, seen, LOOK).await {
            Ok(snapshot) if snapshot.version != *seen => return Ok(snapshot),
            Ok(_) => failing_since = None,
            Err(error) => {
                let now = SystemClock.now();
                let since = *failing_since.get_or_insert(now);
                let passes = matches!(
                    error.kind(),
                    leasehold::ErrorKind::Unavailable | leasehold::ErrorKind::OutcomeUnknown
                );
                if !passes || now.since(since) >= OUTAGE {
                    return Err(error.into());
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

fn print(snapshot: &Snapshot, json: bool) -> Result<(), Problem> {
    let mut out = io::stdout().lock();
    if json {
        json::line(&mut out, &LockShape::of_now(snapshot))?;
    } else {
        writeln!(out, "{}  {}", now(), summary(snapshot))?;
        out.flush()?;
    }
    Ok(())
}

/// The time for which one request waits for a change.
const LOOK: Duration = Duration::from_secs(30);
/// The time for which a store may be away.
const OUTAGE: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_millis(500);
