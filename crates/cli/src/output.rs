//! Output for people and programs: text, tables, JSON, progress and logs.

pub(crate) mod counter;
pub(crate) mod describe;
pub(crate) mod json;
pub(crate) mod log;
pub(crate) mod paint;
pub(crate) mod progress;
pub(crate) mod redact;
pub(crate) mod status;
pub(crate) mod stderr;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod writing;
