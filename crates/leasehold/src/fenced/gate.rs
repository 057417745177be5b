//! A fence check inside one process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::Fence;

use super::{FenceError, Stale, compare, required};

/// A gate that lets in only the newest holder that it has seen.
///
/// ```
/// use leasehold::{Fence, fenced::FenceGate};
///
/// let gate = FenceGate::new(0u64);
/// let old = gate.open(Fence::new(0, 33, 0)).unwrap();
/// let new = gate.open(Fence::new(0, 34, 0)).unwrap();
/// assert!(old.access(|value| *value += 1).is_err());
/// new.access(|value| *value += 1).unwrap();
/// ```
#[derive(Debug, Default)]
pub struct FenceGate<T> {
    inner: Arc<Mutex<Inner<T>>>,
}

#[derive(Debug, Default)]
struct Inner<T> {
    seen: Fence,
    value: T,
}

/// The access of one fence to the value behind the gate, until a newer one comes.
#[derive(Debug)]
pub struct FencedAccess<T> {
    inner: Arc<Mutex<Inner<T>>>,
    fence: Fence,
}

impl<T> FenceGate<T> {
    /// Puts `value` behind a gate that has not seen a fence.
    pub fn new(value: T) -> Self {
        FenceGate { inner: Arc::new(Mutex::new(Inner { seen: Fence::default(), value })) }
    }

    /// Presents a fence, and raises the fence of the gate to it.
    ///
    /// # Errors
    /// [`Stale`] if a newer one was presented before; [`NoFence`](super::NoFence).
    pub fn open(&self, fence: impl Into<Option<Fence>>) -> Result<FencedAccess<T>, FenceError> {
        let fence = required(fence)?;
        let mut inner = lock(&self.inner);
        compare(fence, inner.seen)?;
        inner.seen = fence;
        Ok(FencedAccess { inner: self.inner.clone(), fence })
    }
}

impl<T> FencedAccess<T> {
    /// Reads or changes the value behind the gate; no other access happens meanwhile.
    ///
    /// # Errors
    /// [`Stale`] if a newer fence was presented since; `work` has not run then.
    pub fn access<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Stale> {
        let mut inner = lock(&self.inner);
        compare(self.fence, inner.seen)?;
        Ok(work(&mut inner.value))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_gate_open_excludes_older_fences_before_a_read() {
        let gate = FenceGate::new(vec![1]);
        let old = gate.open(Fence::new(0, 1, 0)).unwrap();
        let handed_on = gate.open(Fence::new(0, 1, 1)).unwrap();
        let stale = Stale { yours: Fence::new(0, 1, 0), seen: Fence::new(0, 1, 1) };
        assert_eq!(old.access(|_| ()), Err(stale));
        assert_eq!(handed_on.access(|value| value.len()), Ok(1));
        assert!(gate.open(Fence::new(0, 1, 0)).is_err());
        assert!(gate.open(Fence::new(0, 1, 1)).is_ok(), "the same holder may open it again");
    }
}
