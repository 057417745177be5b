//! The renewal of held leases: one task for each client, and its inbox.

pub(super) mod inbox;
pub(super) mod renewer;
