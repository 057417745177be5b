//! A live view of the locks of a store, in a terminal.
//!
//! ```text
//!  run ─▶ terminal ─▶ screen ─▶ app ─▶ dialog, help, graph, detail, list ─▶ frame ─▶ theme, cells
//! ```
//!
//! Files are layers, and imports point to the right. `app` is the whole state, and what each key does to it;
//! `screen` draws it; `run` connects it with the monitor, the terminal and the signals.
//!
//! Ground rules: only the public API of leasehold is used. Foreign text is made visible before it reaches a cell.
//! Nothing is said by a colour alone. Nothing is revoked or broken without a question that names the claims.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod app;
mod cells;
mod detail;
mod dialog;
mod frame;
mod graph;
mod help;
mod list;
mod run;
mod screen;
mod terminal;
mod theme;

pub use run::{Ended, Settings, run};
pub use terminal::check_terminal;
