//! The tables and the statements on them.

pub(crate) mod schema;
pub(crate) mod statements;
