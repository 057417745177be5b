//! The knowledge of this client of its cells: their text decoded, and those that it owns, left empty or observed.

pub(crate) mod client_knowledge;
pub(crate) mod decoded;
pub(crate) mod empty_cells;
pub(crate) mod lifetime;
pub(crate) mod observed_claims;
pub(crate) mod owned_cells;
