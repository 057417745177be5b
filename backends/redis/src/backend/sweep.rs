//! Finds the fences of unused resources, and removes them without a fence ever decreasing.
//!
//! Ground rules: the key of a fence is removed only in the script that has seen to it that the floor of
//! its slot is as high, so each later grant is above it, independent of the clock. Claims that hold or
//! wait stay.

use std::time::Duration;

use leasehold_core::{Effect, Failure, FailureKind};
use redis::cmd;

use crate::backend::RedisBackend;
use crate::backend::inspect::{MAX_SCANS, SCAN_COUNT, glob_escaped, too_many};
use crate::config::RedisConfig;
use crate::net::command_conn::CommandConn;
use crate::net::request::Request;
use crate::protocol::keys::Keys;
use crate::protocol::reply;
use crate::protocol::scripts;

/// The outcome of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Fences that were looked at. One that the server shows twice counts twice.
    pub seen: u64,
    /// Fences that were removed.
    pub removed: u64,
}

/// Removes the fences of resources that were not used for `unused_for`, on every server that decides.
///
/// # Promises
/// Nothing that is held or waited for is touched. The next fence of each resource is greater than all
/// before, also where the server's clock is set back. Safe while clients of this version and other
/// sweepers run. Each request is about some hundred keys.
///
/// # Does not promise
/// Rising fences while clients of a version that does not know floors run, where the server's clock is set
/// back by more than `unused_for`.
///
/// # Cancel safety
/// May be dropped at any point; what was swept by then stays so.
///
/// # Errors
/// `Unsupported` for another dialect than the native one; `Denied` without the rights; else a
/// [`Failure`] of the server, after which the sweep can be begun anew.
pub async fn sweep(config: RedisConfig, unused_for: Duration) -> Result<SweepReport, Failure> {
    sweep_under(config, "", unused_for, |_| ()).await
}

/// Does as [`sweep`] for names that begin with `prefix` only, and calls `progress` with what is done after each step.
/// A name that is too long to be written out in a key is not found by a prefix.
///
/// # Errors
/// As [`sweep`].
pub async fn sweep_under(
    config: RedisConfig,
    prefix: &str,
    unused_for: Duration,
    progress: impl Fn(SweepReport) + Send + Sync,
) -> Result<SweepReport, Failure> {
    if config.must_be_native().is_err() || config.dual().is_some() {
        let text = "a lock of another library keeps no fences of leasehold: there is nothing to sweep";
        return Err(Failure::new(FailureKind::Unsupported, Effect::None, text));
    }
    let backend = RedisBackend::connect(config).await?;
    let mut swept = SweepReport::default();
    for conn in backend.servers.each().await? {
        backend.sweep_at(&conn, prefix, unused_for, &mut swept, &progress).await?;
    }
    Ok(swept)
}

impl RedisBackend {
    /// Goes through the keys of one server once.
    async fn sweep_at(
        &self,
        conn: &CommandConn,
        prefix: &str,
        unused_for: Duration,
        swept: &mut SweepReport,
        progress: &(impl Fn(SweepReport) + Send + Sync),
    ) -> Result<(), Failure> {
        let pattern = format!("{}*}}:fence", glob_escaped(&Keys::beginning(&self.config.prefix, prefix)));
        let mut cursor = 0u64;
        for _ in 0..MAX_SCANS {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
            let (next, found): (u64, Vec<Vec<u8>>) =
                reply::read(conn.command(&scan, self.config.timeout).await?)?;
            let fences = found.iter().filter_map(|key| std::str::from_utf8(key).ok());
            let keys: Vec<Keys> = fences.filter_map(|key| Keys::of_fence(&self.config.prefix, key)).collect();
            swept.seen += u64::try_from(keys.len()).unwrap_or(u64::MAX);
            swept.removed += self.sweep_batch(&keys, unused_for).await?;
            progress(*swept);
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
            tokio::time::sleep(BETWEEN_STEPS).await;
        }
        Err(too_many("keys", "keep locks in a database of their own"))
    }

    /// Removes the unused ones of these. Returns how many.
    async fn sweep_batch(&self, keys: &[Keys], unused_for: Duration) -> Result<u64, Failure> {
        let mut removed = 0;
        for groups in self.groups(&keys.iter().map(Keys::held).collect::<Vec<_>>()).chunks(BATCHES) {
            let parts = groups.iter().flat_map(|group| group.chunks(BATCH_MAX));
            let requests = parts.map(|part| Request {
                script: &scripts::SWEEP,
                keys: part.iter().flat_map(|position| keys[*position].all_and_floor()).collect(),
                args: vec![unused_for.as_micros().to_string()],
                confirm: None,
            });
            let requests: Vec<Request> = requests.collect();
            for answer in self.servers.run_all(&requests, self.config.timeout).await {
                removed += reply::read::<u64>(answer?)?;
            }
        }
        Ok(removed)
    }
}

/// The number of resources that one script looks at, and of slots for which requests are under way at
/// once.
const BATCH_MAX: usize = 100;
const BATCHES: usize = 100;

/// A pause, so that clients are served between two steps.
const BETWEEN_STEPS: Duration = Duration::from_millis(10);
