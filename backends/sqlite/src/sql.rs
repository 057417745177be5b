//! SQL: the tables, the statements on them, and what their rows contain.

pub(crate) mod fences;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod statements;
pub(crate) mod time;
