//! The tables and the statements on them.

pub(crate) mod home;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod statements;
