//! The store of cells, and the checks of `doctor`.

pub(crate) mod cells;
pub(crate) mod diagnose;
