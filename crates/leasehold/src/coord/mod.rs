//! What is built from locks: several as one, one cut into segments, an election.
//!
//! Ground rules: nothing here talks to a backend. Whatever is promised here follows from what the locks promise.

mod election;
mod multi;
mod segmented;

pub use election::{Election, Leader, Leadership, Observer};
pub use multi::{Loss, MultiGuard, MultiLock};
pub use segmented::{Segment, SegmentReport, SegmentUse, Segmented};
