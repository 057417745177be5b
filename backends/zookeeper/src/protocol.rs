//! Requests and answers as values: names of nodes, their queue and their data. No I/O.

pub(crate) mod dialect;
pub(crate) mod layout;
pub(crate) mod names;
pub(crate) mod proof;
pub(crate) mod queue;
pub(crate) mod resource_view;
pub(crate) mod shown;
