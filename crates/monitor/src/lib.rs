//! A picture of the locks of a store, refreshed at a bounded cost, for views of any kind.
//!
//! ```text
//!  monitor ─▶ refresh, follow ─▶ overview, graph ─▶ row, history ─▶ shapes ─▶ cost, actions, text
//! ```
//!
//! A [`Monitor`] keeps one picture of a store, the [`Overview`], for any number of receivers. It lists the locks,
//! and looks at some of them more closely in each round; [`cost`] states what that costs. [`Monitor::follow`] looks
//! at one lock all the time, and records which claims held it.
//!
//! Ground rules: nothing here changes the store, except [`actions`]. A picture says when it was taken. If the store
//! does not answer, the last picture stays, with the error beside it. The id of a claim, which is enough to end the
//! claim, is in no shape that is serialized.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod actions;
pub mod cost;
mod follow;
mod graph;
mod history;
mod monitor;
mod options;
mod overview;
mod refresh;
mod row;
mod shapes;
mod shared;
pub mod text;
mod view;

pub use follow::{Followed, FollowedLock};
pub use graph::{Edge, EdgeKind, GraphNode, NodeKind, WaitGraph};
pub use history::{Ending, History, Holding};
pub use monitor::Monitor;
pub use options::Options;
pub use overview::{DeadlockReport, Outage, Overview, RefreshCost};
pub use row::{LockDetail, LockRow};
pub use shapes::{BrokenShape, ClaimShape, LockShape, RevokedShape};
pub use view::{Filter, Sort, SortKey};

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
