//! The laws every backend keeps, as a test suite.
#![forbid(unsafe_code)]
