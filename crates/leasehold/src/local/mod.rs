//! The stores that need no server: memory for one process, files for the processes of one machine.
#![forbid(unsafe_code)]

mod file;
mod memory;

pub(crate) use file::FILE_URLS;
pub use file::{FileBackend, FileConfig, LivenessHandle, Network, default_root};
pub use memory::MemoryBackend;
