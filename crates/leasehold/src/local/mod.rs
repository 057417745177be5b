//! The stores that need no server: memory for one process, files for the processes of one machine.
#![forbid(unsafe_code)]

mod memory;

pub use memory::MemoryBackend;
