//! The renewal of held leases: one task for each client, its agenda and its inbox.

mod agenda;
pub(super) mod inbox;
pub(super) mod renewer;
mod renewer_task;
mod requests;
