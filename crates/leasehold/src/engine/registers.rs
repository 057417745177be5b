//! Registers: small values beside the locks, changed by compare and set.

pub(crate) mod record;
pub(super) mod register;
