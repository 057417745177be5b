//! The operating system: processes, signals and the terminal.

pub(crate) mod caller;
pub(crate) mod descriptors;
pub(crate) mod fork;
pub(crate) mod keeper_socket;
pub(crate) mod kill_tree;
pub(crate) mod orphans;
pub(crate) mod processes;
pub(crate) mod script_fd;
pub(crate) mod service_manager;
pub(crate) mod signals;
pub(crate) mod starter;
pub(crate) mod terminal;
pub(crate) mod token;
pub(crate) mod warden;
