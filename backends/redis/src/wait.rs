//! Waiting claims: the time of their next request, and the signs of life that they give.

pub(crate) mod keepalive;
pub(crate) mod polling;
