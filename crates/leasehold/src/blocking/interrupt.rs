//! An interrupt for waiting threads.

use tokio_util::sync::CancellationToken;

/// An interrupt that ends the waits of other threads: the interruptible acquisition of
/// `java.util.concurrent`, as a value.
///
/// Clones are the same interrupt. It stays triggered: make a new one for new waits.
///
/// An interrupted call leaves behind as much as a future that is dropped: no place in a queue and no lock, but a
/// change of a value may be made. The error of such a call says so
/// ([`may_have_happened`](crate::Error::may_have_happened)).
///
/// ```
/// use leasehold::blocking::{Interrupt, Client};
/// use leasehold::ErrorKind;
///
/// # fn main() -> leasehold::Result<()> {
/// let locks = Client::open("mem:")?;
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
    /// Creates an interrupt that has not been triggered.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Ends all waits under it, future ones as well. Repeating it changes nothing.
    pub fn interrupt(&self) {
        self.0.cancel();
    }

    /// Returns `true` if the interrupt has been triggered.
    pub fn is_interrupted(&self) -> bool {
        self.0.is_cancelled()
    }

    pub(super) async fn interrupted(&self) {
        self.0.cancelled().await;
    }
}
