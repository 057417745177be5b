//! What is built from locks and registers: several as one, one cut into segments, an election, a value with a version.
//!
//! Ground rules: nothing here talks to a backend. Whatever is promised here follows from what locks and registers promise.

mod election;
mod multi;
mod segmented;
mod versioned;

pub use election::{Election, Leader, Leadership, Observer};
pub use multi::{Loss, MultiGuard, MultiLock};
pub use segmented::{Segment, SegmentReport, SegmentUse, Segmented};
pub use versioned::{Update, Versioned, Versioning};
