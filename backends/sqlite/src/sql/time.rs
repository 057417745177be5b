//! The time in which rows count.

/// Reads the microseconds since the machine started, suspend included.
pub(crate) fn now() -> i64 {
    i64::try_from(leasehold_machine::since_boot().as_micros()).unwrap_or(i64::MAX)
}
