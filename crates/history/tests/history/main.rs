//! Histories that are written by hand, and what the checker, the exports and the picture make of them.

#![allow(clippy::unwrap_used, reason = "a test panics on an unexpected error")]

mod clients;
mod clocks;
mod excuses;
mod exports;
mod handover;
mod invariants;
mod mutants;
mod reading;
mod story;
mod unjudged;
