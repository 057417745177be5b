//! Random numbers of the operating system.

use leasehold_core::Failure;

/// Draws a number.
///
/// # Errors
/// `Unavailable`, with no effect, if the operating system gives none.
pub fn number() -> Result<u64, Failure> {
    getrandom::u64().map_err(|error| {
        Failure::unavailable(format!("the operating system gives no random numbers: {error}"))
    })
}

/// Draws the chance of a pause; see [`leasehold_core::jittered`]. Without random numbers the pause is the
/// whole one: late, but never wrong.
pub fn chance() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX)
}
