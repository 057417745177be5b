//! The HTTP API from outside: a server over a real store, and clients that speak HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "it is a test, which the lint does not see in helpers"
)]

mod acquire;
mod conformance;
mod connections;
mod counter;
mod credentials;
mod elections;
mod examples;
mod limits;
mod odd;
mod openapi;
mod probes;
mod processes;
mod security;
mod stream;
mod support;
mod tls;
