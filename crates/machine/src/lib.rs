//! Facts about the machine that stores rely on: its clock, its boot, its namespaces, its file systems, its
//! processes.
//!
//! Ground rules: each fact is read in one place, so that the file store, SQLite and the command judge a
//! machine alike. Nothing here decides about locks. A fact that containers can replace says so.

#![deny(unsafe_code)]

mod boot;
mod clock;
mod file_system;
mod forks;
mod namespace;
mod process;
mod process_id;

pub use boot::{BOOT_ID, boot_id};
pub use clock::since_boot;
pub use file_system::{FileSystem, is_mount};
pub use forks::forks;
pub use namespace::time_namespace;
pub use process::{Process, Unforked, spawn};
pub use process_id::process_id;
