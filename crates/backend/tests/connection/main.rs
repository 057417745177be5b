//! Tests of a connection that many requests share, over a protocol of lines: each module is one subject.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, also in its helpers")]

mod caller;
mod ends;
mod lines;
mod many;
