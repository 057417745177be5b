//! Readings of the machine: the time, and the processor time of ours and of a server.

use std::time::Duration;

use leasehold_testkit::{Counts, RedisServer};
use rustix::time::{ClockId, clock_gettime};

use crate::Outcome;

/// Nanoseconds of `CLOCK_MONOTONIC`, which is one for all processes of a machine.
pub(crate) fn now_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Returns the processor time that this process has used, all threads together.
pub(crate) fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the memory of this process, in bytes.
pub(crate) fn resident() -> Outcome<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split(' ').nth(1).ok_or("the kernel does not report the memory of a process")?;
    Ok(resident.parse::<usize>()? * rustix::param::page_size())
}

/// Returns the processor time that a server has used.
pub(crate) async fn server_cpu(server: &RedisServer) -> Outcome<Duration> {
    let mut seconds = 0.0;
    for field in ["used_cpu_user", "used_cpu_sys"] {
        let text = server.info_field(field).await?.ok_or("redis does not report its processor time")?;
        seconds += text.trim().parse::<f64>()?;
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Returns the number of commands that clients sent, out of all that the server ran: the calls of
/// scripts are counted under their own names, beside the script, and leasehold sends none of these by
/// itself.
pub(crate) fn sent(counts: &Counts) -> u64 {
    SENT.iter().map(|command| counts.of(command)).sum()
}

const SENT: &[&str] = &[
    "auth",
    "client",
    "config",
    "eval",
    "evalsha",
    "hello",
    "info",
    "ping",
    "scan",
    "script",
    "select",
    "subscribe",
    "unsubscribe",
];
