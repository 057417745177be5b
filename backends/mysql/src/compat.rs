//! Tables of other libraries.

pub(crate) mod shedlock;
