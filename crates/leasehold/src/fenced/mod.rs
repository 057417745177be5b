//! Resources that refuse the holder of yesterday.
//!
//! A fence is worth something only where it is checked. Checking it at the write alone still loses updates: an old
//! holder reads, is paused, a new one reads, the old one writes (nobody newer has written yet), the new one writes
//! over it. So a fenced resource is *opened* with the fence, which raises the resource's own before the first
//! read; from then on every older holder is refused, for reads and writes alike.
//!
//! [`FenceGate`] guards something in this process, [`FencedFile`] a file that the processes of one machine share.

mod file;
mod gate;

use leasehold_core::Fence;

pub use file::{FencedFile, FencedFileError};
pub use gate::{FenceGate, Pass};

/// Somebody with a newer fence was here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "refused: a later holder (fence {seen}) has opened it after yours ({yours}); start again with a new lock"
)]
pub struct Stale {
    /// The fence that was shown.
    pub yours: Fence,
    /// The newest that the resource has seen.
    pub seen: Fence,
}
