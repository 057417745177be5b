//! The checks, one file a law.
//!
//! Each check is an async function over a [`Trial`](crate::trial::Trial) that uses only names of its own,
//! so that all of them can run at once on one store. The list of them is in `list.rs`.

pub(crate) mod adoption;
pub(crate) mod batch;
pub(crate) mod idempotence;
pub(crate) mod order;
pub(crate) mod own_only;
pub(crate) mod patience;
pub(crate) mod processes;
pub(crate) mod profile;
pub(crate) mod registers;
pub(crate) mod renewal;
pub(crate) mod residue;
pub(crate) mod safety;
pub(crate) mod view;
pub(crate) mod wake;
