//! Histories that are written by hand, and what the checker, the exports and the picture make of them.

mod exports;
mod invariants;
mod mutants;
mod reading;
mod story;
