//! A word to those who wait.

use tokio_util::sync::CancellationToken;

/// Ends the waits of other threads: the interruptible acquisition of `java.util.concurrent`, as a value.
///
/// Clones are the same interrupt. It stays interrupted: for new waits make a new one.
///
/// ```
/// use leasehold::blocking::{Interrupt, Leasehold};
/// use leasehold::ErrorKind;
///
/// # fn main() -> leasehold::Result<()> {
/// let locks = Leasehold::open("mem:")?;
/// let guard = locks.mutex("job").lock()?;
/// let interrupt = Interrupt::new();
/// let waiter = std::thread::spawn({
///     let mutex = locks.mutex("job").interrupted_by(&interrupt);
///     move || mutex.lock().map(drop)
/// });
/// interrupt.interrupt();
/// assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
/// # guard.release()
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Interrupt(CancellationToken);

impl Interrupt {
    /// One that nobody has used yet.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Ends all waits under it, those that are to come as well. Repeating it changes nothing.
    pub fn interrupt(&self) {
        self.0.cancel();
    }

    /// Whether it was used.
    pub fn is_interrupted(&self) -> bool {
        self.0.is_cancelled()
    }

    pub(super) async fn interrupted(&self) {
        self.0.cancelled().await;
    }
}
