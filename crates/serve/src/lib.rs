//! `leasehold serve`: the HTTP API, the web console and the probes.
//!
//! ```text
//!  listen ─▶ console, api ─▶ guard ─▶ probes ─▶ state ─▶ holds, watchers, token ─▶ problem ─▶ config
//! ```
//!
//! Folders are layers, and imports point to the right. A lock that is held for an HTTP client is a `Guard`
//! inside `holds`; all that an answer says about its validity comes from there.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod api;
mod body;
mod config;
mod console;
mod guard;
mod holds;
mod lately;
mod listen;
mod probes;
mod problem;
mod state;
mod token;
mod watchers;

pub use config::{Config, Limits, Listen, TlsFiles};
pub use listen::{ServeError, Server};
pub use probes::subscriber;
